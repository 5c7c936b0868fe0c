"""The gateway on a real broker, with a worker behind it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
from cluster import Cluster, running
from gateways import serving, verdicts
from http_run import HttpRun
from runs import POLICIES, by_the_rules, follow

from streamguard.demo.agents import KINDS, Kind
from streamguard.executor.channel import partition_of
from streamguard.policy import PolicySet
from streamguard.stream.worker import Worker

SOON = PolicySet({"enabled": True, "warningThreshold": 2, "criticalThreshold": 3})


@pytest.fixture
async def cluster(broker: Any, topic_prefix: str) -> AsyncIterator[Cluster]:
    """Give a test topics of its own and clients to them."""
    async with Cluster(broker, topic_prefix) as cluster:
        yield cluster


def call(number: int, run_id: str = "run-1", **fields: Any) -> dict[str, Any]:
    """Return a call."""
    return {"type": "tool_call", "run_id": run_id, "call_id": f"c{number}", "tool": "read", **fields}


def result(number: int, run_id: str = "run-1") -> dict[str, Any]:
    """Return the result of a call: always the same."""
    return {"type": "tool_result", "run_id": run_id, "call_id": f"c{number}", "result": "same"}


async def gated(client: httpx.AsyncClient, event: dict[str, Any], **query: Any) -> dict[str, Any]:
    """Ask before a call."""
    response = await client.post("/v1/gate", json=event, params=query)
    assert 200 == response.status_code, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def loop(client: httpx.AsyncClient, times: int, run_id: str = "run-1") -> list[str]:
    """Make the same call with the same result; return what was decided."""
    decided = []
    for number in range(times):
        decided.append((await gated(client, call(number, run_id)))["action"])
        assert 202 == (await client.post("/v1/events", json=result(number, run_id))).status_code
    return decided


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.loops], ids=lambda kind: kind.name)
async def test_a_loop_is_stopped_as_the_rules_say(cluster: Cluster, kind: Kind) -> None:
    """Every documented way of looping, through two gateways by turns: each call is decided as the core decides it."""
    async with (
        running(Worker(cluster.settings, POLICIES)),
        serving(cluster.settings) as one,
        serving(cluster.settings) as other,
    ):
        run = HttpRun((one, other), "run-1", kind.name)
        outcome = await follow(run, kind, "seed")

    assert await by_the_rules(kind, "seed") == outcome
    assert {"guard"} == set(run.decided_by)


async def test_an_answer_is_the_verdict_of_the_topic(cluster: Cluster) -> None:
    """A block comes with its message and with the verdict exactly as it stands on the topic."""
    async with running(Worker(cluster.settings, SOON)), serving(cluster.settings) as client:
        await loop(client, 3)
        response = await client.post("/v1/gate", json=call(3))
        standing = (await cluster.verdict_records(4))[3].value

    answer = response.json()
    assert standing in response.content
    assert ("block", json.loads(standing)["message"], "guard") == (
        answer["action"], answer["message"], answer["decided_by"],
    )  # fmt: skip


async def test_events_keep_their_order(cluster: Cluster) -> None:
    """Events of a run stand on the topic as they did in a body and in requests one after the other, byte for byte."""
    async with serving(cluster.settings) as client:
        for start in (0, 50):
            body = json.dumps([call(number, args=1.0) for number in range(start, start + 50)])
            accepted = await client.post("/v1/events", content=body)
            assert (202, {"accepted": 50}) == (accepted.status_code, accepted.json())
        records = await cluster.event_records(100)

    assert [json.dumps(call(number, args=1.0)).encode() for number in range(100)] == [r.value for r in records]
    assert {(b"run-1", partition_of(b"run-1", cluster.partitions))} == {(r.key, r.partition) for r in records}


async def test_a_bad_event_keeps_the_others_out(cluster: Cluster) -> None:
    """With one event that the guard would refuse nothing of a body is published; its index is told."""
    async with serving(cluster.settings) as client:
        refused = await client.post("/v1/events", json=[call(0), {"type": "tool_call", "run_id": "run-1"}])
        await client.post("/v1/events", json=call(1))
        records = await cluster.event_records(1)

    assert (400, 1) == (refused.status_code, refused.json()["index"])
    assert ["c1"] == [json.loads(record.value)["call_id"] for record in records]


async def test_two_who_ask_the_same_are_both_answered(cluster: Cluster) -> None:
    """The same call from two requests at once is published once; both are told."""
    async with running(Worker(cluster.settings, SOON)), serving(cluster.settings) as client:
        answers = await asyncio.gather(*(gated(client, call(0)) for _ in range(2)))
        await client.post("/v1/events", json=result(0))
        records = await cluster.event_records(2)

    assert ["guard"] * 2 == [answer["decided_by"] for answer in answers]
    assert 2 == len(records)


async def test_a_stream_tells_what_comes(cluster: Cluster) -> None:
    """A stream of one run has its verdicts from now on, as on the topic, and none of another run."""
    async with running(Worker(cluster.settings, SOON)), serving(cluster.settings) as client:
        await loop(client, 1)
        async with verdicts(client, "run-1") as stream:
            await loop(client, 1, "run-2")
            await loop(client, 3)
            told = await stream.take(3)
        standing = [record for record in await cluster.verdict_records(5) if record.key == b"run-1"][1:]

    assert [record.value.decode() for record in standing] == [said.data for said in told]
    assert [f"{record.partition}:{record.offset}" for record in standing] == [said.id for said in told]
    assert [said.verdict["action"] for said in told] == [said.event for said in told]


async def test_another_instance_tells_what_was_missed(cluster: Cluster) -> None:
    """With Last-Event-ID a stream goes on where the last one was, in all its partitions, at whichever gateway."""
    runs = [f"run-{number}" for number in range(8)]
    async with running(Worker(cluster.settings, SOON)), serving(cluster.settings) as other:
        async with serving(cluster.settings) as one:
            async with verdicts(one, *runs) as stream:
                await loop(one, 2, "run-3")
                before = await stream.take(2)
            for run in runs:
                await loop(one, 2, run)
        async with verdicts(other, *runs, last_id=stream.last_id) as stream:
            missed = await stream.take(16)
            await loop(other, 1, "run-5")
            after = await stream.take(1)

    assert 19 == len({said.verdict["verdict_id"] for said in before + missed + after})
    assert sorted(runs * 2) == sorted(said.verdict["run_id"] for said in missed)


async def test_a_stream_without_verdicts_can_be_taken_up(cluster: Cluster) -> None:
    """The first block has an id already: what comes while the client is away is not lost."""
    async with running(Worker(cluster.settings, SOON)), serving(cluster.settings) as client:
        async with verdicts(client, "run-1") as stream:
            await stream.begun()
        await loop(client, 2)
        async with verdicts(client, "run-1", last_id=stream.last_id) as stream:
            told = await stream.take(2)

    assert ["allow"] * 2 == [said.event for said in told]


async def test_a_silent_guard_is_not_waited_for_again(cluster: Cluster) -> None:
    """Without a worker the first call waits for the gate's timeout, the others of its partition do not."""
    async with serving(cluster.settings, gate_timeout_seconds=1.0) as client:
        first = await gated(client, call(0))
        async with asyncio.timeout(0.9):
            second = await gated(client, call(1))

    nobody = {"action": "allow", "message": None, "decided_by": "nobody", "verdict": None}
    assert (nobody, nobody) == (first, second)


