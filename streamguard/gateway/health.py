"""Whether Kafka is there, asked of a broker at most once a second however many ask us."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable

__all__ = ["Health", "Reachable"]

FRESH_SECONDS: Final = 1.0
ANSWER_SECONDS: Final = 2.0


class Reachable(Protocol):
    """What knows whether brokers answer: a `Channel`, as far as it is needed here."""

    def reachable(self, seconds: float) -> Awaitable[bool]:
        """Tell whether a broker answers within so many seconds."""


class Health:
    """Tells whether we are connected."""

    def __init__(self, channel: Reachable) -> None:
        self._channel = channel
        self._asking = asyncio.Lock()
        self._said = False
        self._when = -FRESH_SECONDS

    async def connected(self) -> bool:
        """Ask a broker, unless one was asked a moment ago."""
        async with self._asking:
            if time.monotonic() - self._when >= FRESH_SECONDS:
                self._said = await self._channel.reachable(ANSWER_SECONDS)
                self._when = time.monotonic()
            return self._said
