"""The partitions that this worker holds now: shards are opened when assigned, settled and closed when revoked.

Assigning is done in the background with the partition paused: the rebalance callback must return at once, because
heartbeats stand still until it does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError

from streamguard.errors import BrokerUnavailableError, PositionLostError
from streamguard.stream.outbox import Outbox
from streamguard.stream.shard import Shard

__all__ = ["Assignment", "Held"]

log = structlog.get_logger("streamguard.assignment")

ANSWER_SECONDS: Final = 30.0
"""Longest wait for the broker to say where a partition stands."""

SETTLE_SECONDS: Final = 10.0
"""Longest wait, in a rebalance, for what a shard has said to be acknowledged."""


class Held:
    """A partition that is held: its shard and its outbox."""

    __slots__ = ("committed", "outbox", "shard")

    def __init__(self, shard: Shard, outbox: Outbox) -> None:
        self.shard = shard
        self.outbox = outbox
        self.committed = shard.position

    @property
    def committable(self) -> int:
        """Offset below which everything was judged and every answer is acknowledged."""
        oldest = self.outbox.oldest
        return self.shard.position if oldest is None else oldest


class Assignment(ConsumerRebalanceListener):  # type: ignore[misc] # aiokafka is untyped
    """Follows the group's rebalances. `ready` is set while every partition assigned to this worker is open."""

    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        failed: asyncio.Future[None],
        *,
        new_shard: Callable[[int, int], Shard],
        new_outbox: Callable[[int], Outbox],
        offset_reset: str,
    ) -> None:
        self.held: dict[TopicPartition, Held] = {}
        self.ready = asyncio.Event()
        self._consumer = consumer
        self._failed = failed
        self._new_shard = new_shard
        self._new_outbox = new_outbox
        self._offset_reset = offset_reset
        self._epoch = 0
        self._kept: dict[TopicPartition, Shard] = {}  # revoked, and not given to anybody yet
        self._opening: set[asyncio.Task[None]] = set()

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Let answers be acknowledged, commit, and let go. Keep the memory in case the partition comes back."""
        self.ready.clear()
        self._epoch += 1
        leaving = {partition: self.held.pop(partition) for partition in revoked if partition in self.held}
        if not leaving:
            return
        await self.settle(leaving, SETTLE_SECONDS)
        for partition, held in leaving.items():
            await held.outbox.close()
            if len(held.outbox) == 0:
                self._kept[partition] = held.shard
        log.info("partitions revoked", partitions=sorted(partition.partition for partition in leaving))

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Pause, and open the shards in the background."""
        partitions = list(assigned)
        if partitions:
            self._consumer.pause(*partitions)
        self._epoch += 1
        self._kept = {partition: shard for partition, shard in self._kept.items() if partition in partitions}
        task = asyncio.create_task(self._open_all(partitions, self._epoch), name="open-shards")
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def settle(self, leaving: dict[TopicPartition, Held], seconds: float) -> None:
        """Wait for acknowledgements and commit; what is not acknowledged in time is not committed."""
        try:
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(held.outbox.emptied_to(0) for held in leaving.values()))
        except TimeoutError:
            log.warning("not everything was acknowledged in time", seconds=seconds)
        except Exception as error:  # noqa: BLE001 - the worker hears of it by `failed`
            log.warning("answers could not be delivered", error=str(error))
        await self.commit(leaving)

    async def commit(self, shards: dict[TopicPartition, Held] | None = None) -> None:
        """Commit what moved. A refusal means that the group has moved on: another worker judges these events again."""
        shards = dict(self.held) if shards is None else shards
        offsets = {partition: held.committable for partition, held in shards.items()}
        moved = {partition: offset for partition, offset in offsets.items() if offset != shards[partition].committed}
        if not moved:
            return
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                await self._consumer.commit(moved)
        except (KafkaError, TimeoutError) as error:
            log.warning("commit refused", error=f"{type(error).__name__}: {error}")
            return
        for partition, offset in moved.items():
            shards[partition].committed = offset

    async def close(self) -> None:
        """Stop opening and deliver nothing more."""
        for task in self._opening:
            task.cancel()
        await asyncio.gather(
            *self._opening, *(held.outbox.close() for held in self.held.values()), return_exceptions=True
        )
        self.held.clear()

    async def _open_all(self, partitions: list[TopicPartition], epoch: int) -> None:
        try:
            for partition in partitions:
                await self._open(partition, epoch)
            if epoch == self._epoch:
                log.info("partitions open", partitions=sorted(partition.partition for partition in partitions))
                self.ready.set()
        except (IllegalStateError, asyncio.CancelledError):
            log.debug("assignment changed while partitions were opened")
        except Exception as error:  # noqa: BLE001 - a shard that cannot be opened ends the worker
            if epoch == self._epoch and not self._failed.done():
                self._failed.set_exception(error)

    async def _open(self, partition: TopicPartition, epoch: int) -> None:
        """Find the position, make or keep the shard, and let its records come.

        This is where a shard's state is restored once it survives restarts.
        """
        position = await self._position(partition)
        if epoch != self._epoch:
            return
        kept = self._kept.pop(partition, None)
        if kept is not None and kept.position == position:
            shard = kept  # nobody judged anything in between
        else:
            shard = self._new_shard(partition.partition, position)
        self.held[partition] = Held(shard, self._new_outbox(partition.partition))
        self._consumer.seek(partition, position)
        self._consumer.resume(partition)

    async def _position(self, partition: TopicPartition) -> int:
        """Return the committed position, or where a group without one starts.

        Raises `PositionLostError` if the broker no longer has it.
        """
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                committed: int | None = await self._consumer.committed(partition)
                first: int = (await self._consumer.beginning_offsets([partition]))[partition]
                if committed is None and self._offset_reset == "latest":
                    end: int = (await self._consumer.end_offsets([partition]))[partition]
                    return end
        except TimeoutError:
            name = f"{partition.topic}[{partition.partition}]"
            raise BrokerUnavailableError(
                f"the broker did not say within {ANSWER_SECONDS:g} s where {name} stands"
            ) from None
        if committed is None:
            return first
        if committed < first:
            raise PositionLostError(
                f"{partition.topic}[{partition.partition}]: position {committed} is committed, but the broker has "
                f"records from {first} on only: they were deleted unread. Reset the group's offsets "
                "(kafka-consumer-groups.sh --reset-offsets) to go on."
            )
        return committed
