"""Telling whose recording a file is by its first lines."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from streamguard.importers.fragments import NotReadableError, decoded

__all__ = ["EVENTS", "FORMATS", "format_of"]

EVENTS: Final = "events"
CLAUDE_CODE: Final = "claude-code"
OPENAI_AGENTS: Final = "openai-agents"
OTLP: Final = "otlp"
OPENCLAW: Final = "openclaw"

FORMATS: Final = (EVENTS, CLAUDE_CODE, OPENAI_AGENTS, OTLP, OPENCLAW)

EVENT_TYPES: Final = ("tool_call", "tool_result", "compaction", "run_ended")

SPANS: Final = {
    OTLP: re.compile(rb'"resourceSpans"\s*:'),
    OPENAI_AGENTS: re.compile(rb'"object"\s*:\s*"trace(\.span)?"'),
}
"""What a line of a document over many lines has, if it decides."""


def format_of(text: bytes) -> str | None:
    """Return the format that a line, or the part of a document in it, can only be of; None if it may be any."""
    try:
        if text.lstrip().startswith(b"["):
            items = decoded(text, list[msgspec.Raw])
            return format_of(bytes(items[0])) if items else None
        fields = decoded(text, dict[str, msgspec.Raw])
    except (NotReadableError, RecursionError):
        return next((name for name, sign in SPANS.items() if sign.search(text)), None)
    return _format_of_object(fields)


def _format_of_object(fields: dict[str, msgspec.Raw]) -> str | None:
    if "resourceSpans" in fields:
        return OTLP
    if _text(fields, "object") in ("trace", "trace.span"):
        return OPENAI_AGENTS
    if "data" in fields and bytes(fields["data"]).startswith(b"["):
        return OPENAI_AGENTS if format_of(bytes(fields["data"])) == OPENAI_AGENTS else None
    kind = _text(fields, "type")
    if "sessionId" in fields or kind == "file-history-snapshot" or (kind == "summary" and "leafUuid" in fields):
        return CLAUDE_CODE
    if "parentId" in fields or (kind == "session" and "id" in fields and "cwd" in fields):
        return OPENCLAW
    if kind in EVENT_TYPES or "run_id" in fields or "session_id" in fields:
        return EVENTS
    return None


def _text(fields: dict[str, msgspec.Raw], name: str) -> str | None:
    try:
        return decoded(fields[name], str) if name in fields else None
    except NotReadableError:
        return None
