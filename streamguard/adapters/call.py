"""One tool call of a framework: ask, run, tell. What every adapter does alike is here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import structlog
from msgspec import UNSET

from streamguard.adapters.guarding import GuardedRun
from streamguard.errors import ExecutorError, NotPublishableError, RunAbortedError

if TYPE_CHECKING:
    from streamguard.executor import Decision

__all__ = ["Blocked", "Call", "Outcome", "guarded_call"]

log = structlog.get_logger("streamguard.adapters")

Value = TypeVar("Value")


class Blocked(NamedTuple):
    """Stands for the result of a call that did not run; `message` is for the model."""

    message: str


class Outcome(NamedTuple):
    """What came of a call, as the guard compares it: without ids, times and whatever else differs by itself."""

    result: Any = UNSET
    error: Any = None


NOTHING = Outcome()
"""The call is not over: it waits for a person, for example. It says nothing about progress."""


class Call:
    """A call to be asked about once (`refused`) and told of once (`over`, or `failed`).

    A call that cannot be published (nested too deep, a name the guard would not take) runs unguarded, and is logged.
    """

    def __init__(self, guarded: GuardedRun, tool: str, args: Any, call_id: str | None = None) -> None:
        self._guarded = guarded
        self._tool = tool
        self._args = args
        self._call_id = guarded.new(call_id)
        self._decision: Decision | None = None

    async def refused(self) -> Blocked | None:
        """Ask; return what to tell the model if the call must not run.

        Raises `RunAbortedError`, `GuardUnavailableError`, `RunOverError`.
        """
        run = self._guarded.run
        try:
            self._decision = await run.before_tool(self._tool, self._args, call_id=self._call_id)
            if not self._decision.blocked:
                return None
            await run.after_tool(self._decision)
        except NotPublishableError as error:
            log.warning("call not published, runs unguarded", run_id=run.run_id, error=str(error))
            return None
        except RunAbortedError as error:
            self._guarded.aborted = error
            raise
        return Blocked(self._decision.message or "This call is blocked.")

    async def over(self, outcome: Outcome = NOTHING) -> None:
        """Tell what came of it. Raises `RunAbortedError`, `RunOverError`."""
        decision, self._decision = self._decision, None
        if decision is None:
            return
        run = self._guarded.run
        try:
            await run.after_tool(decision, result=outcome.result, error=outcome.error)
        except NotPublishableError as error:
            log.warning("result not published", run_id=run.run_id, call_id=decision.call_id, error=str(error))
        except RunAbortedError as error:
            self._guarded.aborted = error
            raise

    async def failed(self, error: BaseException) -> None:
        """Tell that the tool raised. Raises as `over` does."""
        await self.over(Outcome(error=str(error) or type(error).__name__))


async def guarded_call(
    call: Call,
    execute: Callable[[], Awaitable[Value]],
    outcome: Callable[[Value], Outcome],
    pauses: tuple[type[Exception], ...] = (),
) -> Value | Blocked:
    """Run a call if the guard lets it. Exceptions of the tool are told and raised; `pauses` are none of its failures.

    Raises `RunAbortedError`, `GuardUnavailableError`, `RunOverError`.
    """
    blocked = await call.refused()
    if blocked is not None:
        return blocked
    try:
        value = await execute()
    except pauses:
        await call.over()
        raise
    except asyncio.CancelledError as error:  # the framework's timeout, for example
        with suppress(ExecutorError):
            await call.failed(error)
        raise
    except Exception as error:
        await call.failed(error)
        raise
    await call.over(outcome(value))
    return value
