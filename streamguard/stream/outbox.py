"""What a shard has said and the broker has not acknowledged yet.

One batch is under way at a time: order is kept without help from the broker, verdicts leave at once while few come,
and batches form by themselves while many do.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final, Protocol, TypeAlias

from streamguard.errors import StuckError
from streamguard.stream.deadletter import DeadLetter
from streamguard.verdicts import Verdict

__all__ = ["Delivery", "Outbox"]

BATCH_RECORDS: Final = 2_000
BATCH_BYTES: Final = 4 * 1024 * 1024
"""Most records, and about the most bytes, in one delivery: each has a deadline of its own."""

VERDICT_BYTES: Final = 1_000
"""What a verdict is taken to weigh. Its texts are bounded; a dead letter weighs what its record did."""

Outgoing: TypeAlias = Verdict | DeadLetter


class Delivery(Protocol):
    """Where an outbox delivers to."""

    async def verdicts(self, verdicts: Sequence[Verdict]) -> None:
        """Append verdicts to the shard's partition; returns when all replicas have them."""

    async def dead_letters(self, letters: Sequence[DeadLetter]) -> None:
        """Append dead letters; returns when all replicas have them."""


class Outbox:
    """Delivers a shard's verdicts and dead letters, in order.

    `lost` is called once, with the error, when something cannot be delivered (in time): nothing more is delivered then,
    and what is pending stays with whoever judges these events next.
    """

    def __init__(
        self, delivery: Delivery, lost: Callable[[Exception], None], *, seconds: float, name: str = "outbox"
    ) -> None:
        self._delivery = delivery
        self._lost = lost
        self._seconds = seconds
        self._closed = False
        self._pending: deque[tuple[int, Outgoing]] = deque()
        self.bytes = 0  # about: what is not acknowledged
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._deliver_all(), name=name)

    @property
    def closed(self) -> bool:
        """Whether nothing more is delivered."""
        return self._closed

    def __len__(self) -> int:
        """Count what is not acknowledged."""
        return len(self._pending)

    def put(self, verdicts: Iterable[Verdict], dead_letters: Iterable[DeadLetter]) -> None:
        """Take what one slice had to say; returns at once."""
        outgoing: list[tuple[int, Outgoing]] = [(verdict.source.offset, verdict) for verdict in verdicts]
        letters = [(letter.offset, letter) for letter in dead_letters]
        if letters:
            outgoing = sorted([*outgoing, *letters], key=lambda item: item[0])
        if outgoing:
            self._pending.extend(outgoing)
            self.bytes += sum(_weight(item) for _, item in outgoing)
            self._wake.set()

    async def acknowledged_below(self, offset: int) -> bool:
        """Wait until every answer about events below `offset` is acknowledged; False if it never will be."""
        while self._pending and self._pending[0][0] < offset:
            if self._closed:
                return False
            self._changed.clear()
            await self._changed.wait()
        return True

    async def close(self) -> None:
        """Stop delivering; what is still pending stays with whoever judges these events next."""
        self.abandon()
        await asyncio.gather(self._task, return_exceptions=True)

    def abandon(self) -> None:
        """Do as `close`, without waiting until the delivery that is under way has ended."""
        self._stop()
        self._task.cancel()

    def _stop(self) -> None:
        self._closed = True
        self._changed.set()

    async def _deliver_all(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._pending:
                    batch, weight = self._next_batch()
                    async with asyncio.timeout(self._seconds):
                        await self._deliver(batch)
                    for _ in batch:
                        self._pending.popleft()
                    self.bytes -= weight
                    self._changed.set()
        except asyncio.CancelledError:
            if not self._closed:  # not by us: by something within the Kafka client that a delivery waited for
                self._stop()
                self._lost(StuckError("the Kafka client gave up a delivery. Start the worker again"))
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the worker must hear of it
            self._stop()
            self._lost(error)

    def _next_batch(self) -> tuple[list[Outgoing], int]:
        """Take what is oldest, at least one; return it with its weight."""
        batch: list[Outgoing] = []
        weight = 0
        for _, item in islice(self._pending, BATCH_RECORDS):
            if batch and weight + _weight(item) > BATCH_BYTES:
                break
            batch.append(item)
            weight += _weight(item)
        return batch, weight

    async def _deliver(self, batch: Sequence[Outgoing]) -> None:
        """Send and wait until all is acknowledged."""
        verdicts = [item for item in batch if isinstance(item, Verdict)]
        letters = [item for item in batch if isinstance(item, DeadLetter)]
        if verdicts:
            await self._delivery.verdicts(verdicts)
        if letters:
            await self._delivery.dead_letters(letters)


def _weight(item: Outgoing) -> int:
    if isinstance(item, Verdict):
        return VERDICT_BYTES
    return VERDICT_BYTES + len(item.key or b"") + len(item.value or b"")
