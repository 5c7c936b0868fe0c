"""What a shard has said and the broker has not acknowledged yet.

One batch is under way at a time: order is kept without help from the broker, verdicts leave at once while few come,
and batches form by themselves while many do.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, TypeAlias

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError

from streamguard.errors import DeliveryFailedError
from streamguard.stream.deadletter import DeadLetter, without_value
from streamguard.verdicts import Verdict, encode_verdict

__all__ = ["Outbox"]

BATCH_RECORDS: Final = 2_000
"""Most records in one delivery."""

Outgoing: TypeAlias = Verdict | DeadLetter


class Outbox:
    """Delivers a shard's verdicts to the same partition number of the verdict topic, and its dead letters.

    When something cannot be delivered in time it sets `failed`, which all outboxes of a worker share: the worker stops
    without committing past it.
    """

    def __init__(
        self,
        producer: AIOKafkaProducer,
        dead_letter_producer: AIOKafkaProducer,
        partition: int,
        failed: asyncio.Future[None],
        *,
        verdicts_topic: str,
        dead_letter_topic: str,
        dead_letter_partition: int,
        seconds: float,
    ) -> None:
        self.partition = partition
        self._failed = failed
        self._producer = producer
        self._dead_letter_producer = dead_letter_producer
        self._verdicts_topic = verdicts_topic
        self._dead_letter_topic = dead_letter_topic
        self._dead_letter_partition = dead_letter_partition
        self._seconds = seconds
        self._closed = False
        self._pending: deque[tuple[int, Outgoing]] = deque()
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._deliver_all(), name=f"outbox-{partition}")

    def __len__(self) -> int:
        """Count what is not acknowledged."""
        return len(self._pending)

    @property
    def oldest(self) -> int | None:
        """Offset of the oldest event whose answer is not acknowledged."""
        return self._pending[0][0] if self._pending else None

    def put(self, verdicts: Iterable[Verdict], dead_letters: Iterable[DeadLetter]) -> None:
        """Take what one slice had to say; returns at once."""
        outgoing: list[tuple[int, Outgoing]] = [(verdict.source.offset, verdict) for verdict in verdicts]
        letters = [(letter.offset, letter) for letter in dead_letters]
        if letters:
            outgoing = sorted([*outgoing, *letters], key=lambda item: item[0])
        if outgoing:
            self._pending.extend(outgoing)
            self._wake.set()

    async def emptied_to(self, count: int) -> None:
        """Wait until at most `count` answers are not acknowledged, or nothing is delivered any more.

        Raises what made the delivery fail.
        """
        while len(self._pending) > count and not self._closed:
            if self._failed.done():
                self._failed.result()
            self._changed.clear()
            await self._changed.wait()

    async def close(self) -> None:
        """Stop delivering; what is still pending stays with whoever judges these events next."""
        self._closed = True
        self._changed.set()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _deliver_all(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._pending:
                    batch = list(islice(self._pending, BATCH_RECORDS))
                    async with asyncio.timeout(self._seconds):
                        await self._deliver([item for _, item in batch])
                    for _ in batch:
                        self._pending.popleft()
                    self._changed.set()
        except (KafkaError, TimeoutError) as error:
            topic = f"{self._verdicts_topic}[{self.partition}]"
            reason = str(error) or f"not acknowledged within {self._seconds:g} s (worker.delivery_timeout_seconds)"
            self._fail(DeliveryFailedError(f"what the guard said could not be written to {topic}: {reason}"))
        except Exception as error:  # noqa: BLE001 - whatever it is, the pump must hear of it and stop
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)
        self._changed.set()

    async def _deliver(self, batch: Sequence[Outgoing]) -> None:
        """Send and wait until all is acknowledged."""
        letters = [item for item in batch if isinstance(item, DeadLetter)]
        acknowledged = await self._send_verdicts([item for item in batch if isinstance(item, Verdict)])
        for letter in letters:
            await self._deliver_letter(letter)
        if acknowledged:
            await asyncio.gather(*acknowledged)

    async def _send_verdicts(self, verdicts: Sequence[Verdict]) -> list[asyncio.Future[object]]:
        if not verdicts:
            return []
        acknowledged = []
        builder = self._producer.create_batch()
        for verdict in verdicts:
            key, value = verdict.run_id.encode("utf-8", "replace"), encode_verdict(verdict)
            if builder.append(key=key, value=value, timestamp=None) is None:
                acknowledged.append(
                    await self._producer.send_batch(builder, self._verdicts_topic, partition=self.partition)
                )
                builder = self._producer.create_batch()
                builder.append(key=key, value=value, timestamp=None)
        acknowledged.append(await self._producer.send_batch(builder, self._verdicts_topic, partition=self.partition))
        return acknowledged

    async def _deliver_letter(self, letter: DeadLetter) -> None:
        try:
            await self._send_letter(letter)
        except MessageSizeTooLargeError:
            await self._send_letter(without_value(letter))

    async def _send_letter(self, letter: DeadLetter) -> None:
        acknowledged = await self._dead_letter_producer.send(
            self._dead_letter_topic,
            # the producer takes no record without key and value; an empty value reads the same to an operator
            value=b"" if letter.value is None and letter.key is None else letter.value,
            key=letter.key,
            partition=self._dead_letter_partition,
            headers=list(letter.headers),
        )
        await acknowledged
