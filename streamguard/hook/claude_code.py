"""What Claude Code says to its hooks, as events of the contract, and verdicts, as what its hooks answer.

Field names are those of Claude Code's hooks reference; of what a hook is told, only what is named here is sent on.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False  # typing's own costs some milliseconds
if TYPE_CHECKING:
    from typing import Any, Final

__all__ = ["NotAHookError", "Seen", "answer", "event_of"]

AGENT: Final = "claude-code"

SHELLS: Final = ("Bash", "PowerShell")
"""Tools whose argument `description` is the model's remark on the command: it is worded anew each time."""

VOLATILE: Final = ("durationMs", "durationSeconds", "totalDurationMs")
"""Fields of results that differ between two equal results."""

LARGEST: Final = 256 * 1024
"""Characters of arguments or of a result, as JSON; what is larger is sent as its hash."""


class NotAHookError(Exception):
    """What came on stdin, or as arguments, is nothing that a hook is called with. The message quotes no payload."""


class Seen:
    """What a hook was told: the event to publish, and whether Claude Code `asks` if the call may run."""

    __slots__ = ("asks", "event")

    def __init__(self, event: dict[str, Any], *, asks: bool = False) -> None:
        self.event = event
        self.asks = asks

    def blocked(self) -> dict[str, Any]:
        """Return the event that says that the call was blocked: nothing ran."""
        scope = {key: value for key, value in self.event.items() if key not in ("type", "tool", "args", "args_hash")}
        return {**scope, "type": "tool_result", "status": "blocked"}


def event_of(text: bytes, agent: str | None) -> Seen | None:
    """Return what a hook's input means for the guard; None: nothing. Raises `NotAHookError`."""
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        raise NotAHookError("stdin is no JSON: this program is to be called by a hook of Claude Code") from None
    if type(told) is not dict:
        raise NotAHookError("stdin is no JSON object: this program is to be called by a hook of Claude Code")
    kind = told.get("hook_event_name")
    if kind == "PreToolUse":
        args = told.get("tool_input")
        if told.get("tool_name") in SHELLS and type(args) is dict:
            args = {key: value for key, value in args.items() if key != "description"}
        call = _scope(told, agent, "tool_call") | {
            "call_id": _text(told, "tool_use_id"),
            "tool": _text(told, "tool_name"),
        }
        return Seen(call | _sized("args", args), asks=True)
    if kind in ("PostToolUse", "PostToolUseFailure"):
        return Seen(_scope(told, agent, "tool_result") | {"call_id": _text(told, "tool_use_id")} | _outcome(told, kind))
    if kind == "PreCompact":
        return Seen(_scope(told, agent, "compaction") | _optional(told, "trigger"))
    if kind == "SessionEnd":
        return Seen(_scope(told, agent, "run_ended") | _optional(told, "reason"))
    return None


def answer(verdict: dict[str, Any]) -> str:
    """Return what a PreToolUse hook writes on stdout; of a call that is allowed, nothing: the user's rules hold."""
    action, message = verdict.get("action"), verdict.get("message")
    reason = message if type(message) is str and message else "streamguard has stopped this call."
    decision = {"hookEventName": "PreToolUse"}
    denied = {**decision, "permissionDecision": "deny", "permissionDecisionReason": reason}
    if action == "abort":
        return json.dumps({"continue": False, "stopReason": reason, "hookSpecificOutput": denied})
    if action == "block":
        return json.dumps({"hookSpecificOutput": denied})
    if action == "warn":
        return json.dumps({"hookSpecificOutput": {**decision, "additionalContext": reason}})
    return ""


def _scope(told: dict[str, Any], agent: str | None, kind: str) -> dict[str, Any]:
    """Return the fields that all events share. A sub-agent's run is `<session>/<sub-agent>`, below the session's."""
    session, child = _text(told, "session_id"), told.get("agent_id")
    agent_id = agent or told.get("agent_type") or AGENT
    scope = {"type": kind, "run_id": session, "agent_id": agent_id, "session_id": session}
    if type(child) is str and child:
        scope |= {"run_id": f"{session}/{child}", "root_run_id": session, "parent_run_id": session}
    return scope


def _outcome(told: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return what came of a call; a call that the user interrupted says nothing about progress."""
    if kind == "PostToolUseFailure":
        return {} if told.get("is_interrupt") is True else _sized("error", told.get("error") or "failed", "result_hash")
    result = told.get("tool_response")
    if type(result) is dict:
        result = {key: value for key, value in result.items() if key not in VOLATILE}
    return _sized("result", result)


def _sized(key: str, value: Any, hash_key: str | None = None) -> dict[str, Any]:
    """Return a field, or its hash if it is so large that it would be dropped on the way."""
    text = json.dumps(value, sort_keys=True)
    if len(text) <= LARGEST:
        return {key: value}
    import hashlib  # noqa: PLC0415 - seldom needed, and slow to import

    return {hash_key or f"{key}_hash": hashlib.sha256(text.encode()).hexdigest()}


def _text(told: dict[str, Any], key: str) -> str:
    value = told.get(key)
    if type(value) is not str or not value.strip():
        raise NotAHookError(f"the hook's input has no {key}: this program is to be called by a hook of Claude Code")
    return value


def _optional(told: dict[str, Any], key: str) -> dict[str, str]:
    value = told.get(key)
    return {key: value} if type(value) is str else {}
