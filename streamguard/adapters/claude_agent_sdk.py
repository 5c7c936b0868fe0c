"""Claude Agent SDK: hooks that guard every tool of a session, those of the CLI and its sub-agents included.

    async with guarding(guard.run()):
        async with ClaudeSDKClient(guarded_options(ClaudeAgentOptions(...))) as client:
            ...

The options are for the run that they are made in: one session, one run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

from streamguard.adapters.call import Call, Outcome
from streamguard.adapters.guarding import GuardedRun, current
from streamguard.errors import ExecutorError, MissingExtraError, RunAbortedError

try:
    from claude_agent_sdk import ClaudeAgentOptions, HookContext, HookInput, HookMatcher
except ImportError as error:
    raise MissingExtraError(
        "streamguard.adapters.claude_agent_sdk needs the Claude Agent SDK: pip install 'streamguard[claude-agent-sdk]'"
    ) from error

__all__ = ["guarded_options"]

Answer = dict[str, Any]

OPEN_CALLS: Final = 1024
"""Calls that wait for their result; older ones (a person refused them, say) are forgotten."""


def guarded_options(options: ClaudeAgentOptions | None = None) -> ClaudeAgentOptions:
    """Return options that guard a session for the run of this context; hooks that are there stay.

    Calls that the guard blocks are denied, with its message as the reason; warnings are added to the context after the
    result. An abort stops the session, and `guarding` raises `RunAbortedError`. If the guard is set to fail closed and
    does not answer, calls are denied. Raises `RunOverError` if there is no run.
    """
    hooks = _Hooks(current())
    given = options or ClaudeAgentOptions()
    ours: dict[Any, Any] = {
        "PreToolUse": hooks.before,
        "PostToolUse": hooks.after,
        "PostToolUseFailure": hooks.failed,
        "PreCompact": hooks.compacted,
    }
    merged: dict[Any, list[HookMatcher]] = dict(given.hooks or {})
    for event, hook in ours.items():
        merged[event] = [*merged.get(event, []), HookMatcher(hooks=[hook])]
    return replace(given, hooks=merged)


class _Hooks:
    """The hooks of one session. What they raise the CLI would ignore: they answer instead."""

    def __init__(self, guarded: GuardedRun) -> None:
        self._guarded = guarded
        self._calls: dict[str, Call] = {}  # that may run, by the id of the tool use

    async def before(self, event: HookInput, tool_use_id: str | None, _: HookContext) -> Any:
        """Ask; deny the call if it must not run."""
        seen: Any = event
        call = Call(self._guarded, seen["tool_name"], seen["tool_input"], tool_use_id)
        try:
            blocked = await call.refused()
        except ExecutorError as error:
            return _denied(str(error)) | (_stopped(error) if isinstance(error, RunAbortedError) else {})
        if blocked is not None:
            return _denied(blocked.message)
        self._calls[tool_use_id or ""] = call
        if len(self._calls) > OPEN_CALLS:
            del self._calls[next(iter(self._calls))]
        return {}

    async def after(self, event: HookInput, tool_use_id: str | None, _: HookContext) -> Any:
        """Tell the result."""
        seen: Any = event
        return await self._over("PostToolUse", tool_use_id, Outcome(_lasting(seen["tool_response"])))

    async def failed(self, event: HookInput, tool_use_id: str | None, _: HookContext) -> Any:
        """Tell the failure."""
        seen: Any = event
        return await self._over("PostToolUseFailure", tool_use_id, Outcome(error=seen["error"]))

    async def compacted(self, event: HookInput, _: str | None, __: HookContext) -> Any:
        """Tell of a compaction."""
        seen: Any = event
        return await _answer(self._guarded.run.compacted(trigger=seen.get("trigger")), dict)

    async def _over(self, event: str, tool_use_id: str | None, outcome: Outcome) -> Answer:
        call = self._calls.pop(tool_use_id or "", None)
        if call is None:
            return {}
        return await _answer(call.over(outcome), lambda: self._warned(event))

    def _warned(self, event: str) -> Answer:
        warnings = self._guarded.run.take_warnings()
        if not warnings:
            return {}
        return {"hookSpecificOutput": {"hookEventName": event, "additionalContext": "\n".join(warnings)}}


async def _answer(telling: Awaitable[None], otherwise: Callable[[], Answer]) -> Answer:
    try:
        await telling
    except RunAbortedError as error:
        return _stopped(error)
    except ExecutorError:
        return {}
    return otherwise()


def _denied(reason: str) -> Answer:
    return {
        "hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "permissionDecision": "deny",
            "permissionDecisionReason": reason,
        }
    }


def _stopped(error: RunAbortedError) -> Answer:
    return {"continue_": False, "stopReason": str(error)}


def _lasting(response: Any) -> Any:
    """Leave out how long a tool took: it differs by itself."""
    if not isinstance(response, dict):
        return response
    return {key: value for key, value in response.items() if "duration" not in key.lower()}
