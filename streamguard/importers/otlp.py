"""OpenTelemetry traces in OTLP's JSON, by the semantic conventions for generative AI: `execute_tool` spans.

One `{"resourceSpans": [...]}` a line (the collector's file exporter), or one over many lines. The run is
`gen_ai.conversation.id`, of the span, of one around it, or the only one of its trace; else the trace. Arguments and
results are recorded only where content capture is on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from streamguard.importers.attributes import KeyValue, values_of
from streamguard.importers.documents import Document, Documents
from streamguard.importers.fragments import NotReadableError, decoded, raw
from streamguard.importers.intake import Imported, Intake
from streamguard.importers.spans import Around, Compacted, ToolSpan, Trace
from streamguard.replay import Line

__all__ = ["Otlp"]

TOOL: Final = "execute_tool"

ERROR_CODES: Final = (2, "STATUS_CODE_ERROR")


class Status(msgspec.Struct):
    """How a span ended."""

    code: int | str | None = None
    message: str | None = None


class SpanEvent(msgspec.Struct):
    """Something that happened in a span."""

    name: str | None = None
    attributes: list[KeyValue] | None = None


class Span(msgspec.Struct):
    """A span of OTLP."""

    traceId: str  # noqa: N815 - as the format spells it
    spanId: str  # noqa: N815
    parentSpanId: str | None = None  # noqa: N815
    name: str | None = None
    startTimeUnixNano: int | str | None = None  # noqa: N815
    endTimeUnixNano: int | str | None = None  # noqa: N815
    attributes: list[KeyValue] | None = None
    status: Status | None = None
    events: list[SpanEvent] | None = None


class ScopeSpans(msgspec.Struct):
    """The spans of one library."""

    spans: list[msgspec.Raw] | None = None


class ResourceSpans(msgspec.Struct):
    """The spans of one service."""

    scopeSpans: list[ScopeSpans] | None = None  # noqa: N815


class Traces(msgspec.Struct):
    """An export of traces."""

    resourceSpans: list[ResourceSpans]  # noqa: N815


class Otlp:
    """Reads exports; the events come at the end of the file, in the order of time."""

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
        yield from self._trace.events(by_conversation=True)

    def _take(self, document: Document) -> None:
        try:
            if document.text.startswith(b"{") and b"resourceSpans" not in document.text:
                self._intake.skipped["exports without resourceSpans (logs, metrics)"] += 1
                return
            resources = decoded(document.text, Traces).resourceSpans
        except NotReadableError as error:
            self._intake.refuse(document.line, f"no OTLP traces (mend or drop them, or name another --format): {error}")
            return
        scopes = [scope for resource in resources for scope in resource.scopeSpans or ()]
        for number, piece in enumerate((span for scope in scopes for span in scope.spans or ()), 1):
            try:
                self._span(document.line, decoded(piece, Span))
            except NotReadableError as error:
                self._intake.refuse(document.line, f"span {number} is no OTLP span: {error}")

    def _span(self, line: int, span: Span) -> None:
        values = values_of(span.attributes)
        agent = _text(values.get("gen_ai.agent.id")) or _text(values.get("gen_ai.agent.name"))
        around = Around(span.parentSpanId or None, agent, _text(values.get("gen_ai.conversation.id")))
        self._trace.span(span.traceId, span.spanId, around)
        operation = _text(values.get("gen_ai.operation.name"))
        if values.get("gen_ai.conversation.compacted") is True:
            self._trace.add(Compacted(line, span.traceId, span.spanId, _start(span)))
        if operation == TOOL or (operation is None and (span.name or "").startswith(TOOL)):
            self._trace.add(_tool_span(line, span, values))
        elif values.get("gen_ai.conversation.compacted") is not True:
            self._intake.skipped["spans that execute no tool"] += 1


def _tool_span(line: int, span: Span, values: dict[str, Any]) -> ToolSpan:
    named = (span.name or "").removeprefix(TOOL).strip() or None
    return ToolSpan(
        line,
        span.traceId,
        span.spanId,
        _text(values.get("gen_ai.tool.name")) or named,
        _text(values.get("gen_ai.tool.call.id")) or span.spanId,
        _json(values.get("gen_ai.tool.call.arguments")),
        _json(values.get("gen_ai.tool.call.result")),
        _error(span, values),
        _start(span),
        _nanoseconds(span.endTimeUnixNano),
    )


def _error(span: Span, values: dict[str, Any]) -> msgspec.Raw | None:
    """Return why a span failed: what its status says, else its exception, else the error's type."""
    kind = _text(values.get("error.type"))
    failed = span.status is not None and span.status.code in ERROR_CODES
    if kind is None and not failed:
        return None
    exceptions = [values_of(event.attributes) for event in span.events or () if event.name == "exception"]
    said = _text(exceptions[-1].get("exception.message")) if exceptions else None
    message = (span.status.message if span.status is not None else None) or said or kind or "error"
    return msgspec.Raw(msgspec.json.encode(message))


def _start(span: Span) -> int:
    start = _nanoseconds(span.startTimeUnixNano)
    if start is None:
        raise NotReadableError("it has no startTimeUnixNano")
    return start


def _nanoseconds(value: int | str | None) -> int | None:
    """Read a time; 0 stands for none. 64-bit numbers are strings in OTLP's JSON."""
    if isinstance(value, str):
        value = int(value) if value.isascii() and value.isdigit() and len(value) < 20 else None  # noqa: PLR2004
    return value if value and 0 < value < 1 << 63 else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _json(value: Any) -> msgspec.Raw | None:
    if value is None:
        return None
    return raw(value) if isinstance(value, str) else msgspec.Raw(msgspec.json.encode(value))
