"""Claude Code's transcripts (`~/.claude/projects/<project>/*.jsonl`, and `<session>/subagents/agent-*.jsonl`).

The run is the session. A sub-agent has its own context, and so is a run of its own: `<session>/<agentId>`; where old
versions wrote no agentId, the first line of the side chain names it. The format is not documented by its maker.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import UNSET

from streamguard.importers.fragments import NotReadableError, Piece, decoded, present, texts_of
from streamguard.importers.intake import Imported, Intake
from streamguard.replay import Line

__all__ = ["ClaudeCode"]

UNKNOWN_TOOL: Final = re.compile(r"No such tool available: ([A-Za-z0-9_.-]*[A-Za-z0-9_-])")

MESSAGES: Final = ("user", "assistant")

LINES: Final = frozenset(
    ("attachment", "file-history-snapshot", "last-prompt", "progress", "queue-operation", "summary", "system")
)
"""Types of lines that are counted by their own name."""


class Message(msgspec.Struct):
    """What a user or the model said."""

    id: str | None = None
    content: Piece = UNSET


class Block(msgspec.Struct):
    """A block of a message: a call, a result, or something else."""

    type: str | None = None
    id: str | None = None
    name: str | None = None
    input: Piece = UNSET
    tool_use_id: str | None = None
    content: Piece = UNSET
    is_error: bool | None = None


class Compacted(msgspec.Struct):
    """What a `compact_boundary` says about itself."""

    trigger: str | None = None
    preTokens: int | None = None  # noqa: N815 - as the file spells it
    postTokens: int | None = None  # noqa: N815


class Entry(msgspec.Struct):
    """A line of a transcript."""

    type: str | None = None
    subtype: str | None = None
    uuid: str | None = None
    parentUuid: str | None = None  # noqa: N815
    sessionId: str | None = None  # noqa: N815
    agentId: str | None = None  # noqa: N815
    isSidechain: bool | None = None  # noqa: N815
    timestamp: str | None = None
    message: Piece = UNSET
    compactMetadata: Compacted | None = None  # noqa: N815


class ClaudeCode:
    """Reads a transcript, line by line, in the order of the file."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._chains: dict[str, str] = {}  # lines of side chains without agentId, and the first line of each chain

    def read(self, line: Line) -> Iterator[Imported]:
        """Yield the events of a line."""
        text = self._intake.text_of(line)
        if text is None:
            return
        try:
            entry = decoded(text, Entry)
            if entry.type in MESSAGES and entry.message is not UNSET:
                yield from self._message(line, entry, decoded(entry.message, Message))
            elif entry.type == "system" and entry.subtype == "compact_boundary":
                yield from self._compaction(line, entry)
            else:
                self._intake.skipped[f"{entry.type if entry.type in LINES else 'other'} lines"] += 1
        except NotReadableError as error:
            self._intake.refuse(
                line.number, f"no line of a Claude Code transcript (mend or drop it, or name another --format): {error}"
            )

    def finish(self) -> Iterator[Imported]:
        """Yield what is left at the end of the file: nothing."""
        yield from ()

    def _message(self, line: Line, entry: Entry, message: Message) -> Iterator[Imported]:
        run = self._run(entry)
        content = bytes(message.content or b"").lstrip()
        found = 0
        for number, piece in enumerate(decoded(content, list[msgspec.Raw]) if content.startswith(b"[") else []):
            block = self._intake.piece(line.number, f"block {number} of the message", piece, Block)
            fields = None if block is None else _call(block, message) if entry.type == "assistant" else _result(block)
            if fields is not None:
                found += 1
                event_id = f"{entry.uuid}:{number}" if entry.uuid else None
                yield from self._intake.event(line.number, {**fields, **run, "event_id": event_id})
        if not found:
            self._intake.skipped["messages without tool calls or results"] += 1

    def _compaction(self, line: Line, entry: Entry) -> Iterator[Imported]:
        about = entry.compactMetadata or Compacted()
        fields = {
            "type": "compaction",
            "trigger": about.trigger,
            "tokens_before": about.preTokens,
            "tokens_after": about.postTokens,
            "event_id": entry.uuid,
        }
        return self._intake.event(line.number, {**fields, **self._run(entry)})

    def _run(self, entry: Entry) -> dict[str, Any]:
        """Return the fields that say whose event it is and when it was."""
        fields = {"run_id": entry.sessionId, "session_id": entry.sessionId, "time": entry.timestamp}
        agent = entry.agentId or (self._chain(entry) if entry.isSidechain else None)
        if agent and entry.sessionId:
            fields |= {"run_id": f"{entry.sessionId}/{agent}", "root_run_id": entry.sessionId}
        return fields | {"agent_id": entry.agentId}

    def _chain(self, entry: Entry) -> str | None:
        """Return the first line of an old side chain; several of them stand between each other in one file."""
        first = self._chains.get(entry.parentUuid or "", entry.uuid)
        if first and entry.uuid:
            self._chains[entry.uuid] = first
        return first


def _call(block: Block, message: Message) -> dict[str, Any] | None:
    if block.type != "tool_use":
        return None
    return {
        "type": "tool_call",
        "call_id": block.id,
        "tool": block.name,
        "args": block.input,
        "round_id": message.id,
    }


def _result(block: Block) -> dict[str, Any] | None:
    if block.type != "tool_result":
        return None
    fields: dict[str, Any] = {"type": "tool_result", "call_id": block.tool_use_id}
    if not block.is_error:
        return fields | {"result": block.content or msgspec.Raw(b"null")}
    text = texts_of(block.content)
    unknown = UNKNOWN_TOOL.search(text) if text else None
    error = text if text is not None else present(block.content) or "error"
    return fields | {"error": error, "unknown_tool": unknown[1] if unknown else None}
