"""The life of a worker when its brokers come late, go, come back, or never do. The brokers are the test's own."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from brokers.nodes import KafkaNodes
from cluster import Cluster, own_nodes, running
from commands import started, streamguard
from events import call, loop, said

from streamguard.errors import BrokerUnavailableError, StuckError
from streamguard.policy import PolicySet
from streamguard.stream.deadletter import DeadLetter
from streamguard.stream.delivery import DeadLetters
from streamguard.stream.kafka import close, make_dead_letter_producer
from streamguard.stream.kafka import started as started_client
from streamguard.stream.worker import Worker

pytestmark = [pytest.mark.apache, pytest.mark.timeout(300)]

ON = PolicySet({"enabled": True})
NOT_YET = {"STREAMGUARD_WORKER_CHECKPOINT_INTERVAL_SECONDS": "600"}
"""No checkpoint before the last one: there is something to write when the worker is stopped."""


@pytest.fixture(scope="module")
def nodes(broker: Any) -> Iterator[KafkaNodes]:
    """One node that the tests may stop, kill and start."""
    with own_nodes(broker, 1) as nodes:
        yield nodes


@pytest.fixture
async def cluster(nodes: KafkaNodes, topic_prefix: str) -> AsyncIterator[Cluster]:
    """Give a test topics of its own on a node that is up."""
    if not nodes.running(0):
        nodes.restart(0)
        await nodes.wait_ready()
    async with Cluster(SimpleNamespace(bootstrap=nodes.bootstrap, is_apache=True), topic_prefix) as cluster:
        cluster.change(kafka={"request_timeout_ms": 3000})
        yield cluster


async def test_a_worker_waits_for_brokers_that_come_late(
    cluster: Cluster, nodes: KafkaNodes, log_lines: list[dict[str, Any]]
) -> None:
    """Started while no broker is up a worker waits, says so, and works once one is."""
    nodes.kill(0)
    worker = Worker(cluster.settings, ON)
    life = asyncio.create_task(worker.run())
    async with asyncio.timeout(30):
        while "no broker answers yet" not in [line["event"] for line in log_lines]:
            await asyncio.sleep(0.05)
    nodes.restart(0)
    async with asyncio.timeout(60):
        await worker.ready()
    await cluster.publish("run-1", [call("run-1", 1, gate=True)])
    [verdict] = await cluster.verdicts(1)
    worker.stop()
    await life

    assert "allow" == verdict.action


async def test_a_worker_gives_up_waiting(cluster: Cluster) -> None:
    """After the time set, a worker without a broker ends with an error that names the address."""
    cluster.change(kafka={"bootstrap": "127.0.0.1:1", "connect_timeout_seconds": 2.0})

    with pytest.raises(BrokerUnavailableError, match=r"127\.0\.0\.1:1 within 2 s"):
        async with asyncio.timeout(30):
            await Worker(cluster.settings, ON).run()


@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_a_broker_that_restarts_is_waited_for(cluster: Cluster, nodes: KafkaNodes, how: str) -> None:
    """The only broker, leader and coordinator of everything, goes and comes back: the worker goes on counting."""
    async with running(Worker(cluster.settings, ON)):
        await cluster.publish("run-1", loop("run-1", 9))
        await cluster.caught_up()
        await asyncio.to_thread(nodes.terminate if how == "stopped" else nodes.kill, 0)
        nodes.restart(0)
        await nodes.wait_ready()
        await cluster.publish("run-1", loop("run-1", 2, start=9))
        verdicts = await cluster.verdicts(1)

    assert [("warn", "generic_repeat", 10)] == said(verdicts)


async def test_dead_letters_wait_for_a_broker(
    cluster: Cluster, nodes: KafkaNodes, log_lines: list[dict[str, Any]]
) -> None:
    """A dead letter that the Kafka client gave up, because its broker was away for longer, is sent again."""
    cluster.change(kafka={"request_timeout_ms": 1000})
    topics = cluster.settings.topics
    producer = make_dead_letter_producer(cluster.settings.kafka)
    await started_client(producer, cluster.settings.kafka)
    try:
        letters = DeadLetters(producer, topics.dead_letters, topics.partitions)
        await letters.write([DeadLetter(0, None, b"first", ())], 0)
        nodes.kill(0)
        writing = asyncio.create_task(letters.write([DeadLetter(1, None, b"second", ())], 0))
        async with asyncio.timeout(60):
            while "dead letters not taken yet, sending them again" not in [line["event"] for line in log_lines]:
                await asyncio.sleep(0.05)
            nodes.restart(0)
            await writing
    finally:
        await close(producer)

    assert {b"first", b"second"} == {record.value for record in await cluster.dead_letters(2)}


async def test_a_worker_whose_brokers_never_come_back_ends(cluster: Cluster, nodes: KafkaNodes) -> None:
    """Without any broker, and so without the group's coordinator, a worker ends in the time set; it never hangs."""
    cluster.change(worker={"stuck_timeout_seconds": 8.0, "stop_grace_seconds": 4.0})
    worker = Worker(cluster.settings, ON)
    life = asyncio.create_task(worker.run())
    async with asyncio.timeout(60):
        await worker.ready()
    nodes.kill(0)

    with pytest.raises(StuckError, match="group coordinator"):
        async with asyncio.timeout(60):
            await life


