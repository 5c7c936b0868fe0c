"""Sending events without ever holding up an agent: a bounded buffer, and one batch under way for each partition.

Brokers may be away for as long as they like: what is buffered is sent again until it is acknowledged, in order. Each
partition has a producer id of its own, so that a batch that is repeated stands on the topic once, unless the brokers
have lost what they knew of that id.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import structlog
from aiokafka import TopicPartition
from aiokafka.errors import MessageSizeTooLargeError, RecordListTooLargeError

from streamguard.stream.brokers import Fenced
from streamguard.stream.patience import is_cancelled
from streamguard.stream.producer import FencedProducer, Record

if TYPE_CHECKING:
    from streamguard.executor.options import ExecutorOptions
    from streamguard.stream.brokers import Brokers

__all__ = ["Sender", "Sent"]

log = structlog.get_logger("streamguard.executor")

BATCH_RECORDS: Final = 500
BATCH_BYTES: Final = 400_000
"""Most of both in one batch; a larger event goes alone."""

NOT_TAKEN: Final = -2
"""In place of an offset: the brokers will not take it."""

TOO_LARGE: Final = (MessageSizeTooLargeError, RecordListTooLargeError)

AGAIN_SECONDS: Final = 0.5
"""Wait after an error that the brokers do not take back by themselves (an ACL, a topic that is gone)."""


Sent: TypeAlias = "asyncio.Future[bool]"


class Waiting(NamedTuple):
    """An event that no broker has acknowledged yet."""

    record: Record
    sent: Sent
    placed: Callable[[int], None] | None

    @property
    def weight(self) -> int:
        """About how many bytes it takes."""
        return len(self.record.key) + len(self.record.value or b"")


class Sender:
    """Buffers events and sends them. `counters`: `published`, and what was dropped, by reason."""

    def __init__(self, options: ExecutorOptions, counters: Counter[str]) -> None:
        self.counters = counters
        self._options = options
        self.buffered = 0  # events that no broker has acknowledged
        self._bytes = 0  # of these, about
        self._connection: tuple[Brokers, Callable[[bytes], int]] | None = None
        self._early: list[Waiting] = []  # before there was any connection
        self._queues: dict[int, deque[Waiting]] = {}
        self._wakes: dict[int, asyncio.Event] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._room = asyncio.Event()
        self._told: set[str] = set()

    def connect(self, brokers: Brokers, partition_of: Callable[[bytes], int]) -> None:
        """Begin to send, with a client that has started; what waited for it goes first."""
        self._connection = (brokers, partition_of)
        for waiting in self._early:
            self._enqueue(brokers, partition_of(waiting.record.key), waiting)
        self._early.clear()

    async def put(self, record: Record, placed: Callable[[int], None] | None = None) -> Sent | None:
        """Buffer an event; wait for room for `publish_timeout` at the most.

        Returns what becomes of it: True once it is acknowledged, False if the brokers do not take it; None: it was
        dropped, and counted. `placed` is told its offset then, -1 if that is not known.
        """
        if len(record.value or b"") > self._options.event_bytes:
            self.drop("dropped_too_large")
            return None
        if self._full and not await self._room_comes():
            self.drop("dropped_buffer_full")
            return None
        waiting = Waiting(record, asyncio.get_running_loop().create_future(), placed)
        self.buffered += 1
        self._bytes += waiting.weight
        if self._connection is None:
            self._early.append(waiting)
        else:
            brokers, partition_of = self._connection
            self._enqueue(brokers, partition_of(record.key), waiting)
        return waiting.sent

    def drop(self, reason: str) -> None:
        """Count an event that is dropped, and say so once, until sending works again."""
        self.counters[reason] += 1
        self._tell("events dropped, the guard does not see them", reason=reason)

    async def flush(self) -> None:
        """Wait until all is acknowledged."""
        while self.buffered:
            self._room.clear()
            await self._room.wait()

    async def close(self) -> None:
        """Stop sending."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()

    @property
    def _full(self) -> bool:
        return self.buffered >= self._options.buffer_events or self._bytes >= self._options.buffer_bytes

    async def _room_comes(self) -> bool:
        try:
            async with asyncio.timeout(self._options.publish_timeout):
                while self._full:
                    self._room.clear()
                    await self._room.wait()
        except TimeoutError:
            return False
        return True

    def _tell(self, what: str, **fields: str) -> None:
        """Say each thing that is wrong once, until sending works again."""
        if what not in self._told:
            self._told.add(what)
            log.warning(what, buffered=self.buffered, **fields)

    def _enqueue(self, brokers: Brokers, partition: int, waiting: Waiting) -> None:
        if partition not in self._tasks:
            self._queues[partition] = deque()
            self._wakes[partition] = asyncio.Event()
            self._tasks[partition] = asyncio.create_task(self._send_all(partition, brokers), name=f"send-{partition}")
        self._queues[partition].append(waiting)
        self._wakes[partition].set()

    async def _send_all(self, partition: int, brokers: Brokers) -> None:
        queue, wake = self._queues[partition], self._wakes[partition]
        place = TopicPartition(self._options.topics.events, partition)
        producer: FencedProducer | None = None
        batch: list[Waiting] = []
        most = BATCH_RECORDS
        while True:
            if not queue:
                wake.clear()
                await wake.wait()
            # What was sent and not answered is sent as it was: only so do the brokers know it again.
            batch = batch or _next_batch(queue, most)
            try:
                producer = producer or await self._identified(brokers)
                end = await producer.append(place, [waiting.record for waiting in batch])
            except asyncio.CancelledError:
                if is_cancelled():
                    raise
                # The client has cancelled its own work: while brokers are away, aiokafka does that.
                await asyncio.sleep(AGAIN_SECONDS)
            except Fenced:
                producer = None  # the brokers have forgotten who we are, and may have what was under way
            except TOO_LARGE:
                if len(batch) == 1:
                    self._done(queue, batch, NOT_TAKEN)
                    self.drop("dropped_too_large")
                batch, most = [], 1
            except Exception as error:  # noqa: BLE001 - whatever it is, an executor goes on sending
                self._tell("events not taken", error=type(error).__name__, topic=place.topic)
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                self._done(queue, batch, end)
                self.counters["published"] += len(batch)
                batch, most = [], BATCH_RECORDS
                self._told.clear()

    def _done(self, queue: deque[Waiting], batch: list[Waiting], end: int) -> None:
        """Let go of a batch; `end` is the offset after it."""
        for left in range(len(batch), 0, -1):
            waiting = queue.popleft()
            self.buffered -= 1
            self._bytes -= waiting.weight
            if waiting.placed is not None and end != NOT_TAKEN:
                waiting.placed(end - left if end >= 0 else -1)
            if not waiting.sent.done():  # who asked may have given up
                waiting.sent.set_result(end != NOT_TAKEN)
        self._room.set()

    async def _identified(self, brokers: Brokers) -> FencedProducer:
        """Return a producer with an id of its own; without idempotence, one without."""
        producer = FencedProducer(
            brokers,
            None,
            request_timeout_ms=self._options.kafka.request_timeout_ms,
            transaction_timeout_ms=self._options.kafka.request_timeout_ms,
        )
        if self._options.kafka.idempotence:
            await producer.identify()
        return producer


def _next_batch(queue: deque[Waiting], most: int) -> list[Waiting]:
    """Return what is oldest: at least one, and as much as goes at once."""
    batch: list[Waiting] = []
    weight = 0
    for waiting in islice(queue, most):
        weight += waiting.weight
        if batch and weight > BATCH_BYTES:
            break
        batch.append(waiting)
    return batch
