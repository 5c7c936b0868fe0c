"""Reading the verdicts that stand on the verdict topic."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec
import structlog
from aiokafka import ConsumerRecord, TopicPartition

from streamguard.settings import Settings
from streamguard.stream.kafka import close, make_follower, started
from streamguard.stream.restore import LogReader
from streamguard.verdicts import Verdict, decode_verdict

__all__ = ["Standing", "following", "standing_verdicts"]

log = structlog.get_logger("streamguard.audit")

SLACK_MS: Final = 600_000
"""How much the clocks of producers of events and of the guard may differ."""

POLL_MS: Final = 500


class Standing(NamedTuple):
    """A verdict and where it stands; `value` are its bytes as they do."""

    verdict: Verdict
    value: bytes
    partition: int
    offset: int


async def standing_verdicts(
    settings: Settings,
    partitions: Iterable[int],
    *,
    since: int | None = None,
    tell: Callable[[int], None] = lambda _: None,
    positions: dict[int, int] | None = None,
) -> AsyncIterator[Standing]:
    """Yield what stands on some partitions, one after the other, each from a time of its events (ms since 1970) on.

    What is no verdict is named in the log and left out. `tell` hears how many records were read; `positions` is told,
    of each partition, the offset behind them. Raises `KafkaError`.
    """
    positions = {} if positions is None else positions
    places = [TopicPartition(settings.topics.verdicts, number) for number in partitions]
    read = 0
    async with LogReader(settings.kafka, *places) as reader:
        for place in places:
            start = 0
            positions[place.partition] = (await reader.bounds(place)).end
            if since is not None:
                found = await reader.at_time(place, max(0, since - SLACK_MS))
                if found is None:
                    continue
                start = found
            async for records in reader.read(place, start):
                for record in records:
                    standing = _decoded(record)
                    if standing is not None:
                        yield standing
                positions[place.partition] = max(positions[place.partition], records[-1].offset + 1)
                read += len(records)
                tell(read)


async def following(
    settings: Settings, partitions: Iterable[int], positions: Mapping[int, int]
) -> AsyncIterator[Standing]:
    """Yield verdicts as they come, until the caller ends it: of each partition from a position, else from now on.

    Raises `KafkaError`.
    """
    consumer = make_follower(settings.kafka)
    try:
        await started(consumer, settings.kafka)
        places = [TopicPartition(settings.topics.verdicts, number) for number in partitions]
        consumer.assign(places)
        for place in places:
            if place.partition in positions:
                consumer.seek(place, positions[place.partition])
            else:
                await consumer.seek_to_end(place)
        while True:
            for records in (await consumer.getmany(timeout_ms=POLL_MS)).values():
                for record in records:
                    standing = _decoded(record)
                    if standing is not None:
                        yield standing
            await asyncio.sleep(0)
    finally:
        await close(consumer)


def _decoded(record: ConsumerRecord) -> Standing | None:
    value: bytes = record.value or b""
    try:
        return Standing(decode_verdict(value), value, record.partition, record.offset)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        log.warning("no verdict on the verdict topic", partition=record.partition, offset=record.offset)
        return None
