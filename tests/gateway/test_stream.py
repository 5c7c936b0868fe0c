"""A stream by itself: keepalives, the slow client, and the ids."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka import ConsumerRecord

from streamguard.events import Source
from streamguard.executor.channel import Following, Heard, Listener
from streamguard.gateway import stream
from streamguard.gateway.cursor import read_cursor, write_cursor
from streamguard.gateway.responses import Refusal
from streamguard.gateway.stream import Streams, VerdictStream
from streamguard.settings import Settings
from streamguard.verdicts import Verdict, encode_verdict


class OneRun:
    """A channel of one partition."""

    def __init__(self) -> None:
        self.listener: Listener | None = None

    def partition_of(self, run_id: str) -> int:  # noqa: ARG002 - as a channel
        """There is one."""
        return 0

    async def follow(self, run_id: str, listener: Listener) -> Following:
        """Note who listens."""
        self.listener = listener
        following = Following(run_id, listener)
        following.since = 5
        return following

    def unfollow(self, following: Following) -> None:  # noqa: ARG002 - as a channel
        """Forget it."""
        self.listener = None


def heard(offset: int) -> Heard:
    """Make a verdict at an offset."""
    verdict = Verdict(verdict_id="v", run_id="r", action="warn", policy="p", source=Source("e", 0, offset, 0))
    value = encode_verdict(verdict)
    return Heard(verdict, ConsumerRecord("v", 0, offset, 0, 0, b"r", value, None, 1, len(value), ()))


class Client:
    """Reads a stream; `goes` when told to."""

    def __init__(self, channel: Any, keepalive: float = 60.0) -> None:
        self.streams = Streams(channel, Settings(), keepalive)
        self.goes = asyncio.Event()
        self.sent: asyncio.Queue[bytes] = asyncio.Queue()
        self.task = asyncio.create_task(VerdictStream(self.streams, ["r"], {})({}, self._receive, self._send))

    async def _receive(self) -> Any:
        await self.goes.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message.get("body"):
            await self.sent.put(message["body"])


async def test_a_quiet_stream_is_kept_alive() -> None:
    """When nothing is said a comment comes now and then; when the client goes, the stream ends and nobody listens."""
    channel = OneRun()
    client = Client(channel, keepalive=0.01)
    said = [await client.sent.get() for _ in range(3)]
    client.goes.set()
    await client.task

    assert [b"retry: 1000\nid: 0:4\n\n", b": keepalive\n\n", b": keepalive\n\n"] == said
    assert channel.listener is None


async def test_a_verdict_is_written_as_the_standard_says() -> None:
    """Id, event and data, each on a line; one that was said already is not said again."""
    channel = OneRun()
    client = Client(channel)
    await client.sent.get()
    assert channel.listener is not None
    for offset in (6, 6, 7):
        channel.listener(heard(offset))
    said = [await client.sent.get() for _ in range(2)]
    client.goes.set()
    await client.task

    assert [f"id: 0:{n}\nevent: warn\ndata: {heard(n).record.value.decode()}\n\n".encode() for n in (6, 7)] == said


async def test_stopping_ends_it_behind_what_waits() -> None:
    """A gateway that stops still tells what it has heard."""
    channel = OneRun()
    client = Client(channel)
    await client.sent.get()
    assert channel.listener is not None
    channel.listener(heard(6))
    client.streams.stopping.set()
    await client.task

    assert 1 == client.sent.qsize()


async def test_a_client_that_does_not_read_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond so many verdicts a stream ends without a gap: the client comes again with the id that it had last."""
    monkeypatch.setattr(stream, "WAITING_VERDICTS", 3)
    channel = OneRun()
    client = Client(channel)
    await client.sent.get()
    assert channel.listener is not None
    for offset in range(6, 20):
        channel.listener(heard(offset))
    await client.task

    assert [b"id: 0:6", b"id: 0:7", b"id: 0:8"] == [(await client.sent.get()).splitlines()[0] for _ in range(3)]
    assert client.sent.empty()


def test_ids_name_every_partition_of_the_stream() -> None:
    """An id is the place of its verdict, then where the other partitions stand; it is read back as it was."""
    reached = {3: 45, 0: -1, 11: 7}
    written = write_cursor(reached, 3)

    assert ("3:45,0:-1,11:7", reached) == (written, read_cursor(written))


@pytest.mark.parametrize("text", ["", "x", "1", "1:", ":1", "1:2,", "1:-2", "1:2;3:4", "1:" + "9" * 19, "1:1," * 9000])
def test_other_ids_are_refused(text: str) -> None:
    """An id that no stream ever had is 400."""
    with pytest.raises(Refusal):
        read_cursor(text)
