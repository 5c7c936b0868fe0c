"""Writing what a shard says: verdicts to their partition of the verdict topic, dead letters to theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import MessageSizeTooLargeError

from streamguard.stream.deadletter import DeadLetter, without_value
from streamguard.stream.kafka import DEAD_LETTER_BYTES
from streamguard.stream.producer import FencedProducer, Record
from streamguard.verdicts import Verdict, encode_verdict

if TYPE_CHECKING:
    from streamguard.signing import Signer

__all__ = ["DeadLetters", "KafkaDelivery"]

OVERHEAD_BYTES: Final = 256 * 1024
"""What a dead letter may have beside key and value: its headers, the original ones among them."""


class DeadLetters:
    """Writes dead letters, for all shards of a worker. Its producer is plain: a refused record must spoil nothing."""

    def __init__(self, producer: AIOKafkaProducer, topic: str, partitions: int) -> None:
        self._producer = producer
        self._topic = topic
        self._partitions = partitions

    async def write(self, letters: Iterable[DeadLetter], partition: int) -> None:
        """Append dead letters; without its value, and later than others, one that the broker does not take."""
        refused: list[DeadLetter] = []
        sent = [(letter, await self._send(letter, partition)) for letter in letters]
        for letter, acknowledged in sent:
            try:
                await acknowledged
            except MessageSizeTooLargeError:
                refused.append(letter)
        for letter in refused:
            await self._write_alone(letter, partition)

    async def _write_alone(self, letter: DeadLetter, partition: int) -> None:
        """Try again what was refused together with others: it may fit by itself."""
        try:
            await (await self._send(letter, partition))
        except MessageSizeTooLargeError:
            await (await self._send(without_value(letter), partition))

    async def _send(self, letter: DeadLetter, partition: int) -> asyncio.Future[Any]:
        if len(letter.key or b"") + len(letter.value or b"") > DEAD_LETTER_BYTES - OVERHEAD_BYTES:
            letter = without_value(letter)
        acknowledged: asyncio.Future[Any] = await self._producer.send(
            self._topic,
            # the producer takes no record without key and value; an empty value reads the same to an operator
            value=b"" if letter.value is None and letter.key is None else letter.value,
            key=letter.key,
            partition=partition % self._partitions,
            headers=list(letter.headers),
        )
        return acknowledged


class KafkaDelivery:
    """Delivers for one shard. `end` is the offset after its newest verdict, as far as it is known."""

    def __init__(
        self,
        producer: FencedProducer,
        partition: TopicPartition,
        dead_letters: DeadLetters,
        signer: Signer | None,
        *,
        end: int,
    ) -> None:
        self.end = end
        self._producer = producer
        self._partition = partition
        self._dead_letters = dead_letters
        self._signer = signer

    async def verdicts(self, verdicts: Sequence[Verdict]) -> None:
        """Append verdicts; raises `Fenced` if another worker has taken over."""
        end = await self._producer.append(self._partition, map(self._record, verdicts))
        if end >= 0:
            self.end = end

    async def dead_letters(self, letters: Sequence[DeadLetter]) -> None:
        """Append dead letters."""
        await self._dead_letters.write(letters, self._partition.partition)

    def _record(self, verdict: Verdict) -> Record:
        value = encode_verdict(verdict)
        headers = () if self._signer is None else self._signer.headers(value)
        return Record(verdict.run_id.encode("utf-8", "replace"), value, headers)
