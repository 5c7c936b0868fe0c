"""Limits and errors of the gateway's API, where Kafka does not matter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from gateways import with_gateway

from streamguard.executor.channel import Following
from streamguard.executor.silence import Silence
from streamguard.gateway.app import Service
from streamguard.settings import Settings

TOKEN = "sixteen-characters-and-more"  # noqa: S105 - of a test
OTHER = "another-token-of-the-same-use"
CALL = b'{"type":"tool_call","run_id":"r","call_id":"c","tool":"t"}'


class Buffer:
    """A channel to a Kafka that is away: it keeps events, and acknowledges them when told to."""

    def __init__(self) -> None:
        self.silence = Silence()
        self.connected = asyncio.Event()
        self.published: list[tuple[str, bytes]] = []
        self.sent: list[asyncio.Future[bool]] = []
        self.dropped: list[str] = []

    def partition_of(self, run_id: str) -> int:  # noqa: ARG002 - as a channel
        """Not known."""
        return -1

    async def follow(self, run_id: str, listener: Any) -> Any:
        """Hear nothing."""
        following = Following(run_id, listener)
        following.since = 0
        return following

    def unfollow(self, following: Any) -> None:
        """Hear nothing."""

    def drop(self, reason: str) -> None:
        """Note it."""
        self.dropped.append(reason)

    async def reachable(self, seconds: float) -> bool:  # noqa: ARG002 - as a channel
        """It is not."""
        return False

    async def publish(self, run_id: str, value: bytes) -> asyncio.Future[bool]:
        """Keep an event."""
        self.published.append((run_id, value))
        self.sent.append(asyncio.get_running_loop().create_future())
        return self.sent[-1]


class Served:
    """A service and a client to it."""

    def __init__(self, client: httpx.AsyncClient, buffer: Buffer, service: Service) -> None:
        self.service = service
        self.client = client
        self.buffer = buffer

    async def post(self, path: str, content: Any, **headers: str) -> httpx.Response:
        """Send a body."""
        return await self.client.post(path, content=content, headers=headers)


def serve(tokens: tuple[str, ...] = (), **fields: Any) -> Served:
    """Make a service with some settings changed."""
    buffer = Buffer()
    settings = with_gateway(Settings(), **{"publish_timeout_seconds": 0.05, "gate_timeout_seconds": 0.05, **fields})
    service: Any = Service(settings, buffer, tokens)  # type: ignore[arg-type] # as far as it is needed
    client = httpx.AsyncClient(transport=httpx.ASGITransport(service.app), base_url="http://gateway")
    return Served(client, buffer, service)


@pytest.mark.parametrize(
    ("body", "index", "error"),
    [
        (b"", 0, "the record is empty"),
        (b"nothing", 0, "not JSON"),
        (b'{"type":"tool_call","run_id":"r"}', 0, "missing required field `tool`"),
        (b'{"type":"tool_call","run_id":" ","tool":"t"}', 0, "neither run_id nor session_id"),
        (b'{"type":"newer"}', 0, "neither run_id nor session_id"),
        (b"[" + CALL + b',{"type":"tool_call","tool":"t"}]', 1, "neither run_id nor session_id"),
        (b"[" + CALL + b",1]", 1, "not an event"),
        (b"[" + CALL, None, "the body is not JSON"),
        (b"[" * 200_000, None, "nested too deep"),
        (CALL[:-1] + b',"args":' + b"[" * 129 + b"]" * 129 + b"}", 0, "nested more than 128 deep"),
        (b'{"type":"tool_call","run_id":"' + b"r" * 513 + b'","tool":"t"}', 0, "length <= 512"),
        (CALL[:-1] + b',"args":"' + b"x" * 900_000 + b'"}', 0, "at most 900000 are allowed"),
    ],
)
async def test_a_bad_body_is_refused(body: bytes, index: int | None, error: str) -> None:
    """What the guard would refuse is 400 with the reason and the event's index, and nothing is published."""
    served = serve()
    response = await served.post("/v1/events", body)

    assert (400, index) == (response.status_code, response.json().get("index"))
    assert error in response.json()["error"]
    assert [] == served.buffer.published


async def test_events_go_out_as_they_came() -> None:
    """Values are published byte for byte under the run's key; half characters are replaced as the guard does it."""
    served = serve()
    body = rb'[{"type":"newer","session_id":" s ","x":1.0}, {"type":"run_ended","run_id":"r","reason":"\ud83d"} ]'
    response = await served.post("/v1/events?ack=0", body)

    assert 202 == response.status_code
    assert [
        ("s", b'{"type":"newer","session_id":" s ","x":1.0}'),
        ("r", rb'{"type":"run_ended","run_id":"r","reason":"\ufffd"}'),
    ] == served.buffer.published


