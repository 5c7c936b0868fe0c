"""Kafka is stopped for half a minute in the middle of runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from brokers.nodes import KafkaNodes
from cluster import Cluster, own_nodes, running

from streamguard.errors import GuardUnavailableError
from streamguard.executor import ExecutorOptions, GuardClient, LocalGuard, Run
from streamguard.policy import PolicySet
from streamguard.stream.worker import Worker

pytestmark = [pytest.mark.apache, pytest.mark.timeout(300)]

STOPPED_SECONDS = 30.0


@pytest.fixture(scope="module")
def nodes(broker: Any) -> Iterator[KafkaNodes]:
    """One node that the test may stop."""
    with own_nodes(broker, 1) as nodes:
        yield nodes


@pytest.fixture
async def cluster(nodes: KafkaNodes, topic_prefix: str) -> AsyncIterator[Cluster]:
    """Give a test topics of its own on the node."""
    async with Cluster(SimpleNamespace(bootstrap=nodes.bootstrap, is_apache=True), topic_prefix) as cluster:
        yield cluster


async def same_call(run: Run) -> str:
    """Make the one call that this run makes; return what was decided, and by whom."""
    decision = await run.before_tool("read", {"path": "a"})
    await run.after_tool(decision, result="same")
    return f"{decision.action} by {decision.decided_by}"


async def test_agents_go_on_or_stop_as_set_and_nothing_is_forgotten(cluster: Cluster, nodes: KafkaNodes) -> None:
    """Open: calls go ahead, unjudged. Closed: they are refused. Back again: all that was done has been counted."""
    settings = cluster.settings
    open_, closed = (
        ExecutorOptions(kafka=settings.kafka, topics=settings.topics, gate_timeout=2.0, fail=fail)
        for fail in ("open", "closed")
    )
    async with (
        running(Worker(settings, PolicySet({"enabled": True}))),
        GuardClient(open_) as free,
        GuardClient(closed) as strict,
        free.run("free") as run,
        strict.run("strict") as strict_run,
    ):
        await asyncio.gather(free.connected(), strict.connected())
        before = [await same_call(run) for _ in range(3)]
        await same_call(strict_run)
        nodes.kill(0)
        back = asyncio.get_running_loop().time() + STOPPED_SECONDS
        async with asyncio.timeout(STOPPED_SECONDS / 3):
            meanwhile = [await same_call(run) for _ in range(5)]
            with pytest.raises(GuardUnavailableError, match="fail closed"):
                await same_call(strict_run)
        await asyncio.sleep(back - asyncio.get_running_loop().time())
        nodes.restart(0)
        await nodes.wait_ready()
        async with asyncio.timeout(120):
            while "guard" not in (after := await same_call(run)):
                meanwhile.append(after)
                await asyncio.sleep(0.5)
    calls = len(before) + len(meanwhile) + 1
    async with LocalGuard() as local, local.run() as alike:
        expected = [(await same_call(alike)).split()[0] for _ in range(calls)]
    verdicts = [verdict for verdict in await cluster.verdicts(calls) if verdict.run_id == "free"]

    assert ["allow by guard"] * 3 == before
    assert {"allow by nobody"} == set(meanwhile)
    assert expected == [verdict.action for verdict in verdicts]
