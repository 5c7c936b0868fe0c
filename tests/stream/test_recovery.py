"""Restarts, crashes and takeovers on a real broker: the verdicts are those of a worker that was never disturbed."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from cluster import Cluster, running
from commands import started
from events import call, loop, said

from streamguard.errors import CheckpointFailedError, PositionLostError, SnapshotVersionError
from streamguard.policy import PolicySet
from streamguard.stream.brokers import Fenced
from streamguard.stream.checkpoint import MARKER_KEY
from streamguard.stream.kafka import make_brokers
from streamguard.stream.producer import FencedProducer, Record
from streamguard.stream.worker import Worker

pytestmark = pytest.mark.apache

ON = PolicySet({"enabled": True})


@pytest.fixture
async def cluster(broker: Any, topic_prefix: str) -> AsyncIterator[Cluster]:
    """Give a test topics of its own and clients to them."""
    async with Cluster(broker, topic_prefix) as cluster:
        yield cluster


async def test_a_restarted_worker_goes_on_counting(cluster: Cluster) -> None:
    """Nine calls before a clean restart and two after it are eleven: the warning comes at the tenth, once."""
    async with running(Worker(cluster.settings, ON)):
        await cluster.publish("run-1", loop("run-1", 9))
    async with running(Worker(cluster.settings, ON)):
        await cluster.publish("run-1", loop("run-1", 2, start=9))
        verdicts = await cluster.verdicts(1)

    assert [("warn", "generic_repeat", 10)] == said(verdicts)


async def test_a_killed_worker_says_nothing_twice_and_forgets_nothing(cluster: Cluster) -> None:
    """After kill -9 between two checkpoints the next worker repeats no verdict and goes on counting."""
    cluster.change(worker={"checkpoint_interval_seconds": 600.0})
    variables = {**cluster.variables(), "STREAMGUARD_WORKER_CHECKPOINT_INTERVAL_SECONDS": "600"}
    variables["STREAMGUARD_CONFIG"] = str(cluster.policy_file({"enabled": True}))
    async with started("run", **variables) as first:
        await first.says("partitions open")
        await cluster.publish("run-1", loop("run-1", 15))
        await cluster.publish("run-2", [call("run-2", number, gate=True) for number in range(5)])
        await cluster.verdicts(1 + 5)
        await first.ends(signal.SIGKILL)
    async with running(Worker(cluster.settings, ON)):
        await cluster.publish("run-1", loop("run-1", 6, start=15))
        verdicts = await cluster.verdicts(1 + 5 + 1)

    of_run = [verdict for verdict in verdicts if verdict.run_id == "run-1"]
    assert [("warn", "generic_repeat", 10), ("block", "generic_repeat", 20)] == said(of_run)
    assert 7 == len({verdict.verdict_id for verdict in verdicts}) == len(verdicts)


async def test_a_worker_leaves_a_group_that_still_rebalances(cluster: Cluster) -> None:
    """Stopped while its group waits for a dead member, a worker leaves: the next start does not wait for it, too."""
    cluster.change(worker={"session_timeout_ms": 60_000})
    async with started("run", **cluster.variables()) as dead:
        await dead.says("partitions open")
        worker = Worker(cluster.settings, ON)
        dead.process.send_signal(signal.SIGSTOP)
        life = asyncio.create_task(worker.run())
        async with asyncio.timeout(30):
            while len(await cluster.members()) < 2:
                await asyncio.sleep(0.05)
            worker.stop()
            await life
        members = await cluster.members()
        await dead.ends(signal.SIGKILL)

    assert 1 == len(members)


async def test_a_partition_that_moves_takes_its_runs_along(cluster: Cluster) -> None:
    """When a second worker joins and the first leaves, every run is counted on where it was."""
    async with running(Worker(cluster.settings, ON)) as first:
        await cluster.publish_everywhere(lambda run: loop(run, 9))
        await cluster.caught_up()
        async with running(Worker(cluster.settings, ON)) as second:
            first.stop()
            await second.ready()
            await cluster.publish_everywhere(lambda run: loop(run, 2, start=9))
            verdicts = await cluster.verdicts(cluster.partitions)

    assert [("warn", "generic_repeat", 10)] * cluster.partitions == said(verdicts)


async def test_a_run_that_has_ended_is_forgotten_for_good(cluster: Cluster) -> None:
    """A run that ends, is written down as ended, and begins anew after a restart counts from zero."""
    async with running(Worker(cluster.settings, ON)):
        await cluster.publish("run-1", loop("run-1", 9))
        await cluster.caught_up()
        await cluster.publish("run-1", [json.dumps({"type": "run_ended", "run_id": "run-1"}).encode()])
    async with running(Worker(cluster.settings, ON)):
        await cluster.publish("run-1", [*loop("run-1", 2), call("run-1", 2, gate=True)])
        verdicts = await cluster.verdicts(1)

    assert [("allow", None, None)] == said(verdicts)


@pytest.fixture
async def producers(cluster: Cluster) -> AsyncIterator[Callable[[], FencedProducer]]:
    """Make producers of the first shard, each as a worker of its own would."""
    settings = cluster.settings
    brokers = make_brokers(settings.kafka, (settings.topics.verdicts, settings.state_topic))
    await brokers.start()
    yield lambda: FencedProducer(
        brokers, settings.transactional_id(0), request_timeout_ms=5000, transaction_timeout_ms=60_000
    )
    await brokers.stop()


async def test_whoever_was_overtaken_can_write_nothing_more(
    cluster: Cluster, producers: Callable[[], FencedProducer]
) -> None:
    """A frozen worker that wakes up is refused by the broker, though its successor has written nothing yet."""
    verdicts = TopicPartition(cluster.settings.topics.verdicts, 0)
    state = TopicPartition(cluster.settings.state_topic, 0)
    frozen, successor = producers(), producers()
    await frozen.open([verdicts, state])
    await frozen.append(verdicts, [Record(b"run-1", b"before")])
    await successor.open([verdicts, state])

    with pytest.raises(Fenced):
        await frozen.append(verdicts, [Record(b"run-1", b"late")])
    with pytest.raises(Fenced):
        async with frozen.transaction(state, verdicts):
            pass
    await successor.append(verdicts, [Record(b"run-1", b"after")])
    assert [b"before", b"after"] == [record.value for record in await cluster.verdict_records(2)]


async def test_half_a_checkpoint_of_whoever_was_overtaken_is_never_seen(
    cluster: Cluster, producers: Callable[[], FencedProducer]
) -> None:
    """A worker that is frozen in the middle of a checkpoint can neither go on with it nor end it."""
    verdicts = TopicPartition(cluster.settings.topics.verdicts, 0)
    state = TopicPartition(cluster.settings.state_topic, 0)
    frozen, successor = producers(), producers()
    await frozen.open([verdicts, state])
    unfinished = frozen.transaction(state, verdicts)
    transaction = await unfinished.__aenter__()
    await transaction.write([Record(b"run-1", b"half a checkpoint")])
    await successor.open([verdicts, state])

    with pytest.raises(Fenced):
        await transaction.write([Record(b"run-1", b"late")])
    with pytest.raises(Fenced):
        await unfinished.__aexit__(None, None, None)
    async with successor.transaction(state, verdicts) as whole:
        await whole.write([Record(b"run-2", b"a whole one")])
    assert {b"run-2": b"a whole one"} == await cluster.state(0)


async def test_a_worker_that_was_overtaken_restores_and_goes_on(
    cluster: Cluster, producers: Callable[[], FencedProducer], log_lines: list[dict[str, Any]]
) -> None:
    """A worker whose shard was opened by somebody else, though it holds the partition, opens it anew."""
    async with running(Worker(cluster.settings, ON)):
        await cluster.publish("run-1", loop("run-1", 9), partition=0)
        await cluster.caught_up()
        await producers().open([TopicPartition(cluster.settings.topics.verdicts, 0)])
        await cluster.publish("run-1", loop("run-1", 2, start=9), partition=0)
        verdicts = await cluster.verdicts(1)

    assert [("warn", "generic_repeat", 10)] == said(verdicts)
    assert ["partition taken over"] == [line["event"] for line in log_lines if line["event"] == "partition taken over"]


@pytest.mark.parametrize("what", ["snapshot", "marker"])
async def test_state_of_a_newer_version_is_refused(cluster: Cluster, what: str) -> None:
    """A state topic written by a newer streamguard ends the worker with what to do, and is left as it is."""
    async with running(Worker(cluster.settings, ON)):
        await cluster.publish("run-1", loop("run-1", 2), partition=0)
        await cluster.caught_up()
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap) as producer:
        marker = (await cluster.state(0))[MARKER_KEY]
        if what == "snapshot":
            records = [(b"run-9", b"\x63" + bytes(40)), (MARKER_KEY, marker)]
        else:
            records = [(MARKER_KEY, json.dumps({"version": 99, "novelty": 1}).encode())]
        for key, value in records:
            await producer.send_and_wait(cluster.settings.state_topic, value, key=key, partition=0)

    with pytest.raises(SnapshotVersionError, match="version 99"):
        async with asyncio.timeout(60):
            await Worker(cluster.settings, ON).run()


@pytest.mark.parametrize("choice", ["fail", "earliest", "latest"])
async def test_a_lost_position_is_never_jumped_over_in_silence(
    cluster: Cluster, log_lines: list[dict[str, Any]], choice: str
) -> None:
    """Events deleted unread: an error, or going on where `on_lost_position` says, with a line in the log."""
    async with running(Worker(cluster.settings, ON)):
        await cluster.publish("run-1", loop("run-1", 4), partition=0)
        await cluster.caught_up()
    await cluster.publish("run-1", loop("run-1", 4), partition=0)
    await cluster.delete_records()
    await cluster.publish("run-2", [call("run-2", 1, gate=True)], partition=0)
    cluster.change(worker={"on_lost_position": choice})
    if choice == "fail":
        with pytest.raises(PositionLostError, match="had reached 8, but the broker has events from 16"):
            async with asyncio.timeout(60):
                await Worker(cluster.settings, ON).run()
        return
    async with running(Worker(cluster.settings, ON)):
        await cluster.publish("run-3", [call("run-3", 1, gate=True)], partition=0)
        verdicts = await cluster.verdicts(1 if choice == "latest" else 2)

    expected = {"latest": ["run-3"], "earliest": ["run-2", "run-3"]}[choice]
    assert expected == [verdict.run_id for verdict in verdicts]
    assert [(8, 16)] == [(line["lost"], line["first"]) for line in log_lines if line["event"] == "position lost"]


async def test_half_a_checkpoint_is_never_finished_by_the_next(cluster: Cluster) -> None:
    """A shard whose checkpoint was given up in the middle writes no other one: it must be opened anew.

    What the half one held counts as written down already; a whole transaction around it would lose it.
    """
    worker = Worker(cluster.settings, ON)
    async with running(worker):
        await cluster.publish("run-1", loop("run-1", 9), partition=0)
        await cluster.caught_up()
        assignment = worker.assignment
        assert assignment is not None
        held = assignment.held[TopicPartition(cluster.settings.topics.events, 0)]
        half = held.producer.transaction(held.state, held.verdicts)
        await half.__aenter__()
        await half.__aexit__(TimeoutError, TimeoutError(), None)
        may_go_on = await assignment.checkpoints.write(held, 5, always=True)
        await cluster.publish("run-1", loop("run-1", 2, start=9), partition=0)
        verdicts = await cluster.verdicts(1)

    assert not may_go_on
    assert [("warn", "generic_repeat", 10)] == said(verdicts)


async def test_a_stop_waits_for_the_checkpoint_that_is_being_written(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is stopped in the middle of a checkpoint leaves a whole one behind."""
    ending, go_on = asyncio.Event(), asyncio.Event()
    end = FencedProducer._end  # noqa: SLF001 - the moment between the last record of a checkpoint and its end

    async def slowly(self: FencedProducer) -> None:
        if self.in_transaction and cluster.published:
            ending.set()
            await go_on.wait()
        await end(self)

    async with running(worker := Worker(cluster.settings, ON)):
        monkeypatch.setattr(FencedProducer, "_end", slowly)
        await cluster.publish("run-1", loop("run-1", 9), partition=0)
        await ending.wait()
        worker.stop()
        async with asyncio.timeout(30):
            while worker.assignment is not None and worker.assignment.held:
                await asyncio.sleep(0.01)
        go_on.set()
    monkeypatch.undo()
    committed = await cluster.committed()
    async with running(Worker(cluster.settings, ON)):
        await cluster.publish("run-1", loop("run-1", 2, start=9), partition=0)
        verdicts = await cluster.verdicts(1)

    assert 18 == committed
    assert [("warn", "generic_repeat", 10)] == said(verdicts)


async def test_a_snapshot_that_the_broker_refuses_ends_the_worker(cluster: Cluster) -> None:
    """A state topic that does not take a run's snapshot is an error that says so: without it nothing would be kept."""
    cluster.change(topics={"state": f"{cluster.prefix}.narrow"})
    await cluster.create_topic(f"{cluster.prefix}.narrow", cluster.partitions, max_message_bytes="600")

    worker = Worker(cluster.settings, ON)
    life = asyncio.create_task(worker.run())
    await worker.ready()
    calls = [call("run-1", number, args={"path": f"/{number}"}) for number in range(30)]
    await cluster.publish("run-1", calls, partition=0)

    with pytest.raises(CheckpointFailedError, match="partition 0 cannot be written down"):
        async with asyncio.timeout(60):
            await life
