"""A day of events at full speed: memory stays where it is, and the state topic at the size of the live runs.

    python tests/benchmarks/soak.py --minutes 10

Needs Java 17 and Maven (or STREAMGUARD_TEST_BOOTSTRAP). A process publishes events whose timestamps cover 24 hours as
fast as the worker takes them; runs begin, loop, end, or fall silent and expire after an hour of event time. The worker
runs as a program of its own. Printed: events, resident memory, live runs, and records and keys on the state topic.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

sys.path[:0] = [str(Path(__file__).parents[1])]

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from brokers.find import find_broker

from streamguard.logs import configure_logs
from streamguard.settings import Settings
from streamguard.stream.restore import LogReader
from streamguard.stream.topics import create_topics

PARTITIONS: Final = 2
DAY_MS: Final = 24 * 3600 * 1000
LAG_EVENTS: Final = 200_000
"""How far the publisher may be ahead of the worker's checkpoints."""

SEGMENT_BYTES: Final = str(32 * 1024 * 1024)
TOMBSTONE_MS: Final = "5000"

RUNS_AT_ONCE: Final = 3_000
SAMPLE_SECONDS: Final = 15.0


def make_settings(bootstrap: str, group: str) -> Settings:
    """Return settings with topics of their own, and runs that expire after an hour."""
    base, replace = Settings(), msgspec.structs.replace
    names = {name: f"{group}.{name}" for name in ("events", "verdicts", "dead_letters")}
    return replace(
        base,
        kafka=replace(base.kafka, bootstrap=bootstrap),
        topics=replace(base.topics, partitions=PARTITIONS, **names),
        worker=replace(base.worker, group=group),
        limits=replace(base.limits, idle_seconds=3600),
    )


def events(choice: random.Random) -> Iterator[tuple[bytes, bytes]]:
    """Yield run and record for ever: some loop, most end, some fall silent."""
    live: dict[str, int] = {}
    number = 0
    while True:
        while len(live) < RUNS_AT_ONCE:
            number += 1
            live[f"run-{number}"] = choice.randint(5, 60)
        for run in choice.sample(list(live), 200):
            key, left = run.encode(), live[run]
            scope = f'"run_id":"{run}","call_id":"c{left}"'
            path = "same" if run.endswith("7") else f"part-{left}"
            yield key, b'{"type":"tool_call",%s,"tool":"read","args":{"path":"%s"}}' % (scope.encode(), path.encode())
            yield key, b'{"type":"tool_result",%s,"result":"%s"}' % (scope.encode(), path.encode())
            live[run] = left - 1
            if left == 1:
                del live[run]
                if choice.random() < 0.7:
                    yield key, b'{"type":"run_ended",%s}' % scope.encode()


async def publish(settings: Settings, seconds: float) -> None:
    """Publish a day in so many seconds, never too far ahead of the worker."""
    producer = AIOKafkaProducer(bootstrap_servers=settings.kafka.bootstrap, linger_ms=20, max_batch_size=1 << 17)
    group = AIOKafkaConsumer(
        bootstrap_servers=settings.kafka.bootstrap, group_id=settings.worker.group, enable_auto_commit=False
    )
    await producer.start()
    await group.start()
    partitions = [TopicPartition(settings.topics.events, number) for number in range(PARTITIONS)]
    group.assign(partitions)
    begun = time.monotonic()
    first = int(time.time() * 1000) - DAY_MS
    for published, (key, value) in enumerate(events(random.Random(1))):
        if published % 1000 == 0:
            elapsed = time.monotonic() - begun
            if elapsed > seconds:
                break
            stamp = first + int(DAY_MS * elapsed / seconds)
            while published - sum([await group.committed(partition) or 0 for partition in partitions]) > LAG_EVENTS:
                await asyncio.sleep(0.2)
        await producer.send(settings.topics.events, value, key=key, timestamp_ms=stamp)
    await producer.stop()
    await group.stop()


