"""Writing for one shard so that nobody else can: a producer that is fenced at the broker.

Every shard has a transactional id. Whoever opens it gets the next epoch, and an empty transaction carries that epoch to
the verdict and state partitions: from then on their leaders refuse whatever a predecessor, frozen or cut off, still
sends. Kafka Streams and Faust fence in the same way.

Verdicts are then written *outside* of transactions, as idempotent batches under the same producer id and epoch: they
are fenced and never doubled, and wait for no commit. Only checkpoints are transactions: all or nothing of one is seen.

aiokafka's own producer cannot do this (with a transactional id it writes in transactions only, and each has a client
of its own), so the requests are made here, on aiokafka's client.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

from aiokafka import TopicPartition
from aiokafka.errors import DuplicateSequenceNumber
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from streamguard.stream.brokers import Brokers, Fenced

__all__ = ["FencedProducer", "Record", "Transaction"]

ALL_REPLICAS: Final = -1
NOBODY: Final = -1
"""The producer id and epoch of plain writes."""

BATCH_BYTES: Final = 512 * 1024
"""Largest batch, in bytes, unless one record is larger: half of what a broker takes by default."""

MAX_SEQUENCE: Final = 2**31


class Record(NamedTuple):
    """A record to write; a value of None is a tombstone."""

    key: bytes
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()


class Transaction:
    """An open transaction."""

    def __init__(self, producer: FencedProducer, partition: TopicPartition) -> None:
        self._producer = producer
        self._partition = partition

    async def write(self, records: Iterable[Record], partition: TopicPartition | None = None) -> None:
        """Append records, to the first of its partitions unless told; they become visible when the transaction ends."""
        transactional = bool(self._producer.transactional_id)
        await self._producer.write(partition or self._partition, records, transactional=transactional)


class FencedProducer:
    """Writes for one shard. Once `Fenced` was raised, or a call was given up, it must be opened anew.

    Without a transactional id (brokers that have no transactions: the embedded one) it writes unfenced, and a
    checkpoint is not atomic.
    """

    def __init__(
        self, brokers: Brokers, transactional_id: str | None, *, request_timeout_ms: int, transaction_timeout_ms: int
    ) -> None:
        self.transactional_id = transactional_id or ""
        self.producer_id = NOBODY
        self.epoch = NOBODY
        self.in_transaction = False  # also after one that was given up
        self._brokers = brokers
        self._request_timeout_ms = request_timeout_ms
        self._transaction_timeout_ms = transaction_timeout_ms
        self._sequences: dict[TopicPartition, int] = {}

    async def open(self, fenced: Sequence[TopicPartition]) -> None:
        """Take the shard over: whoever had it before can write nothing more to these partitions."""
        if not self.transactional_id:
            return
        request = InitProducerIdRequest(self.transactional_id, self._transaction_timeout_ms)

        def answer(response: Any) -> tuple[int, tuple[int, int]]:
            return response.error_code, (response.producer_id, response.producer_epoch)

        self.producer_id, self.epoch = await self._ask_coordinator(request, answer)
        self._sequences.clear()
        self.in_transaction = False
        # The end of a transaction is answered before its markers stand in the partitions; the next one can only begin
        # once they do. Then the fence is up.
        for _ in range(2):
            async with self.transaction(*fenced):
                pass

    async def identify(self) -> None:
        """Take a producer id of nobody in particular: what is written is not fenced, but no batch stands twice."""
        request = InitProducerIdRequest(None, self._transaction_timeout_ms)

        def answer(response: Any) -> tuple[int, tuple[int, int]]:
            return response.error_code, (response.producer_id, response.producer_epoch)

        self.producer_id, self.epoch = await self._brokers.ask_any(request, answer)
        self._sequences.clear()

    def raise_if_given_up(self) -> None:
        """Raise `Fenced` if a transaction was begun and not ended: another one would end that one's half with it."""
        if self.in_transaction:
            raise Fenced("a transaction was given up")

    async def append(self, partition: TopicPartition, records: Iterable[Record]) -> int:
        """Append records outside of any transaction; return the offset after them, -1 if not known."""
        return await self.write(partition, records, transactional=False)

    @asynccontextmanager
    async def transaction(self, *partitions: TopicPartition) -> AsyncIterator[Transaction]:
        """Write records to these partitions: all become visible, or none.

        The other partitions are part of the transaction too: its end carries our epoch to their leaders. If the block
        raises, or is cancelled, the transaction stays open until the shard is opened anew. Raises `Fenced`.
        """
        self.raise_if_given_up()
        self.in_transaction = True
        if self.transactional_id:
            await self._add(partitions)
        yield Transaction(self, partitions[0])
        if self.transactional_id:
            await self._end()
        self.in_transaction = False

    async def write(self, partition: TopicPartition, records: Iterable[Record], *, transactional: bool) -> int:
        """Append records, within the open transaction or outside; return the offset after them, -1 if not known."""
        end = NOBODY
        for batch, count in _batches(records, transactional=transactional):
            end = await self._produce(partition, batch, count, self.transactional_id if transactional else None)
            await asyncio.sleep(0)
        return end

    async def _add(self, partitions: Sequence[TopicPartition]) -> None:
        topics: dict[str, list[int]] = {}
        for partition in partitions:
            topics.setdefault(partition.topic, []).append(partition.partition)
        request = AddPartitionsToTxnRequest(self.transactional_id, self.producer_id, self.epoch, list(topics.items()))

        def answer(response: Any) -> tuple[int, None]:
            codes = [code for _, results in response.errors for _, code in results]
            return max(codes, key=_importance), None

        await self._ask_coordinator(request, answer)

    async def _end(self) -> None:
        request = EndTxnRequest(self.transactional_id, self.producer_id, self.epoch, transaction_result=True)
        await self._ask_coordinator(request, lambda response: (response.error_code, None))

    async def _ask_coordinator(self, request: Any, answer: Any) -> Any:
        return await self._brokers.ask_coordinator(self.transactional_id, request, answer)

    async def _produce(
        self, partition: TopicPartition, batch: DefaultRecordBatchBuilder, count: int, transactional_id: str | None
    ) -> int:
        sequence = self._sequences.get(partition, 0)
        if self.producer_id != NOBODY:
            batch.set_producer_state(self.producer_id, self.epoch, sequence)
        request = ProduceRequest(
            transactional_id,
            ALL_REPLICAS,
            self._request_timeout_ms,
            [(partition.topic, [(partition.partition, bytes(batch.build()))])],
        )
        end = await self._brokers.ask_leader(partition, request, _produced)
        self._sequences[partition] = (sequence + count) % MAX_SEQUENCE
        return end + count if end >= 0 else end


