"""What the fault bench publishes: recorded runs and random ones, many at a time, and probes that want an answer."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from streamguard.events import MSGPACK

log = structlog.get_logger("fault.traffic")

RUNS_AT_ONCE: Final = 60
"""Runs that are interleaved."""

LONGEST_RUN: Final = 400
"""Events of a recorded run that are published; some have thousands."""

PACKED: Final = 0.2
"""Runs in MessagePack."""

POISON: Final = 0.01
"""Records that are no events."""

FIRST_RUNS: Final = 400
"""Runs taken of each recording."""


def recorded_runs(folder: Path | None) -> Iterator[list[dict[str, Any]]]:
    """Yield recorded runs, each as its events; none without a folder."""
    for file in sorted(folder.glob("*.gz")) if folder is not None else []:
        runs: dict[str, list[dict[str, Any]]] = {}
        with gzip.open(file) as lines:
            for line in lines:
                event = json.loads(line)
                if "type" in event and "run_id" in event:
                    events = runs.setdefault(event["run_id"], [])
                    if len(events) < LONGEST_RUN:
                        events.append(event)
                if len(runs) > FIRST_RUNS:
                    break
        yield from list(runs.values())[:FIRST_RUNS]


def random_run(choice: random.Random) -> list[dict[str, Any]]:
    """Make up a run that repeats itself a lot, with polls, ping-pong, unknown tools, compactions, doubled events."""
    events: list[dict[str, Any]] = []
    tools = choice.sample(["read", "exec", "process", "ghost", "write", "search"], 3)
    for number in range(choice.randint(5, 120)):
        tool, call_id = choice.choice(tools), f"c{number if choice.random() < 0.9 else choice.randint(0, 5)}"
        args = {"action": "poll"} if tool == "process" else {"path": choice.choice("ab")}
        call: dict[str, Any] = {"type": "tool_call", "tool": tool, "call_id": call_id, "args": args}
        call |= {"event_id": f"e{number}", "gate": choice.random() < 0.4}
        events.append(call)
        if choice.random() < 0.1:
            events.append(call)
        if choice.random() < 0.9:
            failure = {"error": "Tool ghost not found"} if tool == "ghost" else {"result": choice.choice(["x", "x", 1])}
            events.append({"type": "tool_result", "call_id": call_id, **failure})
        if choice.random() < 0.03:
            events.append({"type": "compaction"})
    if choice.random() < 0.5:
        events.append({"type": "run_ended"})
    return events


class Message(NamedTuple):
    """A record to publish."""

    key: str
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()


def interleaved(folder: Path | None, choice: random.Random) -> Iterator[Message]:
    """Yield records for ever: recorded and random runs, mixed, each under a new id every time; and some poison.

    Some runs are in MessagePack.
    """
    recorded = list(recorded_runs(folder))
    live: list[tuple[str, list[dict[str, Any]], bool]] = []
    number = 0
    while True:
        while len(live) < RUNS_AT_ONCE:
            events = choice.choice(recorded) if recorded and choice.random() < 0.6 else random_run(choice)
            number += 1
            live.append((f"run-{number}", list(reversed(events)), choice.random() < PACKED))
        index = choice.randrange(len(live))
        run, left, packed = live[index]
        event = {**left.pop(), "run_id": run}
        if packed:
            yield Message(run, msgspec.msgpack.encode(event), (("content-type", MSGPACK.encode()),))
        else:
            yield Message(run, json.dumps(event).encode())
        if choice.random() < POISON:
            yield Message(f"poison-{choice.randrange(1000)}", choice.choice([b"", b"\xff{", b"[]", b'{"type":7}']))
        if not left:
            live.pop(index)


class Publisher:
    """Publishes at a steady rate, whatever happens to the brokers."""

    def __init__(self, producer: AIOKafkaProducer, topic: str, records: Iterator[Message], rate: int) -> None:
        self.published = 0
        self._producer = producer
        self._topic = topic
        self._records = records
        self._rate = rate

    async def publish(self) -> None:
        """Publish until cancelled."""
        behind = 0.0
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.05)
            now = time.monotonic()
            behind = min(behind + (now - last) * self._rate, self._rate)
            last = now
            while behind >= 1:
                message = next(self._records)
                await self._producer.send(
                    self._topic, message.value, key=message.key.encode(), headers=list(message.headers)
                )
                self.published += 1
                behind -= 1


class Watch:
    """Reads the verdict topic as an executor does: answers to probes, and the longest silence."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.longest_gap = 0.0
        self.seen = 0
        self._bootstrap = bootstrap
        self._partitions = [TopicPartition(topic, number) for number in range(partitions)]
        self._waiting: dict[str, asyncio.Future[None]] = {}

    def expect(self, run: str) -> asyncio.Future[None]:
        """Return what is done when a verdict of this run comes."""
        return self._waiting.setdefault(run, asyncio.get_running_loop().create_future())

    async def read(self) -> None:
        """Read until cancelled."""
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap, group_id=None, auto_offset_reset="earliest", fetch_max_wait_ms=100
        )
        await consumer.start()
        consumer.assign(self._partitions)
        last = time.monotonic()
        try:
            while True:
                try:
                    fetched = await consumer.getmany(timeout_ms=200)
                except KafkaError as error:
                    log.warning("verdicts not read", error=str(error))
                    await asyncio.sleep(0.2)
                    continue
                for records in fetched.values():
                    now = time.monotonic()
                    self.longest_gap = max(self.longest_gap, now - last)
                    last = now
                    self.seen += len(records)
                    for record in records:
                        future = self._waiting.pop(record.key.decode(), None)
                        if future is not None and not future.done():
                            future.set_result(None)
        finally:
            await consumer.stop()


class Probes:
    """Calls that want an answer, one to every partition: until all are answered the guard has not recovered."""

    def __init__(self, producer: AIOKafkaProducer, topic: str, partitions: int, watch: Watch) -> None:
        self._producer = producer
        self._topic = topic
        self._partitions = partitions
        self._watch = watch
        self._number = 0

    async def answered(self, seconds: float) -> float:
        """Probe every partition; return the seconds until all were answered. Raises `TimeoutError`."""
        begun = time.monotonic()
        self._number += 1
        answers = []
        for partition in range(self._partitions):
            run = f"probe-{self._number}-{partition}"
            answers.append(self._watch.expect(run))
            value = json.dumps({"type": "tool_call", "run_id": run, "tool": "probe", "gate": True}).encode()
            await self._producer.send(self._topic, value, key=run.encode(), partition=partition)
        async with asyncio.timeout(seconds):
            await asyncio.gather(*answers)
        return time.monotonic() - begun
