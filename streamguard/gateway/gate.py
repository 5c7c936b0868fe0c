"""A call that waits for its verdict: published, then answered by the guard, or by nobody in time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from streamguard.gateway.incoming import GatedCall, Incoming
from streamguard.gateway.responses import Refusal

if TYPE_CHECKING:
    from streamguard.executor.channel import Heard
    from streamguard.gateway.ear import Ears, Followed
    from streamguard.gateway.publishing import Publisher
    from streamguard.settings import GatewaySettings
    from streamguard.verdicts import Action

__all__ = ["Answer", "Gate"]

RETRY_SECONDS: Final = 1.0


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a call is told. `verdict` is the one that decided, as it stands on the topic."""

    action: Action
    message: str | None = None
    decided_by: Literal["guard", "nobody"]
    verdict: msgspec.Raw | None = None


NOBODY: Final = Answer(action="allow", decided_by="nobody")


class Gate:
    """Asks the guard."""

    def __init__(self, channel: Followed, ears: Ears, publisher: Publisher, settings: GatewaySettings) -> None:
        self._channel = channel
        self._ears = ears
        self._publisher = publisher
        self._settings = settings
        self._asking: dict[GatedCall, asyncio.Task[Answer]] = {}
        self._doubtful: set[int] = set()  # partitions where a call that may be a repeat got no answer

    async def ask(self, call: GatedCall, seconds: float) -> Answer:
        """Publish a call and return the answer, after so many seconds at the latest.

        The same call at once, from two requests, is published once and answered to both. Raises a `Refusal` (503) if
        there is no answer and `fail` is `closed`.
        """
        task = self._asking.get(call)
        if task is None:
            task = self._asking[call] = asyncio.ensure_future(self._ask(call, seconds))
            task.add_done_callback(lambda _: self._asking.pop(call))
        return await asyncio.shield(task)

    async def _ask(self, call: GatedCall, seconds: float) -> Answer:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        async with self._ears.listening(call.run_id, call.call_id, seconds) as asked:
            try:
                await self._publisher.buffer([Incoming(call.run_id, call.value)])
            except Refusal:  # there is no room for it
                self._publisher.drop()
                return self._unanswered()
            if not asked.done() and self._channel.partition_of(call.run_id) in self._channel.silence:
                return self._unanswered()
            await asyncio.wait({asked}, timeout=max(0.0, end - loop.time()))
            if not asked.done():
                self._doubt(call, seconds)
                return self._unanswered()
            heard = asked.result()
        self._doubtful.discard(heard.record.partition)
        return _answer(heard)

    def _doubt(self, call: GatedCall, seconds: float) -> None:
        """Take the guard for silent, unless there is another reason why a call got no answer.

        Its caller was in a hurry; or it was a repeat, which the guard leaves unanswered: then the second one tells.
        """
        partition = self._channel.partition_of(call.run_id)
        if seconds < self._settings.gate_timeout_seconds:
            return
        if call.repeatable and partition not in self._doubtful:
            self._doubtful.add(partition)
            return
        self._doubtful.discard(partition)
        self._channel.silence.begins(partition, "go ahead" if self._settings.fail == "open" else "are refused")

    def _unanswered(self) -> Answer:
        if self._settings.fail == "open":
            return NOBODY
        raise Refusal(
            503,
            "the guard does not answer, and the gateway is set to fail closed (gateway.fail): the call must not run",
            retry_after=RETRY_SECONDS,
        )


def _answer(heard: Heard) -> Answer:
    verdict = heard.verdict
    raw = msgspec.Raw(heard.record.value)
    return Answer(action=verdict.action, message=verdict.message, decided_by="guard", verdict=raw)
