"""Whose recording a file is, by its first lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from streamguard.importers import AUTO, EVENTS, recording
from streamguard.importers.detect import format_of


@pytest.mark.parametrize(
    ("line", "form"),
    [
        ({"type": "tool_call", "run_id": "r", "tool": "t"}, "events"),
        ({"type": "compaction", "run_id": "r"}, "events"),
        ({"type": "novelty", "run_id": "r"}, "events"),
        ({"type": "summary", "summary": "s", "leafUuid": "u"}, "claude-code"),
        ({"type": "user", "sessionId": "s", "message": {}}, "claude-code"),
        ({"type": "session", "version": 3, "id": "s", "timestamp": "t", "cwd": "/"}, "openclaw"),
        ({"type": "compaction", "id": "e", "parentId": "d"}, "openclaw"),
        ({"object": "trace.span", "id": "s"}, "openai-agents"),
        ({"data": [{"object": "trace"}]}, "openai-agents"),
        ([{"object": "trace.span"}], "openai-agents"),
        ({"resourceSpans": []}, "otlp"),
        ({"type": "queue"}, None),
        ({"data": [1]}, None),
        ([], None),
        ("text", None),
    ],
)
def test_a_line_decides(line: Any, form: str | None) -> None:
    """A line that only one format has decides; any other does not."""
    assert form == format_of(json.dumps(line).encode())


def test_foreign_words_within_a_text_do_not_decide() -> None:
    """An event that quotes a trace is an event."""
    quoted = json.dumps({"resourceSpans": [], "object": "trace.span"})
    event = json.dumps({"type": "tool_result", "run_id": "r", "result": quoted}).encode()

    assert "events" == format_of(event)
    assert format_of(event[:-1]) is None


def test_a_printed_document_is_found_out(tmp_path: Path) -> None:
    """A document over many lines is found out by the line that decides, and none of its lines is lost."""
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"resourceSpans": []}, indent=2))
    found = recording(str(file), AUTO, 1000)

    assert ("otlp", 3) == (found.format, len(list(found.lines)))


def test_what_nothing_decides_is_events(tmp_path: Path) -> None:
    """Files that could be anything are read as events, as ever; long lines come without their text."""
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"garbage\n" + b"x" * 3000 + b"\n" + b'{"type":"tool_call","run_id":"r","tool":"t"}\n')
    found = recording(str(file), AUTO, 2000)

    assert EVENTS == found.format
    assert [8, None, 45] == [line.text and len(line.text) for line in found.lines]
