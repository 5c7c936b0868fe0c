"""Case files: events with the verdicts that must come out, run through the guard that the worker runs.

Two forms, one JSON object a line, plain or gzip:

- exact: `loopDetection` (and `agentLoopDetection` laid over it), `events`, `expect` as a list of
  `[index of the event, action, detector, count]`: these verdicts and no other;
- least action: `policy` (laid over the file's base policy), `events`, `expect` as an object with `action` (the least
  that must be published; `none`: nothing at all), `by` (no later than while this tool_call of the run, counted from 1,
  or its result is handled) and `not_before` (no verdict while an earlier tool_call is handled).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from streamguard.errors import CaseFileError, UnreadableRecordError
from streamguard.events import Event, Source, ToolCall, ToolResult, decode_event
from streamguard.guard import Guard
from streamguard.policy import Block, Policy, overlay, resolve
from streamguard.policy_block import unknown_keys
from streamguard.replay import Line, lines_of, timestamp_of
from streamguard.verdicts import Verdict

__all__ = ["BASE_BLOCK", "Mismatch", "Report", "run_cases"]

LINE_BYTES: Final = 64 * 1024 * 1024
BASE_BLOCK: Final[Block] = {"enabled": True}
"""What a least-action case's policy is laid over unless a policy is given: the documented thresholds, switched on."""

BLOCKS: Final = ("loopDetection", "agentLoopDetection", "policy")

STRENGTH: Final = {"none": 0, "allow": 0, "warn": 1, "block": 2, "abort": 3}


class Case(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A line of a case file, of either form."""

    id: str
    note: str | None = None
    source: str | None = None
    loopDetection: dict[str, Any] | None = None  # noqa: N815 - as the files spell it
    agentLoopDetection: dict[str, Any] | None = None  # noqa: N815
    policy: dict[str, Any] | None = None
    events: list[msgspec.Raw]
    expect: list[tuple[int, str, str, int]] | dict[str, Any]


class Least(msgspec.Struct, forbid_unknown_fields=True):
    """The expectation of a least-action case."""

    action: str
    by: int | None = None
    not_before: int | None = None


class Mismatch(NamedTuple):
    """A case that does not hold, and the first thing that is wrong with it."""

    place: str
    case: str
    note: str
    problem: str


class Report(NamedTuple):
    """What a run of case files found."""

    cases: int
    events: int
    mismatches: list[Mismatch]

    @property
    def summary(self) -> str:
        """The last line: how many cases, events and mismatches."""
        return f"{self.cases} cases, {self.events} events, {len(self.mismatches)} mismatches"


class Said(NamedTuple):
    """A verdict, and the event and the call of its run during which it was published."""

    event: int
    call: int
    verdict: Verdict


_decode: Final = msgspec.json.Decoder(Case).decode


def run_cases(files: Sequence[str], base: Block | None = None) -> Report:
    """Run all cases of these files (`-`: standard input).

    Raises `CaseFileError` with file and line where one is no case or has keys that nobody reads, or if there is none;
    `ReplayInputError` where a file cannot be read.
    """
    cases = events = 0
    mismatches: list[Mismatch] = []
    for line in (line for name in files for line in lines_of(name, LINE_BYTES)):
        if line.text is not None and not line.text.strip():
            continue
        case = _case(line)
        cases += 1
        events += len(case.events)
        problem = _problem(case, base if base is not None else BASE_BLOCK, line)
        if problem is not None:
            place = f"{line.file}:{line.number}"
            mismatches.append(Mismatch(place, case.id, case.note or case.source or "", problem))
    if cases == 0:
        raise CaseFileError(f"no case in {', '.join(files)}")
    return Report(cases, events, mismatches)


def _case(line: Line) -> Case:
    if line.text is None:
        raise CaseFileError(f"{line.file}:{line.number}: the line has more than {LINE_BYTES} bytes")
    try:
        case = _decode(line.text)
    except msgspec.MsgspecError as error:
        raise CaseFileError(f"{line.file}:{line.number}: no case: {error}") from None
    faults = [fault for name in BLOCKS for fault in unknown_keys(getattr(case, name), name)]
    if faults:
        raise CaseFileError(f"{line.file}:{line.number}: {'; '.join(faults)}")
    return case


def _problem(case: Case, base: Block, line: Line) -> str | None:
    """Judge a case's events; return the first difference to what is expected."""
    if isinstance(case.expect, list):
        said = _judge(case, resolve(case.loopDetection, case.agentLoopDetection), line)
        return _difference(case.expect, said)
    try:
        least = msgspec.convert(case.expect, Least)
        strength = STRENGTH[least.action]
    except (msgspec.ValidationError, KeyError) as error:
        raise CaseFileError(f"{line.file}:{line.number}: expect: {error}; allowed: {', '.join(STRENGTH)}") from None
    return _shortfall(least, strength, _judge(case, resolve(overlay(base, case.policy)), line))


def _judge(case: Case, policy: Policy, line: Line) -> list[Said]:
    guard = Guard(policy)
    calls: dict[str, int] = {}
    numbers: dict[tuple[str, str | None], int] = {}
    said: list[Said] = []
    for index, (event, timestamp) in enumerate(_events(case, line)):
        run = event.run_id or event.session_id or ""
        if isinstance(event, ToolCall):
            calls[run] = numbers[run, event.call_id] = calls.get(run, 0) + 1
        current = calls.get(run, 0)
        if isinstance(event, ToolResult):
            current = numbers.get((run, event.call_id), current)
        verdicts = guard.observe(event, Source("case", 0, index, timestamp))
        said.extend(Said(index, current, verdict) for verdict in verdicts)
    return said


def _events(case: Case, line: Line) -> Iterator[tuple[Event, int]]:
    """Yield the events and their times; an event without `time` has the time of the one before it."""
    timestamp = 0
    for index, raw in enumerate(case.events):
        try:
            event = decode_event(bytes(raw))
        except UnreadableRecordError as error:
            raise CaseFileError(f"{line.file}:{line.number}: events[{index}]: {error}") from None
        if event is not None:
            timestamp = timestamp_of(event) or timestamp
            yield event, timestamp


def _difference(expected: list[tuple[int, str, str, int]], said: list[Said]) -> str | None:
    got = [(one.event, one.verdict.action, one.verdict.detector, one.verdict.count) for one in said]
    for position, want in enumerate(expected):
        if position >= len(got):
            return f"{_shown(want)} is missing"
        if got[position] != want:
            return f"got {_shown(got[position])} instead of {_shown(want)}"
    return f"got {_shown(got[len(expected)])} too much" if len(got) > len(expected) else None


def _shortfall(least: Least, strength: int, said: list[Said]) -> str | None:
    if least.action == "none":
        return f"nothing was expected, got {_shown_said(said[0])}" if said else None
    early = [one for one in said if least.not_before is not None and one.call < least.not_before]
    if early:
        return f"nothing was expected before call {least.not_before}, got {_shown_said(early[0])}"
    strong = [one for one in said if STRENGTH[one.verdict.action] >= strength]
    if not strong:
        return f"{least.action} is missing" + (f", got {_shown_said(said[-1])}" if said else ", got nothing")
    if least.by is not None and strong[0].call > least.by:
        return f"{least.action} was expected by call {least.by}, got {_shown_said(strong[0])}"
    return None


def _shown(verdict: tuple[int, str, str | None, int | None]) -> str:
    event, action, detector, count = verdict
    return f"{action} by {detector} at {count} (event {event})"


def _shown_said(one: Said) -> str:
    return f"{one.verdict.action} by {one.verdict.detector} at {one.verdict.count} (call {one.call})"
