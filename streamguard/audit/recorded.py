"""Recorded events, from files or a topic, in the order in which a guard would see them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence

from aiokafka import TopicPartition

from streamguard.errors import ImportInputError, UnreadableRecordError
from streamguard.events import Event, Source, decode_event
from streamguard.importers import EVENTS, Intake, events_of, recording
from streamguard.replay import timestamp_of
from streamguard.settings import LimitSettings, Settings
from streamguard.stream.restore import LogReader
from streamguard.stream.shard import is_msgpack

__all__ = ["Recorded", "of_files", "of_topic"]

Recorded = tuple[Event, Source]

LIMITS = LimitSettings()


def of_files(files: Sequence[str], form: str, refuse: Callable[[str], None]) -> Iterator[Recorded]:
    """Yield the events of files: JSON lines, or recordings of another tool; offsets go on over all files.

    `refuse` hears of what is no event. Raises `ReplayInputError` if a file cannot be read.
    """
    offset, time = -1, 0
    for name in files:
        for event in _events(name, form, refuse):
            offset += 1
            if event is None:
                continue
            time = timestamp_of(event) or time
            yield event, Source("replay", 0, offset, time)


def _events(name: str, form: str, refuse: Callable[[str], None]) -> Iterator[Event | None]:
    found = recording(name, form, LIMITS.record_bytes)
    if found.format != EVENTS:
        told: Callable[[ImportInputError], None] = lambda error: refuse(str(error))  # noqa: E731 - a few words
        intake = Intake(name, record_bytes=LIMITS.record_bytes, json_depth=LIMITS.json_depth, refuse=told)
        yield from (imported.event for imported in events_of(found.lines, found.format, intake))
        return
    for line in found.lines:
        try:
            yield decode_event(line.text, depth=LIMITS.json_depth)
        except UnreadableRecordError as error:
            refuse(f"{line.file}:{line.number}: {error}")
            yield None


async def of_topic(
    settings: Settings, partitions: Iterable[int], since: int | None, tell: Callable[[int], None]
) -> AsyncIterator[Recorded]:
    """Yield the events of a topic, one partition after the other, from a time (ms since 1970) on, to its end as of now.

    `tell` hears how many records were read. What is no event is left out, as the worker does. Raises `KafkaError`.
    """
    read = 0
    places = [TopicPartition(settings.topics.events, number) for number in partitions]
    async with LogReader(settings.kafka, *places) as reader:
        for place in places:
            start = 0 if since is None else await reader.at_time(place, since)
            if start is None:
                continue
            async for records in reader.read(place, start):
                for record in records:
                    with contextlib.suppress(UnreadableRecordError):
                        event = decode_event(record.value, msgpack=is_msgpack(record))
                        if event is not None:
                            yield event, Source(record.topic, record.partition, record.offset, record.timestamp or 0)
                read += len(records)
                tell(read)
