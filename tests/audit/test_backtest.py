"""`streamguard backtest`: what a policy would have done is what `replay` says; two policies are compared."""

from __future__ import annotations

import json
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from commands import streamguard
from hypothesis import given
from test_guard_property import POLICIES, streams

from streamguard.audit.backtest import changes, judged, totals
from streamguard.events import Event, Source
from streamguard.guard import Guard
from streamguard.policy import Policy

SECRET = "SECRETMARKER"  # noqa: S105 - what must not come out


def loop(run: str, times: int, result: Any = "same") -> list[dict[str, Any]]:
    """Return the same call, with the same result or with one that counts on."""
    events: list[dict[str, Any]] = []
    for number in range(times):
        scope = {"run_id": run, "agent_id": f"agent of {run}", "call_id": f"c{number}"}
        outcome = number if result is None else result
        time = f"2026-12-04T0{number % 9}:00:00Z"
        events += [
            {"type": "tool_call", "tool": "read", "args": SECRET, "time": time, **scope},
            {"type": "tool_result", "result": outcome, "time": time, **scope},
        ]
    return events


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a folder with three runs, two policies, and labels."""
    runs = [*loop("stuck", 12), *loop("short", 4), *loop("<b>busy</b>", 12, None)]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in runs))
    for name, critical in (("a", 8), ("b", 5)):
        (tmp_path / f"{name}.toml").write_text(
            f"[policy]\nenabled = true\nwarningThreshold = 3\ncriticalThreshold = {critical}\n"
        )
    labels = [{"run_id": "stuck", "label": "loop", "first_bad_index": 2}, {"run_id": "<b>busy</b>", "label": "ok"}]
    (tmp_path / "labels.jsonl").write_text("".join(json.dumps(label) + "\n" for label in labels))
    return tmp_path


def backtest(folder: Path, *arguments: str | Path) -> dict[str, Any]:
    """Try a policy; return what came out."""
    done = streamguard("backtest", folder / "events.jsonl", "--json", *arguments)
    assert 0 == done.returncode, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_it_says_what_would_have_been(folder: Path) -> None:
    """Runs warned and stopped, from which call on, and the calls that would not have run."""
    [found] = backtest(folder, "--policy", folder / "a.toml")["policies"]
    [stuck, short, busy] = found["runs"]

    assert (3, 28, 3, 1, 4) == tuple(found["totals"][name] for name in ("runs", "calls", "warned", "stopped", "saved"))
    assert (3, 8, 4) == (stuck["warned"]["call"], stuck["stopped"]["call"], stuck["saved"])
    assert (None, None) == (short["stopped"], busy["stopped"])


def test_two_policies_are_compared(folder: Path) -> None:
    """The run that the second one stops earlier is named, with both calls."""
    found = backtest(folder, "--policy", folder / "a.toml", "--policy", folder / "b.toml")
    [change] = found["differences"]

    assert ("stuck", "stopped earlier by B", 8, 5) == (
        change["run_id"], change["kind"], change["first"]["call"], change["second"]["call"]
    )  # fmt: skip


def test_labels_are_compared(folder: Path) -> None:
    """Loops found, how late in calls after the first bad one, and good runs that were flagged."""
    [found] = backtest(folder, "--policy", folder / "a.toml", "--labels", folder / "labels.jsonl")["policies"]

    assert {
        "loops": 1, "loops_warned": 1, "loops_stopped": 1, "warned_late": 1, "stopped_late": 6, "good": 1,
        "good_warned": 1, "good_stopped": 0,
    } == found["labelled"]  # fmt: skip


def test_a_label_that_is_none_is_named(folder: Path) -> None:
    """A line without a run is an error with its place."""
    (folder / "labels.jsonl").write_text('{"label":"loop"}\n')
    done = streamguard("backtest", folder / "events.jsonl", "--policy", folder / "a.toml", "--labels",
                       folder / "labels.jsonl")  # fmt: skip

    assert 1 == done.returncode
    assert "labels.jsonl:1: no label" in done.stderr


class References(HTMLParser):
    """Collects what a page refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.outside: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what would be fetched, and scripts."""
        self.scripts += tag == "script"
        self.outside += [
            value for name, value in attrs
            if name in {"src", "href", "xlink:href", "action"} and value and not value.startswith("#")
        ]  # fmt: skip


def report(folder: Path) -> Path:
    """Write a report of a comparison."""
    file = folder / "report.html"
    backtest(folder, "--policy", folder / "a.toml", "--policy", folder / "b.toml", "--labels", folder / "labels.jsonl",
             "--report", file)  # fmt: skip
    return file


def test_the_report_is_one_file(folder: Path) -> None:
    """It refers to nothing outside, runs nothing, holds no payload, and shows names as text."""
    text = report(folder).read_text()
    found = References()
    found.feed(text)

    assert ([], 0) == (found.outside, found.scripts)
    assert SECRET not in text
    assert "<b>busy" not in text
    assert 5 == text.count("<figure>")


def test_the_report_opens_in_chromium(folder: Path) -> None:
    """A real browser shows its plots."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("Chromium is not installed (Debian: chromium)")
    picture = folder / "report.png"
    done = subprocess.run(
        [chromium, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}",
         f"--screenshot={picture}", "--window-size=1200,1500", report(folder).as_uri()],
        capture_output=True, check=False, timeout=90,
    )  # fmt: skip

    assert 0 == done.returncode
    assert picture.stat().st_size > 20_000  # an empty page has a tenth of that


@given(policy=POLICIES, events=streams)
def test_a_backtest_says_what_the_guard_says(policy: Policy, events: list[Event]) -> None:
    """Its counts are those of the verdicts that the same guard gives; a policy does not differ from itself."""
    recorded = [(event, Source("t", 0, offset, offset)) for offset, event in enumerate(events)]
    guard = Guard(policy)
    said = [verdict.action for event, source in recorded for verdict in guard.observe(event, source)]
    test = judged(recorded, policy)
    sums = totals(test.runs.values())

    assert [said.count(name) for name in ("warn", "block", "abort")] == [sums.warns, sums.blocks, sums.aborts]
    assert [] == list(changes(test.runs, judged(recorded, policy).runs))
