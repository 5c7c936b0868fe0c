"""Watching for a worker that no longer gets anywhere: unhealthy at half of the time allowed, then it ends.

aiokafka has stopped in silence before (#712, #847, #1037), and nothing of it has a deadline when brokers die. Time is
counted in our own ticks: a process that was frozen has not been silent, it was not there.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition

from streamguard.errors import StuckError
from streamguard.stream.patience import UNANSWERED, answer

if TYPE_CHECKING:
    from streamguard.settings import Settings
    from streamguard.stream.assignment import Assignment

__all__ = ["Watchdog"]

log = structlog.get_logger("streamguard.watchdog")

TICK_SECONDS: Final = 1.0
PULSE_SECONDS: Final = 5.0
"""How often the group's coordinator is asked something, and how long it may take to answer."""


class Watchdog:
    """Counts, for everything that must move, the seconds since it last did."""

    def __init__(self, consumer: AIOKafkaConsumer, assignment: Assignment, settings: Settings) -> None:
        self.silent: dict[str, float] = {}
        self._consumer = consumer
        self._assignment = assignment
        self._limit = settings.worker.stuck_timeout_seconds
        self._any_partition = TopicPartition(settings.topics.events, 0)
        self._positions: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._warned: set[str] = set()

    def pump_turned(self) -> None:
        """Hear that the pump looks for records."""
        self.silent["pump"] = 0

    @property
    def unhealthy(self) -> list[str]:
        """Name what has not moved for half of the time allowed."""
        return sorted(name for name, seconds in self.silent.items() if seconds > self._limit / 2)

    async def watch(self) -> None:
        """Watch until something is stuck; raises `StuckError` then."""
        pulse = asyncio.create_task(self._pulse(), name="pulse")
        try:
            while True:
                await asyncio.sleep(TICK_SECONDS)
                for name in self.silent:
                    self.silent[name] += TICK_SECONDS
                self._look_at_fetcher()
                await self._look_at_partitions()
                self._tell()
        finally:
            pulse.cancel()
            await asyncio.gather(pulse, return_exceptions=True)

    def _tell(self) -> None:
        unhealthy = self.unhealthy
        for name in unhealthy:
            if name not in self._warned:
                log.error("no progress", of=name, seconds=self.silent[name], ends_at=self._limit)
        for name in self._warned.difference(unhealthy):
            log.info("progress again", of=name)
        self._warned = set(unhealthy)
        stuck = sorted(name for name, seconds in self.silent.items() if seconds > self._limit)
        if stuck:
            raise StuckError(
                f"no progress for {self._limit:g} s (worker.stuck_timeout_seconds): {', '.join(stuck)}. "
                "Start the worker again; if it comes back, look at the brokers' logs"
            )

    async def _look_at_partitions(self) -> None:
        """A partition that has events to read, is not held back, and whose position stands still, is silent."""
        held = dict(self._assignment.held)
        for name in [name for name in self.silent if name.startswith("partition")]:
            if int(name.split()[1]) not in {partition.partition for partition in held}:
                del self.silent[name]
        for partition, shard in held.items():
            name = f"partition {partition.partition}"
            position = await answer(self._consumer.position(partition), TICK_SECONDS)
            if position is UNANSWERED:
                continue
            moved = self._positions.get(partition) != position
            self._positions[partition] = position
            if moved or shard.paused or position >= self._ends.get(partition, 0):
                self.silent[name] = 0
            else:
                self.silent.setdefault(name, 0)

    def _look_at_fetcher(self) -> None:
        """Raise `StuckError` if aiokafka's fetching has ended by an error of its own; it only logs that."""
        fetching = getattr(getattr(self._consumer, "_fetcher", None), "_fetch_task", None)
        if fetching is not None and fetching.done():
            raise StuckError(
                "the Kafka client has stopped fetching by an error of its own (see the log). Start the worker again"
            )

    async def _pulse(self) -> None:
        """Ask now and then: an answer shows that the group's coordinator is there, and where the partitions end."""
        self.silent["group coordinator"] = 0
        while True:
            if await answer(self._consumer.committed(self._any_partition), PULSE_SECONDS) is not UNANSWERED:
                self.silent["group coordinator"] = 0
                # Not from what was fetched last: a client that no longer fetches believes that there is nothing.
                ends = await answer(self._consumer.end_offsets(list(self._assignment.held)), PULSE_SECONDS)
                if ends is not UNANSWERED:
                    self._ends = ends
            await asyncio.sleep(PULSE_SECONDS)
