"""Brokers that go while others stay: leaders and coordinators move, and a worker goes on counting. Three nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from brokers.nodes import KafkaNodes
from cluster import Cluster, own_nodes, running
from events import loop, said

from streamguard.policy import PolicySet
from streamguard.stream.worker import Worker

pytestmark = [pytest.mark.apache, pytest.mark.timeout(300)]

ON = PolicySet({"enabled": True})


@pytest.fixture(scope="module")
def nodes(broker: Any) -> Iterator[KafkaNodes]:
    """Three nodes that the tests may kill."""
    with own_nodes(broker, 3) as nodes:
        yield nodes


@pytest.fixture
async def cluster(nodes: KafkaNodes, topic_prefix: str) -> AsyncIterator[Cluster]:
    """Give a test topics of its own, on all three nodes."""
    cluster = Cluster(SimpleNamespace(bootstrap=nodes.bootstrap, is_apache=True), topic_prefix, partitions=1)
    cluster.change(topics={"replication_factor": 3}, kafka={"request_timeout_ms": 3000})
    async with cluster:
        yield cluster


async def node_of(what: str, cluster: Cluster, nodes: KafkaNodes) -> int:
    """Return the node that leads a topic's partition, or coordinates the group or its transactions."""
    topics = cluster.settings.topics
    if what != "coordinator of the group":
        topic = {"events": topics.events, "verdicts": topics.verdicts, "state": cluster.settings.state_topic}[what]
        return await nodes.leader(topic, 0)
    admin = AIOKafkaAdminClient(bootstrap_servers=nodes.bootstrap)
    await admin.start()
    try:
        return int(await admin.find_coordinator(cluster.settings.worker.group)) - 1
    finally:
        await admin.close()


@pytest.mark.parametrize("what", ["events", "verdicts", "state", "coordinator of the group"])
async def test_a_worker_goes_on_when_a_broker_dies(cluster: Cluster, nodes: KafkaNodes, what: str) -> None:
    """The leader of what a worker reads or writes, or its group's coordinator, is killed: it goes on."""
    async with running(Worker(cluster.settings, ON)):
        await cluster.publish("run-1", loop("run-1", 9))
        await cluster.caught_up()
        node = await node_of(what, cluster, nodes)
        nodes.kill(node)
        try:
            await cluster.publish("run-1", loop("run-1", 2, start=9))
            verdicts = await cluster.verdicts(1)
            await cluster.caught_up()
        finally:
            nodes.restart(node)
            await nodes.wait_ready()

    assert [("warn", "generic_repeat", 10)] == said(verdicts)
