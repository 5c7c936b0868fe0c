"""Opening a shard: fence its predecessor, restore what it left, find the position to go on from."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec
import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition

from streamguard.guard import Counters, Guard
from streamguard.stream.brokers import Brokers
from streamguard.stream.checkpoint import Marker
from streamguard.stream.delivery import DeadLetters, KafkaDelivery
from streamguard.stream.held import Held, Partitions
from streamguard.stream.journal import Journal, PolicyChange, read_journal
from streamguard.stream.outbox import Outbox
from streamguard.stream.position import Bounds, Place, find_place
from streamguard.stream.producer import FencedProducer
from streamguard.stream.restore import LogReader, Restored, read_said, read_state
from streamguard.stream.ruleset import Ruleset
from streamguard.stream.said import Said
from streamguard.stream.shard import Shard, no_events
from streamguard.stream.telling import QUIET, Telling

if TYPE_CHECKING:
    from streamguard.settings import Settings
    from streamguard.signing import Signer

__all__ = ["Clients", "Lost", "Opener"]

log = structlog.get_logger("streamguard.opening")

Lost: TypeAlias = Callable[[TopicPartition, Exception], None]
"""Hears of a shard that can no longer deliver what it says, and why."""

TRANSACTION_SECONDS: Final = 15
"""How much longer than a checkpoint's own deadline the broker lets a transaction be open."""


class Clients(NamedTuple):
    """What a worker reads and writes with."""

    consumer: AIOKafkaConsumer
    brokers: Brokers
    dead_letters: DeadLetters


