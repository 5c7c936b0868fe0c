"""Hearing what the guard says of runs that somebody asks about, and for a while after: agents ask again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

if TYPE_CHECKING:
    from streamguard.executor.channel import Following, Heard, Listener
    from streamguard.executor.silence import Silence

__all__ = ["Asked", "Ears", "Followed"]

LINGER_SECONDS: Final = 30.0
"""How long a run is heard after the last question: the next one is then answered sooner, and a guard that was silent is
heard when it answers again."""

Asked: TypeAlias = "asyncio.Future[Heard]"


class Followed(Protocol):
    """Where verdicts come from: a `Channel`, as far as it is needed here."""

    silence: Silence

    def partition_of(self, run_id: str) -> int:
        """Return the partition of a run; -1 while that is not known."""

    async def follow(self, run_id: str, listener: Listener) -> Following:
        """Listen to a run."""

    def unfollow(self, following: Following) -> None:
        """Listen to it no more."""


class _Ear:
    """Listens to one run for all who ask about it. The answer to a call, or the run's abort, is for all who wait."""

    def __init__(self) -> None:
        self.asked: dict[Asked, str] = {}  # → call id
        self.users = 0
        self.following: asyncio.Task[Following] | None = None
        self.closing: asyncio.TimerHandle | None = None

    def hear(self, heard: Heard) -> None:
        """Tell those whom a verdict concerns."""
        verdict = heard.verdict
        if verdict.shadow:
            return  # recorded only: a call that waits gets another answer, behind it
        aborts = verdict.action == "abort"
        for asked, call_id in self.asked.items():
            if not asked.done() and (aborts or verdict.call_id == call_id):
                asked.set_result(heard)


class Ears:
    """One ear for each run that is asked about."""

    def __init__(self, channel: Followed, linger: float = LINGER_SECONDS) -> None:
        self._channel = channel
        self._linger = linger
        self._ears: dict[str, _Ear] = {}

    @asynccontextmanager
    async def listening(self, run_id: str, call_id: str, seconds: float) -> AsyncIterator[Asked]:
        """Give a future of the answer to a call. What is published within is heard, if Kafka lets us in `seconds`."""
        ear = self._ears.setdefault(run_id, _Ear())
        ear.users += 1
        if ear.closing is not None:
            ear.closing.cancel()
        asked: Asked = asyncio.get_running_loop().create_future()
        ear.asked[asked] = call_id
        try:
            if ear.following is None:
                ear.following = asyncio.ensure_future(self._channel.follow(run_id, ear.hear))
            await asyncio.wait({ear.following}, timeout=seconds)  # it is everybody's: not to be cancelled
            yield asked
        finally:
            del ear.asked[asked]
            ear.users -= 1
            if not ear.users:
                ear.closing = asyncio.get_running_loop().call_later(self._linger, self._close, run_id)

    async def close(self) -> None:
        """Listen to nobody any more."""
        for run_id, ear in list(self._ears.items()):
            if ear.closing is not None:
                ear.closing.cancel()
            if ear.following is not None:
                await asyncio.wait({ear.following})
            self._close(run_id)

    def _close(self, run_id: str) -> None:
        following = self._ears.pop(run_id).following
        if following is not None and following.done() and not following.cancelled() and following.exception() is None:
            self._channel.unfollow(following.result())
