"""Recordings of other tools become events: whose they are, when they were, and what came of each call.

`recorded/openai_agents.jsonl` was written by openai-agents 0.24.0 (its Runner, with a scripted model, and a trace
processor that writes `export()` of every trace and span), `recorded/otlp.jsonl` by opentelemetry-sdk 1.45.2 and its
OTLP encoder, `recorded/openclaw.jsonl` by the SessionManager of @mariozechner/pi-coding-agent 0.55.3, which OpenClaw
2026.3.2 uses. `recorded/claude_code.jsonl` is written by hand: Claude Code's format is not documented by its maker.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from streamguard.errors import ImportInputError
from streamguard.events import Compaction, Event, ToolCall, ToolResult
from streamguard.importers import Imported, Intake, events_of, recording
from streamguard.replay import Line, timestamp_of

RECORDED = Path(__file__).parent / "recorded"

TRACE = "886d57b49745319409fea46866e820b1"


def lines_of(*records: Any) -> list[Line]:
    """Write records as the lines of a file."""
    texts = [record if isinstance(record, bytes) else json.dumps(record).encode() for record in records]
    return [Line("made.jsonl", number, text + b"\n", 0) for number, text in enumerate(texts, 1)]


def imported(form: str, lines: Iterable[Line], intake: Intake | None = None) -> list[Event]:
    """Import lines; the first thing that is wrong is raised, unless the intake says otherwise."""
    intake = intake or Intake("made.jsonl", record_bytes=1 << 20, json_depth=128)
    return [found.event for found in events_of(lines, form, intake)]


def recorded(name: str) -> tuple[str, list[Imported], Intake]:
    """Import a recorded file; return the format that was found out, its events and what was left out."""
    file = str(RECORDED / name)
    intake = Intake(file, record_bytes=1 << 20, json_depth=128)
    found = recording(file, "auto", 1 << 20)
    return found.format, list(events_of(found.lines, found.format, intake)), intake


def calls(events: Iterable[Imported]) -> list[ToolCall]:
    """Return the calls among events."""
    return [found.event for found in events if isinstance(found.event, ToolCall)]


def results(events: Iterable[Imported]) -> list[ToolResult]:
    """Return the results among events."""
    return [found.event for found in events if isinstance(found.event, ToolResult)]


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("claude_code.jsonl", "claude-code"),
        ("openai_agents.jsonl", "openai-agents"),
        ("otlp.jsonl", "otlp"),
        ("openclaw.jsonl", "openclaw"),
    ],
)
def test_events_are_whole(name: str, form: str) -> None:
    """The format is found out; every event has its run, a time, an id of its own, and the same ones the second time."""
    found, events, _ = recorded(name)
    ids = [one.event.event_id for one in events]

    assert form == found
    assert len(ids) == len(set(ids))
    assert all(one.event.run_id and one.event.event_id and timestamp_of(one.event) for one in events)
    assert events == recorded(name)[1]


def test_claude_code() -> None:
    """The session is the run, calls of one turn are one round, errors and unknown tools are told from results."""
    _, events, intake = recorded("claude_code.jsonl")
    first, unknown = results(events)[:2]
    kinds = Counter(type(one.event) for one in events)

    assert {ToolCall: 14, ToolResult: 13, Compaction: 1} == kinds
    assert ["toolu_1", "toolu_2"] == [call.call_id for call in calls(events) if call.round_id == "msg_1"]
    assert [{"type": "text", "text": "1\u2192import os"}] == first.result
    assert ("PowerShell", True) == (unknown.unknown_tool, "No such tool" in unknown.error)
    assert {"file-history-snapshot lines": 1, "summary lines": 1, "messages without tool calls or results": 2} == (
        intake.skipped
    )


def test_claude_code_compactions_and_sub_agents() -> None:
    """A compact_boundary is a compaction with its trigger and size; a sub-agent is a run under its session."""
    _, events, _ = recorded("claude_code.jsonl")
    [compaction] = [one.event for one in events if isinstance(one.event, Compaction)]
    sub = calls(events)[-1]
    session = compaction.run_id

    assert ("auto", 155025) == (compaction.trigger, compaction.tokens_before)
    assert (f"{session}/a8412884de5cc5396", session, "a8412884de5cc5396") == (sub.run_id, sub.root_run_id, sub.agent_id)


def test_claude_code_old_side_chains_are_kept_apart() -> None:
    """Two side chains of one file without agentId are two runs, named by the first line of each."""

    def line(uuid: str, parent: str | None) -> dict[str, Any]:
        use = {"type": "tool_use", "id": f"t-{uuid}", "name": "Grep", "input": {}}
        about = {"sessionId": "s", "isSidechain": True, "uuid": uuid, "parentUuid": parent, "type": "assistant"}
        return {**about, "timestamp": "2026-01-01T00:00:00Z", "message": {"content": [use]}}

    events = imported("claude-code", lines_of(line("a", None), line("b", None), line("a2", "a"), line("b2", "b")))

    assert ["s/a", "s/b", "s/a", "s/b"] == [event.run_id for event in events]


def test_openai_agents() -> None:
    """The trace is the run, its group the session; the span is the call; a span's error is an error."""
    _, events, intake = recorded("openai_agents.jsonl")
    failed = [result for result in results(events) if result.error is not None]

    assert (17, 17) == (len(calls(events)), len(results(events)))
    assert {("chat-7", True)} == {(one.event.session_id, one.event.run_id == events[0].event.run_id) for one in events}
    assert ["Tool execution failed. Error details are redacted."] == [result.error for result in failed]
    assert ({"seconds": 0.05}, "slow") == (calls(events)[0].args, calls(events)[0].tool)
    assert {"spans of other types": 22, "traces": 1} == intake.skipped


