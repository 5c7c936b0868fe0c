"""What fencing costs a verdict: fenced batches beside a plain idempotent producer and beside a transaction for each.

    python tests/benchmarks/fence.py

Needs Java 17 and Maven (or STREAMGUARD_TEST_BOOTSTRAP). All in one process against one broker, one record at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

sys.path[:0] = [str(Path(__file__).parents[1])]

from aiokafka import AIOKafkaProducer, TopicPartition
from brokers.find import find_broker

from streamguard.logs import configure_logs
from streamguard.settings import Settings
from streamguard.stream.kafka import make_brokers
from streamguard.stream.producer import FencedProducer, Record
from streamguard.stream.topics import create_topics

VALUE = b"x" * 600
"""About a verdict."""


async def times(rounds: int, write: Callable[[], Awaitable[object]]) -> list[float]:
    """Return the milliseconds that each of some writes took."""
    taken = []
    for number in range(rounds + 20):
        begun = time.perf_counter()
        await write()
        if number >= 20:
            taken.append((time.perf_counter() - begun) * 1000)
    return sorted(taken)


def tell(name: str, taken: list[float], base: list[float]) -> None:
    """Print median, 99th percentile, and the ratio of medians."""
    median = statistics.median(taken)
    print(
        f"{name:<34} p50 {median:6.2f} ms   p99 {taken[len(taken) * 99 // 100]:6.2f} ms   "
        f"{median / statistics.median(base):5.2f} times"
    )


async def measure(bootstrap: str, rounds: int) -> None:
    """Measure the three ways, twice, in turns."""
    base, replace = Settings(), msgspec.structs.replace
    prefix = f"fence-{uuid.uuid4().hex[:6]}"
    names = {name: f"{prefix}.{name}" for name in ("events", "verdicts", "dead_letters")}
    settings = replace(
        base,
        kafka=replace(base.kafka, bootstrap=bootstrap),
        topics=replace(base.topics, partitions=1, **names),
        worker=replace(base.worker, group=prefix),
    )
    await create_topics(settings)
    verdicts, state = TopicPartition(settings.topics.verdicts, 0), TopicPartition(settings.state_topic, 0)
    brokers = make_brokers(settings.kafka, (verdicts.topic, state.topic))
    await brokers.start()
    fenced = FencedProducer(brokers, prefix, request_timeout_ms=30_000, transaction_timeout_ms=60_000)
    begun = time.perf_counter()
    await fenced.open([state, verdicts])
    print(f"putting up a fence: {(time.perf_counter() - begun) * 1000:.0f} ms, once for each takeover")
    record = [Record(b"run-1", VALUE)]

    async def in_transaction() -> None:
        async with fenced.transaction(verdicts) as transaction:
            await transaction.write(record)

    async with AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True) as plain:
        for _ in range(2):
            alone = await times(rounds, lambda: plain.send_and_wait(verdicts.topic, VALUE, key=b"run-1", partition=0))
            tell("aiokafka, idempotent, no fence", alone, alone)
            tell("fenced batch (what we do)", await times(rounds, lambda: fenced.append(verdicts, record)), alone)
            tell("a transaction for each", await times(rounds // 4, in_transaction), alone)
    await brokers.stop()


def main() -> None:
    """Find a broker and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000)
    options = parser.parse_args()
    configure_logs("error")
    broker = find_broker()
    try:
        asyncio.run(measure(broker.bootstrap, options.rounds))
    finally:
        broker.stop()


if __name__ == "__main__":
    main()
