"""Two hundred runs at once on a real Kafka, through two kills of a worker and a restart of the broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from brokers.nodes import KafkaNodes
from cluster import Cluster, own_nodes
from commands import Running, started
from runs import policy_file
from scenario import Faults, play

from streamguard.executor import ExecutorOptions, GuardClient

pytestmark = [pytest.mark.apache, pytest.mark.timeout(400)]

RUNS = 200
WORKERS = 2


@pytest.fixture(scope="module")
def nodes(broker: Any) -> Iterator[KafkaNodes]:
    """One node that the test may restart."""
    with own_nodes(broker, 1) as nodes:
        yield nodes


@pytest.fixture
async def cluster(nodes: KafkaNodes, topic_prefix: str) -> AsyncIterator[Cluster]:
    """Give a test topics of its own on the node."""
    async with Cluster(SimpleNamespace(bootstrap=nodes.bootstrap, is_apache=True), topic_prefix) as cluster:
        cluster.change(kafka={"request_timeout_ms": 3000}, worker={"session_timeout_ms": 3000})
        yield cluster


def opened_by(supervisor: Running) -> set[int]:
    """Return the workers that have opened partitions, by process id."""
    return {json.loads(line)["pid"] for line in supervisor.lines if '"partitions open"' in line}


async def test_every_loop_is_stopped_where_the_rules_say_and_nobody_else_is(
    cluster: Cluster, nodes: KafkaNodes
) -> None:
    """Each run's decisions are those of the core by itself: looping ones are stopped, healthy ones never blocked."""
    settings = cluster.settings
    options = ExecutorOptions(kafka=settings.kafka, topics=settings.topics, gate_timeout=90.0, fail="closed")
    variables = {**cluster.variables(), "STREAMGUARD_LOG_FORMAT": "json"}
    async with (
        started("run", "--workers", str(WORKERS), "--policy", policy_file(cluster.folder), **variables) as supervisor,
        GuardClient(options) as client,
    ):
        async with asyncio.timeout(120):
            reading = asyncio.create_task(supervisor.read_on())
            while len(opened_by(supervisor)) < WORKERS:
                await asyncio.sleep(0.05)
            await client.connected()
        faults = Faults(supervisor, nodes)
        wrong, calls = await play(lambda run_id, agent: client.run(run_id, agent_id=agent), RUNS, faults)
        reading.cancel()

    assert [] == wrong
    assert ["worker killed", "broker restarted", "worker killed"] == faults.happened
    assert (calls, 0) == (
        sum(client.counters[action] for action in ("allow", "warn", "block")),
        client.counters["unanswered"],
    )
