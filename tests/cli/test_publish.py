"""`streamguard publish`: recorded events end up on the topic, and going on after an interruption does no harm."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from commands import started, streamguard

from streamguard.events import decode_event, run_of
from streamguard.guard import Guard
from streamguard.policy import resolve
from streamguard.replay import Replay, lines_of, timestamp_of

RECORDED = Path(__file__).parent.parent / "unit" / "recorded"


@pytest.fixture
async def cluster(broker: Any, topic_prefix: str) -> AsyncIterator[Cluster]:
    """Give a test topics of its own."""
    async with Cluster(broker, topic_prefix) as cluster:
        yield cluster


async def on_topic(cluster: Cluster, count: int) -> list[Any]:
    """Return the records of the events topic once it has so many."""
    return await cluster._records(cluster.settings.topics.events, count)  # noqa: SLF001 - the events topic too


def calls(runs: int, times: int) -> bytes:
    """Write calls of many runs, a line each, the runs taking turns."""
    return b"".join(
        json.dumps({"type": "tool_call", "run_id": f"run-{run}", "tool": "ls", "event_id": f"{run}-{number}"}).encode()
        + b"\n"
        for number in range(times)
        for run in range(runs)
    )


async def test_a_foreign_recording_is_on_the_topic(cluster: Cluster) -> None:
    """Every event stands there in order, keyed by its run, all on one partition, at the time it was recorded."""
    done = streamguard("publish", RECORDED / "openai_agents.jsonl", variables=cluster.variables())
    records = await on_topic(cluster, 34)
    events = [decode_event(record.value) for record in records]

    assert 0 == done.returncode
    assert re.fullmatch(
        rf"34 events of 1 runs published to {cluster.settings.topics.events} in [0-9.]+ s \([0-9,]+ a second\)\n",
        done.stdout,
    )
    assert "skipped: 22 spans of other types, 1 traces" in done.stderr
    assert 1 == len({record.partition for record in records})
    assert [(run_of(event).encode(), timestamp_of(event)) for event in events if event is not None] == [
        (record.key, record.timestamp) for record in records
    ]


async def test_event_files_go_as_they_are_and_what_is_wrong_is_named(cluster: Cluster, tmp_path: Path) -> None:
    """Values are the lines, byte for byte; a bad line is named, the rest is sent, and the exit code is 1."""
    file = tmp_path / "a.jsonl"
    lines = calls(3, 2).splitlines()
    file.write_bytes(b"oops\n" + b'{ "type":"tool_call", "run_id":"odd", "tool":"t" }\n' + calls(3, 2))
    done = streamguard("publish", file, variables=cluster.variables())
    records = await on_topic(cluster, 7)

    assert 1 == done.returncode
    assert f"{file}:1: not JSON" in done.stderr
    assert "1 events without event_id (published twice, they count twice)" in done.stderr
    assert sorted([*lines, b'{ "type":"tool_call", "run_id":"odd", "tool":"t" }']) == sorted(
        record.value for record in records
    )
    assert "7 events of 4 runs published to" in done.stdout


async def test_interrupted_it_says_how_far_it_got_and_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    """After a Ctrl-C, --skip with the number that it said brings the rest; what is there twice are duplicates."""
    file = tmp_path / "a.jsonl"
    file.write_bytes(calls(1, 1500))
    async with started("publish", file, "--rate", "100", **cluster.variables()) as publish:
        await on_topic(cluster, 200)
        code = await publish.ends(signal.SIGINT)
    said = re.search(r"stopped: ([\d,]+) events .* --skip (\d+)", "".join(publish.lines))
    assert said is not None
    reached = int(said[2])
    rest = streamguard("publish", file, "--skip", said[2], variables=cluster.variables())
    records = await on_topic(cluster, 1500)
    guard = Guard(resolve({"enabled": True}))
    replayed = tmp_path / "replayed.jsonl"
    replayed.write_bytes(b"".join(record.value + b"\n" for record in records))
    replay = Replay(guard, record_bytes=1000, json_depth=10)
    for line in lines_of(str(replayed), 1000):
        replay.judge(line)

    assert (130, 0) == (code, rest.returncode)
    assert 200 - 256 <= reached < 1500
    assert 1500 <= len(records) < 1500 + 256
    assert len(records) - 1500 == guard.counters.duplicates
    assert 1500 == len({record.value for record in records})


async def test_the_rate_is_kept(cluster: Cluster, tmp_path: Path) -> None:
    """With --rate events are sent no faster."""
    file = tmp_path / "a.jsonl"
    file.write_bytes(calls(2, 100))
    done = streamguard("publish", file, "--rate", "100", variables=cluster.variables())
    said = re.search(r"in ([\d.]+) s", done.stdout)

    assert said is not None
    assert float(said[1]) >= 1.9


async def test_a_missing_topic_is_named(broker: Any) -> None:
    """Without its topic nothing is sent, and the command that makes it is named."""
    variables = {"STREAMGUARD_KAFKA_BOOTSTRAP": broker.bootstrap, "STREAMGUARD_TOPICS_EVENTS": "no.such.topic"}
    done = streamguard("publish", RECORDED / "otlp.jsonl", variables=variables)

    assert (1, "") == (done.returncode, done.stdout)
    assert "no topic no.such.topic" in done.stderr
    assert "streamguard topics create" in done.stderr


def test_no_broker_is_named() -> None:
    """With no broker it says so after the time allowed."""
    variables = {"STREAMGUARD_KAFKA_CONNECT_TIMEOUT_SECONDS": "2"}
    done = streamguard("publish", RECORDED / "otlp.jsonl", "--bootstrap", "127.0.0.1:1", variables=variables)

    assert 1 == done.returncode
    assert "no Kafka broker answered at 127.0.0.1:1 within 2 s" in done.stderr
