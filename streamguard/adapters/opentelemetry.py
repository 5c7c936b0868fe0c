"""OpenTelemetry: a span processor that tells the guard of tool calls which an instrumentation already sees.

    async with GuardSpanProcessor(guard) as processor:
        tracer_provider.add_span_processor(processor)
        ...

It can only observe: a span cannot be stopped. Verdicts are on the verdict topic, and in `guard.counters`. Read are the
`execute_tool` spans of the GenAI conventions, and of those only the ones with `gen_ai.tool.call.arguments` (often an
option of the instrumentation): without arguments all calls of a tool would look the same.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import structlog

from streamguard.adapters.call import Call, Outcome
from streamguard.adapters.guarding import GuardedRun
from streamguard.errors import ExecutorError, MissingExtraError, RunTakenError

try:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
    from opentelemetry.trace import StatusCode
except ImportError as error:
    raise MissingExtraError(
        "streamguard.adapters.opentelemetry needs the OpenTelemetry SDK: pip install 'streamguard[opentelemetry]'"
    ) from error

if TYPE_CHECKING:
    from streamguard.executor import GuardClient, LocalGuard

__all__ = ["GuardSpanProcessor"]

log = structlog.get_logger("streamguard.adapters")

WAITING: Final = 10_000
"""Spans that wait to be told; more are dropped and counted."""

RUNS: Final = 1_000
"""Runs that are open at once; then the one that was quiet for the longest is ended."""

ARGUMENTS: Final = "gen_ai.tool.call.arguments"
RESULT: Final = "gen_ai.tool.call.result"
CONVERSATION: Final = "gen_ai.conversation.id"
AGENT: Final = "gen_ai.agent.id"


class Seen(NamedTuple):
    """A span as it was when it started, or ended."""

    trace: str
    span: int
    name: str
    attributes: Mapping[str, Any]
    ended: bool
    root: bool
    failure: str | None  # its status, if that is an error


class GuardSpanProcessor(SpanProcessor):
    """Publishes tool spans as calls and results. A run is a conversation (`gen_ai.conversation.id`), else a trace.

    A conversation's run ends with the processor, or when RUNS others were active since. `counters`: spans `dropped`,
    `without_arguments`, and `failed` to be told. Callbacks come from any thread; they neither wait nor raise.
    """

    def __init__(self, guard: GuardClient | LocalGuard) -> None:
        self.counters: Counter[str] = Counter()
        self._guard = guard
        self._waiting: deque[Seen] = deque()
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._runs: OrderedDict[str, GuardedRun | None] = OrderedDict()  # None: the run is somebody else's
        self._traces: OrderedDict[str, tuple[str | None, str | None]] = OrderedDict()  # conversation, agent
        self._calls: OrderedDict[int, Call] = OrderedDict()

    async def __aenter__(self) -> Self:
        """Begin."""
        self._task = asyncio.create_task(self._tell(), name="spans")
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Tell what is waiting, and end all runs."""
        self._loop, self._closing = None, True
        self._wake.set()
        if self._task is not None:
            await self._task

    # what the SDK calls, in any thread

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:  # noqa: ARG002 - the SDK's signature
        """Take a span that starts."""
        with suppress(Exception):  # the agent is not to fail for being watched
            self._take(span, ended=False)

    def on_end(self, span: ReadableSpan) -> None:
        """Take a span that ended."""
        with suppress(Exception):
            self._take(span, ended=True)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002 - likewise
        """Tell whether nothing is waiting; it does not wait, for it may be called in the event loop."""
        return not self._waiting

    def _take(self, span: ReadableSpan, *, ended: bool) -> None:
        loop, context = self._loop, span.context
        if loop is None or context is None:
            return
        if len(self._waiting) >= WAITING:
            self.counters["dropped"] += 1
            return
        seen = Seen(
            trace=f"{context.trace_id:032x}",
            span=context.span_id,
            name=span.name,
            attributes=dict(span.attributes or {}),
            ended=ended,
            root=span.parent is None,
            failure=span.status.description or "" if span.status.status_code is StatusCode.ERROR else None,
        )
        self._waiting.append(seen)
        loop.call_soon_threadsafe(self._wake.set)

    # in the event loop

    async def _tell(self) -> None:
        while not (self._closing and not self._waiting):
            await self._wake.wait()
            if not self._closing:
                self._wake.clear()
            while self._waiting:
                await self._tell_one(self._waiting.popleft())
        while self._runs:
            await self._end(next(iter(self._runs)))

    async def _tell_one(self, seen: Seen) -> None:
        try:
            await self._tell_span(seen)
        except ExecutorError as error:
            self.counters["failed"] += 1
            log.warning("span not told", error=type(error).__name__)

    async def _tell_span(self, seen: Seen) -> None:
        about = seen.attributes
        conversation, agent = self._remember(seen)
        run_id = conversation or seen.trace
        if about.get("gen_ai.operation.name") == "execute_tool" or seen.name.startswith("execute_tool "):
            await self._tell_tool(seen, run_id, agent)
        elif seen.ended and about.get("gen_ai.conversation.compacted") is True:
            guarded = await self._run(run_id, agent)
            if guarded is not None:
                await guarded.run.compacted()
        if seen.ended and seen.root:
            self._traces.pop(seen.trace, None)
            if conversation is None:
                await self._end(run_id)

    async def _tell_tool(self, seen: Seen, run_id: str, agent: str | None) -> None:
        about = seen.attributes
        call = self._calls.pop(seen.span, None)
        if call is None:
            tool = about.get("gen_ai.tool.name")
            if not isinstance(tool, str) or ARGUMENTS not in about:
                self.counters["without_arguments"] += seen.ended
                return
            guarded = await self._run(run_id, agent)
            if guarded is None:
                return
            call = Call(guarded, tool, _value(about[ARGUMENTS]), about.get("gen_ai.tool.call.id"))
            await call.refused()
        if seen.ended:
            await call.over(_outcome(seen))
            return
        self._calls[seen.span] = call
        if len(self._calls) > WAITING:
            self._calls.popitem(last=False)

    def _remember(self, seen: Seen) -> tuple[str | None, str | None]:
        """Return the conversation and the agent; what a span does not say was said by one that stands above it."""
        conversation, agent = self._traces.get(seen.trace, (None, None))
        known = (seen.attributes.get(CONVERSATION) or conversation, seen.attributes.get(AGENT) or agent)
        if known != (None, None):
            self._traces[seen.trace] = known
            if len(self._traces) > WAITING:
                self._traces.popitem(last=False)
        return known

    async def _run(self, run_id: str, agent: str | None) -> GuardedRun | None:
        if run_id in self._runs:
            self._runs.move_to_end(run_id)
            return self._runs[run_id]
        if len(self._runs) >= RUNS:
            await self._end(next(iter(self._runs)))
        run = self._guard.run(run_id, agent_id=agent, mode="observe")
        try:
            await run.__aenter__()
        except RunTakenError:
            log.warning("run is told of by somebody else, its spans are left out", run_id=run_id)
            self._runs[run_id] = None
        else:
            self._runs[run_id] = GuardedRun(run)
        return self._runs[run_id]

    async def _end(self, run_id: str) -> None:
        guarded = self._runs.pop(run_id, None)
        if guarded is not None:
            with suppress(ExecutorError):
                await guarded.run.__aexit__(None, None, None)


def _value(attribute: Any) -> Any:
    """Return the value of an attribute that holds JSON; else the attribute, sequences as lists."""
    if isinstance(attribute, str):
        with suppress(ValueError):
            return json.loads(attribute)
    return list(attribute) if isinstance(attribute, tuple) else attribute


def _outcome(seen: Seen) -> Outcome:
    """Return the error, else the result if the span has one: without either it says nothing about progress."""
    about = seen.attributes
    if seen.failure is not None or "error.type" in about:
        return Outcome(error=f"{about.get('error.type', 'error')}: {about.get(RESULT) or seen.failure or ''}")
    return Outcome(_value(about[RESULT])) if RESULT in about else Outcome()