async def test_an_empty_array_is_fine() -> None:
    """There is nothing to acknowledge."""
    assert {"accepted": 0} == (await serve().post("/v1/events", b"[]")).json()


@pytest.mark.parametrize("body", [b"[" + CALL + b"]", CALL.replace(b'"call_id":"c",', b""), b'{"type":"run_ended"}'])
async def test_a_gate_needs_one_call_with_an_id(body: bytes) -> None:
    """Anything else than one tool_call with a call_id is 400."""
    served = serve()
    response = await served.post("/v1/gate", body)

    assert (400, []) == (response.status_code, served.buffer.published)


async def test_the_gate_is_set_here() -> None:
    """`gate` is true on the topic, whatever came; unknown fields and numbers stay as they were."""
    served = serve()
    await served.post("/v1/gate", CALL[:-1] + b',"gate":false,"args":1.0,"new":[1e2]}')

    [(_, value)] = served.buffer.published
    assert b'{"type":"tool_call","run_id":"r","call_id":"c","tool":"t","gate":true,"args":1.0,"new":[1e2]}' == value


async def test_without_an_acknowledgement_events_are_503() -> None:
    """Kafka does not answer: 503 with Retry-After after the publish timeout; with ack=0 they are taken at once."""
    served = serve()
    waited, taken = [await served.post(f"/v1/events?ack={ack}", CALL) for ack in (1, 0)]

    assert (503, "1", 202) == (waited.status_code, waited.headers["retry-after"], taken.status_code)
    assert 2 == len(served.buffer.published)


async def test_what_the_broker_does_not_take_is_told() -> None:
    """An event beyond the topic's own limit is 413 with its index."""
    served = serve(publish_timeout_seconds=30.0)
    posting = asyncio.create_task(served.post("/v1/events", b"[" + CALL + b"," + CALL + b"]"))
    while len(served.buffer.sent) < 2:
        await asyncio.sleep(0)
    for sent, taken in zip(served.buffer.sent, (True, False), strict=True):
        sent.set_result(taken)
    response = await posting

    assert (413, 1) == (response.status_code, response.json()["index"])


@pytest.mark.parametrize("limit", [{"buffer_events": 3}, {"buffer_bytes": 3 * len(CALL)}])
async def test_a_full_buffer_takes_all_or_nothing(limit: dict[str, Any]) -> None:
    """A body that does not fit is 503 and none of it is published; once Kafka has taken some, it fits."""
    served = serve(**limit)
    two = b"[" + CALL + b"," + CALL + b"]"
    statuses = [(await served.post("/v1/events?ack=0", body)).status_code for body in (two, two, CALL)]
    served.buffer.sent[0].set_result(True)
    await asyncio.sleep(0)
    again = await served.post("/v1/events?ack=0", CALL)

    assert ([202, 503, 202], 202) == (statuses, again.status_code)
    assert 4 == len(served.buffer.published)


async def test_more_events_than_the_buffer_holds_are_413() -> None:
    """A body that could never fit is told so."""
    assert 413 == (await serve(buffer_events=1).post("/v1/events", b"[" + CALL + b"," + CALL + b"]")).status_code


async def test_a_call_is_allowed_though_there_is_no_room_for_it() -> None:
    """Fail open holds for a full buffer, too; that the guard never sees the call is counted."""
    served = serve(buffer_events=1)
    await served.post("/v1/events?ack=0", CALL)

    assert "nobody" == (await served.post("/v1/gate", CALL)).json()["decided_by"]
    assert ["dropped_buffer_full"] == served.buffer.dropped


async def test_there_are_only_so_many_streams() -> None:
    """Beyond `gateway.streams` a stream is 503 until one of them has ended."""
    served = serve(streams=1)
    served.buffer.connected.set()
    served.service.streams.stopping.set()  # a stream ends at once
    served.service.streams.open = 1
    refused = await served.client.get("/v1/verdicts?run_id=r")
    served.service.streams.open = 0
    ended = [(await served.client.get("/v1/verdicts?run_id=r")).status_code for _ in range(3)]

    assert (503, [200] * 3) == (refused.status_code, ended)
    assert "gateway.streams" in refused.json()["error"]


