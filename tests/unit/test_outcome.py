"""What counts as the same result. The conformance cases hold the rules by tool; here is what they leave open."""

from __future__ import annotations

from typing import Any

import pytest

from streamguard.events import ToolResult
from streamguard.guard.outcome import kind_of, outcome_of, unknown_tool


def outcome(tool: str = "read", args: Any = None, **fields: Any) -> bytes | None:
    """Return the outcome hash of a result of this call."""
    return outcome_of(ToolResult(run_id="r", **fields), kind_of(tool, args, ("telegram",)))


def text(value: str, **details: Any) -> dict[str, Any]:
    """Return a result of OpenClaw's shape."""
    return {"content": [{"type": "text", "text": value}], "details": details}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"status": "blocked"},
        {"status": "blocked", "result": "ignored"},
        {"error": None},
        {"result": text("x", status="blocked", deniedReason="tool-loop")},
        {"result": {"status": "blocked", "deniedReason": "tool-loop"}},
    ],
)
def test_no_outcome(fields: dict[str, Any]) -> None:
    """A result that says nothing about progress has no outcome."""
    assert outcome(**fields) is None


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"error": "x"}, {"result": "x"}),
        ({"error": "x"}, {"result_hash": "x"}),
        ({"result": "x"}, {"result_hash": "x"}),
        ({"result": None}, {"result": {}}),
        ({"result": text("a")}, {"result": text("b")}),
        ({"result": text("a", n=1)}, {"result": text("a", n=2)}),
        ({"result": {"plain": 1}}, {"result": {"plain": 2}}),
        ({"result": [1, 2]}, {"result": [2, 1]}),
        ({"error": False}, {"error": 0}),
        ({"result": {"details": {"a": 1}}}, {"result": text("", b=1)}),
    ],
)
def test_different_outcomes(left: dict[str, Any], right: dict[str, Any]) -> None:
    """Errors, results and producers' hashes are kept apart, and so is any difference within them."""
    assert outcome(**left) != outcome(**right)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"result": text("  a\n")}, {"result": text("a")}),
        ({"result": text("\ufeffa\u00a0")}, {"result": text("a")}),
        ({"result": {"content": [{"type": "image", "data": "1"}]}}, {"result": {"content": []}}),
        ({"result": {"content": "x"}}, {"result": {"details": None}}),
        ({"result": {"b": 1, "a": 2}}, {"result": {"a": 2, "b": 1}}),
        ({"error": {"a": 1}}, {"error": '{"a":1}'}),
        ({"result": None, "result_hash": "h"}, {"result_hash": "h"}),
    ],
)
def test_equal_outcomes(left: dict[str, Any], right: dict[str, Any]) -> None:
    """Blanks around a text, content that is no text, key order and number spelling do not look like progress."""
    assert outcome(**left) == outcome(**right)


def test_ids_of_sends_do_not_look_like_progress() -> None:
    """Two equal sends are equal, though their message ids differ, at any depth."""
    left, right = (
        {
            "details": {
                "ok": True,
                "parts": [{"messageId": n, "to": "x"}],
                "m": {"id": f"{n}", "text": "t", "senderId": "s"},
            }
        }
        for n in (1, 2)
    )
    args = {"action": "sendMessage", "to": "telegram:1"}

    assert outcome("telegram", args, result=left) == outcome("telegram", args, result=right)
    assert outcome("telegram", {"action": "read"}, result=left) != outcome("telegram", {"action": "read"}, result=right)


@pytest.mark.parametrize("args", [{"action": "sendMessage"}, {"action": "sendMessage", "to": " "}, {"to": "x"}, "send"])
def test_what_is_no_send(args: Any) -> None:
    """A tool named in sendTools sends only with the action sendMessage and somebody to send to."""
    assert kind_of("telegram", args, ("telegram",)) == kind_of("read", None, ())


def test_an_unknown_tool_is_read_from_errors_only() -> None:
    """The name comes from an error's text, never from a result."""
    assert "foo.bar-1" == unknown_tool(ToolResult(error='Unknown tool: "Foo.Bar-1"'))
    assert unknown_tool(ToolResult(result="Unknown tool: foo")) is None
    assert unknown_tool(ToolResult(error="Unknown tool: foo", status="blocked")) is None