async def test_a_guard_that_comes_back_is_heard(cluster: Cluster) -> None:
    """After an outage the answers that come late end the silence: the next call is gated again."""
    async with serving(cluster.settings, gate_timeout_seconds=0.5) as client:
        await gated(client, call(0))
        async with running(Worker(cluster.settings, SOON)), asyncio.timeout(60):
            number = 1
            while (answer := await gated(client, call(number)))["decided_by"] == "nobody":
                number += 1
                await asyncio.sleep(0.1)

    assert "guard" == answer["decided_by"]


async def test_a_hurried_or_repeated_call_does_not_silence_the_guard(cluster: Cluster) -> None:
    """A call with a short timeout, and one repeat that the guard rightly ignores, leave the others gated."""
    async with running(Worker(cluster.settings, SOON)), serving(cluster.settings, gate_timeout_seconds=3.0) as client:
        await gated(client, call(0, event_id="e"))
        repeated = await gated(client, call(0, event_id="e"))
        await gated(client, call(1), timeout=0.001)
        after = await gated(client, call(2))

    assert ("nobody", "guard") == (repeated["decided_by"], after["decided_by"])


async def test_fail_closed_refuses_what_is_not_answered(cluster: Cluster) -> None:
    """With `fail = "closed"` a call without an answer gets 503 and when to come again."""
    async with serving(cluster.settings, gate_timeout_seconds=0.2, fail="closed") as client:
        responses = [await client.post("/v1/gate", json=call(number)) for number in range(2)]

    assert [(503, "1")] * 2 == [(response.status_code, response.headers["retry-after"]) for response in responses]


async def test_an_instance_is_replaced_in_the_middle(cluster: Cluster) -> None:
    """An instance drains and goes, another takes over: the run is decided as if nothing had happened."""
    kind = KINDS[0]
    async with (
        running(Worker(cluster.settings, POLICIES)),
        serving(cluster.settings) as other,
        AsyncExitStack() as first,
        httpx.AsyncClient(timeout=60) as client,
    ):
        client.base_url = (await first.enter_async_context(serving(cluster.settings))).base_url
        run = HttpRun((client, other), "run-1", kind.name)
        working = asyncio.create_task(follow(run, kind, "seed"))
        async with verdicts(other, "run-1") as stream:
            await stream.take(5)
        await first.aclose()
        outcome = await working

    assert await by_the_rules(kind, "seed") == outcome
    assert run.retries
