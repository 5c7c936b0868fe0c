"""The hook of Claude Code through a real gateway, Kafka and worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from claude_code_session import Session
from cluster import Cluster, running
from gateways import serving

from streamguard.policy import PolicySet
from streamguard.stream.worker import Worker

SOON = PolicySet({"enabled": True, "warningThreshold": 2, "criticalThreshold": 3})


@pytest.fixture
async def cluster(broker: Any, topic_prefix: str) -> AsyncIterator[Cluster]:
    """Give a test topics of its own."""
    async with Cluster(broker, topic_prefix) as cluster:
        yield cluster


async def test_a_session_that_loops_is_warned_denied_and_stopped(cluster: Cluster) -> None:
    """What the stub says in the hook's own tests the service says, too: context, denial, and the end of the session."""
    async with running(Worker(cluster.settings, SOON)), serving(cluster.settings) as gateway:
        session = Session(str(gateway.base_url))

        def work() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
            first = [session.call("a") for _ in range(4)]
            session.compact()
            return first, [session.call("b") for _ in range(4)]

        first, then = await asyncio.to_thread(work)

    assert [{}, {}] == first[:2]
    assert "read was called 2 times" in first[2]["hookSpecificOutput"]["additionalContext"]
    assert "deny" == first[3]["hookSpecificOutput"]["permissionDecision"]
    assert [{}, {}] == then[:2]
    assert (False, "deny") == (then[3]["continue"], then[3]["hookSpecificOutput"]["permissionDecision"])
