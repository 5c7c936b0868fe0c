"""Case files: both forms, and what is wrong with one."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from streamguard.cases import Report, run_cases
from streamguard.errors import CaseFileError


def calls(times: int) -> list[dict[str, Any]]:
    """Write identical calls with identical results."""
    return [
        event
        for number in range(times)
        for event in (
            {"type": "tool_call", "run_id": "r", "call_id": f"c{number}", "tool": "read"},
            {"type": "tool_result", "run_id": "r", "call_id": f"c{number}", "result": "same"},
        )
    ]


def run(folder: Path, *cases: dict[str, Any] | str) -> Report:
    """Write cases to a file and run them."""
    file = folder / "cases.jsonl"
    file.write_text("\n".join(case if isinstance(case, str) else json.dumps(case) for case in cases))
    return run_cases([str(file)])


def problems(report: Report) -> list[str]:
    """Return what is wrong with each mismatching case."""
    return [mismatch.problem for mismatch in report.mismatches]


def exact(expect: list[list[Any]], times: int = 21) -> dict[str, Any]:
    """Write an exact case of a loop."""
    return {"id": "x", "loopDetection": {"enabled": True}, "events": calls(times), "expect": expect}


def least(times: int = 21, **expect: Any) -> dict[str, Any]:
    """Write a least-action case of a loop."""
    return {"id": "x", "policy": {}, "events": calls(times), "expect": expect}


WARN, BLOCK = [20, "warn", "generic_repeat", 10], [40, "block", "generic_repeat", 20]


def test_an_exact_case_holds_verdict_by_verdict(tmp_path: Path) -> None:
    """All verdicts in order and no other; the last line counts cases, events and mismatches."""
    assert "1 cases, 42 events, 0 mismatches" == run(tmp_path, exact([WARN, BLOCK])).summary


@pytest.mark.parametrize(
    ("expect", "problem"),
    [
        ([WARN], "got block by generic_repeat at 20 (event 40) too much"),
        ([WARN, BLOCK, BLOCK], "block by generic_repeat at 20 (event 40) is missing"),
        (
            [BLOCK, WARN],
            "got warn by generic_repeat at 10 (event 20) instead of block by generic_repeat at 20 (event 40)",
        ),
        ([[20, "warn", "generic_repeat", 11], BLOCK], "got warn by generic_repeat at 10 (event 20) instead of"),
    ],
)
def test_an_exact_case_that_does_not_hold(tmp_path: Path, expect: list[list[Any]], problem: str) -> None:
    """The first difference is told: too much, missing, or other."""
    [found] = problems(run(tmp_path, exact(expect)))

    assert found.startswith(problem)


@pytest.mark.parametrize(
    "expect",
    [
        {"action": "block", "by": 21, "not_before": 11},
        {"action": "warn", "by": 11},
        {"action": "warn", "by": 30},
        {"action": "block"},
    ],
)
def test_a_least_action_case_holds(tmp_path: Path, expect: dict[str, Any]) -> None:
    """The action or a stronger one by then, and nothing before."""
    assert [] == problems(run(tmp_path, least(**expect)))


@pytest.mark.parametrize(
    ("expect", "problem"),
    [
        ({"action": "none"}, "nothing was expected, got warn by generic_repeat at 10 (call 11)"),
        ({"action": "block", "by": 20}, "block was expected by call 20, got block by generic_repeat at 20 (call 21)"),
        ({"action": "warn", "not_before": 12}, "nothing was expected before call 12, got warn"),
        ({"action": "abort"}, "abort is missing, got block by generic_repeat at 20 (call 21)"),
    ],
)
def test_a_least_action_case_that_does_not_hold(tmp_path: Path, expect: dict[str, Any], problem: str) -> None:
    """Too weak, too late, too early, or anything where nothing was expected."""
    [found] = problems(run(tmp_path, least(**expect)))

    assert found.startswith(problem)


def test_a_late_result_belongs_to_its_call(tmp_path: Path) -> None:
    """A verdict on a result counts as published while its own call is handled, though later calls were made."""
    events = [{"type": "compaction", "run_id": "r"}, *calls(3)]
    events = [*events[:6], {"type": "tool_call", "run_id": "r", "call_id": "late", "tool": "x"}, events[6]]
    case = {"id": "x", "policy": {}, "events": events, "expect": {"action": "abort", "by": 3}}

    assert [] == problems(run(tmp_path, case))


def test_gzip_and_several_files(tmp_path: Path) -> None:
    """Files may be gzip; blank lines do not count."""
    (tmp_path / "a.gz").write_bytes(gzip.compress(json.dumps(exact([WARN, BLOCK])).encode() + b"\n\n"))
    (tmp_path / "b").write_text(json.dumps(least(action="warn")))

    assert 2 == run_cases([str(tmp_path / "a.gz"), str(tmp_path / "b")]).cases


@pytest.mark.parametrize(
    ("case", "problem"),
    [
        ("nonsense", "cases.jsonl:2: no case: JSON is malformed"),
        ({"id": "x", "events": []}, "cases.jsonl:2: no case: Object missing required field `expect`"),
        ({"id": "x", "events": [{}], "expect": []}, r"cases.jsonl:2: events\[0\]: not an event"),
        ({"id": "x", "events": [], "expect": {"action": "shout"}}, "cases.jsonl:2: expect: 'shout'; allowed: none, "),
        ({"id": "x", "events": [], "expect": {"action": "warn", "buy": 1}}, "unknown field `buy`"),
    ],
)
def test_what_is_no_case_is_named_by_line(tmp_path: Path, case: Any, problem: str) -> None:
    """A broken line is an error that says which, not a mismatch."""
    with pytest.raises(CaseFileError, match=problem):
        run(tmp_path, exact([WARN, BLOCK]), case)


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ({"polcy": {}}, "polcy"),
        ({"policy": {"warningTreshold": 3}}, r"policy\.warningTreshold: unknown key; did you mean warningThreshold"),
        (
            {"policy": {"detectors": {"pingpong": True}}},
            r"policy\.detectors\.pingpong: unknown key; did you mean pingPong",
        ),
    ],
)
def test_a_misspelt_key_is_no_case(tmp_path: Path, case: dict[str, Any], said: str) -> None:
    """A key that nobody reads would let a case pass that tests something else."""
    with pytest.raises(CaseFileError, match=said):
        run(tmp_path, least(action="block") | case)


def test_a_file_without_cases_is_no_pass(tmp_path: Path) -> None:
    """A file that is empty tests nothing, and that is said."""
    with pytest.raises(CaseFileError, match=r"no case in .*cases\.jsonl"):
        run(tmp_path, "")
