"""The documented rules, case by case: the hand-written cases, and all that a folder named by the environment holds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from streamguard.cases import run_cases

HERE = Path(__file__).parent
ALL = "STREAMGUARD_TEST_CONFORMANCE"


@pytest.mark.parametrize("name", sorted(path.name for path in HERE.glob("*.jsonl")))
def test_the_hand_written_cases_hold(name: str) -> None:
    """Every case publishes exactly the verdicts it names, and no other."""
    report = run_cases([str(HERE / name)])

    assert [] == report.mismatches
    assert report.cases > 0


def test_a_whole_folder_of_cases_holds() -> None:
    """Where a folder of cases is named (STREAMGUARD_TEST_CONFORMANCE), all of them hold."""
    folder = os.environ.get(ALL)
    if not folder:
        pytest.skip(f"no folder of cases is named by {ALL}; the hand-written ones ran")
    files = sorted(str(path) for path in Path(folder).glob("*.jsonl*"))
    report = run_cases(files)

    assert [] == report.mismatches
    assert report.cases > 0