async def test_a_worker_whose_brokers_are_gone_can_be_stopped(cluster: Cluster, nodes: KafkaNodes) -> None:
    """SIGTERM while no broker answers ends the process within the grace time, and it says what it could not do."""
    async with started("run", **cluster.variables(), **NOT_YET, STREAMGUARD_WORKER_STOP_GRACE_SECONDS="4") as worker:
        await worker.says("partitions open")
        await cluster.publish("run-1", [call("run-1", 1, gate=True)])
        await cluster.verdicts(1)
        nodes.kill(0)
        async with asyncio.timeout(60):
            code = await worker.ends(signal.SIGTERM)

    assert 0 == code
    assert any("checkpoint given up" in line for line in worker.lines)


async def test_a_second_signal_ends_at_once(cluster: Cluster, nodes: KafkaNodes) -> None:
    """A worker that cannot drain, for want of brokers, is ended by a second signal."""
    async with started("run", **cluster.variables(), **NOT_YET, STREAMGUARD_WORKER_STOP_GRACE_SECONDS="600") as worker:
        await worker.says("partitions open")
        await cluster.publish("run-1", [call("run-1", 1, gate=True)])
        await cluster.verdicts(1)
        nodes.kill(0)
        worker.process.send_signal(signal.SIGTERM)
        await worker.says('"stopping"')
        async with asyncio.timeout(10):
            code = await worker.ends(signal.SIGTERM)

    assert 5 == code


async def test_a_clean_stop_writes_a_last_checkpoint(cluster: Cluster) -> None:
    """SIGTERM: everything judged is acknowledged, written down and committed before the process leaves, code 0."""
    async with started("run", **cluster.variables(), **NOT_YET) as worker:
        await worker.says("partitions open")
        await cluster.publish("run-1", [*loop("run-1", 3), call("run-1", 3, gate=True)], partition=0)
        await cluster.verdicts(1)
        code = await worker.ends(signal.SIGTERM)
    state = await cluster.state(0)

    assert (0, 7) == (code, await cluster.committed())
    assert b"run-1" in state


async def test_a_status_file_tells_how_a_worker_is(cluster: Cluster, nodes: KafkaNodes, tmp_path: Path) -> None:
    """`streamguard health`: well while it works, not while it gets nowhere, not when it is gone."""
    file = tmp_path / "status.json"
    settings = {"STREAMGUARD_WORKER_STATUS_FILE": str(file), "STREAMGUARD_WORKER_STUCK_TIMEOUT_SECONDS": "20"}
    async with started("run", **cluster.variables(), **settings) as worker:
        await worker.says("partitions open")
        await cluster.publish("run-1", loop("run-1", 2))
        await cluster.caught_up()
        well = await asyncio.to_thread(streamguard, "health", "--ready", file)
        nodes.kill(0)
        await worker.says("no progress")
        async with asyncio.timeout(10):
            while not (ill := await asyncio.to_thread(streamguard, "health", file)).returncode:
                pass
        await worker.ends(signal.SIGKILL)
        gone = await asyncio.to_thread(streamguard, "health", "--max-age", "0.01", file)

    assert (0, 1, 1) == (well.returncode, ill.returncode, gone.returncode)
    assert "6 partitions" in well.stdout
    assert "makes no progress: group coordinator" in ill.stderr
    assert "has not said how it is" in gone.stderr


async def test_a_client_that_has_stopped_fetching_ends_the_worker(cluster: Cluster) -> None:
    """Aiokafka's fetching can die of an error of its own, in silence: the worker ends, to be started again."""
    worker = Worker(cluster.settings, ON)
    life = asyncio.create_task(worker.run())
    async with asyncio.timeout(60):
        await worker.ready()
    [fetching] = [task for task in asyncio.all_tasks() if "_fetch_requests_routine" in repr(task.get_coro())][-1:]
    fetching.cancel()

    with pytest.raises(StuckError, match="stopped fetching"):
        async with asyncio.timeout(60):
            await life
