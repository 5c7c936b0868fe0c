"""Counting what stands: events for their calls, verdicts for what was said."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence

from aiokafka import TopicPartition

from streamguard.audit.files import verdicts_of
from streamguard.audit.standing import standing_verdicts
from streamguard.audit.stats import Stats
from streamguard.errors import UnreadableRecordError
from streamguard.events import decode_event
from streamguard.replay import lines_of, timestamp_of
from streamguard.settings import LimitSettings, Settings
from streamguard.stream.restore import LogReader
from streamguard.stream.shard import is_msgpack

__all__ = ["Span", "count_files", "count_topic"]

Span = tuple[int, int]
"""From a time of events on (ms since 1970), and before another."""


async def count_topic(
    settings: Settings, stats: Stats, span: Span, partitions: Iterable[int], tell: Callable[[int], None]
) -> None:
    """Count what the topics hold of a time; `tell` hears how many records were read. Raises `KafkaError`."""
    read = 0
    places = [TopicPartition(settings.topics.events, number) for number in partitions]
    async with LogReader(settings.kafka, *places) as reader:
        for place in places:
            start = await reader.at_time(place, span[0])
            if start is None:
                continue
            async for records in reader.read(place, start):
                for record in records:
                    if not span[0] <= record.timestamp < span[1]:
                        continue
                    with contextlib.suppress(UnreadableRecordError):
                        event = decode_event(record.value, msgpack=is_msgpack(record))
                        if event is not None:
                            stats.event(event, record.timestamp)
                read += len(records)
                tell(read)
    async for standing in standing_verdicts(
        settings, [place.partition for place in places], since=span[0], tell=lambda count: tell(read + count)
    ):
        if span[0] <= standing.verdict.source.timestamp < span[1]:
            stats.verdict(standing.verdict)


def count_files(stats: Stats, events: Sequence[str], verdicts: Sequence[str], span: Span) -> None:
    """Count what files hold of a time. Raises `ReplayInputError`."""
    time = 0
    for name in events:
        for line in lines_of(name, LimitSettings().record_bytes):
            with contextlib.suppress(UnreadableRecordError):
                event = decode_event(line.text)
                time = (timestamp_of(event) if event is not None else None) or time
                if event is not None and span[0] <= time < span[1]:
                    stats.event(event, time)
    for filed in verdicts_of(verdicts):
        if filed.verdict is not None and span[0] <= filed.verdict.source.timestamp < span[1]:
            stats.verdict(filed.verdict)
