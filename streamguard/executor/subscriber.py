"""Hearing the guard: a reader of the verdict topic that belongs to no group and follows the partitions of its runs.

It starts at the end of the topic. Where it is in each partition is kept here, so that a new connection goes on where
the old one broke off, and no verdict of a run is missed by a gap.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError, OffsetOutOfRangeError

from streamguard.stream.kafka import close, make_follower
from streamguard.stream.patience import UNANSWERED, answer, is_cancelled

if TYPE_CHECKING:
    from streamguard.executor.options import ExecutorOptions

__all__ = ["Subscriber"]

log = structlog.get_logger("streamguard.executor")

POLL_MS: Final = 1000
AGAIN_SECONDS: Final = 0.5
ASK_SECONDS: Final = 5.0
BEGIN_SECONDS: Final = 1.0
"""Longest wait of a run that begins for where its partition ends."""


class Subscriber:
    """Reads verdicts, as bytes, and hands each record to `hear`."""

    def __init__(self, options: ExecutorOptions, hear: Callable[[ConsumerRecord], None]) -> None:
        self._options = options
        self._hear = hear
        self._consumer: AIOKafkaConsumer | None = None
        self._positions: dict[TopicPartition, int] = {}
        self._followed: Counter[TopicPartition] = Counter()
        self._heard: set[TopicPartition] = set()  # followed, and read from where the first who follows them began
        self._changing: defaultdict[TopicPartition, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._task: asyncio.Task[None] | None = None

    async def start(self, partitions: int) -> None:
        """Connect, and stand at the end of every partition. Raises `KafkaError`, `TimeoutError`."""
        places = [TopicPartition(self._options.topics.verdicts, number) for number in range(partitions)]
        consumer = make_follower(self._options.kafka)
        try:
            await consumer.start()
            self._positions = await _ends(consumer, places)
        except BaseException:
            await close(consumer)
            raise
        self._task = asyncio.create_task(self._read(consumer), name="verdicts")

    async def follow(self, partition: int) -> int:
        """Hear verdicts of this partition from now on; return the offset from which on none is missed."""
        place = TopicPartition(self._options.topics.verdicts, partition)
        self._followed[place] += 1
        try:
            async with self._changing[place]:  # whoever comes second must not be overtaken by where the first begins
                if place not in self._heard:
                    await self._begin(place)
        except BaseException:
            self.unfollow(partition)
            raise
        return self._positions[place]

    def unfollow(self, partition: int) -> None:
        """Hear them no more, unless somebody else still follows the partition."""
        place = TopicPartition(self._options.topics.verdicts, partition)
        self._followed[place] -= 1
        if not self._followed[place]:
            self._heard.discard(place)
            if self._consumer is not None:
                with suppress(IllegalStateError):
                    self._consumer.pause(place)

    async def close(self) -> None:
        """Stop reading."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _begin(self, place: TopicPartition) -> None:
        """Read a partition from its end on; without a connection, or an answer, from where it was read last."""
        consumer = self._consumer
        if consumer is not None:
            ends = await answer(consumer.end_offsets([place]), BEGIN_SECONDS)
            if ends is not UNANSWERED:
                self._positions[place] = max(ends[place], self._positions[place])
            if self._consumer is consumer is not None and self._followed[place]:
                with suppress(IllegalStateError):
                    consumer.seek(place, self._positions[place])
                    consumer.resume(place)
        if self._followed[place]:
            self._heard.add(place)

    async def _read(self, consumer: AIOKafkaConsumer) -> None:
        """Read for ever; after an error of the client with a new one, from where the old one was."""
        told = False
        while True:
            try:
                self._take_up(consumer)
                async for records in _fetched(consumer):
                    told = False
                    self._dispatch(records)
            except OffsetOutOfRangeError as error:
                await self._skip_what_is_gone(consumer, error.args[0])
            except asyncio.CancelledError:
                if is_cancelled():
                    raise
                log.warning("verdicts not readable, connecting again", error="given up by the Kafka client")
            except Exception as error:  # noqa: BLE001 - whatever it is, an executor goes on listening
                if not told:
                    log.warning("verdicts not readable, connecting again", error=type(error).__name__)
                    told = True
            finally:
                self._consumer = None
                await close(consumer)
            consumer = await self._connected()

    def _take_up(self, consumer: AIOKafkaConsumer) -> None:
        """Put a client where we are."""
        consumer.assign(list(self._positions))
        for place, position in self._positions.items():
            consumer.seek(place, position)
        consumer.pause(*(place for place in self._positions if not self._followed[place]))
        self._consumer = consumer

    def _dispatch(self, records: dict[TopicPartition, list[ConsumerRecord]]) -> None:
        for place, some in records.items():
            for record in some:
                if record.offset >= self._positions[place]:
                    self._positions[place] = record.offset + 1
                    self._hear(record)

    async def _connected(self) -> AIOKafkaConsumer:
        """Return a client that has started, however long that takes."""
        while True:
            await asyncio.sleep(AGAIN_SECONDS)
            consumer = make_follower(self._options.kafka)
            try:
                async with asyncio.timeout(ASK_SECONDS):
                    await consumer.start()
            except asyncio.CancelledError:
                await close(consumer)
                if is_cancelled():
                    raise
            except Exception as error:  # noqa: BLE001 - likewise
                log.debug("not connected", error=type(error).__name__)
                await close(consumer)
            else:
                return consumer

    async def _skip_what_is_gone(self, consumer: AIOKafkaConsumer, places: dict[TopicPartition, int]) -> None:
        """Verdicts were deleted before they were read, or the topic was made anew: go on with what there is."""
        begins = await answer(consumer.beginning_offsets(list(places)), ASK_SECONDS)
        if begins is not UNANSWERED:
            self._positions.update(begins)
        log.warning("verdicts were deleted unread", partitions=sorted(place.partition for place in places))


async def _ends(consumer: AIOKafkaConsumer, places: list[TopicPartition]) -> dict[TopicPartition, int]:
    ends = await answer(consumer.end_offsets(places), ASK_SECONDS)
    if ends is UNANSWERED:
        raise TimeoutError("the ends of the verdict topic's partitions were not told in time")
    return dict(ends)


async def _fetched(consumer: AIOKafkaConsumer) -> AsyncIterator[dict[TopicPartition, list[ConsumerRecord]]]:
    """Yield what is fetched, empty now and then. Raises `KafkaError`."""
    while True:
        records: dict[TopicPartition, list[ConsumerRecord]] = await consumer.getmany(timeout_ms=POLL_MS)
        yield records
        fetching = getattr(getattr(consumer, "_fetcher", None), "_fetch_task", None)
        if fetching is not None and fetching.done():  # aiokafka only logs that
            raise KafkaError("the Kafka client has stopped fetching by an error of its own")
