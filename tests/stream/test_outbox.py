"""What is said and not acknowledged yet: order, failure, and nobody left waiting."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka.errors import KafkaTimeoutError

from streamguard.errors import DeliveryFailedError
from streamguard.events import Source
from streamguard.stream.outbox import Outbox
from streamguard.verdicts import Verdict


class Batch:
    """A batch as the producer makes it; it is never full."""

    def append(self, **_: object) -> object:
        """Take a record."""
        return self


class Producer:
    """A producer whose broker acknowledges when told to, or never."""

    def __init__(self) -> None:
        self.sent: list[asyncio.Future[None]] = []

    def create_batch(self) -> Batch:
        """Return an empty batch."""
        return Batch()

    async def send_batch(self, *_: object, **__: object) -> asyncio.Future[None]:
        """Hand a batch over."""
        self.sent.append(asyncio.get_running_loop().create_future())
        return self.sent[-1]


def verdict(offset: int) -> Verdict:
    """Make a verdict about the event at this offset."""
    return Verdict(
        verdict_id=f"0-{offset}-0", run_id="r", action="allow", policy="p", source=Source("agent.events", 0, offset, 0)
    )


def outbox(producer: Any, failed: asyncio.Future[None], seconds: float = 60) -> Outbox:
    """Make an outbox that uses this producer."""
    return Outbox(
        producer,
        producer,
        0,
        failed,
        verdicts_topic="agent.verdicts",
        dead_letter_topic="agent.events.dlq",
        dead_letter_partition=0,
        seconds=seconds,
    )


async def until(condition: Any) -> None:
    """Let other tasks run until the condition holds."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


async def test_one_batch_is_under_way_at_a_time() -> None:
    """What comes while a batch is under way waits for its acknowledgement, and then goes as one batch."""
    producer, failed = Producer(), asyncio.get_running_loop().create_future()
    box = outbox(producer, failed)
    box.put([verdict(1)], [])
    await until(lambda: producer.sent)
    box.put([verdict(3)], [])
    box.put([verdict(5)], [])
    before = (len(producer.sent), len(box), box.oldest)
    producer.sent[0].set_result(None)
    await until(lambda: len(producer.sent) == 2)
    after = (len(box), box.oldest)
    producer.sent[1].set_result(None)
    await box.emptied_to(0)
    await box.close()

    assert ((1, 3, 1), (2, 3), None) == (before, after, box.oldest)


async def test_a_refused_batch_fails_the_worker_and_stays_pending() -> None:
    """When the broker does not take a batch the failure is told, and nothing counts as acknowledged."""
    producer, failed = Producer(), asyncio.get_running_loop().create_future()
    box = outbox(producer, failed)
    box.put([verdict(1)], [])
    await until(lambda: producer.sent)
    producer.sent[0].set_exception(KafkaTimeoutError())
    with pytest.raises(DeliveryFailedError, match=r"agent.verdicts\[0\]"):
        await box.emptied_to(0)
    await box.close()

    assert 1 == box.oldest
    assert isinstance(failed.exception(), DeliveryFailedError)


async def test_no_acknowledgement_in_time_is_a_failure() -> None:
    """A broker that never answers is not waited for beyond the time allowed."""
    failed = asyncio.get_running_loop().create_future()
    box = outbox(Producer(), failed, seconds=0.01)
    box.put([verdict(1)], [])
    with pytest.raises(DeliveryFailedError, match="not acknowledged within"):
        await box.emptied_to(0)
    await box.close()


async def test_closing_leaves_nobody_waiting() -> None:
    """Whoever waits for room goes on when the partition is taken away, whatever is still pending."""
    producer, failed = Producer(), asyncio.get_running_loop().create_future()
    box = outbox(producer, failed)
    box.put([verdict(1)], [])
    waiting = asyncio.create_task(box.emptied_to(0))
    await until(lambda: producer.sent)
    await box.close()
    async with asyncio.timeout(10):
        await waiting

    assert (1, False) == (len(box), failed.done())
