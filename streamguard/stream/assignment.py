"""The partitions that this worker holds now: shards are opened when assigned, written down and let go when revoked.

Opening is done in the background with the partition paused: the rebalance callback must return at once, because
heartbeats stand still until it does. What makes it safe is not the group, which a frozen worker has left without
knowing, but the fence that each opening puts up: see `producer`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError

from streamguard.errors import DeliveryFailedError, NotAuthorizedError, RestoreFailedError, StuckError
from streamguard.stream.brokers import Fenced, may_be_repeated
from streamguard.stream.checkpoints import Checkpoints
from streamguard.stream.held import Held
from streamguard.stream.patience import UNANSWERED, answer
from streamguard.stream.refusal import as_error

if TYPE_CHECKING:
    from streamguard.settings import WorkerSettings
    from streamguard.stream.opening import Lost, Opener
    from streamguard.stream.ruleset import Ruleset

__all__ = ["Assignment"]

log = structlog.get_logger("streamguard.assignment")

OPENING_AT_ONCE: Final = 4
"""Partitions that are opened at the same time."""

CLOSE_SECONDS: Final = 2.0
"""Longest wait for openings that were called off."""

COORDINATOR_SECONDS: Final = 5.0
"""Longest wait for one answer of the group's coordinator."""


class Assignment(ConsumerRebalanceListener):  # type: ignore[misc] # aiokafka is untyped
    """Follows the group's rebalances. `ready` is set while every partition assigned to this worker is open.

    `rebalancing_since` is the loop's time since when the group has not said what is ours; None when it has.
    """

    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        new_opener: Callable[[Lost], Opener],
        failed: asyncio.Future[None],
        worker: WorkerSettings,
    ) -> None:
        self.held: dict[TopicPartition, Held] = {}
        self.assigned: set[TopicPartition] = set()
        self.ready = asyncio.Event()
        self.rebalancing_since: float | None = asyncio.get_running_loop().time()
        self.opener = new_opener(self.lost)
        self.checkpoints = Checkpoints(consumer, self._fail, worker, self.opener.telling)
        self._consumer = consumer
        self._failed = failed
        self._worker = worker
        self._epoch = 0  # of our own: counts rebalances
        self._kept: dict[TopicPartition, Held] = {}  # revoked, and not given to anybody yet
        self._tasks: set[asyncio.Task[None]] = set()
        self._at_once = asyncio.Semaphore(OPENING_AT_ONCE)

    # what the group says

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Let answers be acknowledged, write a checkpoint, let go. Keep the memory in case the partition comes back."""
        self._new_epoch()
        self.rebalancing_since = asyncio.get_running_loop().time()
        leaving = [self.held.pop(partition) for partition in revoked if partition in self.held]
        if leaving:
            await self._let_go(leaving, self._worker.session_timeout_ms / 2000)
            log.info("partitions revoked", partitions=sorted(held.events.partition for held in leaving))

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Pause, and open the shards in the background."""
        partitions = list(assigned)
        if partitions:
            self._consumer.pause(*partitions)
            for partition in partitions:
                self._consumer.seek(partition, 0)  # opening sets it right; without any, aiokafka looks for one itself
        epoch = self._new_epoch()
        self.rebalancing_since = None
        self.assigned = set(partitions)
        self._kept = {partition: held for partition, held in self._kept.items() if partition in self.assigned}
        for partition in partitions:
            self._begin(self._open_until_open(partition, epoch), f"open-{partition.partition}")
        if not partitions:
            self.ready.set()

    # what else happens to a shard

    def lost(self, partition: TopicPartition, error: Exception) -> None:
        """Hear that a shard can deliver nothing more: somebody else has opened it, or the brokers are gone."""
        held = self.held.get(partition)
        if held is None:
            return  # it was let go: whoever opens it next finds out what was delivered
        if isinstance(error, Fenced):
            log.warning("partition taken over", partition=partition.partition, error=str(error))
            self._reopen(held)
        elif isinstance(error, KafkaError | TimeoutError):
            refused = as_error(error)
            if isinstance(refused, NotAuthorizedError):
                self._fail(refused)
                return
            reason = str(error) or (
                f"not acknowledged within {self._worker.delivery_timeout_seconds:g} s (worker.delivery_timeout_seconds)"
            )
            self._fail(
                DeliveryFailedError(f"what partition {partition.partition} said could not be delivered: {reason}")
            )
        else:
            self._fail(error)

    async def checkpoint_all(self, seconds: float) -> None:
        """Write checkpoints where they are due; a shard whose checkpoint fails is opened anew."""
        due = [held for held in self.held.values() if self.checkpoints.due(held)]
        may_go_on = await asyncio.gather(*(self.checkpoints.write(held, seconds, always=True) for held in due))
        for held, goes_on in zip(due, may_go_on, strict=True):
            if not goes_on and self.held.get(held.events) is held:
                self._reopen(held)

    async def judge_by(self, ruleset: Ruleset, seconds: float) -> None:
        """Bring a ruleset in force at every shard that goes by another one, at the event that it has come to.

        Not where verdicts of a predecessor still have to come out again: they were found by what was in force then.
        """
        due = [held for held in self.held.values() if held.ruleset.fingerprint != ruleset.fingerprint]
        await asyncio.gather(*(self._change(held, ruleset, seconds) for held in due if not held.said))

    def out_of_range(self, positions: Iterable[TopicPartition]) -> None:
        """Hear that the broker has no events at these positions (any more). Opening anew finds out where to go on."""
        for partition in positions:
            held = self.held.get(partition)
            if held is not None:
                log.warning("position out of range", partition=partition.partition, position=held.shard.position)
                self._reopen(held, write_down=True)

    async def close(self, seconds: float) -> None:
        """Write a last checkpoint of every shard, and let go of all."""
        self._new_epoch()
        held, self.held = list(self.held.values()), {}
        await self._let_go(held, seconds)
        self._kept.clear()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_SECONDS)

    # inside

    def _new_epoch(self) -> int:
        self.ready.clear()
        self._epoch += 1
        for task in self._tasks:
            task.cancel()
        return self._epoch

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _let_go(self, leaving: list[Held], seconds: float) -> None:
        may_go_on = await asyncio.gather(*(self.checkpoints.write(held, seconds) for held in leaving))
        for held, goes_on in zip(leaving, may_go_on, strict=True):
            await held.outbox.close()
            if goes_on and len(held.outbox) == 0:
                self._kept[held.events] = held

    async def _change(self, held: Held, ruleset: Ruleset, seconds: float) -> None:
        """Write down that a ruleset is in force from here on, then judge by it. What comes meanwhile waits."""
        try:
            self._consumer.pause(held.events)
        except IllegalStateError:
            return  # the group has moved on
        goes_on = await self.checkpoints.change(held, ruleset, seconds)
        if self.held.get(held.events) is not held:
            return
        if not goes_on:
            self._reopen(held)
        elif not held.paused:
            self._consumer.resume(held.events)

    def _reopen(self, held: Held, *, write_down: bool = False) -> None:
        """Open a shard anew that we hold as far as we know; first write down what it knows, or drop that."""
        self.ready.clear()
        self.held.pop(held.events, None)
        try:
            self._consumer.pause(held.events)
        except IllegalStateError:
            held.outbox.abandon()  # the group has moved on already
            return
        if not write_down:
            held.outbox.abandon()
        self._begin(self._open_until_open(held.events, self._epoch, held), f"reopen-{held.events.partition}")

    async def _open_until_open(self, partition: TopicPartition, epoch: int, before: Held | None = None) -> None:
        """Open a shard, again if another worker opens it too: one of the two will be told that it is not its own."""
        try:
            async with asyncio.timeout(self._worker.restore_timeout_seconds):
                if before is not None:
                    await self._part_with(before)
                while not await self._open(partition, epoch):
                    await self._hear_from_group(partition)
        except asyncio.CancelledError:
            if epoch == self._epoch:  # not by us: by something within the Kafka client that the opening waited for
                self._fail(StuckError("the Kafka client gave up opening a partition. Start the worker again"))
            log.debug("assignment changed while a partition was opened", partition=partition.partition)
            raise
        except TimeoutError:
            self._fail(
                RestoreFailedError(
                    f"partition {partition.partition} was not restored within "
                    f"{self._worker.restore_timeout_seconds:g} s (worker.restore_timeout_seconds)"
                )
            )
        except Exception as error:  # noqa: BLE001 - a shard that cannot be opened ends the worker
            self._fail(error)

    async def _part_with(self, held: Held) -> None:
        """Close a shard that is opened anew."""
        try:
            if not held.outbox.closed:
                await self.checkpoints.write(held, self._worker.checkpoint_timeout_seconds)
        finally:
            held.outbox.abandon()
        await self._hear_from_group(held.events)

    async def _hear_from_group(self, partition: TopicPartition) -> None:
        """Wait until the group's coordinator has had time to say that the partition is no longer ours.

        Whoever is cut off from the coordinator alone could fence its successor again and again.
        """
        while await answer(self._consumer.committed(partition), COORDINATOR_SECONDS) is UNANSWERED:
            await asyncio.sleep(1.0)
        await asyncio.sleep(self._worker.heartbeat_interval_ms * 2 / 1000)

    async def _open(self, partition: TopicPartition, epoch: int) -> bool:
        """Open a shard; tell whether that worked, or has become somebody else's business."""
        try:
            async with self._at_once:
                held = await self._kept_or_restored(partition)
        except Fenced as error:
            log.warning("another worker opens this partition too", partition=partition.partition, error=str(error))
            return False
        except KafkaError as error:
            if not may_be_repeated(error):
                raise
            log.warning("partition not opened yet", partition=partition.partition, error=type(error).__name__)
            return False
        if held is None:
            return False
        if epoch != self._epoch or not self._resume(held):
            held.outbox.abandon()  # the group has moved on
        else:
            await self.checkpoints.commit(held)
        return True

    async def _kept_or_restored(self, partition: TopicPartition) -> Held | None:
        """Take a shard from memory if nobody else has opened it since, else from the state topic.

        That nobody has is shown by a checkpoint: had anybody, it would be refused.
        """
        seconds = self._worker.checkpoint_timeout_seconds
        kept = self._kept.pop(partition, None)
        if kept is not None and await self.checkpoints.write(kept, seconds, always=True):
            return self.opener.renewed(kept)
        held = await self.opener.open(partition.partition)
        if held.marker is not None and held.change is None:
            return held
        # The first checkpoint tells every later restore where this group's verdicts begin, and what is in force.
        written = False
        try:
            written = await self.checkpoints.write(held, seconds, always=True)
        finally:
            if not written:
                held.outbox.abandon()
        return held if written else None

    def _resume(self, held: Held) -> bool:
        try:
            self._consumer.seek(held.events, held.shard.position)
            self._consumer.resume(held.events)
        except IllegalStateError:
            return False
        held.paused = False
        self.held[held.events] = held
        if self.held.keys() >= self.assigned:
            log.info("partitions open", partitions=sorted(number.partition for number in self.held))
            self.ready.set()
        return True

    def _fail(self, error: Exception) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)
