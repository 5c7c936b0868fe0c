"""The worker as a program, against real recordings and against anything at all."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import signal
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from commands import started, streamguard
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from streamguard.errors import UnreadableRecordError
from streamguard.events import decode_event, run_of

NOT_EVENTS = {"runs.jsonl.gz", "labels.jsonl"}
RECORDS = 10_000

Said = dict[str, list[tuple[str | None, str, str, int]]]
"""By run: call, action, detector and count of each verdict, in order."""


@pytest.fixture
async def cluster(broker: Any, topic_prefix: str) -> AsyncIterator[Cluster]:
    """Give a test topics of its own."""
    async with Cluster(broker, topic_prefix) as cluster:
        yield cluster


def by_run(verdicts: Iterable[dict[str, Any]]) -> Said:
    """Sort verdicts (as JSON) by run."""
    said: Said = defaultdict(list)
    for verdict in verdicts:
        said[verdict["run_id"]].append(
            (verdict.get("call_id"), verdict["action"], verdict["detector"], verdict["count"])
        )
    return dict(said)


def events_of(files: Iterable[Path]) -> Iterator[tuple[str, bytes]]:
    """Yield run and record of every event."""
    for file in files:
        with gzip.open(file) as lines:
            for line in lines:
                yield json.loads(line)["run_id"], line.rstrip(b"\n")


@pytest.mark.apache
@pytest.mark.timeout(600)
async def test_recorded_runs_give_the_verdicts_of_a_replay(
    cluster: Cluster, repository: Path, shared: Callable[[str], Path]
) -> None:
    """Real runs on six partitions, two workers of one group: every run gets exactly the verdicts of `replay`."""
    files = sorted(file for file in shared("corpus").glob("*.gz") if file.name not in NOT_EVENTS)
    config = repository / "config" / "streamguard.toml"
    replay = asyncio.create_task(asyncio.to_thread(streamguard, "replay", "--policy", config, *files, seconds=300))
    async with (
        started("run", "--config", config, **cluster.variables()) as first,
        started("run", "--config", config, **cluster.variables()) as second,
    ):
        for worker in (first, second):  # which of them gets which half is the group's business
            await worker.says(r'"partitions": \[(0, 2, 4|1, 3, 5)\]')
        count = await cluster.publish_all(events_of(files))
        await cluster.caught_up(seconds=300)
        codes = [await worker.ends(signal.SIGTERM) for worker in (first, second)]
    replayed = await replay
    expected = by_run(map(json.loads, replayed.stdout.splitlines()))
    got = by_run(json.loads(record.value) for record in await cluster.verdict_records(sum(map(len, expected.values()))))

    assert ([0, 0], 0) == (codes, replayed.returncode)
    assert count > 200_000
    assert expected
    assert expected == got


def generated(count: int) -> list[bytes]:
    """Return what hypothesis comes up with: random bytes, random JSON, events with random fields."""
    anything = st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
        max_leaves=6,
    )
    names = (
        "run_id",
        "session_id",
        "agent_id",
        "call_id",
        "tool",
        "args",
        "result",
        "error",
        "status",
        "gate",
        "event_id",
    )
    likely = st.one_of(st.sampled_from(["r1", "r2", "exec", "process", "c1", "blocked", " "]), anything)
    events = st.builds(
        lambda kind, fields: json.dumps({"type": kind, **fields}).encode(),
        st.sampled_from(["tool_call", "tool_result", "compaction", "run_ended", "novelty"]),
        st.dictionaries(st.sampled_from(names), likely),
    )
    made: list[bytes] = []

    @settings(max_examples=count, phases=[Phase.generate], database=None, suppress_health_check=list(HealthCheck))
    @given(st.one_of(st.binary(max_size=60), anything.map(lambda value: json.dumps(value).encode()), events, events))
    def make(record: bytes) -> None:
        made.append(record)

    make()
    return made


def mutated(records: list[bytes], count: int, rng: random.Random) -> Iterator[bytes]:
    """Yield records with bits flipped, pieces cut out or doubled."""
    for _ in range(count):
        record = bytearray(rng.choice(records))
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(record) or 1)
            what = rng.randrange(3)
            if what == 0 and record:
                record[at] ^= 1 << rng.randrange(8)
            elif what == 1:
                del record[at : at + rng.randint(1, 20)]
            else:
                record[at:at] = record[at : at + rng.randint(1, 20)]
        yield bytes(record)


def is_event(record: bytes) -> bool:
    """Tell whether a record can be read, by the same decoder but in another process than the worker's."""
    try:
        event = decode_event(record)
        return event is None or bool(run_of(event))
    except UnreadableRecordError:
        return False


def originals(repository: Path, shared: Callable[[str], Path], rng: random.Random) -> list[bytes]:
    """Return some events to mutate: recorded ones where there are any, else those of the hand-written cases."""
    try:
        files = sorted(file for file in shared("corpus").glob("*.gz") if file.name not in NOT_EVENTS)
        records = [record for file in files[:4] for _, record in events_of([file])]
    except pytest.skip.Exception:
        lines = (repository / "tests" / "conformance" / "stream.jsonl").read_bytes().splitlines()
        records = [json.dumps(event).encode() for line in lines for event in json.loads(line)["events"]]
    small = [record for record in records if len(record) < 2000]
    return rng.sample(small, min(2000, len(small)))


@pytest.mark.timeout(300)
async def test_ten_thousand_bad_records_stop_nothing_and_none_is_lost(
    cluster: Cluster, repository: Path, shared: Callable[[str], Path]
) -> None:
    """Of random and mutated records every unreadable one is a dead letter, as it was; the loop among them is found."""
    rng = random.Random(20261201)
    made = await asyncio.to_thread(generated, RECORDS // 2)
    records = made + list(mutated(originals(repository, shared, rng), RECORDS - len(made), rng))
    rng.shuffle(records)
    unreadable = sorted(record for record in records if not is_event(record))
    loop = [
        event
        for number in range(11)
        for event in (
            b'{"type":"tool_call","run_id":"looping","tool":"read","call_id":"x%d"}' % number,
            b'{"type":"tool_result","run_id":"looping","result":"same","call_id":"x%d"}' % number,
        )
    ]
    config = repository / "config" / "streamguard.toml"
    async with started("run", "--config", config, **cluster.variables()) as worker:
        await worker.says("partitions open")
        await cluster.publish_all((f"run-{number % 60}", record) for number, record in enumerate(records))
        await cluster.publish("looping", loop)
        reading = asyncio.create_task(worker.says("stopping", seconds=180))  # a full pipe would stop it
        await cluster.caught_up(seconds=120)
        letters = await cluster.dead_letters(len(unreadable))
        verdicts = await cluster.verdicts(1)
        worker.process.terminate()
        await reading
        code = await worker.ends()

    assert len(unreadable) > RECORDS // 4
    assert unreadable == sorted(letter.value or b"" for letter in letters)
    assert {"error", "source.topic", "source.partition", "source.offset"} == set(dict(letters[0].headers))
    assert ("warn", "generic_repeat") in {(v.action, v.detector) for v in verdicts if v.run_id == "looping"}
    assert 0 == code
