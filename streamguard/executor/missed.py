"""Reading what stands on the verdict topic already: what somebody missed who was not there to hear it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Final

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from streamguard.stream.kafka import close, make_follower

if TYPE_CHECKING:
    from streamguard.settings import KafkaSettings

__all__ = ["read_missed"]

READ_RECORDS: Final = 500
"""Most records taken between two turns of the event loop."""

READ_MS: Final = 200
"""Longest wait for records before the positions are looked at."""


async def read_missed(
    kafka: KafkaSettings, spans: Mapping[TopicPartition, range]
) -> AsyncGenerator[ConsumerRecord, None]:
    """Yield the records of these offsets, each partition's in order; those that were deleted are left out.

    Raises `KafkaError`, `TimeoutError` where the brokers do not answer.
    """
    consumer = make_follower(kafka)
    try:
        await consumer.start()
        consumer.assign(list(spans))
        begins = await consumer.beginning_offsets(list(spans))
        for place, span in spans.items():
            consumer.seek(place, max(begins[place], span.start))
        left = set(spans)
        while left := await _unread(consumer, spans, left):
            records = await consumer.getmany(*left, timeout_ms=READ_MS, max_records=READ_RECORDS)
            for place, some in records.items():
                for record in some:
                    if record.offset in spans[place]:
                        yield record
            await asyncio.sleep(0)
    finally:
        await close(consumer)


async def _unread(
    consumer: AIOKafkaConsumer, spans: Mapping[TopicPartition, range], places: set[TopicPartition]
) -> set[TopicPartition]:
    """Return those not read to the end yet; positions also pass what is no record: the ends of transactions."""
    return {place for place in places if await consumer.position(place) < spans[place].stop}
