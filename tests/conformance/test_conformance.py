"""The documented rules, case by case: the hand-written cases, and a whole folder of cases where there is one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from streamguard.cases import run_cases

HERE = Path(__file__).parent


@pytest.mark.parametrize("name", sorted(path.name for path in HERE.glob("*.jsonl")))
def test_the_hand_written_cases_hold(name: str) -> None:
    """Every case publishes exactly the verdicts it names, and no other."""
    report = run_cases([str(HERE / name)])

    assert [] == report.mismatches
    assert report.cases > 0


def test_a_whole_folder_of_cases_holds(shared: Callable[[str], Path]) -> None:
    """Where there is a folder of conformance cases, all of them hold."""
    report = run_cases(sorted(map(str, shared("conformance").glob("*.jsonl*"))))

    assert [] == report.mismatches
    assert report.cases > 0
