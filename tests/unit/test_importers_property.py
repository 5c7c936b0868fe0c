"""Importers on anything at all: the one documented error, or valid events."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamguard.errors import ImportInputError
from streamguard.events import decode_event, run_of
from streamguard.importers import CHOICES, Intake, events_of
from streamguard.importers.detect import FORMATS, format_of
from streamguard.replay import Line

WORDS = (
    "type", "message", "content", "tool_use", "tool_result", "toolCall", "toolResult", "id", "name", "input",
    "sessionId", "uuid", "parentUuid", "isSidechain", "is_error", "tool_use_id", "assistant", "user", "system",
    "subtype", "compact_boundary", "compactMetadata", "trigger", "preTokens", "session", "compaction", "role",
    "toolCallId", "isError", "details", "arguments", "timestamp", "object", "trace", "trace.span", "span_data",
    "function", "agent", "trace_id", "parent_id", "started_at", "ended_at", "error", "data", "output",
    "resourceSpans", "scopeSpans", "spans", "traceId", "spanId", "parentSpanId", "startTimeUnixNano",
    "endTimeUnixNano", "attributes", "key", "value", "stringValue", "execute_tool", "gen_ai.tool.name",
    "gen_ai.tool.call.arguments", "gen_ai.tool.call.result", "status", "code", "2026-01-01T00:00:00Z",
    "1767225600000000000", "[1e999]", '{"a":"\\ud800"}',
)  # fmt: skip
"""What the formats are made of, so that garbage gets deep into the importers."""

leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6), st.sampled_from(WORDS), st.just("\ud83d")
)
anything = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.one_of(st.sampled_from(WORDS), st.text(max_size=4)), inner)
    ),
    max_leaves=30,
)


def block(kind: str) -> st.SearchStrategy[dict[str, Any]]:
    """Make a block of a message, some of its fields wrong."""
    names = ("id", "name", "input", "tool_use_id", "content", "is_error", "arguments", "text")
    return st.dictionaries(st.sampled_from(names), st.one_of(st.text(max_size=3), anything), max_size=2).map(
        lambda fields: {"type": kind, "id": "i", "name": "n", "tool_use_id": "t", **fields}
    )


blocks = st.lists(st.sampled_from(["tool_use", "tool_result", "toolCall", "text"]).flatmap(block), max_size=3)
messages = st.builds(
    lambda kind, role, content, more: {
        "type": kind,
        "sessionId": "s",
        "id": "e",
        "uuid": "u",
        "message": {"role": role, "content": content, **more},
    },
    st.sampled_from(["assistant", "user", "message"]),
    st.sampled_from(["assistant", "toolResult", "user"]),
    st.one_of(blocks, anything),
    st.dictionaries(st.sampled_from(["toolCallId", "toolName", "details", "isError", "id"]), anything, max_size=2),
)
attributes = st.lists(
    st.builds(
        lambda key, value: {"key": key, "value": value},
        st.sampled_from(
            [word for word in WORDS if word.startswith("gen_ai")] + ["error.type", "gen_ai.conversation.id"]
        ),
        st.one_of(anything, st.builds(lambda value: {"stringValue": value}, leaves)),
    ),
    max_size=4,
)
spans = st.builds(
    lambda parent, start, end, values: {
        "traceId": "t",
        "spanId": "s",
        "parentSpanId": parent,
        "name": "execute_tool x",
        "startTimeUnixNano": start,
        "endTimeUnixNano": end,
        "attributes": values,
    },
    st.sampled_from(["s", "p", ""]),
    st.one_of(st.integers(), st.sampled_from(["1767225600000000000", "0", "x"])),
    st.one_of(st.integers(), st.none()),
    st.one_of(attributes, anything),
)
exports = st.lists(spans, max_size=3).map(lambda found: {"resourceSpans": [{"scopeSpans": [{"spans": found}]}]})
items = st.builds(
    lambda data, start, error: {
        "object": "trace.span",
        "id": "s",
        "trace_id": "t",
        "parent_id": "s",
        "started_at": start,
        "ended_at": "2026-01-01T00:00:01Z",
        "error": error,
        "span_data": {"type": "function", "name": "f", "input": "{}", "output": "x", **data},
    },
    st.dictionaries(st.sampled_from(["name", "input", "output"]), anything, max_size=2),
    st.one_of(st.just("2026-01-01T00:00:00Z"), st.text(max_size=5)),
    st.one_of(st.none(), st.fixed_dictionaries({"message": leaves, "data": anything})),
)
lines = st.one_of(
    st.binary(max_size=80),
    st.one_of(anything, messages, exports, items).map(lambda value: json.dumps(value).encode()),
    st.one_of(messages, exports, items).map(
        lambda value: json.dumps(value, ensure_ascii=False).encode(errors="replace")[:-2]
    ),
)


OWN = {"claude-code": messages, "openclaw": messages, "otlp": exports, "openai-agents": items}
"""By format: records that are nearly right."""


def check(form: str, texts: list[bytes]) -> None:
    """Import lines; assert that what comes out decodes as a worker decodes it, and that the rest is refused."""
    problems: list[ImportInputError] = []
    intake = Intake("made", record_bytes=10_000, json_depth=20, refuse=problems.append)
    made = [Line("made", number, text + b"\n", 0) for number, text in enumerate(texts, 1)]

    found = list(events_of(made, form, intake))

    assert [one.event for one in found] == [decode_event(one.value, depth=20) for one in found]
    assert all(run_of(one.event) for one in found)
    assert len(problems) == intake.refused


@pytest.mark.parametrize("form", FORMATS)
@given(texts=st.lists(lines, max_size=5))
def test_garbage_gives_the_documented_error_or_valid_events(form: str, texts: list[bytes]) -> None:
    """Whatever the lines are: there are valid events, what is wrong is refused, and nothing else is raised."""
    check(form, texts)


@pytest.mark.parametrize("form", list(OWN))
@given(data=st.data())
def test_nearly_right_records_give_the_documented_error_or_valid_events(form: str, data: st.DataObject) -> None:
    """The same of records whose garbage sits deep within the format's own shape."""
    check(form, [json.dumps(data.draw(OWN[form])).encode()])


@given(text=lines)
def test_detection_raises_nothing(text: bytes) -> None:
    """Any line is of a known format, or of none that can be told."""
    assert format_of(text) in (None, *CHOICES)
