"""The life of a worker: start, pump, stop."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError

from streamguard.errors import BrokerUnavailableError, PositionLostError
from streamguard.guard import Guard, Limits
from streamguard.policy import PolicySet
from streamguard.stream.assignment import Assignment, Held
from streamguard.stream.kafka import make_consumer, make_producer, started
from streamguard.stream.outbox import Outbox
from streamguard.stream.shard import Shard
from streamguard.stream.topics import Partitions, check_topics

if TYPE_CHECKING:
    from streamguard.settings import Settings

__all__ = ["Worker"]

log = structlog.get_logger("streamguard.worker")

POLL_MS: Final = 200
"""Longest wait for records before the pump looks whether it should stop."""

CLOSE_SECONDS: Final = 5.0
"""Longest wait for a client to close; the process ends all the same."""


class Producers(NamedTuple):
    """The clients that write: one for verdicts, one for dead letters."""

    verdicts: AIOKafkaProducer
    dead_letters: AIOKafkaProducer


class Worker:
    """One member of the consumer group.

    `await run()` returns after `stop()` once everything judged is acknowledged and committed. Raises a subclass of
    `StreamguardError` if it cannot start or go on.
    """

    def __init__(self, settings: Settings, policies: PolicySet) -> None:
        self.settings = settings
        self.verdicts: Counter[str] = Counter()  # published, by action
        self.dead_letters = 0
        self.judged = 0  # records, readable or not
        self._policies = policies
        self._stopping = asyncio.Event()
        self._ready = asyncio.Event()
        self._assignment: Assignment | None = None

    def stop(self) -> None:
        """Ask it to drain and stop; returns at once."""
        self._stopping.set()

    async def ready(self) -> None:
        """Wait until it is a member of the group and holds its partitions."""
        await self._ready.wait()
        if self._assignment is not None:
            await self._assignment.ready.wait()

    async def run(self) -> None:
        """Start, pump until stopped, stop."""
        life = asyncio.create_task(self._live(), name="worker")
        stopping = asyncio.create_task(self._stopping.wait(), name="stopping")
        try:
            await asyncio.wait({life, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not life.done() and self._assignment is None:
                life.cancel()  # still waiting for a broker: nothing to drain
            await life
        except asyncio.CancelledError:
            if not (self._stopping.is_set() and life.cancelled()):
                raise
            log.info("stopped before it had started")
        except KafkaError as error:
            raise BrokerUnavailableError(f"Kafka refused: {type(error).__name__}: {error}") from error
        finally:
            stopping.cancel()
            life.cancel()
            await asyncio.gather(life, stopping, return_exceptions=True)

    async def _live(self) -> None:
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        partitions = await check_topics(self.settings)
        kafka = self.settings.kafka
        consumer = make_consumer(kafka, self.settings.worker)
        producers = Producers(
            make_producer(kafka, idempotence=kafka.idempotence), make_producer(kafka, idempotence=False)
        )
        try:
            for client in (*producers, consumer):
                await started(client, kafka)
            assignment = self._join(consumer, producers, partitions, failed)
            await self._until_stopped(consumer, assignment, failed)
        finally:
            failed.cancel()
            for client in (consumer, *producers):
                await _close(client)
        log.info("worker stopped", verdicts=dict(self.verdicts), dead_letters=self.dead_letters)

    def _join(
        self,
        consumer: AIOKafkaConsumer,
        producers: Producers,
        partitions: Partitions,
        failed: asyncio.Future[None],
    ) -> Assignment:
        """Subscribe; partitions come with the group's first rebalance."""
        topics = self.settings.topics

        def new_outbox(partition: int) -> Outbox:
            return Outbox(
                *producers,
                partition,
                failed,
                verdicts_topic=topics.verdicts,
                dead_letter_topic=topics.dead_letters,
                dead_letter_partition=partition % partitions.dead_letters,
                seconds=self.settings.worker.delivery_timeout_seconds,
            )

        assignment = Assignment(
            consumer,
            failed,
            new_shard=self._new_shard,
            new_outbox=new_outbox,
            offset_reset=self.settings.worker.offset_reset,
        )
        consumer.subscribe([topics.events], listener=assignment)
        self._assignment = assignment
        self._ready.set()
        log.info("worker started", group=self.settings.worker.group, topic=topics.events, partitions=partitions.events)
        return assignment

    def _new_shard(self, partition: int, position: int) -> Shard:
        limits = self.settings.limits
        guard = Guard(
            self._policies,
            Limits(runs=limits.runs, idle_ms=limits.idle_seconds * 1000, waiting_calls=limits.waiting_calls),
        )
        return Shard(partition, guard, position, record_bytes=limits.record_bytes, json_depth=limits.json_depth)

    async def _until_stopped(
        self, consumer: AIOKafkaConsumer, assignment: Assignment, failed: asyncio.Future[None]
    ) -> None:
        pump: asyncio.Task[None] = asyncio.create_task(self._pump(consumer, assignment), name="pump")
        commits = asyncio.create_task(self._commit_regularly(assignment), name="commits")
        stopping = asyncio.create_task(self._stopping.wait(), name="stopping")
        tasks: tuple[asyncio.Task[Any], ...] = (pump, commits, stopping)
        try:
            waited: set[asyncio.Future[Any]] = {*tasks, failed}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            self._stopping.set()
            await self._drain(pump, assignment)
            for done in (failed, pump, commits):
                if done.done() and not done.cancelled():
                    done.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await assignment.close()

    async def _drain(self, pump: asyncio.Task[None], assignment: Assignment) -> None:
        """Judge what is at hand, let it be acknowledged, commit; within the grace time."""
        grace = self.settings.worker.stop_grace_seconds
        await asyncio.wait({pump}, timeout=grace / 2)
        await assignment.settle(dict(assignment.held), grace / 2)

    async def _commit_regularly(self, assignment: Assignment) -> None:
        while True:
            await asyncio.sleep(self.settings.worker.commit_interval_seconds)
            await assignment.commit()

    async def _pump(self, consumer: AIOKafkaConsumer, assignment: Assignment) -> None:
        """Read and judge; never waits for anything but records, unless too much is unacknowledged."""
        while not self._stopping.is_set():
            for partition, records in (await self._fetch(consumer)).items():
                held = assignment.held.get(partition)
                if held is not None:
                    await self._judge(partition, held, records, assignment)
            await asyncio.sleep(0)

    async def _fetch(self, consumer: AIOKafkaConsumer) -> dict[TopicPartition, list[ConsumerRecord]]:
        try:
            records: dict[TopicPartition, list[ConsumerRecord]] = await consumer.getmany(
                timeout_ms=POLL_MS, max_records=self.settings.worker.slice_records
            )
        except NoOffsetForPartitionError:
            return {}  # a partition that is being opened: its position is set there
        except OffsetOutOfRangeError as error:
            raise PositionLostError(
                f"the broker has no records at the position of this worker: {error}. They were deleted unread, or the "
                "topic was made anew. Reset the group's offsets (kafka-consumer-groups.sh --reset-offsets) to go on."
            ) from error
        except KafkaError as error:
            if not error.retriable:
                raise
            log.warning("fetch failed, trying again", error=f"{type(error).__name__}: {error}")
            await asyncio.sleep(1.0)
            return {}
        return records

    async def _judge(
        self, partition: TopicPartition, held: Held, records: list[ConsumerRecord], assignment: Assignment
    ) -> None:
        """Judge in slices; between two, heartbeats and acknowledgements get their turn."""
        start = 0
        while start < len(records) and assignment.held.get(partition) is held:
            done = held.shard.judge(records, start, self.settings.worker.slice_ms / 1000)
            self.judged += done.next - start
            start = done.next
            held.outbox.put(done.verdicts, done.dead_letters)
            self.verdicts.update(verdict.action for verdict in done.verdicts)
            self.dead_letters += len(done.dead_letters)
            await held.outbox.emptied_to(self.settings.worker.max_inflight)
            await asyncio.sleep(0)


async def _close(client: AIOKafkaConsumer | AIOKafkaProducer) -> None:
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await client.stop()
    except (KafkaError, TimeoutError, OSError) as error:
        log.warning("client did not close in time", client=type(client).__name__, error=type(error).__name__)