def test_openai_agents_parallel_and_nested_spans_are_in_the_order_of_time() -> None:
    """Two calls at once start before either ends, the shorter one ends first; a tool's own agent works within it."""
    _, events, _ = recorded("openai_agents.jsonl")
    names = {call.call_id: f"{call.tool} {call.args.get('seconds', '')}".strip() for call in calls(events)}
    order = [
        ("call" if isinstance(one.event, ToolCall) else "result", names[one.event.call_id], one.event.agent_id)
        for one in events[:10]
        if isinstance(one.event, ToolCall | ToolResult)
    ]

    assert [
        ("call", "slow 0.05", "reader"),
        ("call", "slow 0.02", "reader"),
        ("result", "slow 0.02", "reader"),
        ("result", "slow 0.05", "reader"),
        ("call", "broken", "reader"),
        ("result", "broken", "reader"),
        ("call", "ask_helper", "reader"),
        ("call", "read_file", "helper"),
        ("result", "read_file", "helper"),
        ("result", "ask_helper", "reader"),
    ] == order


def test_otlp() -> None:
    """Conversation and agent come from the span around; arguments are what their JSON says; failures are errors."""
    _, events, intake = recorded("otlp.jsonl")
    first = results(events)[0]

    assert {("conv-9", "asst_5")} == {(one.event.run_id, one.event.agent_id) for one in events}
    assert ("call_0", "TimeoutError: no answer") == (first.call_id, first.error)
    assert ({"id": 7, "exact": True}, {"found": False}) == (calls(events)[1].args, results(events)[1].result)
    assert {"spans that execute no tool": 2} == intake.skipped


def span(number: int, start: int, end: int = 0, **attributes: str) -> dict[str, Any]:
    """Write a span that executes a tool; times are seconds of 2026."""
    nanoseconds = {name: str((1_767_225_600 + at) * 10**9) for name, at in (("start", start), ("end", end)) if at}
    return {
        "traceId": TRACE,
        "spanId": f"{number:016x}",
        "name": "execute_tool ls",
        **{f"{name}TimeUnixNano": at for name, at in nanoseconds.items()},
        "attributes": [
            {"key": name.replace("__", "."), "value": {"stringValue": value}} for name, value in attributes.items()
        ],
    }


def export(*spans: Any) -> dict[str, Any]:
    """Write an export of spans."""
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": list(spans)}]}]}


def test_otlp_without_content_and_without_an_end() -> None:
    """Without recorded results there are calls only, the run is the trace, the tool is in the name; it is noted."""
    intake = Intake("made.jsonl", record_bytes=1 << 20, json_depth=128)
    events = imported("otlp", lines_of(export(span(2, 20), span(1, 10, 15))), intake)

    assert [("0000000000000001", "ls", TRACE), ("0000000000000002", "ls", TRACE)] == [
        (event.call_id, event.tool, event.run_id) for event in events if isinstance(event, ToolCall)
    ]
    assert 2 == len(events)
    assert 2 == intake.noted["calls without a recorded result"]
    assert 2 == intake.noted["calls without recorded arguments (all calls of one tool look the same)"]


def test_otlp_error_type_beats_a_result() -> None:
    """A span with error.type and a result is an error; values of all types are read."""
    failed = span(1, 10, 11, error__type="timeout", gen_ai__tool__call__result="late")
    flags = {"arrayValue": {"values": [{"boolValue": True}]}}
    pairs = [{"key": "n", "value": {"intValue": "7"}}, {"key": "l", "value": flags}]
    arguments = {"kvlistValue": {"values": pairs}}
    failed["attributes"].append({"key": "gen_ai.tool.call.arguments", "value": arguments})
    call, result = imported("otlp", lines_of(export(failed)))

    assert isinstance(call, ToolCall)
    assert isinstance(result, ToolResult)
    assert {"n": 7, "l": [True]} == call.args
    assert ("timeout", "2026-01-01T00:00:11Z") == (result.error, result.time)


