"""Events on their way to Kafka: bounded in number and bytes, all of a body or none, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from streamguard.executor.sender import Sent
from streamguard.gateway.responses import Refusal

if TYPE_CHECKING:
    from streamguard.gateway.incoming import Incoming
    from streamguard.settings import GatewaySettings

__all__ = ["Outlet", "Publisher"]

FULL_RETRY_SECONDS: Final = 1.0


class Outlet(Protocol):
    """Takes events: a `Channel`, as far as it is needed here."""

    async def publish(self, run_id: str, value: bytes) -> Sent | None:
        """Buffer an event; None: dropped. Without waiting while there is room."""

    def drop(self, reason: str) -> None:
        """Count an event that goes to nobody, and say so once."""


class Publisher:
    """Publishes what requests bring."""

    def __init__(self, outlet: Outlet, settings: GatewaySettings) -> None:
        self._outlet = outlet
        self._settings = settings
        self._events = 0  # that no broker has acknowledged
        self._bytes = 0

    async def buffer(self, events: Sequence[Incoming]) -> list[Sent]:
        """Buffer events, all or none; nobody else's come between them. Raises a `Refusal` (503) if there is no room."""
        weight = sum(len(event.value) for event in events)
        too_many = self._events + len(events) > self._settings.buffer_events
        if too_many or (self._events and self._bytes + weight > self._settings.buffer_bytes):
            raise Refusal(503, "the buffer is full: Kafka does not take events fast enough, or is away; nothing was "
                          "published", retry_after=FULL_RETRY_SECONDS)  # fmt: skip
        return [await self._put(event) for event in events]

    def drop(self) -> None:
        """Count an event that had no room, and that nobody sends again."""
        self._outlet.drop("dropped_buffer_full")

    async def acknowledged(self, events: Sequence[Incoming]) -> None:
        """Publish events, and wait until Kafka has them. Raises a `Refusal` (413, 503)."""
        sent = await self.buffer(events)
        seconds = self._settings.publish_timeout_seconds
        waiting = (await asyncio.wait(sent, timeout=seconds))[1] if sent else set()
        if waiting:
            raise Refusal(
                503,
                f"Kafka has not acknowledged the events within {seconds:g} s (gateway.publish_timeout_seconds); they "
                "are buffered and still sent: repeat them only if each has an event_id",
                retry_after=FULL_RETRY_SECONDS,
            )
        for index, one in enumerate(sent):
            if not one.result():
                raise Refusal(413, "Kafka does not take an event of this size; the others are published", index=index)

    async def _put(self, event: Incoming) -> Sent:
        sent = await self._outlet.publish(event.run_id, event.value)
        if sent is None:
            raise Refusal(503, "an event was dropped for want of room", retry_after=FULL_RETRY_SECONDS)
        weight = len(event.value)
        self._events += 1
        self._bytes += weight
        sent.add_done_callback(lambda _: self._gone(weight))
        return sent

    def _gone(self, weight: int) -> None:
        self._events -= 1
        self._bytes -= weight
