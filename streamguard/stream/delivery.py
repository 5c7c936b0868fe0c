"""Writing what a shard says: verdicts to their partition of the verdict topic, dead letters to theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import MessageSizeTooLargeError

from streamguard.stream.deadletter import DeadLetter, without_value
from streamguard.stream.producer import FencedProducer, Record
from streamguard.verdicts import Verdict, encode_verdict

if TYPE_CHECKING:
    from streamguard.signing import Signer

__all__ = ["DeadLetters", "KafkaDelivery"]


class DeadLetters:
    """Writes dead letters, for all shards of a worker. Its producer is plain: a refused record must spoil nothing."""

    def __init__(self, producer: AIOKafkaProducer, topic: str, partitions: int) -> None:
        self._producer = producer
        self._topic = topic
        self._partitions = partitions

    async def write(self, letter: DeadLetter, partition: int) -> None:
        """Append a dead letter; without its value, if the broker does not take that."""
        try:
            await self._send(letter, partition)
        except MessageSizeTooLargeError:
            await self._send(without_value(letter), partition)

    async def _send(self, letter: DeadLetter, partition: int) -> None:
        acknowledged = await self._producer.send(
            self._topic,
            # the producer takes no record without key and value; an empty value reads the same to an operator
            value=b"" if letter.value is None and letter.key is None else letter.value,
            key=letter.key,
            partition=partition % self._partitions,
            headers=list(letter.headers),
        )
        await acknowledged


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
        self.end = max(self.end, await self._producer.append(self._partition, map(self._record, verdicts)))

    async def dead_letter(self, letter: DeadLetter) -> None:
        """Append a dead letter."""
        await self._dead_letters.write(letter, self._partition.partition)

    def _record(self, verdict: Verdict) -> Record:
        value = encode_verdict(verdict)
        headers = () if self._signer is None else self._signer.headers(value)
        return Record(verdict.run_id.encode("utf-8", "replace"), value, headers)
