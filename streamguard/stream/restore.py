"""Reading back what a predecessor left: the runs on the state topic, and what stands on the verdict topic already."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import msgspec
import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from streamguard.stream.checkpoint import MARKER_KEY, Marker, decode_marker
from streamguard.stream.kafka import close, make_reader
from streamguard.stream.position import Bounds
from streamguard.stream.said import Said, SaidVerdict

if TYPE_CHECKING:
    from streamguard.settings import KafkaSettings

__all__ = ["LogReader", "Restored", "read_said", "read_state"]

log = structlog.get_logger("streamguard.restore")

READ_RECORDS: Final = 2_000
"""Records taken between two turns of the event loop: a few milliseconds."""

READ_MS: Final = 20
"""Longest wait for records before the position is looked at: transactions end in offsets that no record has."""

TELL_SECONDS: Final = 2.0
"""How often the progress of a long restore is logged."""


class Restored(NamedTuple):
    """The state of a partition as of its newest whole checkpoint; without a marker there has been none."""

    marker: Marker | None
    snapshots: dict[bytes, bytes]


class LogReader:
    """Reads some partitions, one at a time, from an offset to their end as of now; belongs to no group."""

    def __init__(self, kafka: KafkaSettings, *partitions: TopicPartition) -> None:
        self._consumer: AIOKafkaConsumer = make_reader(kafka)
        self._partitions = partitions

    async def __aenter__(self) -> Self:
        try:
            await self._consumer.start()
        except BaseException:
            await close(self._consumer)
            raise
        self._consumer.assign(self._partitions)  # all at once: a topic that is new to a client costs it a moment
        self._consumer.pause(*self._partitions)
        for partition in self._partitions:
            self._consumer.seek(partition, 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await close(self._consumer)

    async def bounds(self, partition: TopicPartition) -> Bounds:
        """Return where a partition begins and ends now."""
        first = await self._consumer.beginning_offsets([partition])
        end = await self._consumer.end_offsets([partition])
        return Bounds(first[partition], end[partition])

    async def at_time(self, partition: TopicPartition, timestamp: int) -> int | None:
        """Return the offset of the first record of a time (ms since 1970) or later; None if there is none yet."""
        found = (await self._consumer.offsets_for_times({partition: timestamp}))[partition]
        return None if found is None else int(found.offset)

    async def read(
        self, partition: TopicPartition, start: int = 0, until: int | None = None
    ) -> AsyncIterator[list[ConsumerRecord]]:
        """Yield records from `start` (or the first that there is) to the end, at most to before the offset `until`.

        The last of them may be some records behind `until`.
        """
        first, end = await self.bounds(partition)
        end = end if until is None else min(end, until)
        position = begun = max(first, start)
        self._consumer.seek(partition, position)
        self._consumer.resume(partition)
        told = time.monotonic()
        while position < end:
            records = await self._consumer.getmany(partition, timeout_ms=READ_MS, max_records=READ_RECORDS)
            for some in records.values():
                yield some
            await asyncio.sleep(0)
            position = await self._consumer.position(partition)
            if time.monotonic() - told > TELL_SECONDS:
                told = time.monotonic()
                log.info(
                    "restoring", topic=partition.topic, partition=partition.partition, read=position - begun,
                    of=end - begun,
                )  # fmt: skip
        self._consumer.pause(partition)


async def read_state(reader: LogReader, partition: TopicPartition) -> Restored:
    """Read the snapshots of a state partition, as of its newest marker.

    Snapshots count once the marker behind them has come: what follows the last one belongs to a checkpoint that was
    never finished. (Transactions hide that already; brokers without them do not.)
    """
    marker: Marker | None = None
    snapshots: dict[bytes, bytes] = {}
    staged: dict[bytes, bytes | None] = {}
    async for records in reader.read(partition):
        for record in records:
            if record.key != MARKER_KEY:
                staged[record.key] = record.value
                continue
            marker = decode_marker(record.value)
            for key, value in staged.items():
                if value is None:
                    snapshots.pop(key, None)
                else:
                    snapshots[key] = value
            staged.clear()
    return Restored(marker, snapshots)


async def read_said(reader: LogReader, partition: TopicPartition, start: int, position: int) -> Said:
    """Read the verdicts that stand on a verdict partition from `start` on, about events from `position` on."""
    said: list[SaidVerdict] = []
    async for records in reader.read(partition, start):
        for record in records:
            try:
                verdict = _standing(record.value or b"")
            except msgspec.MsgspecError:
                log.warning("no verdict on the verdict topic", partition=record.partition, offset=record.offset)
                continue
            if verdict.source.offset >= position:
                said.append(SaidVerdict(verdict.verdict_id, verdict.source.offset))
    return Said(start, said)


class _Source(msgspec.Struct, gc=False):
    offset: int


class _Standing(msgspec.Struct, gc=False):
    verdict_id: str
    source: _Source


_standing: Final = msgspec.json.Decoder(_Standing).decode