def chunks(read: list[int]) -> AsyncIterator[bytes]:
    """Yield a body without end, and note how far it was read."""

    async def endless() -> AsyncIterator[bytes]:
        while True:
            read.append(1)
            yield b" " * 1000

    return endless()


async def test_a_body_that_is_too_large_is_not_read_on() -> None:
    """A chunked body without end is 413 as soon as it is too large; one that says so is not read at all."""
    served = serve(body_bytes=5000)
    read: list[int] = []
    chunked = await served.post("/v1/events", chunks(read))
    said = await served.post("/v1/gate", b" " * 5001)

    assert [(413, "close")] * 2 == [(one.status_code, one.headers["connection"]) for one in (chunked, said)]
    assert 6 == len(read)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/events?ack=yes", 400),
        ("/v1/gate?timeout=0", 400),
        ("/v1/gate?timeout=nan", 400),
        ("/v1/gate?timeout=31", 400),
        ("/v1/gate?timeout=soon", 400),
        ("/v1/verdicts", 405),
        ("/healthz", 405),
        ("/v1/events/", 404),
        ("/", 404),
    ],
)
async def test_a_wrong_request_is_told(path: str, status: int) -> None:
    """Wrong parameters, paths and methods are errors, as JSON."""
    response = await serve().post(path, CALL)

    assert (status, ["error"]) == (response.status_code, list(response.json()))


@pytest.mark.parametrize(
    ("query", "headers", "status"),
    [
        ("", {}, 400),
        ("?run_id=", {}, 400),
        ("?run_id=" + "x" * 513, {}, 400),
        ("?" + "&".join(f"run_id={number}" for number in range(101)), {}, 400),
        ("?run_id=r", {"last-event-id": "7"}, 400),
        ("?run_id=r", {"last-event-id": "1:2,3"}, 400),
        ("?run_id=r", {"last-event-id": "1:2,3:-1"}, 503),
        ("?run_id=r&run_id=r", {}, 503),
    ],
)
async def test_a_stream_that_cannot_be(query: str, headers: dict[str, str], status: int) -> None:
    """Without runs, with too many, or with an id of somebody else's it is 400; before Kafka is reached 503."""
    response = await serve().client.get(f"/v1/verdicts{query}", headers=headers)

    assert status == response.status_code


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (None, 401),
        (f"Bearer {TOKEN}x", 401),
        (f"Basic {TOKEN}", 401),
        ("Bearer", 401),
        ("Bearer \xff", 401),
        (f"Bearer {TOKEN}", 202),
        (f"bearer  {OTHER} ", 202),
    ],
)
async def test_a_token_is_needed(authorization: str | None, status: int) -> None:
    """With tokens set only their bearers are served; anybody may ask for the health."""
    served = serve((TOKEN, OTHER))
    headers = [(b"authorization", authorization.encode("latin-1"))] if authorization is not None else []
    response = await served.client.post("/v1/events?ack=0", content=CALL, headers=headers)
    health = await served.client.get("/healthz")

    assert (status, 503) == (response.status_code, health.status_code)
    assert ("Bearer" if status == 401 else None) == response.headers.get("www-authenticate")


async def test_each_token_has_its_own_rate() -> None:
    """Beyond the rate it is 429 with Retry-After; another token is served all the same, and so is the health check."""
    served = serve((TOKEN, OTHER), requests_per_second=2.0)

    async def post(token: str) -> httpx.Response:
        return await served.post("/v1/events?ack=0", CALL, authorization=f"Bearer {token}")

    of_one = [await post(TOKEN) for _ in range(3)]
    of_other = await post(OTHER)
    strangers = [(await served.post("/v1/events", CALL)).status_code for _ in range(3)]
    healths = {(await served.client.get("/healthz")).status_code for _ in range(5)}

    assert [202, 202, 429] == [response.status_code for response in of_one]
    assert ("1", 202) == (of_one[2].headers["retry-after"], of_other.status_code)
    assert ([401, 401, 429], {503}) == (strangers, healths)


async def test_an_error_of_our_own_quotes_nothing(log_lines: list[dict[str, Any]]) -> None:
    """What goes wrong within is 500, and logged by its kind and place only."""
    served = serve()

    async def fail(run_id: str, value: bytes) -> Any:
        raise RuntimeError(f"{run_id}: {value!r}")

    served.buffer.publish = fail  # type: ignore[method-assign]
    response = await served.post("/v1/events", CALL)

    assert (500, ["error"]) == (response.status_code, list(response.json()))
    assert ["RuntimeError"] == [line["error"] for line in log_lines]
    assert "tool_call" not in str(log_lines)
