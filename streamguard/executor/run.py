"""One agent run, as its executor sees it: ask before a tool, tell what came of it, and be stopped."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol, Self

import msgspec
from msgspec import UNSET

from streamguard.errors import (
    CallTakenError,
    GuardUnavailableError,
    NotPublishableError,
    NotStartedError,
    RunAbortedError,
    RunOverError,
    UnknownCallError,
)
from streamguard.events import Compaction, Event, RunEnded, ToolCall, ToolResult
from streamguard.executor.enforcement import Enforcement, remember
from streamguard.executor.options import Mode
from streamguard.executor.payloads import Payloads, as_guard_reads
from streamguard.verdicts import Verdict

__all__ = ["Decision", "Link", "Run"]

DecidedBy = Literal["guard", "fallback", "standing block", "nobody"]


class Decision(NamedTuple):
    """Whether a call may run. `message` is for the model; `decided_by`: `nobody` if no verdict was awaited, or came."""

    call_id: str
    action: Literal["allow", "warn", "block"]
    message: str | None = None
    verdict: Verdict | None = None
    decided_by: DecidedBy = "nobody"

    @property
    def blocked(self) -> bool:
        """Whether the call must not run: `message` takes the place of its result."""
        return self.action == "block"


class Link(Protocol):
    """How a run reaches the guard."""

    payloads: Payloads

    async def begin(self, run: Run) -> None:
        """Let verdicts of this run come to its `heed` from now on. Raises a `MisuseError`."""

    async def publish(self, run: Run, event: Event) -> bool:
        """Send an event; returns within the publish timeout. False: it was dropped."""

    async def answer(
        self, run: Run, call_id: str, asked: asyncio.Future[Verdict], *, published: bool
    ) -> Verdict | None:
        """Wait for the verdict of a call within the gate timeout; None: go ahead. Raises `GuardUnavailableError`."""

    def decided_by(self, verdict: Verdict) -> DecidedBy:
        """Tell whose a verdict is."""

    def end(self, run: Run) -> None:
        """Send no more verdicts of this run."""

    def note(self, what: str) -> None:
        """Count something that happened."""


class Run:
    """A run, to be used as a context: `async with client.run(...) as run`.

    When the guard aborts it, the task that entered the context is cancelled and the context raises `RunAbortedError`;
    every later call raises that too. For use by tasks of one event loop.
    """

    def __init__(
        self, link: Link, run_id: str, *, agent_id: str | None, session_id: str | None, mode: Mode, calls: str
    ) -> None:
        self.run_id = run_id
        self.agent_id = agent_id
        self.session_id = session_id
        self.mode = mode
        self._link = link
        self._prefix = calls  # of call ids: a run may go on in another process
        self._enforcement = Enforcement()
        self._calls: OrderedDict[str, ToolCall] = OrderedDict()  # that may run, and have no result yet
        self._refused: OrderedDict[str, None] = OrderedDict()
        self._asked: dict[str, asyncio.Future[Verdict]] = {}
        self._number = 0
        self._task: asyncio.Task[Any] | None = None
        self._waiting: set[asyncio.Task[Any] | None] = set()
        self._cancelled = False
        self._open = False

    async def __aenter__(self) -> Self:
        """Begin. Raises `NotStartedError`, `RunTakenError`."""
        await self._link.begin(self)
        self._task = asyncio.current_task()
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End; say that the run is over. Raises `RunAbortedError` if the guard has ended it."""
        self._open = False
        late = await self._is_cancelled_late()
        try:
            with suppress(NotStartedError):  # a client that was closed before its runs were
                await self._link.publish(
                    self, self._event(RunEnded, reason="finished" if kind is None else kind.__name__)
                )
        finally:
            self._link.end(self)
        others = self._cancelled and self._task is not None and self._task.uncancel() > 0
        ours = self._cancelled and (late or kind is None or kind is asyncio.CancelledError)
        aborted = self._aborted()
        if aborted is not None and not others and (ours or _is_about_aborts(error)):
            raise aborted from None
        if late:
            raise asyncio.CancelledError

    async def _is_cancelled_late(self) -> bool:
        """Let a cancellation of ours come that came too late for the block; tell whether there was one."""
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            if not self._cancelled:
                raise
            return True
        return False

    # what the executor does

    async def before_tool(self, tool: str, args: Any = None, *, call_id: str | None = None) -> Decision:
        """Say that the agent is about to call a tool; return whether it may.

        A blocked call has been reported when this returns: hand `message` to the model as the tool's result. Raises
        `RunAbortedError`, `GuardUnavailableError` (only if set to fail closed), `RunOverError`, `NotPublishableError`.
        """
        self._check_open()
        if call_id is None:
            self._number += 1
            call_id = f"{self._prefix}{self._number}"
        if call_id in self._asked or call_id in self._calls:
            raise CallTakenError(
                f"call {call_id!r} of run {self.run_id} still waits for its verdict or its result: ids must differ"
            )
        self._refused.pop(call_id, None)
        event: ToolCall = as_guard_reads(self._event(ToolCall, call_id=call_id, tool=tool, args=args))
        sent = self._link.payloads.call(event)
        signature = self._link.payloads.signature(sent)
        if self.mode == "gate":
            return await self._gated(event, sent, signature)
        standing = self._enforcement.standing(signature) if self.mode == "async" else None
        if standing is not None:
            self._enforcement.asked(call_id, signature)  # refused at once; the answer to come says whether to go on so
            await self._link.publish(self, msgspec.structs.replace(sent, gate=True))
            return await self._refuse(call_id, standing, "standing block")
        remember(self._calls, call_id, event)
        await self._link.publish(self, sent)
        self._raise_if_aborted()
        return Decision(call_id, "allow")

    async def after_tool(self, call: Decision | str, *, result: Any = UNSET, error: Any = None) -> None:
        """Say what came of a call: its result, or its error. Of a blocked call there is nothing to say: that is fine.

        Raises `UnknownCallError`, `RunAbortedError`, `RunOverError`, `NotPublishableError`.
        """
        self._check_open()
        call_id = call if isinstance(call, str) else call.call_id
        if call_id in self._refused:
            del self._refused[call_id]
            return
        asked = self._calls.get(call_id)
        if asked is None:
            raise UnknownCallError(
                f"run {self.run_id} has no call {call_id!r} that waits for its result: call before_tool first, and "
                "after_tool once for each call, with what before_tool returned"
            )
        event: ToolResult = as_guard_reads(self._event(ToolResult, call_id=call_id, result=result, error=error))
        del self._calls[call_id]
        await self._link.publish(self, self._link.payloads.result(event, asked))
        self._raise_if_aborted()

    async def guarded(self, tool: str, args: Any, execute: Callable[[], Awaitable[Any]]) -> Any:
        """Do both: run `execute` if the guard lets it, and return its result, or the message of a blocked call.

        What `execute` raises is reported and raised; a result that cannot be published is reported as its type's name.
        """
        decision = await self.before_tool(tool, args)
        if decision.blocked:
            self._refused.pop(decision.call_id, None)
            return decision.message
        try:
            result = await execute()
        except asyncio.CancelledError:
            self._calls.pop(decision.call_id, None)
            raise
        except Exception as error:
            await self.after_tool(decision, error=str(error) or type(error).__name__)
            raise
        try:
            await self.after_tool(decision, result=result)
        except NotPublishableError:
            await self.after_tool(decision, result=type(result).__name__)
        return result

    async def compacted(
        self, *, trigger: str | None = None, tokens_before: int | None = None, tokens_after: int | None = None
    ) -> None:
        """Say that the context was compacted, and the run goes on. Raises as `after_tool` does."""
        self._check_open()
        told = self._event(Compaction, trigger=trigger, tokens_before=tokens_before, tokens_after=tokens_after)
        event: Compaction = as_guard_reads(told)
        await self._link.publish(self, event)
        self._raise_if_aborted()

    def take_warnings(self) -> list[str]:
        """Return the warnings that came since the last time, to put before the model; in observe mode none."""
        if self.mode == "observe":
            return []
        return [verdict.message or "" for verdict in self._enforcement.take_warnings()]

    # what the guard says

    def heed(self, verdict: Verdict) -> None:
        """Take a verdict about this run."""
        if not self._enforcement.take(verdict):
            return
        self._link.note(verdict.action)
        if self.mode == "observe":
            return
        if verdict.action == "abort":
            self._stop(verdict)
            return
        asked = self._asked.get(verdict.call_id) if verdict.call_id is not None else None
        if asked is not None and not asked.done():
            asked.set_result(verdict)

    def _stop(self, verdict: Verdict) -> None:
        for asked in self._asked.values():
            if not asked.done():
                asked.set_result(verdict)
        task = self._task
        if task is None or not self._open or self._cancelled or task in self._waiting or task is asyncio.current_task():
            return  # it learns of it by what it waits for, or by what it is doing
        self._cancelled = True
        task.cancel()

    # inside

    async def _gated(self, event: ToolCall, sent: ToolCall, signature: str) -> Decision:
        call_id = str(event.call_id)
        asked = self._asked[call_id] = asyncio.get_running_loop().create_future()
        self._enforcement.asked(call_id, signature)
        task = asyncio.current_task()
        self._waiting.add(task)
        try:
            published = await self._link.publish(self, msgspec.structs.replace(sent, gate=True))
            verdict = await self._link.answer(self, call_id, asked, published=published)
        except GuardUnavailableError:
            await self._report_blocked(call_id)
            raise
        finally:
            self._waiting.discard(task)
            del self._asked[call_id]
        self._raise_if_aborted()
        standing = self._enforcement.standing(signature)
        if verdict is None and standing is not None:
            return await self._refuse(call_id, standing, "standing block")
        if verdict is not None and verdict.action == "block":
            return await self._refuse(call_id, verdict, self._link.decided_by(verdict))
        remember(self._calls, call_id, event)
        if verdict is None:
            return Decision(call_id, "allow")
        action: Literal["allow", "warn"] = "warn" if verdict.action == "warn" else "allow"
        return Decision(call_id, action, verdict.message, verdict, self._link.decided_by(verdict))

    async def _refuse(self, call_id: str, verdict: Verdict, decided_by: DecidedBy) -> Decision:
        await self._report_blocked(call_id)
        self._raise_if_aborted()
        remember(self._refused, call_id, None)
        return Decision(call_id, "block", verdict.message, verdict, decided_by)

    async def _report_blocked(self, call_id: str) -> None:
        self._link.note("refused")
        await self._link.publish(self, self._event(ToolResult, call_id=call_id, status="blocked"))

    def _event(self, kind: Any, **fields: Any) -> Any:
        return kind(run_id=self.run_id, agent_id=self.agent_id, session_id=self.session_id, **fields)

    def _check_open(self) -> None:
        self._raise_if_aborted()
        if not self._open:
            raise RunOverError(
                f"run {self.run_id} is not open: use it within `async with client.run(...)`, and only there"
            )

    def _aborted(self) -> RunAbortedError | None:
        verdict = self._enforcement.abort
        return None if verdict is None or self.mode == "observe" else RunAbortedError(verdict)

    def _raise_if_aborted(self) -> None:
        if (aborted := self._aborted()) is not None:
            raise aborted


def _is_about_aborts(error: BaseException | None) -> bool:
    """Tell whether nothing but an abort was raised, by whichever tasks of a group."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_about_aborts(one) for one in error.exceptions)
    return isinstance(error, RunAbortedError)
