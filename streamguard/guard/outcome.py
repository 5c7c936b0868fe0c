"""What counts as the same result: normalisers by tool, and the name of a tool that does not exist.

Source of every rule: the section "Outcome hash" of the detection rules. Whatever a normaliser leaves out (durations,
process ids, message ids) never looks like progress.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from msgspec import UNSET
from xxhash import xxh3_128_digest

from streamguard.events import NAME_CHARACTERS, ToolCall, ToolResult
from streamguard.guard.signature import canonical_json

__all__ = ["LOG", "PLAIN", "POLL", "kind_asked", "kind_of", "outcome_of", "unknown_tool"]


PLAIN: Final = 1
EXEC: Final = 2
POLL: Final = 3
LOG: Final = 4
SEND: Final = 5
"""How the results of a call are compared. The number seeds the hash, so that no two kinds are ever equal."""

_ERROR_SEED: Final = 100
_WHOLE_SEED: Final = 101
_PRODUCER_SEED: Final = 102

_ALWAYS: Final = {"exec": EXEC, "sessions_send": SEND}
_SPECIAL: Final = frozenset((*_ALWAYS, "process", "message"))
_POLLS: Final = {"poll": POLL, "log": LOG}

MESSAGE_SENDS: Final = frozenset(
    ("send", "broadcast", "reply", "thread-reply", "sendWithEffect", "sendAttachment", "upload-file", "sticker", "poll")
)
"""Actions of the tool `message` that send something out."""

VOLATILE_KEYS: Final = frozenset(
    (
        "messageId", "message_id", "messageIds", "platformMessageId", "platformMessageIds", "fileId", "file_id",
        "fileKey", "pollId", "poll_id", "receipt", "runId", "idempotencyKey", "ts", "timestamp", "sentAt",
        "deliveredAt", "createdAt",
    )
)  # fmt: skip
"""Keys that differ between two equal sends."""

ASCII_BLANKS: Final = "\t\n\v\f\r "
JS_BLANKS: Final = ASCII_BLANKS + (
    "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
)
"""What the reference's trim() takes away (ECMAScript white space and line ends); Python's own set differs."""

_UNKNOWN: Final = re.compile(
    r"""unknown tool[:%s]+["'`]?([a-z0-9_.-]+)"""
    r"""|tool[%s]+["'`]?([a-z0-9_.-]+)["'`]?[%s]+(?:not found|is not available)""" % ((re.escape(JS_BLANKS),) * 3),
    re.IGNORECASE | re.ASCII,
)


def kind_of(tool: str, args: Any, send_tools: tuple[str, ...]) -> int:
    """Tell how results of this call are compared; `tool` is the normalised name."""
    if tool not in _SPECIAL and not send_tools:
        return PLAIN
    if tool in _ALWAYS:
        return _ALWAYS[tool]
    if type(args) is not dict:
        return PLAIN
    action = _string(args.get("action"))
    if tool == "process":
        return _POLLS.get(action, PLAIN)
    if tool == "message" and action in MESSAGE_SENDS:
        return SEND
    if tool in send_tools and action == "sendMessage" and trimmed(_string(args.get("to"))):
        return SEND
    return PLAIN


def kind_asked(tool: str, event: ToolCall | ToolResult, send_tools: tuple[str, ...]) -> int:
    """Tell the same of an event's arguments; where only their hash was sent, its producer says what is a poll."""
    if event.poll and event.args is UNSET:
        return POLL
    return kind_of(tool, event.args, send_tools)


def outcome_of(event: ToolResult, kind: int) -> bytes | None:
    """Return the 16-byte hash of a result's outcome, None if the result says nothing about progress."""
    if event.status == "blocked":
        return None
    if event.error is not None:
        return xxh3_128_digest(error_text(event.error), _ERROR_SEED)
    result = event.result
    if event.result_hash is not None and (result is UNSET or result is None):
        return xxh3_128_digest(event.result_hash.encode(), _PRODUCER_SEED)
    if result is UNSET:
        return None
    if type(result) is not dict:
        return xxh3_128_digest(canonical_json(result), _WHOLE_SEED)
    details = result.get("details")
    if type(details) is not dict:
        details = {} if "details" in result or "content" in result else result  # plain: its own details
    if "deniedReason" in details and details["deniedReason"] == "tool-loop" and details.get("status") == "blocked":
        return None  # the guard's own veto
    text = _text_of(result.get("content"))
    if kind == PLAIN:
        return xxh3_128_digest(canonical_json(details) + b"\0" + text.encode(), PLAIN)
    return xxh3_128_digest(_NORMALISERS[kind](details, text), kind)


