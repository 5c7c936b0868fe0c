"""OpenClaw's session logs (`~/.openclaw/agents/<agent>/sessions/<session>.jsonl`, and archives of that form).

The run is the session that the header names; without a header (a log that was cut) the file's name does. The agent is
taken from the folder. Written by the SessionManager of OpenClaw and of pi; newer versions keep live sessions in SQLite.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any, Final

import msgspec
from msgspec import UNSET

from streamguard.importers.fragments import NotReadableError, Piece, decoded, iso_time, present, texts_of
from streamguard.importers.intake import Imported, Intake
from streamguard.replay import STDIN, Line

__all__ = ["OpenClaw"]

AGENT: Final = re.compile(r"(?:^|[/\\])agents[/\\]([^/\\]+)[/\\]sessions[/\\][^/\\]+$")

MILLISECOND: Final = 1_000_000

LINES: Final = frozenset(
    ("branch_summary", "custom", "custom_message", "label", "model_change", "session_info", "thinking_level_change")
)
"""Types of entries that are counted by their own name."""


class Block(msgspec.Struct):
    """A block of what the model said."""

    type: str | None = None
    id: str | None = None
    name: str | None = None
    arguments: Piece = UNSET


class Message(msgspec.Struct):
    """A message: of the user, of the model with its calls, or the result of a call."""

    role: str | None = None
    content: Piece = UNSET
    toolCallId: str | None = None  # noqa: N815 - as the file spells it
    toolName: str | None = None  # noqa: N815
    details: Piece = UNSET
    isError: bool | None = None  # noqa: N815
    timestamp: int | float | str | None = None


class Entry(msgspec.Struct):
    """A line of a session log."""

    type: str | None = None
    id: str | None = None
    timestamp: str | None = None
    message: Message | None = None
    tokensBefore: int | None = None  # noqa: N815
    tokensAfter: int | None = None  # noqa: N815


class OpenClaw:
    """Reads a session log, line by line, in the order of the file."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._session = PurePath(intake.file).name.partition(".jsonl")[0] if intake.file != STDIN else None
        found = AGENT.search(intake.file)
        self._agent = found[1] if found else None

    def read(self, line: Line) -> Iterator[Imported]:
        """Yield the events of a line."""
        text = self._intake.text_of(line)
        if text is None:
            return
        try:
            entry = decoded(text, Entry)
            if entry.type == "session":
                self._session = entry.id or self._session
                self._intake.skipped["session headers"] += 1
            elif entry.type == "message" and entry.message is not None:
                yield from self._message(line, entry, entry.message)
            elif entry.type == "compaction":
                tokens = {"tokens_before": entry.tokensBefore, "tokens_after": entry.tokensAfter}
                yield from self._event(line, entry, None, {"type": "compaction", **tokens})
            else:
                self._intake.skipped[f"{entry.type if entry.type in LINES else 'other'} entries"] += 1
        except NotReadableError as error:
            self._intake.refuse(
                line.number, f"no line of an OpenClaw session log (mend or drop it, or name another --format): {error}"
            )

    def finish(self) -> Iterator[Imported]:
        """Yield what is left at the end of the file: nothing."""
        yield from ()

    def _message(self, line: Line, entry: Entry, message: Message) -> Iterator[Imported]:
        if message.role == "toolResult":
            yield from self._event(line, entry, None, _result(message))
            return
        content = bytes(message.content or b"").lstrip()
        calls = message.role == "assistant" and content.startswith(b"[")
        found = 0
        for number, piece in enumerate(decoded(content, list[msgspec.Raw]) if calls else []):
            block = self._intake.piece(line.number, f"block {number} of the message", piece, Block)
            if block is not None and block.type == "toolCall":
                found += 1
                call = {"type": "tool_call", "call_id": block.id, "tool": block.name, "args": block.arguments}
                yield from self._event(line, entry, number, call | {"round_id": entry.id})
        if not found:
            self._intake.skipped["messages without tool calls"] += 1

    def _event(self, line: Line, entry: Entry, number: int | None, fields: dict[str, Any]) -> Iterator[Imported]:
        """Yield an event of this session; providers use call ids again, so its id is the entry's."""
        event_id = entry.id if number is None else f"{entry.id}:{number}"
        about = {
            "run_id": self._session,
            "session_id": self._session,
            "agent_id": self._agent,
            "event_id": event_id if entry.id else None,
            "time": entry.timestamp or _time(entry.message),
        }
        return self._intake.event(line.number, fields | about)


def _result(message: Message) -> dict[str, Any]:
    fields: dict[str, Any] = {"type": "tool_result", "call_id": message.toolCallId, "tool": message.toolName}
    if not message.isError:
        whole = {"content": message.content, "details": message.details}
        return fields | {"result": {name: part for name, part in whole.items() if part is not UNSET}}
    text = texts_of(message.content)
    return fields | {"error": text if text is not None else present(message.content) or "error"}


def _time(message: Message | None) -> str | None:
    """Return a message's own time, in milliseconds since 1970, as RFC 3339."""
    if message is None or not isinstance(message.timestamp, int):
        return None
    return iso_time(message.timestamp * MILLISECOND)
