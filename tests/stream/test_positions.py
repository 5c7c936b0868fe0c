"""Where a worker goes on, and what it knows to be said, when the group's traces do not fit: on a real broker."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiokafka import ConsumerRecord, TopicPartition
from cluster import WAIT_SECONDS, Cluster, running
from commands import started
from events import call, loop, said

from streamguard.errors import PositionLostError, StuckError
from streamguard.policy import PolicySet
from streamguard.stream.assignment import Assignment
from streamguard.stream.checkpoint import MARKER_KEY
from streamguard.stream.topics import create_topics
from streamguard.stream.worker import Worker

pytestmark = pytest.mark.apache

ON = PolicySet({"enabled": True})
STRICT = PolicySet({"enabled": True, "warningThreshold": 3})
NEVER = {"STREAMGUARD_WORKER_CHECKPOINT_INTERVAL_SECONDS": "600"}


@pytest.fixture
async def cluster(broker: Any, topic_prefix: str) -> AsyncIterator[Cluster]:
    """Give a test topics of its own, of one partition."""
    async with Cluster(broker, topic_prefix, partitions=1) as cluster:
        yield cluster


@pytest.fixture
def first(cluster: Cluster) -> TopicPartition:
    """Name the only partition of events."""
    return TopicPartition(cluster.settings.topics.events, 0)


def consumer_of(worker: Worker) -> Any:
    """Return the worker's Kafka client, for tests that disturb it."""
    assert worker.assignment is not None
    return worker.assignment._consumer  # noqa: SLF001 - nothing else can


async def killed_after_eleven_calls(cluster: Cluster, expected: int) -> None:
    """Run a worker that warns at the eleventh call, and dies before it has written that down."""
    variables = {**cluster.variables(), **NEVER, "STREAMGUARD_CONFIG": str(cluster.policy_file({"enabled": True}))}
    async with started("run", **variables) as worker:
        await worker.says("partitions open")
        await cluster.publish("run-1", loop("run-1", 11))
        await cluster.verdicts(expected)
        await worker.ends(signal.SIGKILL)


