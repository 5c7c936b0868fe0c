"""How long a partition with many live runs takes to be ready after a takeover, and what a live run costs in memory.

    python tests/benchmarks/restore.py

Needs Java 17 and Maven (or STREAMGUARD_TEST_BOOTSTRAP). One guard judges 30 calls with their results of each run and
is written down; a fresh process then opens the partition as a worker does. Beside it, in the same process: a plain
consumer that reads the same state partition and does nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any, Final

import msgspec

sys.path[:0] = [str(Path(__file__).parents[1])]

from aiokafka import AIOKafkaConsumer, TopicPartition
from brokers.find import find_broker

from streamguard.events import Source, ToolCall, ToolResult
from streamguard.guard import Guard, Limits
from streamguard.logs import configure_logs
from streamguard.policy import PolicySet
from streamguard.settings import Settings
from streamguard.stream.checkpoint import MARKER_KEY, Marker
from streamguard.stream.kafka import make_brokers, make_consumer
from streamguard.stream.opening import Clients, Opener
from streamguard.stream.producer import FencedProducer, Record
from streamguard.stream.ruleset import Ruleset
from streamguard.stream.topics import create_topics

CALLS: Final = 30
POLICIES: Final = PolicySet({"enabled": True})


def resident() -> int:
    """Return this process's resident memory in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def make_settings(bootstrap: str, group: str) -> Settings:
    """Return settings with topics of one partition."""
    base, replace = Settings(), msgspec.structs.replace
    names = {name: f"{group}.{name}" for name in ("events", "verdicts", "dead_letters")}
    return replace(
        base,
        kafka=replace(base.kafka, bootstrap=bootstrap),
        topics=replace(base.topics, partitions=1, **names),
        worker=replace(base.worker, group=group),
    )


def filled(runs: int) -> tuple[Guard, int]:
    """Let a guard see 30 calls of each run, all different; return it and the number of events."""
    guard = Guard(POLICIES, Limits(runs=runs))
    offset = 0
    for number in range(runs):
        run = str(uuid.UUID(int=number * 7919))
        for call in range(CALLS):
            call_id = f"toolu_{number:08d}{call:012d}"
            for event in (
                ToolCall(run_id=run, call_id=call_id, tool="read_file", args={"path": f"/src/{call}"}),
                ToolResult(run_id=run, call_id=call_id, result=f"{run}{call}"),
            ):
                guard.observe(event, Source("agent.events", 0, offset, offset))
                offset += 1
    return guard, offset


async def fill(settings: Settings, runs: int) -> None:
    """Write the runs down, as a worker's checkpoint does."""
    await create_topics(settings)
    gc.collect()
    before = resident()
    guard, offset = filled(runs)
    gc.collect()
    print(f"a live run with a full window of {CALLS}: {(resident() - before) / runs:,.0f} bytes resident")
    state, verdicts = TopicPartition(settings.state_topic, 0), TopicPartition(settings.topics.verdicts, 0)
    brokers = make_brokers(settings.kafka, (state.topic, verdicts.topic))
    await brokers.start()
    producer = FencedProducer(
        brokers, settings.transactional_id(0), request_timeout_ms=30_000, transaction_timeout_ms=120_000
    )
    await producer.open([state, verdicts])
    capture, written = guard.capture(), 0
    marker = Marker(
        position=0,
        verdicts=0,
        time=offset,
        runs=runs,
        policy=Ruleset(POLICIES, settings.limits).fingerprint,
        epoch=producer.epoch,
    )
    begun = time.perf_counter()
    async with producer.transaction(state, verdicts) as transaction:
        while changes := capture.write(512):
            written += sum(len(value or b"") for _, value in changes)
            await transaction.write(Record(run.encode(), value) for run, value in changes)
        await transaction.write([Record(MARKER_KEY, msgspec.json.encode(marker))])
    print(f"checkpoint of {runs:,} runs: {written / 1e6:.0f} MB in {time.perf_counter() - begun:.1f} s")
    await brokers.stop()


async def measure(settings: Settings) -> None:
    """Open the partition, in a process of its own; print times and memory as JSON."""
    consumer = make_consumer(settings.kafka, settings.worker)
    await consumer.start()
    brokers = make_brokers(settings.kafka, (settings.state_topic, settings.topics.verdicts, settings.policies_topic))
    await brokers.start()
    letters: Any = None  # none will be written

    def lost(*what: object) -> None:
        print(what, file=sys.stderr)

    ruleset = Ruleset(POLICIES, settings.limits)
    opener = Opener(Clients(consumer, brokers, letters), settings, lambda: ruleset, lost)
    bare = await bare_read(settings)
    gc.collect()
    before, wall, cpu = resident(), time.perf_counter(), time.process_time()
    held = await opener.open(0)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    gc.collect()
    runs = len(held.shard.guard)
    print(json.dumps({"runs": runs, "wall": wall, "cpu": cpu, "bytes": (resident() - before) / runs, "bare": bare}))
    await held.outbox.close()
    await consumer.stop()
    await brokers.stop()


async def bare_read(settings: Settings) -> float:
    """Return the CPU seconds of a consumer that reads the state partition and does nothing."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=settings.kafka.bootstrap,
        group_id=None,
        auto_offset_reset="none",
        isolation_level="read_committed",
        max_partition_fetch_bytes=4 * 1024 * 1024,
        fetch_max_wait_ms=50,
    )
    await consumer.start()
    partition = TopicPartition(settings.state_topic, 0)
    consumer.assign([partition])
    end = (await consumer.end_offsets([partition]))[partition]
    consumer.seek(partition, 0)
    begun = time.process_time()
    while await consumer.position(partition) < end:
        await consumer.getmany(partition, timeout_ms=20, max_records=2_000)
    await consumer.stop()
    return time.process_time() - begun


def main() -> None:
    """Fill, then measure in a fresh process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--measure", nargs=2, metavar=("BOOTSTRAP", "GROUP"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    configure_logs("error")
    if options.measure:
        asyncio.run(measure(make_settings(*options.measure)))
        return
    broker = find_broker()
    try:
        group = f"restore-{uuid.uuid4().hex[:8]}"
        asyncio.run(fill(make_settings(broker.bootstrap, group), options.runs))
        again = [sys.executable, __file__, "--measure", broker.bootstrap, group]
        for _ in range(3):
            done = json.loads(subprocess.run(again, check=True, stdout=subprocess.PIPE).stdout)
            print(
                f"restore of {done['runs']:,} runs: {done['wall']:.2f} s, {done['cpu']:.2f} s of CPU "
                f"({done['cpu'] / done['bare']:.1f} times a bare consumer's {done['bare']:.2f} s); "
                f"{done['bytes']:,.0f} bytes resident a run"
            )
    finally:
        broker.stop()


if __name__ == "__main__":
    main()
