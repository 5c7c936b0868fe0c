"""Traces of the OpenAI Agents SDK, as `Span.export()` and `Trace.export()` give them.

One object a line, or `{"data": [...]}` as the SDK's own exporter sends it, or an array. The run is the trace, the
session its group_id; the agent is that of the nearest agent span around. The SDK's traces name no compactions, and no
call ids: the span's id stands for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from streamguard.importers.documents import Document, Documents
from streamguard.importers.fragments import NotReadableError, decoded, moment_of, raw
from streamguard.importers.intake import Imported, Intake
from streamguard.importers.spans import Around, ToolSpan, Trace
from streamguard.replay import Line

__all__ = ["OpenAIAgents"]


class Batch(msgspec.Struct):
    """What the SDK's exporter sends at once."""

    data: list[msgspec.Raw]


class SpanData(msgspec.Struct):
    """What a span is about."""

    type: str | None = None
    name: str | None = None
    input: Any = None
    output: Any = None


class SpanError(msgspec.Struct):
    """What went wrong in a span."""

    message: str | None = None
    data: Any = None


class Item(msgspec.Struct):
    """A trace or a span."""

    object: str | None = None
    id: str | None = None
    trace_id: str | None = None
    group_id: str | None = None
    parent_id: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    span_data: SpanData | None = None
    error: SpanError | None = None


class OpenAIAgents:
    """Reads exported traces; the events come at the end of the file, in the order of time."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._documents = Documents(intake)
        self._trace = Trace(intake)

    def read(self, line: Line) -> Iterator[Imported]:
        """Take a line; the events come at the end."""
        for document in self._documents.read(line):
            self._take(document)
        yield from ()

    def finish(self) -> Iterator[Imported]:
        """Yield all events."""
        for document in self._documents.finish():
            self._take(document)
        yield from self._trace.events(by_conversation=False)

    def _take(self, document: Document) -> None:
        try:
            items = _items(document.text)
        except NotReadableError as error:
            self._intake.refuse(
                document.line, f"no trace of the OpenAI Agents SDK (mend or drop it, or name another --format): {error}"
            )
            return
        for number, piece in enumerate(items, 1):
            try:
                self._item(document.line, decoded(piece, Item))
            except NotReadableError as error:
                self._intake.refuse(document.line, f"item {number} is no trace and no span: {error}")

    def _item(self, line: int, item: Item) -> None:
        if item.object == "trace":
            self._trace.span(item.id or "", "", Around(None, None, item.group_id))
            self._intake.skipped["traces"] += 1
            return
        data = item.span_data
        if item.object != "trace.span" or data is None:
            raise NotReadableError("`object` is neither trace nor trace.span, or there is no span_data")
        if not item.id or not item.trace_id:
            raise NotReadableError("a span needs `id` and `trace_id`")
        agent = data.name if data.type == "agent" else None
        self._trace.span(item.trace_id, item.id, Around(item.parent_id, agent, None))
        if data.type != "function":
            self._intake.skipped["spans of other types"] += 1
            return
        start = moment_of(item.started_at)
        if start is None:
            raise NotReadableError("a function span needs `started_at`, an RFC 3339 time")
        self._trace.add(
            ToolSpan(
                line,
                item.trace_id,
                item.id,
                data.name,
                item.id,
                _json(data.input),
                _json(data.output),
                _error(item.error),
                start,
                moment_of(item.ended_at),
            )
        )


def _items(text: bytes) -> list[msgspec.Raw]:
    if text.startswith(b"["):
        return decoded(text, list[msgspec.Raw])
    if "data" in decoded(text, dict[str, msgspec.Raw]):
        return decoded(text, Batch).data
    return [msgspec.Raw(text)]


def _json(value: Any) -> msgspec.Raw | None:
    """Carry a value over; texts that are JSON, as arguments are, become what they say."""
    if value is None:
        return None
    return raw(value) if isinstance(value, str) else msgspec.Raw(msgspec.json.encode(value))


def _error(error: SpanError | None) -> msgspec.Raw | None:
    """Return the error's own text; the SDK's message is the same for all of them."""
    if error is None:
        return None
    own = error.data.get("error") if isinstance(error.data, dict) else None
    return msgspec.Raw(msgspec.json.encode(own if own not in (None, "") else error.message or "error"))
