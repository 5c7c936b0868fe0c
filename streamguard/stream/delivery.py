"""Writing what a shard says: verdicts to their partition of the verdict topic, dead letters to theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import structlog
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, MessageSizeTooLargeError

from streamguard.stream.brokers import may_be_repeated
from streamguard.stream.deadletter import DeadLetter, without_value
from streamguard.stream.kafka import DEAD_LETTER_BYTES
from streamguard.stream.producer import FencedProducer, Record
from streamguard.stream.telling import QUIET, Telling
from streamguard.stream.trace import TRACEPARENT
from streamguard.verdicts import Verdict, encode_verdict

if TYPE_CHECKING:
    from streamguard.signing import Signer

__all__ = ["DeadLetters", "KafkaDelivery"]

log = structlog.get_logger("streamguard.delivery")

AGAIN_SECONDS: Final = 0.2

OVERHEAD_BYTES: Final = 256 * 1024
"""What a dead letter may have beside key and value: its headers, the original ones among them."""


class DeadLetters:
    """Writes dead letters, for all shards of a worker. Its producer is plain: a refused record must spoil nothing."""

    def __init__(self, producer: AIOKafkaProducer, topic: str, partitions: int) -> None:
        self._producer = producer
        self._topic = topic
        self._partitions = partitions

    async def write(self, letters: Iterable[DeadLetter], partition: int) -> None:
        """Append dead letters; without its value, and later than others, one that the broker does not take.

        Returns when all are acknowledged, however often that takes: the deadline is the caller's. Raises the
        `KafkaError` that repeating does not mend.
        """
        refused = await self._until_answered(letters, partition)
        for letter in refused:  # together with others it was too much: it may fit by itself
            if await self._until_answered([letter], partition):
                await self._until_answered([without_value(letter)], partition)

    async def _until_answered(self, letters: Iterable[DeadLetter], partition: int) -> list[DeadLetter]:
        """Append dead letters; return those that are too large. The producer gives up while brokers are away."""
        waiting, refused = list(letters), []
        while waiting:
            again = []
            for letter, acknowledged in [(letter, await self._send(letter, partition)) for letter in waiting]:
                try:
                    await acknowledged
                except MessageSizeTooLargeError:
                    refused.append(letter)
                except KafkaError as error:
                    if not may_be_repeated(error):
                        raise
                    again.append(letter)
                    reason = type(error).__name__
            if again:
                log.warning("dead letters not taken yet, sending them again", letters=len(again), error=reason)
                await asyncio.sleep(AGAIN_SECONDS)
            waiting = again
        return refused

    async def _send(self, letter: DeadLetter, partition: int) -> asyncio.Future[Any]:
        """Hand a letter to the producer; return what comes of it."""
        if len(letter.key or b"") + len(letter.value or b"") > DEAD_LETTER_BYTES - OVERHEAD_BYTES:
            letter = without_value(letter)
        try:
            acknowledged: asyncio.Future[Any] = await self._producer.send(
                self._topic,
                # the producer takes no record without key and value; an empty value reads the same to an operator
                value=b"" if letter.value is None and letter.key is None else letter.value,
                key=letter.key,
                partition=partition % self._partitions,
                headers=list(letter.headers),
            )
        except KafkaError as error:
            acknowledged = asyncio.get_running_loop().create_future()
            acknowledged.set_exception(error)
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
        telling: Telling = QUIET,
    ) -> None:
        self.end = end
        self._telling = telling
        self._traces: dict[str, bytes] = {}  # of verdicts that are not written yet
        self._producer = producer
        self._partition = partition
        self._dead_letters = dead_letters
        self._signer = signer

    def carry(self, verdicts: Iterable[Verdict], traces: Mapping[str, bytes]) -> None:
        """Take the traceparents, by verdict id, that go with verdicts which are delivered next."""
        if traces:
            self._traces.update((v.verdict_id, traces[v.verdict_id]) for v in verdicts if v.verdict_id in traces)

    async def verdicts(self, verdicts: Sequence[Verdict]) -> None:
        """Append verdicts; raises `Fenced` if another worker has taken over."""
        end = await self._producer.append(self._partition, map(self._record, verdicts))
        if end >= 0:
            self.end = end
        self._telling.acknowledged(verdicts)

    async def dead_letters(self, letters: Sequence[DeadLetter]) -> None:
        """Append dead letters."""
        await self._dead_letters.write(letters, self._partition.partition)

    def _record(self, verdict: Verdict) -> Record:
        value = encode_verdict(verdict)
        headers = () if self._signer is None else self._signer.headers(value)
        if self._traces and (trace := self._traces.pop(verdict.verdict_id, None)) is not None:
            headers = (*headers, (TRACEPARENT, trace))
        return Record(verdict.run_id.encode("utf-8", "replace"), value, headers)
