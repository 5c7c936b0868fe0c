"""The comparison at the end: every verdict that the events call for, and every one that stands on the topic."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from streamguard.errors import UnreadableRecordError
from streamguard.events import Source, decode_event
from streamguard.guard import Guard, Limits
from streamguard.policy import PolicySet
from streamguard.settings import Settings
from streamguard.verdicts import decode_verdict, encode_verdict


class Comparison(NamedTuple):
    """What came out, in numbers of verdicts (and events)."""

    events: int
    expected: int
    found: int
    missing: int
    doubled: int
    different: int
    unexpected: int

    @property
    def clean(self) -> bool:
        """Tell whether the topic holds exactly the verdicts of an undisturbed run."""
        wrong = self.missing + self.doubled + self.different + self.unexpected
        return wrong == 0 and self.events > 0 and self.expected == self.found > 0


async def compare(bootstrap: str, settings: Settings, policies: PolicySet, partitions: int) -> Comparison:
    """Replay the events topic through the core, partition by partition, and compare byte for byte."""
    total = [0] * 7
    for number in range(partitions):
        events = await read(bootstrap, TopicPartition(settings.topics.events, number))
        verdicts = await read(bootstrap, TopicPartition(settings.topics.verdicts, number))
        total = [sum(pair) for pair in zip(total, _compare(events, verdicts, settings, policies), strict=True)]
    return Comparison(*total)


def _compare(
    events: list[ConsumerRecord], verdicts: list[ConsumerRecord], settings: Settings, policies: PolicySet
) -> Comparison:
    expected = dict(replay(events, settings, policies))
    found = [(decode_verdict(record.value).verdict_id, record.value) for record in verdicts]
    counts = Counter(verdict_id for verdict_id, _ in found)
    by_id = dict(found)
    for verdict_id in sorted(expected.keys() | by_id.keys()):
        if expected.get(verdict_id) != by_id.get(verdict_id) or counts[verdict_id] > 1:
            print(f"wrong: {verdict_id} x {counts[verdict_id]}")
            print(f"  expected {expected.get(verdict_id)!r}")
            print(f"  found    {by_id.get(verdict_id)!r}")
    return Comparison(
        events=len(events),
        expected=len(expected),
        found=len(found),
        missing=sum(verdict_id not in counts for verdict_id in expected),
        doubled=sum(count - 1 for count in counts.values()),
        different=sum(verdict_id in expected and expected[verdict_id] != value for verdict_id, value in found),
        unexpected=sum(verdict_id not in expected for verdict_id in counts),
    )


def replay(events: list[ConsumerRecord], settings: Settings, policies: PolicySet) -> list[tuple[str, bytes]]:
    """Return id and bytes of every verdict that one guard, never stopped, gives for these records."""
    limits = settings.limits
    guard = Guard(
        policies, Limits(runs=limits.runs, idle_ms=limits.idle_seconds * 1000, waiting_calls=limits.waiting_calls)
    )
    said: list[tuple[str, bytes]] = []
    for record in events:
        try:
            event = decode_event(record.value)
            if event is None:
                continue
            source = Source(record.topic, record.partition, record.offset, record.timestamp)
            said += [(verdict.verdict_id, encode_verdict(verdict)) for verdict in guard.observe(event, source)]
        except UnreadableRecordError:
            continue
    return said


async def read(bootstrap: str, partition: TopicPartition) -> list[ConsumerRecord]:
    """Read a partition from its beginning to its end."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",
        isolation_level="read_committed",
    )
    await consumer.start()
    try:
        consumer.assign([partition])
        end = (await consumer.end_offsets([partition]))[partition]
        consumer.seek(partition, 0)
        records: list[ConsumerRecord] = []
        while await consumer.position(partition) < end:
            for some in (await consumer.getmany(partition, timeout_ms=50)).values():
                records += some
        return records
    finally:
        await consumer.stop()
