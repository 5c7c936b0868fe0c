"""Writing recorded events to the events topic: in order, keyed by run, so many at a time that stopping does no harm.

No more than `IN_FLIGHT` events wait for their acknowledgement. Whoever goes on after the last event before which all
are acknowledged repeats fewer than that, and a guard remembers at least as many event ids of each run.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from aiokafka.errors import KafkaError, MessageSizeTooLargeError
from xxhash import xxh3_64_intdigest

from streamguard.errors import RecordTooLargeError
from streamguard.events import run_of
from streamguard.replay import timestamp_of
from streamguard.stream.refusal import as_error

if TYPE_CHECKING:
    from aiokafka import AIOKafkaProducer

    from streamguard.events import Event

__all__ = ["IN_FLIGHT", "Publisher"]

IN_FLIGHT: Final = 256
"""Events that wait for their acknowledgement; a guard remembers at least so many event ids of a run."""

LAG_SECONDS: Final = 0.02
"""How far ahead of its rate a publisher may be before it waits."""

TURN_EVENTS: Final = 200
"""Events after which others (a signal) get a turn."""


class Publisher:
    """Sends events to a topic. `rate` is in events per second, None: as fast as the brokers take them.

    `acknowledged` counts the events that stand on the topic and before which all others do; `reached` is the position
    after the last of them.
    """

    def __init__(self, producer: AIOKafkaProducer, topic: str, rate: float | None = None) -> None:
        self.acknowledged = 0
        self.reached = 0
        self.sent = 0
        self._producer = producer
        self._topic = topic
        self._rate = rate
        self._waiting: deque[tuple[int, asyncio.Future[Any]]] = deque()
        self._runs: set[int] = set()
        self._start = time.monotonic()

    @property
    def runs(self) -> int:
        """Count the runs of the events that were sent."""
        return len(self._runs)

    async def send(self, event: Event, value: bytes, position: int) -> None:
        """Send the event that ends at a position of what is read; returns before it is acknowledged.

        Raises `RecordTooLargeError` if it is too large (the next may follow), `NotAuthorizedError` or
        `BrokerUnavailableError` if the brokers take no more.
        """
        await self._in_time()
        run = run_of(event).encode("utf-8", "replace")
        timestamp = timestamp_of(event)
        try:
            waiting = await self._producer.send(
                self._topic, value, key=run, timestamp_ms=timestamp if timestamp and timestamp > 0 else None
            )
        except MessageSizeTooLargeError:
            raise RecordTooLargeError("the event is larger than a request to Kafka may be") from None
        except KafkaError as error:
            raise self._stopped(error) from error
        self.sent += 1
        self._runs.add(xxh3_64_intdigest(run))
        self._waiting.append((position, waiting))
        await self._acknowledge(IN_FLIGHT)

    async def flush(self) -> None:
        """Wait until all events are acknowledged. Raises as `send` does."""
        await self._acknowledge(0)

    def settle(self) -> None:
        """Count what was acknowledged once the producer is closed; what was not is given up."""
        while self._waiting and self._succeeded(self._waiting[0][1]):
            self._count_oldest()
        for _, waiting in self._waiting:
            if waiting.done() and not waiting.cancelled():
                waiting.exception()  # has been looked at
        self._waiting.clear()

    async def _acknowledge(self, left: int) -> None:
        while len(self._waiting) > left or (self._waiting and self._waiting[0][1].done()):
            try:
                await asyncio.shield(self._waiting[0][1])
            except KafkaError as error:
                raise self._stopped(error) from error
            self._count_oldest()

    def _count_oldest(self) -> None:
        self.reached, _ = self._waiting.popleft()
        self.acknowledged += 1

    async def _in_time(self) -> None:
        """Wait as long as the rate asks for; now and then let others have their turn."""
        ahead = self._start + self.sent / self._rate - time.monotonic() if self._rate else 0.0
        if ahead > LAG_SECONDS:
            await asyncio.sleep(ahead)
        elif self.sent % TURN_EVENTS == 0:
            await asyncio.sleep(0)

    def _stopped(self, error: KafkaError) -> Exception:
        return as_error(error, f"{self._topic} takes no more events")

    @staticmethod
    def _succeeded(waiting: asyncio.Future[Any]) -> bool:
        return waiting.done() and not waiting.cancelled() and waiting.exception() is None
