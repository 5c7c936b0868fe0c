"""Metrics and health of a worker on a real broker: what happened is counted, and nothing of anybody's payload."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest
from cluster import Cluster, running
from events import call, loop

from streamguard.errors import CannotListenError
from streamguard.policy import PolicySet
from streamguard.settings import MetricsSettings
from streamguard.stream.worker import Worker
from streamguard.telemetry import Metrics, serving

ON = PolicySet({"enabled": True, "warningThreshold": 3, "criticalThreshold": 5, "shadowDetectors": ["ping_pong"]})


@pytest.fixture
async def cluster(broker: Any, topic_prefix: str) -> AsyncIterator[Cluster]:
    """Give a test topics of its own and clients to them."""
    async with Cluster(broker, topic_prefix, partitions=2) as cluster:
        yield cluster


@asynccontextmanager
async def measured(cluster: Cluster) -> AsyncIterator[tuple[Worker, httpx.AsyncClient]]:
    """Run a worker that serves its metrics; give it and a client."""
    metrics = Metrics()
    worker = Worker(cluster.settings, ON, telling=metrics)
    settings = MetricsSettings(enabled=True, port=0)
    async with (
        serving(settings, metrics, worker.status) as (host, port),
        httpx.AsyncClient(base_url=f"http://{host}:{port}") as client,
        running(worker),
    ):
        yield worker, client


async def scraped(client: httpx.AsyncClient) -> dict[str, float]:
    """Return every sample by its name and labels."""
    text = (await client.get("/metrics")).text
    lines = [line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


async def test_what_happened_is_counted(cluster: Cluster) -> None:
    """Events by type, verdicts by action, detector and shadow, dead letters by reason, times, lag, checkpoints."""
    async with measured(cluster) as (worker, client):
        await cluster.publish("secret-run", loop("secret-run", 6), partition=0)
        await cluster.publish("secret-run", [b"no event", b'{"type":"tool_call","tool":"secret-tool"}'], partition=0)
        await cluster.verdicts(2)
        await cluster.caught_up()
        found = await scraped(client)
        live, ready = await client.get("/healthz"), await client.get("/readyz")

    told = {
        'streamguard_events_total{type="tool_call"}': 6,
        'streamguard_events_total{type="tool_result"}': 6,
        'streamguard_verdicts_total{action="warn",detector="generic_repeat",shadow="false"}': 1,
        'streamguard_verdicts_total{action="block",detector="generic_repeat",shadow="false"}': 1,
        'streamguard_dead_letters_total{reason="unreadable"}': 1,
        'streamguard_dead_letters_total{reason="no_run"}': 1,
        'streamguard_lag_records{partition="0"}': 0,
        'streamguard_lag_seconds{partition="0"}': 0,
        'streamguard_runs{partition="0"}': 1,
        "streamguard_event_to_verdict_seconds_count": 2,
        "streamguard_restore_seconds_count": 2,
        "streamguard_ready": 1,
        "streamguard_stuck": 0,
        "streamguard_partitions": 2,
        f'streamguard_policy_info{{policy="{worker.ruleset.fingerprint}"}}': 1,
    }
    assert told == {name: found.get(name) for name in told}
    assert found["streamguard_checkpoint_seconds_count"] >= 2
    assert found["streamguard_loop_lag_seconds_count"] > 0
    assert (200, 200) == (live.status_code, ready.status_code)
    assert not any("secret" in name for name in found)


async def test_labels_are_few(cluster: Cluster) -> None:
    """No label is a run, an agent or a tool: the number of series does not grow with the traffic."""
    async with measured(cluster) as (_, client):
        await cluster.publish("run-0", loop("run-0", 1), partition=0)
        await cluster.caught_up()
        before = await scraped(client)
        for number in range(20):
            await cluster.publish(f"run-{number}", [call(f"run-{number}", 0, agent_id=f"a{number}", tool=f"t{number}")])
        await cluster.caught_up()
        after = await scraped(client)

    labels = {label for name in after for label in re.findall(r"[{,](\w+)=", name)}
    assert before.keys() == after.keys()
    assert labels <= {"type", "action", "detector", "shadow", "reason", "partition", "le", "kind", "policy", "result",
                      "version"}  # fmt: skip


async def test_a_worker_that_starts_is_alive_and_not_ready() -> None:
    """Before it is a member of its group: /healthz 200, /readyz 503, and no numbers of partitions."""
    metrics = Metrics()
    async with (
        serving(MetricsSettings(enabled=True, port=0), metrics, lambda: None) as (host, port),
        httpx.AsyncClient(base_url=f"http://{host}:{port}") as client,
    ):
        statuses = [(await client.get(path)).status_code for path in ("/healthz", "/readyz", "/metrics", "/nothing")]
        found = await scraped(client)

    assert [200, 503, 200, 404] == statuses
    assert "streamguard_partitions" not in found


async def test_a_port_that_is_taken_is_said_at_once() -> None:
    """Two servers on one port: the second is an error that names it, before any worker runs."""
    async with serving(MetricsSettings(enabled=True, port=0), Metrics(), lambda: None) as (_, port):
        with pytest.raises(CannotListenError, match=str(port)):
            async with serving(MetricsSettings(enabled=True, port=port), Metrics(), lambda: None):
                pass


def test_settings_of_metrics_are_off_and_on_loopback() -> None:
    """Nothing listens unless it is wanted, and nobody else can reach it then."""
    assert {"enabled": False, "host": "127.0.0.1", "port": 9464} == msgspec.to_builtins(MetricsSettings())
