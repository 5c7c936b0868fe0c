"""The run that tool calls of this context belong to.

An agent is made once, and runs many times: which run a call belongs to is told by the context it is made in. Tasks and
`asyncio.to_thread` inherit it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from streamguard.errors import RunOverError

if TYPE_CHECKING:
    from streamguard.errors import RunAbortedError
    from streamguard.executor import Run

__all__ = ["GuardedRun", "current", "guarding"]

KEPT: Final = 1024
"""Call ids of a run that are remembered, to see one that comes again."""


class GuardedRun:
    """A run, the event loop that it lives in, and how it was aborted if it was."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.loop = asyncio.get_running_loop()
        self.aborted: RunAbortedError | None = None
        self._call_ids: dict[str, None] = {}

    def new(self, call_id: str | None) -> str | None:
        """Return a framework's call id if it names one call only: some models count from 0 in every turn."""
        if not call_id or call_id in self._call_ids:
            return None
        self._call_ids[call_id] = None
        if len(self._call_ids) > KEPT:
            del self._call_ids[next(iter(self._call_ids))]
        return call_id


_current: Final[ContextVar[GuardedRun]] = ContextVar("streamguard_run")


def current() -> GuardedRun:
    """Return the run of this context. Raises `RunOverError` if there is none."""
    try:
        return _current.get()
    except LookupError:
        raise RunOverError(
            "this agent is guarded, but no run is open here: call it within `async with guarding(guard.run(...))`; in "
            "another thread, start that with asyncio.to_thread"
        ) from None


@asynccontextmanager
async def guarding(run: Run) -> AsyncIterator[Run]:
    """Open a run, and guard what agents do within.

    Raises `RunAbortedError` if the guard has stopped the run, whatever the framework made of it; `NotStartedError`,
    `RunTakenError`.
    """
    async with run:
        guarded = GuardedRun(run)
        token = _current.set(guarded)
        try:
            yield run
        except Exception as error:
            if guarded.aborted is None or guarded.aborted is error:
                raise
            raise guarded.aborted from None
        finally:
            _current.reset(token)
        if guarded.aborted is not None:  # the framework took it for a failed tool, and went on
            raise guarded.aborted
