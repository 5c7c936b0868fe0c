"""The life of a worker: start, pump, stop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError

from streamguard.errors import StuckError
from streamguard.policy import PolicySet
from streamguard.signing import Signer, signing_keys
from streamguard.stream.assignment import Assignment
from streamguard.stream.delivery import DeadLetters
from streamguard.stream.held import Held
from streamguard.stream.kafka import close, make_brokers, make_consumer, make_dead_letter_producer, started
from streamguard.stream.leaving import close_member
from streamguard.stream.opening import Clients, Lost, Opener
from streamguard.stream.refusal import as_error
from streamguard.stream.ruleset import Ruleset
from streamguard.stream.status import WRITE_SECONDS, Status, StatusFile, status_of
from streamguard.stream.telling import QUIET, Telling
from streamguard.stream.topics import check_topics
from streamguard.stream.watchdog import Watchdog

if TYPE_CHECKING:
    from streamguard.settings import Settings
    from streamguard.stream.policy_watch import PolicyFile

__all__ = ["Worker"]

log = structlog.get_logger("streamguard.worker")

POLL_MS: Final = 200
"""Longest wait for records before the pump looks whether it should stop."""

RESUME_AT: Final = 0.5
"""How full the outbox may be, of what pauses a partition, when it is read again."""

CHECKPOINT_TICK_SECONDS: Final = 0.25
"""How often it is looked whether a checkpoint is due."""

GAVE_UP: Final = "the Kafka client gave up a request that the worker waited for. Start the worker again"


class Worker:
    """One member of the consumer group.

    `await run()` returns after `stop()` once everything judged is acknowledged and written down. Raises a subclass of
    `StreamguardError` if it cannot start or go on.
    """

    def __init__(
        self,
        settings: Settings,
        policies: PolicySet,
        policy_file: PolicyFile | None = None,
        telling: Telling = QUIET,
    ) -> None:
        self.settings = settings
        self.ruleset = Ruleset(policies, settings.limits)  # wanted; a shard says itself what is in force there
        self.verdicts: Counter[str] = Counter()  # published, by action
        self.dead_letters = 0
        self.judged = 0  # records, readable or not
        self._policy_file = policy_file
        self._status: Callable[[], Status | None] = lambda: None
        self._telling = telling
        telling.policy_in_force(self.ruleset.fingerprint)
        keys = signing_keys(settings.signing)
        self._signer = Signer(keys[0]) if keys else None
        self._status_file = StatusFile(settings.worker.status_file) if settings.worker.status_file else None
        self._stopping = asyncio.Event()
        self._ready = asyncio.Event()
        self.assignment: Assignment | None = None

    def status(self) -> Status | None:
        """Tell how it is; None until it is a member of its group."""
        return self._status()

    def stop(self) -> None:
        """Ask it to drain and stop; returns at once."""
        self._stopping.set()

    async def ready(self) -> None:
        """Wait until it is a member of the group and its partitions are restored."""
        await self._ready.wait()
        if self.assignment is not None:
            await self.assignment.ready.wait()

    async def run(self) -> None:
        """Start, pump until stopped, stop."""
        life = asyncio.create_task(self._live(), name="worker")
        stopping = asyncio.create_task(self._stopping.wait(), name="stopping")
        try:
            await asyncio.wait({life, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not life.done() and self.assignment is None:
                life.cancel()  # still waiting for a broker: nothing to drain
            await life
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not life.cancelled() or (task is not None and task.cancelling()):
                raise
            if self.assignment is not None or not self._stopping.is_set():
                raise StuckError(GAVE_UP) from None
            log.info("stopped before it had started")
        except KafkaError as error:
            raise as_error(error) from error
        finally:
            stopping.cancel()
            life.cancel()
            await asyncio.gather(life, stopping, return_exceptions=True)

    async def _live(self) -> None:
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        settings = self.settings
        counts = await check_topics(settings)
        consumer = make_consumer(settings.kafka, settings.worker)
        topics = (settings.topics.verdicts, settings.state_topic, settings.policies_topic)
        brokers = make_brokers(settings.kafka, topics, self._telling)
        dead_letters = make_dead_letter_producer(settings.kafka)
        clients = (brokers, dead_letters, consumer)
        try:
            for client in clients:
                await started(client, settings.kafka)
            letters = DeadLetters(dead_letters, settings.topics.dead_letters, counts.dead_letters)
            assignment = self._join(Clients(consumer, brokers, letters), failed)
            log.info(
                "worker started", group=settings.worker.group, topic=settings.topics.events, partitions=counts.events
            )
            await self._until_stopped(consumer, assignment, failed)
        finally:
            failed.cancel()
            if self.assignment is not None and self.assignment.rebalancing_since is not None:
                await close_member(consumer, brokers, settings.worker)
            await close(*clients)
        log.info("worker stopped", verdicts=dict(self.verdicts), dead_letters=self.dead_letters)

    def _join(self, clients: Clients, failed: asyncio.Future[None]) -> Assignment:
        """Subscribe; partitions come with the group's first rebalance."""
        settings = self.settings

        def new_opener(lost: Lost) -> Opener:
            return Opener(clients, settings, lambda: self.ruleset, lost, self._signer, telling=self._telling)

        assignment = Assignment(clients.consumer, new_opener, failed, settings.worker)
        clients.consumer.subscribe([settings.topics.events], listener=assignment)
        self.assignment = assignment
        self._ready.set()
        return assignment

    async def _until_stopped(
        self, consumer: AIOKafkaConsumer, assignment: Assignment, failed: asyncio.Future[None]
    ) -> None:
        watchdog = Watchdog(consumer, assignment, self.settings)
        status = partial(status_of, self, consumer, assignment, watchdog)
        self._status = status
        pump = asyncio.create_task(self._pump(consumer, assignment, watchdog), name="pump")
        checkpoints = asyncio.create_task(self._checkpoint_regularly(assignment), name="checkpoints")
        policy = asyncio.create_task(self._watch_policy(), name="policy")
        watching = asyncio.create_task(watchdog.watch(), name="watchdog")
        telling = asyncio.create_task(self._tell(status), name="status")
        stopping = asyncio.create_task(self._stopping.wait(), name="stopping")
        tasks: tuple[asyncio.Task[Any], ...] = (pump, checkpoints, policy, watching, telling, stopping)
        try:
            waited: set[asyncio.Future[Any]] = {*tasks, failed}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            self._stopping.set()
            grace = self.settings.worker.stop_grace_seconds
            await asyncio.wait({pump}, timeout=grace / 8)
            # Waits for checkpoints that are being written: half of one is none. What is left is for closing clients.
            await assignment.close(grace * 3 / 8)
            for done in (failed, watching, pump, checkpoints, policy, telling):
                if done.done():
                    _raise_failure(done)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _tell(self, status: Callable[[], Status]) -> None:
        """Write down how we are, once a second, if there is a file for it."""
        file = self._status_file
        if file is None:
            await asyncio.Event().wait()
            return
        try:
            while True:
                file.write(status())
                await asyncio.sleep(WRITE_SECONDS)
        finally:
            file.remove()

    async def _checkpoint_regularly(self, assignment: Assignment) -> None:
        while True:
            await asyncio.sleep(CHECKPOINT_TICK_SECONDS)
            seconds = self.settings.worker.checkpoint_timeout_seconds
            await assignment.judge_by(self.ruleset, seconds)
            await assignment.checkpoint_all(seconds)

    async def _watch_policy(self) -> None:
        """Take what the policy file says whenever it changes; what is wrong is told, and changes nothing."""
        while True:
            await asyncio.sleep(self.settings.worker.policy_check_seconds)
            policies = (
                self._policy_file.changed(self._telling.policy_changed) if self._policy_file is not None else None
            )
            if policies is not None:
                self.ruleset = Ruleset(policies, self.settings.limits)
                self._telling.policy_in_force(self.ruleset.fingerprint)

    async def _pump(self, consumer: AIOKafkaConsumer, assignment: Assignment, watchdog: Watchdog) -> None:
        """Read and judge; never waits for anything but records."""
        while not self._stopping.is_set():
            watchdog.pump_turned()
            fetched = await self._fetch(consumer, assignment)
            # What was fetched is for the shards of this moment: one that is opened meanwhile starts elsewhere.
            held = {partition: assignment.held[partition] for partition in fetched if partition in assignment.held}
            for shard in list(assignment.held.values()):
                if shard.backlog and not shard.changing:
                    backlog, shard.backlog = shard.backlog, []
                    await self._judge(shard, backlog, assignment)
            for partition, shard in held.items():
                await self._judge(shard, fetched[partition], assignment)
            self._throttle(consumer, assignment)
            await asyncio.sleep(0)

    async def _fetch(
        self, consumer: AIOKafkaConsumer, assignment: Assignment
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        try:
            records: dict[TopicPartition, list[ConsumerRecord]] = await consumer.getmany(
                timeout_ms=POLL_MS, max_records=self.settings.worker.slice_records
            )
        except NoOffsetForPartitionError:
            await asyncio.sleep(POLL_MS / 1000)  # a partition that is being opened: its position is set there
            return {}
        except OffsetOutOfRangeError as error:
            assignment.out_of_range(error.args[0])
            return {}
        except KafkaError as error:
            if not error.retriable:
                raise
            self._telling.broker_failed(error)
            log.warning("fetch failed, trying again", error=f"{type(error).__name__}: {error}")
            await asyncio.sleep(1.0)
            return {}
        return records

    async def _judge(self, held: Held, records: list[ConsumerRecord], assignment: Assignment) -> None:
        """Judge in slices; between two, heartbeats and acknowledgements get their turn."""
        start = 0
        while start < len(records) and assignment.held.get(held.events) is held:
            if held.changing:
                held.backlog += records[start:]
                return
            done = held.shard.judge(records, start, self.settings.worker.slice_ms / 1000)
            self.judged += done.next - start
            start = done.next
            verdicts = held.said.leave_out(done.verdicts, held.shard.position)
            held.delivery.carry(verdicts, done.traces)
            held.outbox.put(verdicts, done.dead_letters)
            self.verdicts.update(verdict.action for verdict in verdicts)
            self.dead_letters += len(done.dead_letters)
            await asyncio.sleep(0)

    def _throttle(self, consumer: AIOKafkaConsumer, assignment: Assignment) -> None:
        """Stop reading a partition while too much of what it said is not acknowledged."""
        worker = self.settings.worker
        for held in assignment.held.values():
            full = max(len(held.outbox) / worker.max_inflight, held.outbox.bytes / worker.max_inflight_bytes)
            if held.changing or held.paused == (full > (RESUME_AT if held.paused else 1)):
                continue
            held.paused = not held.paused
            try:
                (consumer.pause if held.paused else consumer.resume)(held.events)
            except IllegalStateError:
                continue  # revoked this moment
            log.info(
                "reading paused, verdicts wait for the broker" if held.paused else "reading resumed",
                partition=held.events.partition,
                waiting=len(held.outbox),
            )


def _raise_failure(done: asyncio.Future[Any]) -> None:
    """Raise what a task failed with; one that was cancelled by something within the Kafka client has failed too."""
    if done.cancelled():
        raise StuckError(GAVE_UP)
    done.result()
