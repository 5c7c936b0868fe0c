"""Following the topics for the page, as no member of a group: the newest minutes, and what comes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError

from streamguard.errors import UnreadableRecordError
from streamguard.events import Source, decode_event
from streamguard.guard import Guard
from streamguard.stream.journal import read_journal
from streamguard.stream.kafka import close, make_follower, started
from streamguard.stream.restore import LogReader
from streamguard.stream.ruleset import Ruleset
from streamguard.stream.shard import is_msgpack
from streamguard.stream.topics import executor_partitions
from streamguard.verdicts import decode_verdict

if TYPE_CHECKING:
    from streamguard.settings import Settings
    from streamguard.web.model import Model

__all__ = ["Follower"]

log = structlog.get_logger("streamguard.web")

POLL_MS: Final = 250
RECORDS: Final = 1_000
AGAIN_SECONDS: Final = 2.0
POLICY_SECONDS: Final = 5.0
"""How often it is looked whether a partition goes by another policy."""


class Follower:
    """Fills a model until it is cancelled; what goes wrong is logged, told in `trouble`, and tried again."""

    def __init__(self, settings: Settings, model: Model, fallback: Ruleset) -> None:
        self.partitions = 0
        self.trouble: str | None = "connecting to Kafka"
        self.rulesets: dict[int, Ruleset] = {}
        self._settings = settings
        self._model = model
        self._fallback = fallback
        self._guards: dict[int, Guard] = {}
        self._positions: dict[TopicPartition, int] = {}

    async def run(self) -> None:
        """Follow events, verdicts and policies."""
        while True:
            try:
                self.partitions = await executor_partitions(self._settings)
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._follow(self._settings.topics.events, self._event))
                    group.create_task(self._follow(self._settings.topics.verdicts, self._verdict))
                    group.create_task(self._watch_policies())
            except* Exception as errors:  # noqa: BLE001 - whatever it is, the page comes back by itself
                error = errors.exceptions[0]
                self.trouble = f"{type(error).__name__}: {error}"
                log.warning("topics not readable, trying again", error=self.trouble)
            await asyncio.sleep(AGAIN_SECONDS)

    async def _follow(self, topic: str, take: Callable[[ConsumerRecord], None]) -> None:
        places = [TopicPartition(topic, number) for number in range(self.partitions)]
        consumer: AIOKafkaConsumer = make_follower(self._settings.kafka)
        try:
            await started(consumer, self._settings.kafka)
            consumer.assign(places)
            await self._seek(consumer, places)
            self.trouble = None
            while True:
                for some in (await consumer.getmany(timeout_ms=POLL_MS, max_records=RECORDS)).values():
                    for record in some:
                        take(record)
                        self._positions[TopicPartition(record.topic, record.partition)] = record.offset + 1
                await asyncio.sleep(0)
        finally:
            await close(consumer)

    async def _seek(self, consumer: AIOKafkaConsumer, places: Sequence[TopicPartition]) -> None:
        """Go to where we were, else to the newest minutes."""
        since = int((time.time() - self._settings.ui.minutes * 60) * 1000)
        found = await consumer.offsets_for_times(dict.fromkeys(places, since))
        ends = await consumer.end_offsets(list(places))
        for place in places:
            begin = found[place].offset if found.get(place) is not None else ends[place]
            known = self._positions.get(place, 0)
            consumer.seek(place, max(begin, known) if known <= ends[place] else begin)  # a topic may be made anew

    def _event(self, record: ConsumerRecord) -> None:
        try:
            event = decode_event(record.value, msgpack=is_msgpack(record))
            if event is None:
                return
            source = Source(record.topic, record.partition, record.offset, record.timestamp or 0)
            guard = self._guard(record.partition)
            guard.observe(event, source)
        except UnreadableRecordError:
            return
        self._model.event(event, source, guard)

    def _verdict(self, record: ConsumerRecord) -> None:
        try:
            verdict = decode_verdict(record.value or b"")
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return
        self._model.verdict(verdict, record.timestamp or 0)

    def _guard(self, partition: int) -> Guard:
        guard = self._guards.get(partition)
        if guard is None:
            ruleset = self.rulesets.get(partition, self._fallback)
            guard = self._guards[partition] = Guard(ruleset.policies, ruleset.guard_limits)
        return guard

    async def _watch_policies(self) -> None:
        """Judge as the workers do now: by what the journal says last."""
        places = [TopicPartition(self._settings.policies_topic, number) for number in range(self.partitions)]
        while True:
            try:
                async with LogReader(self._settings.kafka, *places) as reader:
                    for place in places:
                        await self._take_ruleset(reader, place)
            except KafkaError as error:
                log.debug("no policies to be read", error=type(error).__name__)
            await asyncio.sleep(POLICY_SECONDS)

    async def _take_ruleset(self, reader: LogReader, place: TopicPartition) -> None:
        journal = await read_journal(reader, place)
        ruleset = journal.rulesets.get(journal.changes[-1].ruleset) if journal.changes else None
        known: Any = self.rulesets.get(place.partition)
        if ruleset is None or (known is not None and known.fingerprint == ruleset.fingerprint):
            return
        self.rulesets[place.partition] = ruleset
        if (guard := self._guards.get(place.partition)) is not None:
            guard.change(ruleset.policies, ruleset.guard_limits)