async def create(settings: Settings) -> None:
    """Create the topics; events are kept for a short while only: a day of them would fill the disk."""
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.kafka.bootstrap)
    await admin.start()
    configs = {"retention.bytes": "400000000", "segment.bytes": "50000000", "retention.ms": "-1"}
    await admin.create_topics([NewTopic(settings.topics.events, PARTITIONS, 1, topic_configs=configs)])
    await create_topics(settings)
    # Its time is squeezed like the events' is: tombstones go after some seconds, not after ten minutes.
    configs = {"cleanup.policy": "compact", "segment.bytes": SEGMENT_BYTES, "delete.retention.ms": TOMBSTONE_MS}
    configs |= {"min.cleanable.dirty.ratio": "0.1", "segment.ms": "600000"}
    await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, settings.state_topic, configs)])
    await admin.close()


async def state_size(settings: Settings) -> tuple[int, int, int]:
    """Return how many records the state topic has, tombstones among them, and of how many live keys."""
    records = tombstones = 0
    keys: set[tuple[int, bytes]] = set()
    for number in range(PARTITIONS):
        place = TopicPartition(settings.state_topic, number)
        async with LogReader(settings.kafka, place) as reader:
            async for some in reader.read(place):
                records += len(some)
                tombstones += sum(record.value is None for record in some)
                for record in some:
                    (keys.discard if record.value is None else keys.add)((number, record.key))
    return records, tombstones, len(keys)


def resident(pid: int) -> float:
    """Return a process's resident memory in MB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 1e6


async def soak(settings: Settings, minutes: float) -> None:
    """Run worker and publisher, print samples, then the account."""
    await create(settings)
    folder = Path(tempfile.mkdtemp(prefix="streamguard-soak-"))
    status = folder / "status.json"
    (folder / "config.toml").write_text(config(settings, status))
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "streamguard", "run", "--config", str(folder / "config.toml")),
        stderr=asyncio.subprocess.DEVNULL,
    )
    publisher = await asyncio.create_subprocess_exec(
        *(sys.executable, __file__, "--publish", settings.kafka.bootstrap, settings.worker.group),
        *("--minutes", str(minutes)),
    )
    samples: list[tuple[float, float]] = []
    begun = time.monotonic()
    widths = {"s": 5, "events": 12, "events/s": 9, "RSS MB": 7, "live runs": 9, "state records": 13, "tombstones": 10}
    print(*(f"{name:>{width}}" for name, width in widths.items()), f"{'keys':>7}")
    last = 0
    while publisher.returncode is None:
        await asyncio.sleep(SAMPLE_SECONDS)
        told: dict[str, Any] = json.loads(status.read_bytes())
        memory, judged = resident(worker.pid), told["judged"]
        samples.append((time.monotonic() - begun, memory))
        records, tombstones, keys = await state_size(settings)
        runs = sum(partition["runs"] for partition in told["partitions"])
        print(
            f"{samples[-1][0]:5.0f} {judged:12,} {(judged - last) / SAMPLE_SECONDS:9,.0f} {memory:7.1f} {runs:9,} "
            f"{records:13,} {tombstones:10,} {keys:7,}",
            flush=True,
        )
        last = judged
    worker.terminate()
    await worker.wait()
    warm = [memory for at, memory in samples if at > samples[-1][0] / 4]
    third = max(1, len(warm) // 3)
    early, late = sum(warm[:third]) / third, sum(warm[-third:]) / third
    print(f"resident memory after warm-up: {early:.1f} MB, at the end: {late:.1f} MB ({late / early:.2f} times)")


def config(settings: Settings, status: Path) -> str:
    """Write the worker's configuration."""
    topics = settings.topics
    return (
        f'[kafka]\nbootstrap = "{settings.kafka.bootstrap}"\n'
        f'[topics]\nevents = "{topics.events}"\nverdicts = "{topics.verdicts}"\n'
        f'dead_letters = "{topics.dead_letters}"\n'
        f'[worker]\ngroup = "{settings.worker.group}"\nstatus_file = "{status}"\n'
        f"[limits]\nidle_seconds = {settings.limits.idle_seconds}\n[policy]\nenabled = true\n"
    )


def main() -> None:
    """Start everything, or, as the second process, publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--publish", nargs=2, metavar=("BOOTSTRAP", "GROUP"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.publish:
        asyncio.run(publish(make_settings(*options.publish), options.minutes * 60))
        return
    configure_logs("error")
    broker = find_broker()
    try:
        asyncio.run(soak(make_settings(broker.bootstrap, f"soak-{uuid.uuid4().hex[:8]}"), options.minutes))
    finally:
        broker.stop()


if __name__ == "__main__":
    main()
