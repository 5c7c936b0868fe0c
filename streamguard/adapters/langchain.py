"""LangChain and LangGraph: a middleware for `create_agent`.

    agent = create_agent(model, tools, middleware=[GuardMiddleware()])
    async with guarding(guard.run()):
        await agent.ainvoke({"messages": [...]})

Put it first: what a retrying middleware after it does to one call of the model is then one call for the guard, too.
`agent.invoke` must run in another thread than the run's event loop: `await asyncio.to_thread(agent.invoke, ...)`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from streamguard.adapters.call import Blocked, Call, Outcome, guarded_call
from streamguard.adapters.guarding import GuardedRun, current
from streamguard.errors import MissingExtraError, RunOverError
from streamguard.executor import Run

try:
    from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
    from langchain_core.messages import AnyMessage, HumanMessage, ToolMessage
    from langgraph.errors import GraphBubbleUp
    from langgraph.prebuilt.tool_node import ToolCallRequest
    from langgraph.runtime import Runtime
    from langgraph.types import Command
except ImportError as error:
    raise MissingExtraError(
        "streamguard.adapters.langchain needs LangChain 1: pip install 'streamguard[langchain]'"
    ) from error

__all__ = ["GuardMiddleware"]

SUMMARY: Final = "summarization"
"""What LangChain's SummarizationMiddleware marks its messages with."""

Answer = TypeVar("Answer")
ToolAnswer = ToolMessage | Command[Any]


class GuardMiddleware(AgentMiddleware[Any, Any, Any]):
    """Asks before every tool call, tells what came of it, and puts warnings before the model as a message.

    Calls that the guard blocks get its message as their result. A summary made by `SummarizationMiddleware` is told as
    a compaction. An abort ends the agent with `RunAbortedError`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._summaries: WeakKeyDictionary[Run, str | None] = WeakKeyDictionary()

    # asynchronous agents

    async def abefore_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> None:  # noqa: ARG002 - LangChain's
        """Note which summary is an old one."""
        self._note_summary(state)

    async def abefore_model(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Put warnings before the model."""
        return self.before_model(state, runtime)

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        """Tell of a compaction before the model goes on."""
        guarded = current()
        if self._compacted(guarded.run, request.messages):
            await guarded.run.compacted(trigger=SUMMARY)
        return await handler(request)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolAnswer]]
    ) -> ToolAnswer:
        """Run a tool if the guard lets it. Raises `RunAbortedError`, `GuardUnavailableError`."""
        answer = await guarded_call(
            _call(current(), request),
            lambda: handler(request),
            lambda answer: _outcome(request, answer),
            pauses=(GraphBubbleUp,),
        )
        return _refusal(request, answer) if isinstance(answer, Blocked) else answer

    # synchronous agents, in a thread of their own

    def before_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> None:  # noqa: ARG002 - likewise
        """Note which summary is an old one. Raises `RunOverError` in the event loop, which would wait for itself."""
        _refuse_own_loop(current())
        self._note_summary(state)

    def before_model(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any] | None:  # noqa: ARG002 - likewise
        """Put warnings before the model."""
        warnings = current().run.take_warnings()
        if not warnings:
            return None
        return {"messages": [HumanMessage("\n".join(warnings), additional_kwargs={"lc_source": "streamguard"})]}

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Tell of a compaction before the model goes on."""
        guarded = current()
        if self._compacted(guarded.run, request.messages):
            _wait(guarded, guarded.run.compacted(trigger=SUMMARY))
        return handler(request)

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolAnswer]) -> ToolAnswer:
        """Run a tool if the guard lets it. Raises `RunAbortedError`, `GuardUnavailableError`, `RunOverError`."""
        guarded = current()
        call = _call(guarded, request)
        blocked = _wait(guarded, call.refused())
        if blocked is not None:
            return _refusal(request, blocked)
        try:
            answer = handler(request)
        except GraphBubbleUp:
            _wait(guarded, call.over())
            raise
        except Exception as error:
            _wait(guarded, call.failed(error))
            raise
        _wait(guarded, call.over(_outcome(request, answer)))
        return answer

    # inside

    def _note_summary(self, state: AgentState[Any]) -> None:
        self._summaries[current().run] = _summary(state["messages"])

    def _compacted(self, run: Run, messages: Sequence[AnyMessage]) -> bool:
        summary = _summary(messages)
        known, self._summaries[run] = self._summaries.get(run), summary
        return summary is not None and summary != known


def _summary(messages: Sequence[AnyMessage]) -> str | None:
    """Return the id of the summary that stands for what was said before, if one does."""
    for message in messages:
        if message.additional_kwargs.get("lc_source") == SUMMARY:
            return message.id
    return None


def _call(guarded: GuardedRun, request: ToolCallRequest) -> Call:
    call = request.tool_call
    return Call(guarded, call["name"], call["args"], call["id"])


def _refusal(request: ToolCallRequest, blocked: Blocked) -> ToolMessage:
    call = request.tool_call
    return ToolMessage(blocked.message, name=call["name"], tool_call_id=call["id"], status="error")


def _outcome(request: ToolCallRequest, answer: Any) -> Outcome:
    """Leave out the ids of messages: they are new each time."""
    if request.tool is None:
        return Outcome(error=f"unknown tool: {request.tool_call['name']}")
    if isinstance(answer, ToolMessage) and answer.status == "error":
        return Outcome(error=answer.content)
    return Outcome(result=_plain(answer))


def _plain(answer: Any) -> Any:
    if isinstance(answer, ToolMessage):
        return answer.content
    if isinstance(answer, list):
        return [_plain(item) for item in answer]
    if isinstance(answer, Command) and isinstance(answer.update, dict):
        return {key: _plain(value) for key, value in answer.update.items()}
    return answer


def _wait(guarded: GuardedRun, coroutine: Coroutine[Any, Any, Answer]) -> Answer:
    """Run a coroutine in the run's event loop, and wait for it in this thread."""
    return asyncio.run_coroutine_threadsafe(coroutine, guarded.loop).result()


def _refuse_own_loop(guarded: GuardedRun) -> None:
    try:
        here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
    except RuntimeError:
        here = None
    if here is guarded.loop:
        raise RunOverError(
            "agent.invoke was called in the event loop of its run, and would wait for itself: "
            "await agent.ainvoke(...), or asyncio.to_thread(agent.invoke, ...)"
        )
