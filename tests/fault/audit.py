"""The comparison at the end: every verdict that the events call for, and every one that stands on the topic."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from streamguard.errors import BadSignatureError, UnreadableRecordError, UnsignedVerdictError
from streamguard.events import MSGPACK, Source, decode_event
from streamguard.guard import Guard, Limits
from streamguard.policy import PolicySet
from streamguard.settings import Settings
from streamguard.signing import Verifier, signing_keys
from streamguard.verdicts import decode_verdict, encode_verdict


class Comparison(NamedTuple):
    """What came out, in numbers of verdicts, of events (`packed`: in MessagePack), and of poison (no events)."""

    events: int
    expected: int
    found: int
    missing: int
    doubled: int
    different: int
    unexpected: int
    badly_signed: int
    packed: int
    poison: int
    poison_lost: int
    poison_doubled: int

    @property
    def clean(self) -> bool:
        """Tell whether the topic holds exactly the verdicts of an undisturbed run. Dead letters may be doubled."""
        wrong = self.missing + self.doubled + self.different + self.unexpected + self.badly_signed + self.poison_lost
        return wrong == 0 and self.events > 0 and self.expected == self.found > 0


async def compare(bootstrap: str, settings: Settings, policies: PolicySet, partitions: int) -> Comparison:
    """Replay the events topic through the core, partition by partition, and compare byte for byte."""
    topics = settings.topics
    parts = []
    for number in range(partitions):
        events, verdicts, letters = [
            await read(bootstrap, TopicPartition(topic, number))
            for topic in (topics.events, topics.verdicts, topics.dead_letters)
        ]
        parts.append(_compare(replay(events, settings, policies), events, verdicts, letters, settings))
    return Comparison(*map(sum, zip(*parts, strict=True)))


def _compare(
    replayed: tuple[dict[str, bytes], set[int]],
    events: list[ConsumerRecord],
    verdicts: list[ConsumerRecord],
    letters: list[ConsumerRecord],
    settings: Settings,
) -> Comparison:
    expected, poison = replayed
    found = [(decode_verdict(record.value).verdict_id, record.value) for record in verdicts]
    counts = Counter(verdict_id for verdict_id, _ in found)
    _show_differences(expected, dict(found), counts)
    buried = Counter(int(dict(letter.headers)["source.offset"]) for letter in letters)
    return Comparison(
        events=len(events),
        expected=len(expected),
        found=len(found),
        missing=sum(verdict_id not in counts for verdict_id in expected),
        doubled=sum(count - 1 for count in counts.values()),
        different=sum(verdict_id in expected and expected[verdict_id] != value for verdict_id, value in found),
        unexpected=len(counts.keys() - expected.keys()) + len(buried.keys() - poison),
        badly_signed=_badly_signed(verdicts, settings),
        packed=sum(_is_packed(record) for record in events),
        poison=len(poison),
        poison_lost=len(poison - buried.keys()),
        poison_doubled=len(letters) - len(buried),
    )


def _show_differences(expected: dict[str, bytes], found: dict[str, bytes], counts: Counter[str]) -> None:
    for verdict_id in sorted(expected.keys() | found.keys()):
        if expected.get(verdict_id) != found.get(verdict_id) or counts[verdict_id] > 1:
            print(f"wrong: {verdict_id} x {counts[verdict_id]}")
            print(f"  expected {expected.get(verdict_id)!r}")
            print(f"  found    {found.get(verdict_id)!r}")


def _is_packed(record: ConsumerRecord) -> bool:
    return ("content-type", MSGPACK.encode()) in record.headers


def _badly_signed(verdicts: list[ConsumerRecord], settings: Settings) -> int:
    """Count the verdicts whose signature is missing or wrong."""
    verifier = Verifier(signing_keys(settings.signing))
    bad = 0
    for record in verdicts:
        try:
            verifier.verify(record.value, record.headers)
        except (UnsignedVerdictError, BadSignatureError) as error:
            print(f"badly signed: {record.partition}/{record.offset}: {error}")
            bad += 1
    return bad


def replay(events: list[ConsumerRecord], settings: Settings, policies: PolicySet) -> tuple[dict[str, bytes], set[int]]:
    """Return the verdicts, by id, that one guard, never stopped, gives for these records; and the offsets of poison."""
    limits = settings.limits
    guard = Guard(
        policies, Limits(runs=limits.runs, idle_ms=limits.idle_seconds * 1000, waiting_calls=limits.waiting_calls)
    )
    said: dict[str, bytes] = {}
    poison: set[int] = set()
    for record in events:
        try:
            event = decode_event(record.value, msgpack=_is_packed(record))
            if event is None:
                continue
            source = Source(record.topic, record.partition, record.offset, record.timestamp)
            said |= {verdict.verdict_id: encode_verdict(verdict) for verdict in guard.observe(event, source)}
        except UnreadableRecordError:
            poison.add(record.offset)
    return said, poison


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
