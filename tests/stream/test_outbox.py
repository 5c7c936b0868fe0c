"""What is said and not acknowledged yet: order, failure, and nobody left waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from aiokafka.errors import KafkaTimeoutError

from streamguard.errors import StuckError
from streamguard.events import Source
from streamguard.stream.deadletter import DeadLetter
from streamguard.stream.outbox import Outbox
from streamguard.verdicts import Verdict


class Broker:
    """A delivery whose broker acknowledges when told to, or never."""

    def __init__(self) -> None:
        self.sent: list[asyncio.Future[None]] = []

    async def verdicts(self, verdicts: Sequence[Verdict]) -> None:
        """Hand verdicts over, and wait for their acknowledgement."""
        assert verdicts
        self.sent.append(asyncio.get_running_loop().create_future())
        await self.sent[-1]

    async def dead_letters(self, letters: Sequence[DeadLetter]) -> None:
        """Hand dead letters over, and wait for their acknowledgement."""
        assert letters
        self.sent.append(asyncio.get_running_loop().create_future())
        await self.sent[-1]


def verdict(offset: int) -> Verdict:
    """Make a verdict about the event at this offset."""
    return Verdict(
        verdict_id=f"0-{offset}-0", run_id="r", action="allow", policy="p", source=Source("agent.events", 0, offset, 0)
    )


def outbox(broker: Broker, lost: list[Exception], seconds: float = 60) -> Outbox:
    """Make an outbox that delivers to this broker."""
    return Outbox(broker, lost.append, seconds=seconds)


async def until(condition: Any) -> None:
    """Let other tasks run until the condition holds."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


async def test_one_batch_is_under_way_at_a_time() -> None:
    """What comes while a batch is under way waits for its acknowledgement, and then goes as one batch."""
    broker = Broker()
    box = outbox(broker, [])
    box.put([verdict(1)], [])
    await until(lambda: broker.sent)
    box.put([verdict(3)], [])
    box.put([verdict(5)], [])
    before = (len(broker.sent), len(box))
    broker.sent[0].set_result(None)
    await until(lambda: len(broker.sent) == 2)
    after = len(box)
    broker.sent[1].set_result(None)
    await box.acknowledged_below(6)
    await box.close()

    assert ((1, 3), 2, 0, 0) == (before, after, len(box), box.bytes)


async def test_a_position_is_reached_though_newer_answers_wait() -> None:
    """Whoever waits for everything below an offset does not wait for what is about later events."""
    broker = Broker()
    box = outbox(broker, [])
    box.put([verdict(1)], [])
    await until(lambda: broker.sent)
    box.put([verdict(7)], [])
    waiting = asyncio.create_task(box.acknowledged_below(7))
    broker.sent[0].set_result(None)
    async with asyncio.timeout(10):
        reached = await waiting
    await box.close()

    assert (True, 1) == (reached, len(box))


async def test_what_is_refused_is_told_and_stays_pending() -> None:
    """When the broker does not take a batch that is told once, and nothing counts as acknowledged."""
    broker, lost = Broker(), list[Exception]()
    box = outbox(broker, lost)
    box.put([verdict(1)], [])
    await until(lambda: broker.sent)
    broker.sent[0].set_exception(KafkaTimeoutError())
    reached = await box.acknowledged_below(2)
    await box.close()

    assert (False, 1, [KafkaTimeoutError]) == (reached, len(box), [type(error) for error in lost])


async def test_no_acknowledgement_in_time_is_a_failure() -> None:
    """A broker that never answers is not waited for beyond the time allowed."""
    lost: list[Exception] = []
    box = outbox(Broker(), lost, seconds=0.01)
    box.put([verdict(1)], [])
    reached = await box.acknowledged_below(2)
    await box.close()

    assert (False, [TimeoutError]) == (reached, [type(error) for error in lost])


async def test_a_delivery_that_the_client_cancels_is_told() -> None:
    """Aiokafka cancels what waits for it while brokers go: nothing more is delivered, and that is told."""
    broker, lost = Broker(), list[Exception]()
    box = outbox(broker, lost)
    box.put([verdict(1)], [])
    await until(lambda: broker.sent)
    broker.sent[0].cancel()
    reached = await box.acknowledged_below(2)
    await box.close()

    assert (False, 1, [StuckError]) == (reached, len(box), [type(error) for error in lost])


async def test_a_batch_has_a_bounded_weight() -> None:
    """Large dead letters go a few at a time: each delivery has a deadline of its own."""
    broker = Broker()
    box = outbox(broker, [])
    box.put([], [DeadLetter(offset, None, bytes(3 << 20), ()) for offset in range(3)])
    for number in range(3):
        await until(lambda number=number: len(broker.sent) == number + 1)
        broker.sent[number].set_result(None)
    await box.acknowledged_below(3)
    await box.close()

    assert (3, 0, 0) == (len(broker.sent), len(box), box.bytes)


async def test_closing_leaves_nobody_waiting() -> None:
    """Whoever waits for acknowledgements goes on when the partition is taken away, whatever is still pending."""
    broker, lost = Broker(), list[Exception]()
    box = outbox(broker, lost)
    box.put([verdict(1)], [])
    waiting = asyncio.create_task(box.acknowledged_below(2))
    await until(lambda: broker.sent)
    await box.close()
    async with asyncio.timeout(10):
        reached = await waiting

    assert (False, 1, []) == (reached, len(box), lost)
