"""pydantic-ai: a capability that guards all function tools of an agent.

    agent = Agent(model, tools=[...], capabilities=[GuardCapability()])
    async with guarding(guard.run()):
        await agent.run("...")

Nobody is asked about tools that the model's provider runs itself, nor about tools that do not exist: after `retries` of
them pydantic-ai ends the run by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

from streamguard.adapters.call import Blocked, Call, Outcome, guarded_call
from streamguard.adapters.guarding import current
from streamguard.errors import MissingExtraError
from streamguard.executor import Run

try:
    from pydantic import ValidationError
    from pydantic_ai import ModelRetry, RunContext, ToolDefinition, ToolReturn
    from pydantic_ai.capabilities import (
        AbstractCapability,
        CapabilityOrdering,
        RawToolArgs,
        ValidatedToolArgs,
        WrapToolExecuteHandler,
    )
    from pydantic_ai.exceptions import ApprovalRequired, CallDeferred
    from pydantic_ai.messages import CompactionPart, ModelMessage, ModelResponse, ToolCallPart
    from pydantic_ai.models import ModelRequestContext
except ImportError as error:
    raise MissingExtraError(
        "streamguard.adapters.pydantic_ai needs pydantic-ai 2: pip install 'streamguard[pydantic-ai]'"
    ) from error

__all__ = ["GuardCapability"]


class GuardCapability(AbstractCapability[Any]):
    """Asks before every tool call, tells what came of it, and puts warnings before the model after the result.

    Calls that the guard blocks get its message as their result. A compaction by the provider or by a capability is
    told. An abort ends the run with `RunAbortedError`.
    """

    def __init__(self) -> None:
        self._summaries: WeakKeyDictionary[Run, CompactionPart | None] = WeakKeyDictionary()

    def get_ordering(self) -> CapabilityOrdering:
        """Stand outside of all others: what they do to one call of the model is one call."""
        return CapabilityOrdering(position="outermost")

    async def before_run(self, ctx: RunContext[Any]) -> None:
        """Note which summary is an old one. Raises `RunOverError`."""
        self._summaries[current().run] = _summary(ctx.messages)

    async def after_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, response: ModelResponse
    ) -> ModelResponse:
        """Tell of a compaction before the calls that follow it. Raises `RunAbortedError`, `RunOverError`."""
        run = current().run
        summary = _summary([*ctx.messages, *request_context.messages, response])
        known, self._summaries[run] = self._summaries.get(run), summary
        if summary is not None and summary != known:
            await run.compacted()
        return response

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],  # noqa: ARG002 - pydantic-ai's signature
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,  # noqa: ARG002 - likewise
        args: ValidatedToolArgs,
        handler: WrapToolExecuteHandler,
    ) -> Any:
        """Run a tool if the guard lets it. Raises `RunAbortedError`, `GuardUnavailableError`, `RunOverError`."""
        guarded = current()
        result = await guarded_call(
            Call(guarded, call.tool_name, call.args_as_dict(), call.tool_call_id),
            lambda: handler(args),
            _outcome,
            pauses=(CallDeferred, ApprovalRequired),
        )
        if isinstance(result, Blocked):
            return result.message
        warnings = guarded.run.take_warnings()
        return _with(result, "\n".join(warnings)) if warnings else result

    async def on_tool_validate_error(
        self,
        ctx: RunContext[Any],  # noqa: ARG002 - pydantic-ai's signature
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,  # noqa: ARG002 - likewise
        args: RawToolArgs,
        error: ValidationError | ModelRetry,
    ) -> NoReturn:
        """Tell of a call that failed for its arguments; raise that, or `RunAbortedError`, `GuardUnavailableError`."""
        told = Call(current(), call.tool_name, args, call.tool_call_id)
        blocked = await told.refused()
        if blocked is not None:
            raise ModelRetry(blocked.message) from error
        await told.failed(error)
        raise error


def _summary(messages: Sequence[ModelMessage]) -> CompactionPart | None:
    """Return the latest summary that stands for what was said before, if one does."""
    for message in reversed(messages):
        for part in reversed(message.parts):
            if isinstance(part, CompactionPart):
                return part
    return None


def _outcome(result: Any) -> Outcome:
    return Outcome(result.return_value if isinstance(result, ToolReturn) else result)


def _with(result: Any, warning: str) -> ToolReturn[Any]:
    """Let the model read a warning after a result."""
    if not isinstance(result, ToolReturn):
        return ToolReturn(result, content=warning)
    said = result.content
    more = [] if said is None else [said] if isinstance(said, str) else list(said)
    return replace(result, content=[*more, warning])
