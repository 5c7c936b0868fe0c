"""Asking a Kafka client something without depending on it: it may not answer, fail, or cancel what it waits for."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from aiokafka.errors import IllegalStateError, KafkaError

__all__ = ["UNANSWERED", "Unanswered", "answer", "is_cancelled"]

Answer = TypeVar("Answer")


class Unanswered(enum.Enum):
    """What is returned in place of an answer."""

    UNANSWERED = enum.auto()


UNANSWERED: Final = Unanswered.UNANSWERED


def is_cancelled() -> bool:
    """Tell whether the current task is being cancelled, and not just something that a Kafka client cancelled in it."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def answer(asking: Coroutine[Any, Any, Answer], seconds: float) -> Answer | Unanswered:
    """Return what the client answers; `UNANSWERED` if it does not in time, fails, or gives up: all the same here.

    In a task of its own: a client that cancels what it waits for must not cancel us.
    """
    task = asyncio.ensure_future(asking)
    try:
        await asyncio.wait({task}, timeout=seconds)
    finally:
        if not task.done():
            task.cancel()
    if not task.done() or task.cancelled():
        return UNANSWERED
    if isinstance(task.exception(), KafkaError | IllegalStateError | TimeoutError):
        return UNANSWERED
    return task.result()
