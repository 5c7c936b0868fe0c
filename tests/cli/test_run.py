"""`streamguard run` and `topics create` as an operator meets them."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from commands import started, streamguard


@pytest.fixture
async def cluster(broker: Any, topic_prefix: str) -> AsyncIterator[Cluster]:
    """Give a test topics of its own."""
    async with Cluster(broker, topic_prefix) as cluster:
        yield cluster


def loop(run: str, times: int) -> list[bytes]:
    """Write the same call with the same result, again and again."""
    events = [
        ({"type": "tool_call", "run_id": run, "call_id": f"c{n}", "tool": "read"},
         {"type": "tool_result", "run_id": run, "call_id": f"c{n}", "result": "same"})
        for n in range(times)
    ]  # fmt: skip
    return [json.dumps(event).encode() for pair in events for event in pair]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_and_exits_zero(cluster: Cluster, repository: Path, number: signal.Signals) -> None:
    """The first signal ends the worker with everything judged committed, exit code 0, and JSON logs off a terminal."""
    config = repository / "config" / "streamguard.toml"
    async with started("run", "--config", config, **cluster.variables()) as worker:
        await worker.says("partitions open")
        await cluster.publish("run-1", loop("run-1", 21))
        await cluster.verdicts(2)
        code = await worker.ends(number)

    assert (0, 42) == (code, await cluster.committed())
    assert all(json.loads(line)["event"] for line in worker.lines)


async def test_a_second_signal_ends_it_at_once(cluster: Cluster, repository: Path) -> None:
    """Two signals: no draining, exit code 5."""
    config = repository / "config" / "streamguard.toml"
    async with started("run", "--config", config, **cluster.variables()) as worker:
        await worker.says("partitions open")
        worker.process.send_signal(signal.SIGSTOP)  # so that both wait for it
        worker.process.send_signal(signal.SIGTERM)
        worker.process.send_signal(signal.SIGINT)
        code = await worker.ends(signal.SIGCONT)

    assert 5 == code
    assert "second signal, ending at once" in worker.lines[-1]


async def test_no_payload_and_no_secret_in_the_logs(cluster: Cluster, repository: Path) -> None:
    """At the finest level of logging neither arguments, results nor passwords appear."""
    config = repository / "config" / "streamguard.toml"
    variables = {
        **cluster.variables(),
        "STREAMGUARD_LOG_LEVEL": "debug",
        "STREAMGUARD_KAFKA_SASL_PASSWORD": "swordfish",
    }
    async with started("run", "--config", config, **variables) as worker:
        await worker.says("partitions open")
        await cluster.publish("run-1", [b'{"type":"tool_call","run_id":"r","tool":"t","args":"hunter2"}', b'"hunter2'])
        await cluster.dead_letters(1)
        await worker.ends(signal.SIGTERM)

    assert not [line for line in worker.lines if "hunter2" in line or "swordfish" in line]


async def test_missing_topics_end_it_with_the_command_to_run(broker: Any) -> None:
    """Without its topics a worker exits 1 and names the command that makes them."""
    done = streamguard("run", "--bootstrap", broker.bootstrap, variables={"STREAMGUARD_TOPICS_EVENTS": "no.such.topic"})

    assert 1 == done.returncode
    assert "streamguard topics create" in done.stderr


def test_no_broker_ends_it_after_the_time_allowed() -> None:
    """With no broker a worker says so, gives up after the time allowed, and exits 1."""
    variables = {"STREAMGUARD_KAFKA_CONNECT_TIMEOUT_SECONDS": "2"}
    done = streamguard("run", "--bootstrap", "127.0.0.1:1", variables=variables)

    assert 1 == done.returncode
    assert "no Kafka broker answered at 127.0.0.1:1 within 2 s" in done.stderr


def test_a_wrong_setting_is_named() -> None:
    """A wrong variable exits 2 and says which, its value and what is allowed."""
    done = streamguard("run", variables={"STREAMGUARD_LIMITS_RUNS": "-1"})

    assert 2 == done.returncode
    assert "STREAMGUARD_LIMITS_RUNS: limits.runs is '-1'; expected `int` >= 1" in done.stderr


async def test_topics_are_created_and_found(broker: Any, topic_prefix: str) -> None:
    """`topics create` makes the topics, says so, and says that they exist the second time."""
    variables = {
        "STREAMGUARD_TOPICS_EVENTS": f"{topic_prefix}.e",
        "STREAMGUARD_TOPICS_VERDICTS": f"{topic_prefix}.v",
        "STREAMGUARD_TOPICS_DEAD_LETTERS": f"{topic_prefix}.d",
        "STREAMGUARD_WORKER_GROUP": f"{topic_prefix}.g",
    }
    command = ("topics", "create", "--bootstrap", broker.bootstrap, "--partitions", "3")
    first, second = (streamguard(*command, variables=variables) for _ in range(2))
    refused = streamguard(*command[:-1], "4", variables=variables)

    assert (0, 5) == (first.returncode, first.stdout.count("created "))
    assert (0, 5) == (second.returncode, second.stdout.count("exists "))
    assert 1 == refused.returncode
    assert "3 partitions, but 4 are wanted" in refused.stderr


@pytest.mark.parametrize(("configured", "warned"), [(False, True), (True, False)])
def test_a_guard_that_hardly_guards_says_so(repository: Path, *, configured: bool, warned: bool) -> None:
    """Without a policy only the post-compaction guard is on: the log says so; with the shipped one it does not."""
    config = ("--config", repository / "config" / "streamguard.toml") if configured else ()
    done = streamguard(
        "run", *config, "--bootstrap", "127.0.0.1:1", variables={"STREAMGUARD_KAFKA_CONNECT_TIMEOUT_SECONDS": "1"}
    )

    assert (1, warned) == (done.returncode, "rolling detectors are off" in done.stdout + done.stderr)