async def test_a_successor_with_another_policy_repeats_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was judged already is judged again by the policy of then, though the successor dies on the way itself.

    Its own policy, which warns earlier, is in force behind all that was said.
    """
    await killed_after_eleven_calls(cluster, expected=1)
    fetch = Worker._fetch  # noqa: SLF001 - to stop in the middle of what was judged already

    async def half(*args: Any) -> dict[TopicPartition, list[ConsumerRecord]]:
        fetched = await fetch(*args)
        return {place: [one for one in records if one.offset < 10] for place, records in fetched.items()}

    monkeypatch.setattr(Worker, "_fetch", half)
    async with running(Worker(cluster.settings, STRICT)) as worker:
        async with asyncio.timeout(WAIT_SECONDS):
            while worker.judged < 10:
                await asyncio.sleep(0.05)
    monkeypatch.undo()
    async with running(Worker(cluster.settings, STRICT)):
        await cluster.in_force(STRICT)
        await cluster.publish("run-2", loop("run-2", 4))
        verdicts = await cluster.verdicts(2)

    assert [("warn", 10), ("warn", 3)] == [(one.action, one.count) for one in verdicts]


async def test_a_state_topic_that_was_deleted_doubles_no_verdict(
    cluster: Cluster, log_lines: list[dict[str, Any]]
) -> None:
    """Without checkpoints, but with a committed position, runs are forgotten; what was said is not said again."""
    async with running(Worker(cluster.settings, ON)):
        await cluster.publish("run-0", [call("run-0", 0, gate=True), call("run-0", 1)])
        await cluster.caught_up()
    await killed_after_eleven_calls(cluster, expected=2)
    await cluster.delete_topic(cluster.settings.state_topic)
    await create_topics(cluster.settings)
    async with running(Worker(cluster.settings, ON)):
        await cluster.publish("run-1", loop("run-1", 1, start=12))
        await cluster.publish("run-2", [call("run-2", 0, gate=True)])
        verdicts = await cluster.verdicts(3)

    assert ["allow", "warn", "allow"] == [verdict.action for verdict in verdicts]
    assert any(line["event"].startswith("no checkpoint is left") for line in log_lines)


async def test_a_topic_made_anew_is_another_topic(cluster: Cluster) -> None:
    """Its events have old offsets and new meanings: runs and verdicts of before count no more, and leave the state."""
    async with running(Worker(cluster.settings, ON)):
        await cluster.publish("run-1", [call("run-1", 0, gate=True), *loop("run-1", 8, start=1)])
        await cluster.caught_up()
        await cluster.verdicts(1)
    before = await cluster.state(0)
    await cluster.delete_topic(cluster.settings.topics.events)
    await create_topics(cluster.settings)
    cluster.published = 0
    cluster.change(worker={"on_lost_position": "earliest"})
    async with running(Worker(cluster.settings, ON)):
        await cluster.publish("run-2", [call("run-2", 0, gate=True)])
        verdicts = await cluster.verdicts(2)
        await cluster.caught_up()
    after = {key for key, value in (await cluster.state(0)).items() if value is not None}

    assert ["0-0-0", "0-0-0"] == [verdict.verdict_id for verdict in verdicts]
    assert {b"run-1", MARKER_KEY} == before.keys()
    assert {b"run-2", MARKER_KEY} == after


async def test_a_passing_out_of_range_loses_nothing(cluster: Cluster, first: TopicPartition) -> None:
    """A broker that says that it has not what it has: the worker looks again, and goes on counting."""
    async with running(Worker(cluster.settings, ON)) as worker:
        await cluster.publish("run-1", loop("run-1", 9))
        await cluster.caught_up()
        consumer_of(worker).seek(first, 1_000_000)
        await cluster.publish("run-1", loop("run-1", 2, start=9))
        verdicts = await cluster.verdicts(1)

    assert [("warn", "generic_repeat", 10)] == said(verdicts)


@pytest.mark.parametrize("choice", ["fail", "earliest"])
async def test_retention_that_overtakes_a_running_worker_is_told(
    cluster: Cluster, first: TopicPartition, choice: str
) -> None:
    """Events deleted before a slow worker reads them: it ends, or goes on where it was told to with its runs."""
    cluster.change(worker={"on_lost_position": choice})
    worker = Worker(cluster.settings, ON)
    life = asyncio.create_task(worker.run())
    await worker.ready()
    await cluster.publish("run-1", loop("run-1", 9))
    await cluster.caught_up()
    consumer_of(worker).pause(first)
    await asyncio.sleep(0.5)  # a fetch that is under way may still bring something
    await cluster.publish("run-2", loop("run-2", 5))
    await cluster.delete_records()
    await cluster.publish("run-1", loop("run-1", 2, start=9))
    consumer_of(worker).resume(first)
    if choice == "fail":
        with pytest.raises(PositionLostError, match="had reached 18, but the broker has events from 28"):
            async with asyncio.timeout(60):
                await life
        return
    verdicts = await cluster.verdicts(1)
    worker.stop()
    await life

    assert [("warn", "generic_repeat", 10)] == said(verdicts)


async def test_a_position_that_stands_still_ends_the_worker(cluster: Cluster, first: TopicPartition) -> None:
    """A partition with events to read, which the client does not read though nothing holds it back, is stuck."""
    cluster.change(worker={"stuck_timeout_seconds": 6.0})
    worker = Worker(cluster.settings, ON)
    life = asyncio.create_task(worker.run())
    await worker.ready()
    consumer_of(worker).pause(first)
    await cluster.publish("run-1", loop("run-1", 5))

    with pytest.raises(StuckError, match="partition 0"):
        async with asyncio.timeout(60):
            await life


async def test_an_opening_that_the_client_cancels_ends_the_worker(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Aiokafka cancels what waits for it while brokers go: that is no partition nobody opens, but an error."""

    async def cancelled(*_: Any) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(Assignment, "_open", cancelled)
    with pytest.raises(StuckError, match="gave up opening a partition"):
        async with asyncio.timeout(60):
            await Worker(cluster.settings, ON).run()
