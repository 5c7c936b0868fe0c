"""Leaving the group in the middle of its rebalance.

aiokafka leaves when the rebalance is over, and that may wait for a member that died: until its session times out. A
worker that is stopped meanwhile would be missed in its turn, and the next start would wait for both.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from streamguard.stream.kafka import close
from streamguard.stream.patience import UNANSWERED, answer

if TYPE_CHECKING:
    from aiokafka import AIOKafkaConsumer

    from streamguard.settings import WorkerSettings
    from streamguard.stream.brokers import Brokers

__all__ = ["close_member"]

log = structlog.get_logger("streamguard.leaving")

LEAVE_SECONDS: Final = 2.0
"""Longest wait for the coordinator; without its answer the session has to time out."""


async def close_member(consumer: AIOKafkaConsumer, brokers: Brokers, worker: WorkerSettings) -> None:
    """Close a consumer; if it waits for its group, leave that on another connection, which ends the waiting.

    The coordinator answers a connection's requests one after the other: on the consumer's own it would not hear of it.
    A static member (`worker.instance_id`) stays: it is meant to come back.
    """
    closing = asyncio.create_task(close(consumer), name="close-consumer")
    await asyncio.sleep(0)  # it is closing now: told that it is no member any more, it does not join again
    member = getattr(getattr(consumer, "_coordinator", None), "member_id", "")
    if member and worker.instance_id is None:
        left = await answer(brokers.leave_group(worker.group, member), LEAVE_SECONDS)
        log.info("left the group while it was rebalancing", answered=left is not UNANSWERED)
    await closing