def unknown_tool(event: ToolResult) -> str | None:
    """Return the name of the tool that the error says does not exist, in lower case; None if it says no such thing."""
    if event.unknown_tool is not None:
        return event.unknown_tool.lower()
    if event.error is None or event.status == "blocked":
        return None
    found = _UNKNOWN.search(trimmed(error_text(event.error).decode()))
    return (found[1] or found[2]).lower()[:NAME_CHARACTERS] if found else None


def error_text(error: Any) -> bytes:
    """Return an error as text: a string as it is, anything else as canonical JSON."""
    return error.encode() if type(error) is str else canonical_json(error)


def _text_of(content: Any) -> str:
    """Return the texts of a result's content, joined and trimmed; what is no text does not count."""
    if type(content) is not list:
        return ""
    texts = []
    for entry in content:
        if type(entry) is dict:
            text = entry.get("text")
            if type(text) is str and type(entry.get("type")) is str:
                texts.append(text)
    text = texts[0] if len(texts) == 1 else "\n".join(texts)
    return text.strip(ASCII_BLANKS if text.isascii() else JS_BLANKS)


def trimmed(text: str) -> str:
    """Take away what the reference's trim() takes away."""
    return text.strip(ASCII_BLANKS if text.isascii() else JS_BLANKS)


def _exec(details: dict[str, Any], text: str) -> bytes:
    status = details.get("status")
    if status in ("completed", "failed"):
        aggregated = trimmed(_string(details.get("aggregated")))
        code = details.get("exitCode")
        code = code if type(code) in (int, float) else None
        return canonical_json([status, code, details.get("timedOut") is True, aggregated or text])
    if status == "running":
        return canonical_json([status, _string(details.get("tail"))])
    if status in ("approval-pending", "approval-unavailable"):
        return canonical_json([status, *map(details.get, ("reason", "host", "command", "warningText"))])
    return b"\0" + canonical_json(details) + b"\0" + text.encode()


def _poll(details: dict[str, Any], text: str) -> bytes:
    return canonical_json([*map(details.get, ("status", "exitCode", "exitSignal", "aggregated")), text])


def _log(details: dict[str, Any], text: str) -> bytes:
    fields = ("status", "totalLines", "totalChars", "truncated", "exitCode", "exitSignal")
    return canonical_json([*map(details.get, fields), text])


def _send(details: dict[str, Any], text: str) -> bytes:  # noqa: ARG001 - sends are compared without their text
    return canonical_json(_stable(details))


_NORMALISERS: Final[dict[int, Callable[[dict[str, Any], str], bytes]]] = {
    EXEC: _exec,
    POLL: _poll,
    LOG: _log,
    SEND: _send,
}


def _stable(value: Any) -> Any:
    """Drop, at any depth, what differs between two equal sends."""
    if type(value) is list:
        return [_stable(item) for item in value]
    if type(value) is not dict:
        return value
    own_id = _is_message(value)
    return {
        key: _stable(item) for key, item in value.items() if key not in VOLATILE_KEYS and not (own_id and key == "id")
    }


def _is_message(value: dict[str, Any]) -> bool:
    """Tell a message (its `id` is new with every send) from another object (its `id` is a fact)."""
    if not (type(value.get("id")) is str and type(value.get("text")) is str):
        return False
    sender = any(type(value.get(key)) is str for key in ("direction", "senderId", "accountId"))
    return sender or type(value.get("conversation")) is dict


def _string(value: Any) -> str:
    return value if type(value) is str else ""
