"""How fast a worker reads, judges and commits, with and without metrics, beside a bare consumer of the same records.

Run: python tests/benchmarks/stream.py --bootstrap HOST:PORT [--events 200000]

One process, one event loop for each of them; the broker runs beside them. Topics of its own are made and deleted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
import uuid

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from prometheus_client import generate_latest

from streamguard.logs import configure_logs
from streamguard.policy import PolicySet
from streamguard.settings import MetricsSettings, Settings
from streamguard.stream.kafka import FETCH_BYTES, make_admin
from streamguard.stream.telling import QUIET, Telling
from streamguard.stream.topics import create_topics
from streamguard.stream.worker import Worker
from streamguard.telemetry import Metrics, serving

RUNS = 600
"""Interleaved runs; one in ten loops."""


def settings_for(bootstrap: str) -> Settings:
    """Return settings with topics of their own."""
    prefix, base = f"bench.{uuid.uuid4().hex[:6]}", Settings()
    return msgspec.structs.replace(
        base,
        kafka=msgspec.structs.replace(base.kafka, bootstrap=bootstrap),
        topics=msgspec.structs.replace(
            base.topics, events=f"{prefix}.events", verdicts=f"{prefix}.verdicts", dead_letters=f"{prefix}.dlq"
        ),
        worker=msgspec.structs.replace(base.worker, group=prefix, checkpoint_interval_seconds=0.2),
    )


async def publish(settings: Settings, events: int) -> None:
    """Publish calls and results of many runs."""
    producer = AIOKafkaProducer(bootstrap_servers=settings.kafka.bootstrap, linger_ms=5, max_batch_size=1 << 18)
    async with producer:
        for number in range(events // 2):
            run, call = f"run-{number % RUNS}", f"c{number}"
            path = "src/main.py" if number % 10 == 0 else f"src/part-{number}.py"
            scope = {"run_id": run, "call_id": call}
            records = (
                {"type": "tool_call", **scope, "agent_id": "bench", "tool": "read", "args": {"path": path}},
                {"type": "tool_result", **scope, "result": {"content": [{"type": "text", "text": "x" * 200}]}},
            )
            for record in records:
                await producer.send(settings.topics.events, json.dumps(record).encode(), key=run.encode())
        await producer.flush()


async def bare(settings: Settings, events: int) -> float:
    """Read all records and do nothing; return the seconds."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=settings.kafka.bootstrap, max_partition_fetch_bytes=FETCH_BYTES, fetch_max_wait_ms=100
    )
    async with consumer:
        partitions = [TopicPartition(settings.topics.events, n) for n in range(settings.topics.partitions)]
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        start, read = time.perf_counter(), 0
        while read < events:
            batches = await consumer.getmany(timeout_ms=200, max_records=settings.worker.slice_records)
            read += sum(map(len, batches.values()))
        return time.perf_counter() - start


async def judged(settings: Settings, events: int, telling: Telling = QUIET) -> tuple[float, int]:
    """Run a worker over all records until it has committed them; return the seconds and its verdicts."""
    worker = Worker(settings, PolicySet({"enabled": True}), telling=telling)
    task = asyncio.create_task(worker.run())
    await worker.ready()
    start = time.perf_counter()
    while worker.judged < events:
        await asyncio.sleep(0.01)
    seconds = time.perf_counter() - start
    worker.stop()
    await task
    return seconds, sum(worker.verdicts.values())


async def served(settings: Settings, events: int) -> float:
    """Do the same as another group, with metrics that are scraped; return the seconds."""
    group = f"{settings.worker.group}.metrics"
    settings = msgspec.structs.replace(settings, worker=msgspec.structs.replace(settings.worker, group=group))
    await create_topics(settings)
    metrics = Metrics()

    async def scrape() -> None:
        while True:
            await asyncio.sleep(1)
            generate_latest(metrics.registry)

    async with serving(MetricsSettings(enabled=True, port=0), metrics, lambda: None):
        scraping = asyncio.create_task(scrape())
        seconds, _ = await judged(settings, events, metrics)
        scraping.cancel()
    return seconds


async def main() -> None:
    """Publish, read twice, print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True, metavar="HOST:PORT")
    parser.add_argument("--events", type=int, default=200_000)
    arguments = parser.parse_args()
    configure_logs("error", "console")
    settings, events = settings_for(arguments.bootstrap), arguments.events
    await create_topics(settings)
    try:
        await publish(settings, events)
        reading = await bare(settings, events)
        judging, verdicts = await judged(settings, events)
        serving_too = await served(settings, events)
    finally:
        admin = make_admin(settings.kafka)
        await admin.start()
        await admin.delete_topics([settings.topics.events, settings.topics.verdicts, settings.topics.dead_letters])
        await admin.close()
    print(f"{events:,} events of {RUNS} runs, {verdicts:,} verdicts, {settings.topics.partitions} partitions")
    print(f"bare consumer   {events / reading:>10,.0f} events a second")
    print(f"worker          {events / judging:>10,.0f} events a second, {judging / reading:.2f} times as long")
    print(f"... and metrics {events / serving_too:>10,.0f} events a second, {serving_too / reading:.2f} times as long")


if __name__ == "__main__":
    asyncio.run(main())