def test_openclaw() -> None:
    """The header's session is the run; results keep content and details; call ids may come again, event ids do not."""
    _, events, intake = recorded("openclaw.jsonl")
    failed, read = results(events)[:2]
    [compaction] = [one.event for one in events if isinstance(one.event, Compaction)]

    assert {"a82a8585-2e28-43ff-aa90-f02f961b867c"} == {one.event.run_id for one in events}
    assert ("Tool web_click not found", "web_click") == (failed.error, failed.tool)
    assert {"content": [{"type": "text", "text": "export {}"}]} == read.result
    assert 5 == [call.call_id for call in calls(events)].count("call_0")
    assert 120345 == compaction.tokens_before
    assert 1 == intake.skipped["session headers"]


def test_openclaw_without_a_header_the_path_tells() -> None:
    """A log that was cut has its session from the file's name, and its agent from the folder."""
    message = {"role": "toolResult", "toolCallId": "c", "toolName": "read", "content": [], "isError": False}
    entry = {"type": "message", "id": "e", "parentId": None, "timestamp": "2026-01-01T00:00:00Z", "message": message}
    intake = Intake("/home/me/.openclaw/agents/main/sessions/abc.jsonl.gz", record_bytes=1000, json_depth=9)
    [event] = imported("openclaw", lines_of(entry), intake)

    assert ("abc", "main") == (event.run_id, event.agent_id)


def test_a_result_whose_call_was_never_seen_is_an_event() -> None:
    """A transcript that begins in the middle still yields its first result."""
    block = {"type": "tool_result", "tool_use_id": "gone", "content": "late"}
    line = {"type": "user", "sessionId": "s", "uuid": "u", "timestamp": "2026-01-01T00:00:00Z"}
    [event] = imported("claude-code", lines_of({**line, "message": {"content": [block]}}))

    assert isinstance(event, ToolResult)
    assert ("gone", "late") == (event.call_id, event.result)


@pytest.mark.parametrize("content", [None, [], [{"type": "image"}], ""])
def test_an_error_stays_an_error_whatever_its_content(content: Any) -> None:
    """A result marked as an error is never taken for a result, even if it says nothing."""
    block = {"type": "tool_result", "tool_use_id": "t", "content": content, "is_error": True}
    [event] = imported("claude-code", lines_of({"type": "user", "sessionId": "s", "message": {"content": [block]}}))

    assert isinstance(event, ToolResult)
    assert event.error is not None


@pytest.mark.parametrize(
    ("form", "line", "problem"),
    [
        (
            "claude-code",
            b"{oops",
            "made.jsonl:1: no line of a Claude Code transcript (mend or drop it, or",
        ),
        (
            "openclaw",
            {"type": "message", "message": []},
            "made.jsonl:1: no line of an OpenClaw session log (mend or drop it, ",
        ),
        ("otlp", {"resourceSpans": 1}, "made.jsonl:1: no OTLP traces (mend or drop them, "),
        ("otlp", export({"spanId": 1}), "made.jsonl:1: span 1 is no OTLP span: "),
        ("openai-agents", {"object": "tree"}, "made.jsonl:1: item 1 is no trace and no span: `object` is neither"),
        ("openai-agents", b"[{", "made.jsonl:1: not JSON: the document that begins here is damaged or cut off"),
        ("events", b"oops", "made.jsonl:1: not JSON"),
    ],
)
def test_what_is_wrong_is_named_by_file_and_line(form: str, line: Any, problem: str) -> None:
    """Every importer raises the one documented error; it says where and what, and quotes nothing."""
    with pytest.raises(ImportInputError) as caught:
        imported(form, lines_of(line))

    assert str(caught.value).startswith(problem)


def test_after_what_is_wrong_the_rest_is_read() -> None:
    """With somebody to complain to, a cut-off document and a bad span cost no other span."""
    problems: list[ImportInputError] = []
    intake = Intake("made.jsonl", record_bytes=1 << 20, json_depth=128, refuse=problems.append)
    events = imported("otlp", lines_of(b'{"resourceSpans": [', export({}, span(1, 10)), export(span(2, 11))), intake)

    assert ["0000000000000001", "0000000000000002"] == [event.call_id for event in events]  # type: ignore[union-attr]
    assert (2, 2) == (len(problems), intake.refused)


def test_a_document_over_many_lines() -> None:
    """What a person or a tool printed over many lines is read like the same on one line."""
    document = export(span(1, 10), span(2, 11))
    printed = [
        Line("made.json", number, text.encode() + b"\n", 0)
        for number, text in enumerate(json.dumps(document, indent=2).splitlines(), 1)
    ]

    assert imported("otlp", lines_of(document)) == imported("otlp", printed)


def test_an_event_that_no_worker_would_take_is_refused() -> None:
    """A result that is larger than a record may be is named, and says how large that is."""
    block = {"type": "tool_result", "tool_use_id": "t", "content": "x" * 3000}
    intake = Intake("made.jsonl", record_bytes=2000, json_depth=128)

    with pytest.raises(ImportInputError, match="more than 2000 bytes"):
        imported("claude-code", lines_of({"type": "user", "sessionId": "s", "message": {"content": [block]}}), intake)
