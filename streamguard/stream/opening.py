"""Opening a shard: fence its predecessor, restore what it left, find the position to go on from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition

from streamguard.errors import PositionLostError
from streamguard.guard import Guard, Limits
from streamguard.policy import PolicySet
from streamguard.stream.brokers import Brokers
from streamguard.stream.delivery import DeadLetters, KafkaDelivery
from streamguard.stream.held import Held, Partitions
from streamguard.stream.outbox import Outbox
from streamguard.stream.producer import FencedProducer
from streamguard.stream.restore import LogReader, Restored, read_said, read_state
from streamguard.stream.shard import Shard

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
    """Opens shards. `lost` is called when an open shard can no longer deliver what it says."""

    def __init__(
        self,
        clients: Clients,
        settings: Settings,
        policies: PolicySet,
        lost: Lost,
        signer: Signer | None = None,
    ) -> None:
        self._clients = clients
        self._settings = settings
        self._policies = policies
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
            first, end = await reader.bounds(partitions.verdicts)
            marker = restored.marker
            said_from = end if marker is None else max(first, marker.verdicts)
            said = await read_said(reader, partitions.verdicts, said_from)
            position = await self._position(reader, partitions.events, restored)
        held = self._held(partitions, producer, self._shard(number, position, restored), said, said_from)
        held.marker = marker
        held.marked_at = loop.time()
        log.info(
            "partition restored", partition=number, position=position, runs=len(held.shard.guard),
            already_said=len(said), epoch=producer.epoch, seconds=round(loop.time() - begun, 3),
        )  # fmt: skip
        return held

    def _reader(self, partitions: Partitions) -> LogReader:
        return LogReader(self._settings.kafka, partitions.events, partitions.verdicts, partitions.state)

    def _partitions(self, number: int) -> Partitions:
        topics = self._settings.topics
        return Partitions(number, events=topics.events, verdicts=topics.verdicts, state=self._settings.state_topic)

    def _producer(self, number: int) -> FencedProducer:
        settings = self._settings
        return FencedProducer(
            self._clients.brokers,
            settings.transactional_id(number) if settings.kafka.idempotence else None,
            request_timeout_ms=settings.kafka.request_timeout_ms,
            transaction_timeout_ms=int(settings.worker.checkpoint_timeout_seconds + TRANSACTION_SECONDS) * 1000,
        )

    def renewed(self, kept: Held) -> Held:
        """Return a shard that was let go, with its memory as it is and ready to deliver again."""
        kept.outbox = self._outbox(kept.events, kept.delivery)
        return kept

    def _held(
        self, partitions: Partitions, producer: FencedProducer, shard: Shard, said: set[str], verdicts_end: int
    ) -> Held:
        delivery = KafkaDelivery(
            producer, partitions.verdicts, self._clients.dead_letters, self._signer, end=verdicts_end
        )
        outbox = self._outbox(partitions.events, delivery)
        return Held(partitions, shard, producer=producer, delivery=delivery, outbox=outbox, said=said)

    def _outbox(self, events: TopicPartition, delivery: KafkaDelivery) -> Outbox:
        return Outbox(
            delivery,
            lambda error: self._lost(events, error),
            seconds=self._settings.worker.delivery_timeout_seconds,
            name=f"outbox-{events.partition}",
        )

    def _shard(self, number: int, position: int, restored: Restored) -> Shard:
        limits = self._settings.limits
        guard = Guard(
            self._policies,
            Limits(
                runs=limits.runs,
                active_runs=limits.active_runs,
                idle_ms=limits.idle_seconds * 1000,
                waiting_calls=limits.waiting_calls,
            ),
        )
        if restored.marker is not None:
            guard.restore(((key.decode(), value) for key, value in restored.snapshots.items()), restored.marker.time)
        return Shard(number, guard, position, record_bytes=limits.record_bytes, json_depth=limits.json_depth)

    async def _position(self, reader: LogReader, events: TopicPartition, restored: Restored) -> int:
        """Return where to go on: what the marker says, or what was committed if that is further.

        A checkpoint's transaction and the commit behind it can be separated by a crash: the marker is right then. A
        commit that is further was set by an operator, to skip events.
        """
        committed: int | None = await self._clients.consumer.committed(events)
        first, end = await reader.bounds(events)
        reached = [
            *([] if committed is None else [committed]),
            *([] if restored.marker is None else [restored.marker.position]),
        ]
        if not reached:
            return end if self._settings.worker.offset_reset == "latest" else first
        position = max(reached)
        beyond = position > end and self._settings.kafka.idempotence  # the embedded broker's ends are not exact
        if first <= position and not beyond:
            return position
        if beyond:
            restored.snapshots.clear()  # another topic by the same name: its offsets mean other events
        return self._found(events, position, first, end)

    async def found(self, events: TopicPartition, position: int) -> int:
        """Return where to go on if `position` is lost. Raises `PositionLostError` unless the settings say where."""
        async with LogReader(self._settings.kafka, events) as reader:
            first, end = await reader.bounds(events)
        return self._found(events, position, first, end)

    def _found(self, events: TopicPartition, position: int, first: int, end: int) -> int:
        """Go on elsewhere if the settings say so: records were deleted unread, or the topic was made anew."""
        choice = self._settings.worker.on_lost_position
        name = f"{events.topic}[{events.partition}]"
        if choice == "fail":
            raise PositionLostError(
                f"{name}: this group had reached {position}, but the broker has events from {first} to {end} only: "
                "they were deleted unread, or the topic was made anew. Choose where to go on: "
                "--on-lost-position=earliest or latest (worker.on_lost_position)"
            )
        found = first if choice == "earliest" else end
        log.warning("position lost", partition=events.partition, lost=position, first=first, end=end, going_on=found)
        return found
