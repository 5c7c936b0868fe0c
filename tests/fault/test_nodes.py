"""The nodes of the fault bench: a leader that is killed is replaced, comes back and catches up."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.client import AIOKafkaClient
from brokers.jars import CannotResolveError, java, resolve
from brokers.nodes import KafkaNodes
from proxy import Proxy

pytestmark = [pytest.mark.apache, pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("broker")]

COUNT = 3
FAILOVER_SECONDS = 30


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def proxies() -> AsyncIterator[list[Proxy]]:
    """One proxy for each node."""
    proxies = [Proxy() for _ in range(COUNT)]
    for proxy in proxies:
        await proxy.start()
    yield proxies
    for proxy in proxies:
        await proxy.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def nodes(proxies: list[Proxy]) -> AsyncIterator[KafkaNodes]:
    """A cluster behind these proxies; each test leaves it whole."""
    try:
        made = KafkaNodes(java(), await asyncio.to_thread(resolve), COUNT, [proxy.address for proxy in proxies])
    except CannotResolveError as error:
        pytest.skip(f"no cluster of Apache Kafka nodes: {error}")
    for proxy, target in zip(proxies, made.proxied_targets, strict=True):
        host, port = target.split(":")
        proxy.target = (host, int(port))
    try:
        begun = time.monotonic()
        await asyncio.to_thread(made.start)
        await made.wait_ready()
        print(f"three nodes ready after {time.monotonic() - begun:.1f} s")
        yield made
    finally:
        await asyncio.to_thread(made.stop)


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """Keep the client from reporting every connection to a dead node."""
    logger = logging.getLogger("aiokafka")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


async def make_topic(nodes: KafkaNodes, topic: str) -> None:
    """Make a topic of one partition, a copy on every node."""
    admin = AIOKafkaAdminClient(bootstrap_servers=nodes.bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, 1, COUNT, topic_configs={"min.insync.replicas": "2"})])
    finally:
        await admin.close()
    await nodes.wait_in_sync([topic])


async def test_killed_leader_is_replaced_and_rejoins(nodes: KafkaNodes, topic_prefix: str) -> None:
    """With the leader killed, acknowledged writing goes on within 30 s; started again, it is in sync again."""
    await make_topic(nodes, topic_prefix)
    async with AIOKafkaProducer(bootstrap_servers=nodes.bootstrap, acks="all", request_timeout_ms=60_000) as producer:
        first = await producer.send_and_wait(topic_prefix, b"before", partition=0)
        leader = await nodes.leader(topic_prefix, 0)

        nodes.kill(leader)
        begun = time.monotonic()
        async with asyncio.timeout(FAILOVER_SECONDS):
            second = await producer.send_and_wait(topic_prefix, b"after", partition=0)
        print(f"written again {time.monotonic() - begun:.1f} s after the kill")

    assert not nodes.running(leader)
    assert (0, 1) == (first.offset, second.offset)
    assert leader != await nodes.leader(topic_prefix, 0)
    begun = time.monotonic()
    nodes.restart(leader)
    await nodes.wait_ready()
    print(f"ready again {time.monotonic() - begun:.1f} s after the restart")
    await nodes.wait_in_sync([topic_prefix])
    print(f"in sync again {time.monotonic() - begun:.1f} s after the restart")


async def test_who_starts_at_a_proxy_keeps_to_proxies(nodes: KafkaNodes, proxies: list[Proxy]) -> None:
    """A client that bootstraps through a proxy is told of the proxies' addresses, never of the nodes' own."""
    client = AIOKafkaClient(bootstrap_servers=proxies[0].address)
    try:
        await client.bootstrap()
        told = {f"{broker.host}:{broker.port}" for broker in client.cluster.brokers()}
    finally:
        await client.close()

    assert {proxy.address for proxy in proxies} == told
    assert not told & set(nodes.bootstrap.split(","))
