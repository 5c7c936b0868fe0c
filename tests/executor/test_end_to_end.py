"""Two hundred runs at once on a real Kafka, through two kills of a worker and a restart of the broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from brokers.nodes import KafkaNodes
from cluster import Cluster, own_nodes
from commands import Running, started
from gateways import serving
from http_run import HttpRun
from runs import policy_file
from scenario import Faults, OpenRun, play

from streamguard.executor import ExecutorOptions, GuardClient
from streamguard.settings import Settings

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


@asynccontextmanager
async def through_the_client(settings: Settings) -> AsyncIterator[OpenRun]:
    """Open runs of one client, whose gates wait as long as an outage takes."""
    options = ExecutorOptions(kafka=settings.kafka, topics=settings.topics, gate_timeout=90.0, fail="closed")
    async with GuardClient(options) as client:
        await client.connected()
        yield lambda run_id, agent: client.run(run_id, agent_id=agent)


@asynccontextmanager
async def through_gateways(settings: Settings) -> AsyncIterator[OpenRun]:
    """Open runs that have HTTP only, each request to another of two gateways."""
    async with (
        serving(settings, requests_per_second=1e6, fail="closed") as one,
        serving(settings, requests_per_second=1e6, fail="closed") as other,
    ):
        yield lambda run_id, agent: HttpRun((one, other), run_id, agent)


@pytest.mark.parametrize("way", [through_the_client, through_gateways])
async def test_every_loop_is_stopped_where_the_rules_say_and_nobody_else_is(
    cluster: Cluster, nodes: KafkaNodes, way: Callable[[Settings], AbstractAsyncContextManager[OpenRun]]
) -> None:
    """Each run's decisions are those of the core by itself: looping ones are stopped, healthy ones never blocked."""
    variables = {**cluster.variables(), "STREAMGUARD_LOG_FORMAT": "json"}
    command = ("run", "--workers", str(WORKERS), "--policy", policy_file(cluster.folder))
    async with started(*command, **variables) as supervisor:
        reading = asyncio.create_task(supervisor.read_on())
        async with asyncio.timeout(120):
            while len(opened_by(supervisor)) < WORKERS:
                await asyncio.sleep(0.05)
        faults = Faults(supervisor, nodes)
        async with way(cluster.settings) as open_run:
            wrong, calls = await play(open_run, RUNS, faults)
        reading.cancel()

    assert [] == wrong
    assert ["worker killed", "broker restarted", "worker killed"] == faults.happened
    assert calls > 20 * RUNS