class Opener:
    """Opens shards. `lost` is called when an open shard can no longer deliver what it says.

    `wanted` tells the ruleset that a shard without a past begins with. `counters`, `events` (that were judged, by type)
    and `refused` (records that are not judged, by reason) count for all shards, since the worker started.
    """

    def __init__(
        self,
        clients: Clients,
        settings: Settings,
        wanted: Callable[[], Ruleset],
        lost: Lost,
        signer: Signer | None = None,
        *,
        telling: Telling = QUIET,
    ) -> None:
        self.telling = telling
        self.counters = Counters()
        self.events = no_events()
        self.refused: Counter[str] = Counter()
        self._clients = clients
        self._settings = settings
        self._wanted = wanted
        self._lost = lost
        self._signer = signer

    async def open(self, number: int) -> Held:
        """Take over the partitions of this number and restore their shard, to just before its next event.

        Raises `Fenced` if somebody else opens it meanwhile, `PositionLostError`, `SnapshotVersionError`, `KafkaError`.
        """
        loop = asyncio.get_running_loop()
        begun = loop.time()
        partitions = self._partitions(number)
        producer = self._producer(number)
        await producer.open([partitions.state, partitions.verdicts])
        async with self._reader(partitions) as reader:
            restored = await read_state(reader, partitions.state)
            journal = await read_journal(reader, partitions.policies, self._settings.limits.active_runs)
            place = await self._place(reader, partitions.events, restored.marker)
            verdicts = await reader.bounds(partitions.verdicts)
            said = await _said(reader, partitions.verdicts, verdicts, restored.marker, place)
        ruleset = self._in_force(number, journal, restored.marker, place)
        shard = self._shard(number, restored, place, ruleset)
        delivery = KafkaDelivery(
            producer,
            partitions.verdicts,
            self._clients.dead_letters,
            self._signer,
            end=verdicts.end,
            telling=self.telling,
        )
        outbox = self._outbox(partitions.events, delivery)
        held = Held(partitions, shard, producer=producer, delivery=delivery, outbox=outbox, said=said, ruleset=ruleset)
        held.marker = None if place.anew else restored.marker
        held.change = _change(ruleset, journal, restored.marker, place)
        held.newest = journal.changes[-1] if journal.changes else None
        held.marked_at = loop.time()
        self.telling.restored(loop.time() - begun)
        log.info(
            "partition restored", partition=number, position=place.position, runs=len(shard.guard),
            already_said=len(said), epoch=producer.epoch, seconds=round(loop.time() - begun, 3),
        )  # fmt: skip
        return held

    def renewed(self, kept: Held) -> Held:
        """Return a shard that was let go, with its memory as it is and ready to deliver again."""
        kept.outbox = self._outbox(kept.events, kept.delivery)
        return kept

    # its parts

    def _reader(self, partitions: Partitions) -> LogReader:
        return LogReader(
            self._settings.kafka, partitions.events, partitions.verdicts, partitions.state, partitions.policies
        )

    def _partitions(self, number: int) -> Partitions:
        topics = self._settings.topics
        return Partitions(
            number,
            events=topics.events,
            verdicts=topics.verdicts,
            state=self._settings.state_topic,
            policies=self._settings.policies_topic,
        )

    def _producer(self, number: int) -> FencedProducer:
        settings = self._settings
        return FencedProducer(
            self._clients.brokers,
            settings.transactional_id(number) if settings.kafka.idempotence else None,
            request_timeout_ms=settings.kafka.request_timeout_ms,
            transaction_timeout_ms=int(settings.worker.checkpoint_timeout_seconds + TRANSACTION_SECONDS) * 1000,
        )

    def _outbox(self, events: TopicPartition, delivery: KafkaDelivery) -> Outbox:
        return Outbox(
            delivery,
            lambda error: self._lost(events, error),
            seconds=self._settings.worker.delivery_timeout_seconds,
            name=f"outbox-{events.partition}",
        )

    def _in_force(self, number: int, journal: Journal, marker: Marker | None, place: Place) -> Ruleset:
        """Return what the next event is to be judged by: what the last checkpoint says, though another is wanted now.

        A predecessor may have judged beyond it already; its verdicts there are to come out again.
        """
        if marker is None or place.anew:
            return self._wanted()
        ruleset = journal.rulesets.get(marker.policy)
        if ruleset is None:
            log.warning("the ruleset of the checkpoint is not known, going on with ours", partition=number,
                        policy=marker.policy)  # fmt: skip
        return ruleset or self._wanted()

    def _shard(self, number: int, restored: Restored, place: Place, ruleset: Ruleset) -> Shard:
        guard = Guard(ruleset.policies, ruleset.guard_limits, self.counters)
        if restored.marker is not None:
            guard.restore(((key.decode(), value) for key, value in restored.snapshots.items()), restored.marker.time)
        if place.anew:
            guard.forget_all()  # the next checkpoint takes them off the state topic
        return Shard(
            number, guard, place.position, self.refused, self.events,
            record_bytes=ruleset.limits.record_bytes, json_depth=ruleset.limits.json_depth,
        )  # fmt: skip

    async def _place(self, reader: LogReader, events: TopicPartition, marker: Marker | None) -> Place:
        committed: int | None = await self._clients.consumer.committed(events)
        checkpoint = None if marker is None else marker.position
        return find_place(self._settings, events, await reader.bounds(events), committed, checkpoint)


def _change(ruleset: Ruleset, journal: Journal, marker: Marker | None, place: Place) -> PolicyChange | None:
    """Return what the journal must say before a shard goes on; None if it does already."""
    now = time.time_ns() // 1_000_000
    change = PolicyChange(offset=place.position, ruleset=ruleset.fingerprint, time=now)
    if marker is None or place.anew:
        return msgspec.structs.replace(change, anew=True)
    if marker.policy != ruleset.fingerprint or not journal.changes:
        return msgspec.structs.replace(change, carried=True)
    if marker.position != place.position:
        return msgspec.structs.replace(change, skipped_from=marker.position)
    return None


async def _said(
    reader: LogReader, partition: TopicPartition, bounds: Bounds, marker: Marker | None, place: Place
) -> Said:
    """Read what stands on the verdict topic about events that are judged again."""
    if place.anew or not place.begun:
        return Said(bounds.end)  # what stands there is about other events
    if marker is None:
        log.warning("no checkpoint is left of this group: its runs are forgotten", partition=partition.partition)
    # A marker that is out of bounds: retention has passed it, or the topic was made anew.
    start = bounds.first
    if marker is not None and bounds.first <= marker.verdicts <= bounds.end:
        start = marker.verdicts
    return await read_said(reader, partition, start, place.position)