def _produced(response: Any) -> tuple[int, int]:
    [(_, [(_, code, offset, *_)])] = response.topics
    if code == DuplicateSequenceNumber.errno:
        return 0, NOBODY  # it was written by an earlier try; where, the broker no longer knows
    return code, offset


def _importance(code: int) -> int:
    """Put the reason before the partitions that were only not attempted because of it (code 55)."""
    return 0 if code == 0 else 1 if code == 55 else 2  # noqa: PLR2004 - OPERATION_NOT_ATTEMPTED


def _batches(records: Iterable[Record], *, transactional: bool) -> Iterable[tuple[DefaultRecordBatchBuilder, int]]:
    """Pack records into batches; a record that is larger than a batch gets one of its own."""
    batch, count = _batch(transactional=transactional), 0
    for record in records:
        headers = list(record.headers)
        if batch.append(count, None, record.key, record.value, headers) is None:
            yield batch, count
            batch, count = _batch(transactional=transactional), 0
            batch.append(count, None, record.key, record.value, headers)
        count += 1
    if count:
        yield batch, count


def _batch(*, transactional: bool) -> DefaultRecordBatchBuilder:
    return DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=transactional,
        producer_id=NOBODY,
        producer_epoch=NOBODY,
        base_sequence=0,
        batch_size=BATCH_BYTES,
    )
