"""`streamguard tune`: the policy that it prints keeps to its bounds, and says how sure that is."""

from __future__ import annotations

import json
import math
import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from commands import streamguard
from hypothesis import given
from hypothesis import strategies as st
from test_backtest import loop

from streamguard.audit.labels import upper_bound


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a folder with runs that loop for 9 calls, good runs that repeat themselves 5 times, and labels."""
    events, labels = [], []
    for number in range(12):
        events += loop(f"loop-{number}", 9)
        labels.append({"run_id": f"loop-{number}", "label": "loop", "first_bad_index": 3})
        events += loop(f"good-{number}", 5)
        labels.append({"run_id": f"good-{number}", "label": "ok"})
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (tmp_path / "labels.jsonl").write_text("".join(json.dumps(label) + "\n" for label in labels))
    return tmp_path


def tune(folder: Path, *arguments: str) -> Any:
    """Search thresholds."""
    return streamguard("tune", folder / "events.jsonl", "--labels", folder / "labels.jsonl", *arguments)


def test_the_policy_keeps_to_its_bounds(folder: Path) -> None:
    """It stops all loops and no good run; `policy check` takes it; a backtest of it says the same."""
    done = tune(folder)
    assert 0 == done.returncode, done.stderr
    policy = folder / "tuned.toml"
    policy.write_text(done.stdout)
    checked = streamguard("policy", "check", policy)
    tested = streamguard("backtest", folder / "events.jsonl", "--policy", policy, "--labels", folder / "labels.jsonl",
                         "--json")  # fmt: skip
    found = json.loads(tested.stdout)["policies"][0]["labelled"]

    assert 0 == checked.returncode
    assert (12, 12, 0, 0) == tuple(found[name] for name in ("loops", "loops_stopped", "good_warned", "good_stopped"))
    assert "held out 12 of 12" in done.stdout
    assert "The true rate is below 22.09% (95 %)" in done.stdout


def test_the_curve_says_what_more_costs(folder: Path) -> None:
    """As JSON: the bound, the held-out figures, and policies of which none beats another in both."""
    found = json.loads(tune(folder, "--json", "--max-stopped-good", "1%", "--report", str(folder / "r.html")).stdout)
    points = [(point["good_stopped"], point["loops_stopped"]) for point in found["curve"]]

    assert sorted(set(points)) == points
    assert 0 == found["found"]["good_stopped"]
    assert "What more loops cost" in (folder / "r.html").read_text()


def test_no_policy_keeps_to_an_impossible_bound(tmp_path: Path) -> None:
    """When good runs are stopped by every policy it says so, and shows what the gentlest would stop."""
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in loop("good", 40)))
    (tmp_path / "labels.jsonl").write_text('{"run_id":"good","label":"ok"}\n')
    done = tune(tmp_path)

    assert (1, True) == (done.returncode, "keeps to the bounds" in done.stderr)


def test_a_missing_recording_is_named(folder: Path) -> None:
    """What cannot be read is an error in a sentence."""
    done = streamguard("tune", folder / "no.jsonl", "--labels", folder / "labels.jsonl")

    assert (1, True) == (done.returncode, done.stderr.startswith("error: ")), done.stderr
    assert "no.jsonl" in done.stderr


def test_a_part_is_written_as_people_write_it(folder: Path) -> None:
    """1/10000, 0.01 and 1% are parts; 3 is none."""
    done = tune(folder, "--max-stopped-good", "3")

    assert (2, True) == (done.returncode, "1/10000, 0.01, 1%" in done.stderr)


@given(of=st.integers(1, 400), data=st.data())
def test_the_upper_bound_is_exact(of: int, data: st.DataObject) -> None:
    """At the bound, seeing so few has a chance of 5 %."""
    found = data.draw(st.integers(0, of - 1))
    bound = Fraction(upper_bound(found, of))
    chance = sum(math.comb(of, k) * bound**k * (1 - bound) ** (of - k) for k in range(found + 1))

    assert found / of < bound <= 1
    assert abs(chance - Fraction(5, 100)) < 1e-6


@pytest.mark.parametrize(("found", "of"), [(170, 5_586), (200, 30_000), (15_000, 30_000)])
def test_the_upper_bound_of_many_runs(found: int, of: int) -> None:
    """Thousands of runs are no trouble: the bound is a few standard deviations above what was seen."""
    rate = found / of
    deviation = math.sqrt(rate * (1 - rate) / of)

    assert rate + deviation < upper_bound(found, of) < rate + 2.5 * deviation


@pytest.mark.skipif(
    "STREAMGUARD_TEST_CORPUS" not in os.environ, reason="STREAMGUARD_TEST_CORPUS names no folder of runs"
)
def test_on_recorded_runs() -> None:
    """On real runs with labels: loops are found, and no more good runs are stopped than the bound allows."""
    corpus = Path(os.environ["STREAMGUARD_TEST_CORPUS"])
    files = sorted(file for file in corpus.glob("*.jsonl.gz") if file.name != "runs.jsonl.gz")
    done = streamguard("tune", *files, "--labels", corpus / "labels.jsonl", "--json")
    found = json.loads(done.stdout)["found"]

    assert found["loops_stopped"] > 0
    assert 0 == found["good_stopped"]
