"""How fast verdicts are verified, and that they are right after policy changes and crashes of workers.

Run: python tests/benchmarks/verify.py --bootstrap HOST:PORT [--events 1000000] [--kills 4]

Two worker processes judge the events while the policy file changes in the middle and workers are killed (-9) and
started again. Then every verdict is derived anew; then one byte of one stored verdict is flipped, on a copy of its
topic, and found. Topics of its own are made and deleted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import NewTopic
from stream import bare, publish, settings_for

from streamguard.logs import configure_logs
from streamguard.settings import Settings
from streamguard.stream.kafka import make_admin
from streamguard.stream.restore import LogReader
from streamguard.stream.topics import create_topics

WORKERS = 2
BEFORE = "[policy]\nenabled = true\n"
AFTER = "[policy]\nenabled = true\nwarningThreshold = 5\ncriticalThreshold = 12\n"


class Fleet:
    """Worker processes."""

    def __init__(self, settings: Settings, policy: Path) -> None:
        worker, topics = settings.worker, settings.topics
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("STREAMGUARD_")},
            "STREAMGUARD_CONFIG": str(policy),
            "STREAMGUARD_KAFKA_BOOTSTRAP": settings.kafka.bootstrap,
            "STREAMGUARD_TOPICS_EVENTS": topics.events,
            "STREAMGUARD_TOPICS_VERDICTS": topics.verdicts,
            "STREAMGUARD_TOPICS_DEAD_LETTERS": topics.dead_letters,
            "STREAMGUARD_WORKER_GROUP": worker.group,
            "STREAMGUARD_WORKER_SESSION_TIMEOUT_MS": "6000",
            "STREAMGUARD_WORKER_HEARTBEAT_INTERVAL_MS": "500",
            "STREAMGUARD_WORKER_CHECKPOINT_INTERVAL_SECONDS": "2",
            "STREAMGUARD_LOG_LEVEL": "error",
        }
        self.workers: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start all."""
        self.workers = [self._start() for _ in range(WORKERS)]

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "streamguard", "run"]
        return subprocess.Popen(command, env=self.environment, stderr=subprocess.DEVNULL)

    def kill(self, number: int) -> None:
        """Kill a worker and start another one."""
        worker = self.workers[number % WORKERS]
        worker.kill()
        worker.wait()
        self.workers[number % WORKERS] = self._start()

    def stop(self) -> None:
        """Stop all."""
        for worker in self.workers:
            worker.send_signal(signal.SIGTERM)
        for worker in self.workers:
            worker.wait()


async def committed(settings: Settings) -> int:
    """Return how many events the group has committed."""
    admin = make_admin(settings.kafka)
    await admin.start()
    with contextlib.suppress(Exception):  # a coordinator that is being elected
        offsets = await admin.list_consumer_group_offsets(settings.worker.group)
        await admin.close()
        return sum(place.offset for place in offsets.values())
    await admin.close()
    return 0


async def judge(fleet: Fleet, settings: Settings, policy: Path, events: int, kills: int) -> None:
    """Let the workers judge all events; kill one now and then, and change the policy half way."""
    fleet.start()
    try:
        killed, changed = 0, False
        while (done := await committed(settings)) < events:
            if killed < kills and done > events * (killed + 1) / (kills + 1):
                fleet.kill(killed)
                killed += 1
            if not changed and done > events / 2:
                await asyncio.to_thread(policy.write_text, AFTER)
                changed = True
            await asyncio.sleep(0.1)
        print(f"{killed} workers killed, policy changed: {changed}")
    finally:
        fleet.stop()


def verify(environment: dict[str, str]) -> float:
    """Verify with the command, and print what it says; return the seconds."""
    begun = time.perf_counter()
    command = [sys.executable, "-m", "streamguard", "audit", "verify"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    print(f"exit {done.returncode}: {done.stdout.strip()}\n{done.stderr.strip()}")
    return time.perf_counter() - begun


async def flipped(settings: Settings, name: str) -> None:
    """Copy the verdicts to another topic, one byte of one of them flipped."""
    admin = make_admin(settings.kafka)
    await admin.start()
    await admin.create_topics([NewTopic(name, settings.topics.partitions, 1)])
    await admin.close()
    await asyncio.sleep(1)
    async with AIOKafkaProducer(bootstrap_servers=settings.kafka.bootstrap, linger_ms=5) as producer:
        for number in range(settings.topics.partitions):
            place, copied = TopicPartition(settings.topics.verdicts, number), 0
            async with LogReader(settings.kafka, place) as reader:
                async for records in reader.read(place):
                    for record in records:
                        value = bytearray(record.value)
                        if number == 0 and copied == 7:
                            value[len(value) // 2] ^= 1
                        await producer.send(name, bytes(value), partition=number)
                        copied += 1
        await producer.flush()


async def main() -> None:
    """Publish, judge, verify; print what came out, and the rate beside that of a bare consumer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True, metavar="HOST:PORT")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=4)
    arguments = parser.parse_args()
    configure_logs("error", "console")
    settings, events = settings_for(arguments.bootstrap), arguments.events
    forged = f"{settings.topics.verdicts}.flipped"
    await create_topics(settings)
    with tempfile.TemporaryDirectory() as folder:
        policy = Path(folder) / "policy.toml"
        policy.write_text(BEFORE)
        try:
            await publish(settings, events)
            fleet = Fleet(settings, policy)
            await judge(fleet, settings, policy, events, arguments.kills)
            reading = await bare(settings, events)
            seconds = verify(fleet.environment)
            await flipped(settings, forged)
            verify({**fleet.environment, "STREAMGUARD_TOPICS_VERDICTS": forged})
        finally:
            admin = make_admin(settings.kafka)
            await admin.start()
            topics = settings.topics
            await admin.delete_topics(
                [
                    topics.events,
                    topics.verdicts,
                    topics.dead_letters,
                    settings.state_topic,
                    settings.policies_topic,
                    forged,
                ]
            )
            await admin.close()
    print(f"bare consumer   {events / reading:>10,.0f} events a second, one process")
    print(f"verify          {events / seconds:>10,.0f} events a second, {seconds / reading:.2f} times as long")


if __name__ == "__main__":
    asyncio.run(main())
