"""Deriving every verdict of a partition anew from the events topic, and comparing it with what stands."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec
from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata

from streamguard.audit.comparison import Comparison, Tally
from streamguard.audit.deriving import Deriver
from streamguard.errors import BadSignatureError, UnsignedVerdictError
from streamguard.settings import Settings
from streamguard.signing import Verifier, signing_keys
from streamguard.stream.brokers import may_be_repeated
from streamguard.stream.journal import Journal, PolicyChange, read_journal
from streamguard.stream.kafka import close, make_admin, started
from streamguard.stream.refusal import as_error
from streamguard.stream.restore import LogReader
from streamguard.stream.ruleset import Ruleset
from streamguard.verdicts import Verdict, decode_verdict

__all__ = ["Scope", "Span", "judged_until", "verify_partition"]

BEGUN: Final = -1
"""A group's position where it has none."""


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """Which verdicts are of interest: of a run, about events of a time (ms since 1970, until is left out)."""

    run_id: str | None = None
    since: int | None = None
    until: int | None = None
    offsets: tuple[int, int] | None = None

    def holds(self, verdict: Verdict) -> bool:
        """Tell whether a verdict is of interest."""
        time = verdict.source.timestamp
        return (
            (self.run_id is None or verdict.run_id == self.run_id)
            and (self.since is None or time >= self.since)
            and (self.until is None or time < self.until)
            and (self.offsets is None or self.offsets[0] <= verdict.source.offset < self.offsets[1])
        )

    def cut(self, span: Span) -> Span:
        """Return a span without the events behind the offsets: no verdict of interest depends on them."""
        if self.offsets is None:
            return span
        return msgspec.structs.replace(span, end=max(span.first, min(span.end, self.offsets[1])))


class Span(msgspec.Struct, frozen=True):
    """The events of a partition that are judged again: those below `end`, of which the oldest is `first`."""

    partition: int
    first: int
    end: int


async def judged_until(settings: Settings, partitions: int) -> list[Span]:
    """Return, for each partition, how far its events are judged and their verdicts acknowledged.

    That is what the group committed: verdicts about later events may be under way still.
    """
    admin = make_admin(settings.kafka)
    try:
        await started(admin, settings.kafka)
        offsets = await _committed(admin, settings)
    finally:
        await close(admin)
    places = [TopicPartition(settings.topics.events, number) for number in range(partitions)]
    spans = []
    async with LogReader(settings.kafka, *places) as reader:
        for place in places:
            bounds = await reader.bounds(place)
            committed = offsets[place].offset if place in offsets else BEGUN
            spans.append(Span(place.partition, bounds.first, max(bounds.first, min(committed, bounds.end))))
    return spans


async def _committed(admin: AIOKafkaAdminClient, settings: Settings) -> dict[TopicPartition, OffsetAndMetadata]:
    """Ask for the group's positions; on a new Kafka there is no coordinator of groups until somebody asked for one."""
    give_up = time.monotonic() + settings.kafka.connect_timeout_seconds
    while True:
        try:
            found: dict[TopicPartition, OffsetAndMetadata]
            found = await admin.list_consumer_group_offsets(settings.worker.group)
        except KafkaError as error:
            if not may_be_repeated(error) or time.monotonic() > give_up:
                raise as_error(error, f"the group {settings.worker.group} cannot be asked") from error
            await asyncio.sleep(0.5)
        else:
            return found


async def verify_partition(
    settings: Settings, span: Span, scope: Scope, fallback: Ruleset | None, tell: Callable[[int], None]
) -> Tally:
    """Compare the verdicts about a span of events with what follows from them; `tell` hears how far it is.

    `fallback` is what was in force if the journal does not say. Raises `NoRulesetError`, `KafkaError`.
    """
    topics, number = settings.topics, span.partition
    events, verdicts = TopicPartition(topics.events, number), TopicPartition(topics.verdicts, number)
    policies = TopicPartition(settings.policies_topic, number)
    keys = signing_keys(settings.signing)
    async with (
        LogReader(settings.kafka, events, policies) as of_events,
        LogReader(settings.kafka, verdicts) as of_verdicts,
    ):
        journal = await read_journal(of_events, policies)
        if not journal.changes and fallback is not None:
            journal = only(fallback)
        if span.first >= span.end and not journal.changes:
            return Tally(differences=[])  # nothing was ever judged here
        deriver = Deriver(number, journal, span.first)
        comparison = Comparison(scope.holds, deriver.excused)
        standing = _Standing(of_verdicts, verdicts, comparison, Verifier(keys) if keys else None, deriver.start)
        async for records in of_events.read(events, deriver.start, span.end):
            for position, found in deriver.judge(records, span.end):
                for verdict in found:
                    comparison.derived(verdict)
                comparison.position = position
            await standing.catch_up(comparison.position)
            tell(min(records[-1].offset + 1, span.end) - span.first)
        comparison.position = span.end
        await standing.catch_up(None)
        tally = comparison.end(span.end)
        tally.events = deriver.events
        tell(span.end - span.first)
        return tally


def only(ruleset: Ruleset) -> Journal:
    """Return the journal of a group that always judged by one ruleset."""
    journal = Journal()
    journal.rulesets[ruleset.fingerprint] = ruleset
    journal.add(PolicyChange(offset=0, ruleset=ruleset.fingerprint))
    return journal


class _Standing:
    """Reads the verdict partition along with the events: not further than they are, so that little has to wait."""

    def __init__(
        self,
        reader: LogReader,
        partition: TopicPartition,
        comparison: Comparison,
        verifier: Verifier | None,
        start: int,
    ) -> None:
        self._batches = reader.read(partition)
        self._comparison = comparison
        self._verifier = verifier
        self._start = start
        self._reached = -1
        self._over = False

    async def catch_up(self, position: int | None) -> None:
        """Take what stands about events below a position; None: all."""
        while not self._over and (position is None or self._reached < position):
            batch: list[ConsumerRecord] | None = await anext(self._batches, None)
            if batch is None:
                self._over = True
                return
            for record in batch:
                self._take(record)
            await asyncio.sleep(0)

    def _take(self, record: ConsumerRecord) -> None:
        place = f"{record.topic}[{record.partition}]@{record.offset}"
        value: Any = record.value or b""
        try:
            verdict = decode_verdict(value)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            self._comparison.unreadable(place)
            return
        if verdict.source.offset < self._start:
            return  # about events of before what the journal knows, or that are gone
        self._reached = max(self._reached, verdict.source.offset)
        if self._verifier is not None:
            try:
                self._verifier.verify(value, record.headers)
            except (UnsignedVerdictError, BadSignatureError):
                self._comparison.badly_signed(verdict, place)
        self._comparison.stands(verdict, value, place)
