"""A gateway whose Kafka goes and comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from cluster import Cluster, own_nodes, running
from gateways import reached, serving

from streamguard.policy import PolicySet
from streamguard.stream.worker import Worker

pytestmark = [pytest.mark.apache, pytest.mark.timeout(300)]

CALL = {"type": "tool_call", "run_id": "run-1", "call_id": "c", "tool": "read"}


@pytest.fixture
async def cluster(broker: Any, topic_prefix: str) -> AsyncIterator[tuple[Cluster, Any]]:
    """Give a test topics of its own on a node that it may stop."""
    manager = own_nodes(broker, 1)
    nodes = await asyncio.to_thread(manager.__enter__)
    try:
        async with Cluster(SimpleNamespace(bootstrap=nodes.bootstrap, is_apache=True), topic_prefix) as cluster:
            cluster.change(kafka={"request_timeout_ms": 3000})
            yield cluster, nodes
    finally:
        await asyncio.to_thread(manager.__exit__, None, None, None)


async def asked(client: httpx.AsyncClient, number: int) -> str:
    """Return who decided about a call."""
    response = await client.post("/v1/gate", json={**CALL, "call_id": f"c{number}"})
    decided_by: str = response.json()["decided_by"]
    return decided_by


async def test_an_outage_of_kafka_is_told_and_outlived(cluster: tuple[Cluster, Any]) -> None:
    """While the broker is away it is not healthy and calls are not held up; what came meanwhile is published then."""
    here, nodes = cluster
    changes: dict[str, Any] = {"gate_timeout_seconds": 2.0, "publish_timeout_seconds": 0.1}
    async with running(Worker(here.settings, PolicySet())), serving(here.settings, **changes) as client:
        before = await asked(client, 0)
        nodes.kill(0)
        async with asyncio.timeout(60):
            while (await client.get("/healthz")).status_code == 200:
                await asyncio.sleep(0.05)
        away = await asked(client, 1)
        events = (await client.post("/v1/events", json={**CALL, "call_id": "c2"})).status_code
        nodes.restart(0)
        await nodes.wait_ready()
        await reached(client)
        async with asyncio.timeout(60):
            number = 3
            while await asked(client, number) == "nobody":
                number += 1
        records = await here.event_records(number + 1)

    assert ("guard", "nobody", 503) == (before, away, events)
    assert [f'"call_id":"c{one}"'.encode() for one in range(3)] == [
        record.value[record.value.index(b'"call_id"') :].split(b",")[0] for record in records[:3]
    ]
