"""Payloads that stay at home: hashes in their place, and the guard says what it said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamguard import cases
from streamguard.events import Event, ToolCall, ToolResult, decode_event
from streamguard.executor.payloads import Payloads

CONFORMANCE = Path(__file__).parents[1] / "conformance"


def hashed(monkeypatch: pytest.MonkeyPatch, key: bytes | None) -> None:
    """Let every case go through the hashes that an executor would send, and the wire."""
    events_of = cases._events  # noqa: SLF001 - between the reading of a case and its judging

    def events(case: Any, line: Any) -> Iterator[tuple[Event, int]]:
        send_tools = tuple((case.loopDetection or {}).get("sendTools", ()) if case.loopDetection else ())
        payloads = Payloads(hashed=True, key=key, send_tools=send_tools)
        calls: dict[str | None, ToolCall] = {}
        for event, time in events_of(case, line):
            sent = event
            if isinstance(event, ToolCall):
                calls[event.call_id] = event
                sent = payloads.call(event)
            elif isinstance(event, ToolResult):
                call = calls.get(event.call_id) if event.call_id is not None else None
                sent = payloads.result(event, call)
            again = decode_event(msgspec.json.encode(sent))
            assert again is not None
            yield again, time

    monkeypatch.setattr(cases, "_events", events)


@pytest.mark.parametrize("key", [None, b"a key of ours"])
def test_hashes_change_no_verdict_of_the_hand_written_cases(monkeypatch: pytest.MonkeyPatch, key: bytes | None) -> None:
    """Every case gives the verdicts that it names, though the guard sees neither arguments nor results."""
    hashed(monkeypatch, key)
    report = cases.run_cases(sorted(map(str, CONFORMANCE.glob("*.jsonl"))))

    assert [] == report.mismatches


def test_hashes_change_no_verdict_of_a_whole_folder(
    monkeypatch: pytest.MonkeyPatch, shared: Callable[[str], Path]
) -> None:
    """The same for a folder of conformance cases, where there is one."""
    hashed(monkeypatch, b"a key of ours")
    report = cases.run_cases(sorted(map(str, shared("conformance").glob("*.jsonl*"))))

    assert [] == report.mismatches
    assert report.cases > 0


def test_no_payload_is_left() -> None:
    """Neither arguments nor result nor error stand in what is published, and a key changes every hash."""
    call = ToolCall(run_id="r", call_id="c", tool="read", args={"path": "/secret"})
    failed = ToolResult(run_id="r", call_id="c", error="no file /secret")
    done = ToolResult(run_id="r", call_id="c", tool="read", args={"path": "/secret"}, result={"text": "secret"})
    plain, keyed = Payloads(hashed=True), Payloads(hashed=True, key=b"k")
    sent = [[one.call(call), one.result(failed, call), one.result(done, call)] for one in (plain, keyed)]

    assert b"secret" not in msgspec.json.encode(sent)
    assert all(one != other for one, other in zip(*sent, strict=True))


@pytest.mark.parametrize("status", [None, "blocked"])
def test_what_is_no_outcome_stays_none(status: str | None) -> None:
    """A result that says nothing about progress, or that nothing ran, carries no hash."""
    sent = Payloads(hashed=True).result(ToolResult(run_id="r", call_id="c", status=status), None)

    assert (None, status) == (sent.result_hash, sent.status)
