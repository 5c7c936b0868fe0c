"""The report of a backtest: what is in it, and how it is drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from streamguard.audit.backtest import Backtest, Change, Judged, totals
from streamguard.audit.labels import Label, score
from streamguard.audit.report import bar_plot, line_plot, write_report
from streamguard.audit.times import utc
from streamguard.policy import PolicySet

__all__ = ["sweep_policies", "write_backtest"]

CRITICAL: Final = (4, 6, 8, 10, 12, 15, 20, 25, 30)
"""Thresholds that the report tries beside the policy's own."""

TOP: Final = 12
BINS: Final = 40

NOTES: Final = (
    "Calls saved would not have run: they are blocked themselves, or come after an abort of their run.",
    "The recordings go on as they did. An agent that is stopped, or heeds a warning, would go another way.",
    "What comes after a run's first stop is counted, and is no forecast.",
    "Tool calls of a run are counted from 0.",
)


class Tested(NamedTuple):
    """All that came out: of the policies by name, of the sweep, and where the second policy differs."""

    names: Sequence[str]
    tests: Sequence[Backtest]
    sweep: Sequence[Backtest]
    differing: Sequence[Change]
    labels: Mapping[str, Label]


def sweep_policies(policies: PolicySet) -> list[PolicySet]:
    """Return the policy with other critical thresholds, the others in proportion."""
    return [
        PolicySet({**(policies.block or {}), **_thresholds(critical)}, policies.agents, policies.overrides)
        for critical in CRITICAL
    ]


def _thresholds(critical: int) -> dict[str, int]:
    return {
        "warningThreshold": max(2, critical // 2),
        "criticalThreshold": critical,
        "globalCircuitBreakerThreshold": critical + critical // 2,
    }


def write_backtest(file: Path, tested: Tested) -> None:
    """Write the report. Raises `MissingExtraError`."""
    names, tests, sweep, differing, labels = tested
    test = tests[0]
    sums = totals(test.runs.values())
    cards = [
        (f"{sums.runs:,}", "runs"), (f"{sums.calls:,}", "tool calls"), (f"{sums.warned:,}", "runs warned"),
        (f"{sums.stopped:,}", "runs stopped"), (f"{sums.saved:,}", "calls saved"),
    ]  # fmt: skip
    if labels:
        found = score(test.runs, labels)
        cards += [(f"{found.loops_stopped} of {found.loops}", "labelled loops stopped"),
                  (f"{found.good_stopped} of {found.good}", "labelled good runs stopped")]  # fmt: skip
    write_report(
        file,
        title="Backtest",
        subtitle=f"{test.events:,} recorded events, judged by {' and by '.join(names)}",
        cards=cards,
        plots=[_sweep_plot(sweep), *_label_plot(sweep, labels), _timeline(test), *_tops(test)],
        tables=_tables(names, tests, differing, labels),
        notes=NOTES,
    )


def _sweep_plot(sweep: Sequence[Backtest]) -> tuple[str, str, str]:
    sums = [totals(each.runs.values()) for each in sweep]
    stopped = ("runs stopped", CRITICAL, [each.stopped for each in sums])
    warned = ("runs warned", CRITICAL, [each.warned for each in sums])
    saved = ("calls saved", CRITICAL, [each.saved for each in sums])
    return (
        "Thresholds, runs and calls",
        "critical threshold as given, warning at half of it, circuit breaker at one and a half",
        line_plot("sweep", "criticalThreshold", "runs", [stopped, warned], second=saved),
    )


def _label_plot(sweep: Sequence[Backtest], labels: Mapping[str, Label]) -> list[tuple[str, str, str]]:
    if not labels:
        return []
    found = [score(each.runs, labels) for each in sweep]

    def part(count: int, of: int) -> float:
        return 100 * count / of if of else 0.0

    lines = [
        ("loops stopped", CRITICAL, [part(each.loops_stopped, each.loops) for each in found]),
        ("loops warned", CRITICAL, [part(each.loops_warned, each.loops) for each in found]),
        ("good runs stopped", CRITICAL, [part(each.good_stopped, each.good) for each in found]),
        ("good runs warned", CRITICAL, [part(each.good_warned, each.good) for each in found]),
    ]
    return [("Thresholds and labels", "per cent of the runs that a reader judged",
             line_plot("labels", "criticalThreshold", "per cent", lines))]  # fmt: skip


def _timeline(test: Backtest) -> tuple[str, str, str]:
    """Draw when runs began that were stopped; recordings without times by the order of their runs."""
    runs = list(test.runs.values())
    times = [run.begun for run in runs]
    timed = bool(times) and min(times) > 0 and max(times) > min(times)
    places = [time / 1000 for time in times] if timed else list(map(float, range(len(runs))))
    if not places:
        places = [0.0]
    low, high = min(places), max(places)
    width = (high - low) / BINS or 1.0

    def counted(wanted: Sequence[Judged | None]) -> list[int]:
        bins = Counter(min(BINS - 1, int((place - low) / width)) for place, run in zip(places, wanted, strict=False)
                       if run is not None)  # fmt: skip
        return [bins[number] for number in range(BINS)]

    across = [low + (number + 0.5) * width for number in range(BINS)]
    if timed:
        across = [(each - low) / 3600 for each in across]
    start = utc(round(low * 1000)).strftime("%Y-%m-%d %H:%M")
    label = f"hours since {start} UTC" if timed else "runs, in the order of the recording (it has no times)"
    began = [("runs", across, counted(runs))] if timed else []  # else as many in each part of the recording
    lines = [
        *began,
        ("warned", across, counted([run if run.warned else None for run in runs])),
        ("stopped", across, counted([run if run.stopped else None for run in runs])),
    ]
    return "Time line", "when runs began", line_plot("timeline", label, "runs", lines)


def _tops(test: Backtest) -> list[tuple[str, str, str]]:
    found = [(run, run.stopped or run.warned) for run in test.runs.values()]
    agents = Counter(run.agent_id or "-" for run, moment in found if moment is not None).most_common(TOP)
    tools = Counter(moment.tool or "-" for _, moment in found if moment is not None).most_common(TOP)
    return [
        ("Agents", "by runs that were warned or stopped", bar_plot("agents", "runs", agents)),
        ("Tools", "at which runs were stopped, or else first warned", bar_plot("tools", "runs", tools)),
    ]


def _tables(
    names: Sequence[str], tests: Sequence[Backtest], differing: Sequence[Change], labels: Mapping[str, Label]
) -> list[dict[str, Any]]:
    from streamguard.cli.backtest import moment_text  # noqa: PLC0415 - the command loads this

    columns = ("runs", "calls", "warned", "stopped", "warns", "blocks", "aborts", "shadows", "saved")
    sums = [
        [name, *(f"{getattr(totals(test.runs.values()), column):,}" for column in columns)]
        for name, test in zip(names, tests, strict=True)
    ]
    tables = [{"title": "Totals", "columns": ["policy", *columns], "numbers": set(range(1, 10)), "rows": sums}]
    if labels:
        tables.append(_label_table(names, tests, labels))
    if len(tests) > 1:
        rows = [[each.kind, each.run_id, moment_text(each.first), moment_text(each.second)] for each in differing[:100]]
        tables.append({"title": f"{len(differing):,} runs that A and B treat otherwise", "numbers": set(), "rows": rows,
                       "note": "the first hundred", "columns": ["what differs", "run", "A", "B"]})  # fmt: skip
    stopped = [run for run in tests[0].runs.values() if run.stopped is not None]
    stopped.sort(key=lambda run: -run.saved)
    rows = [[run.run_id, run.agent_id or "", f"{run.calls:,}", f"{run.saved:,}", moment_text(run.stopped)]
            for run in stopped[:30]]  # fmt: skip
    tables.append({"title": "Runs stopped, most calls saved first", "numbers": {2, 3}, "rows": rows,
                   "columns": ["run", "agent", "calls", "saved", "first stop"]})  # fmt: skip
    return tables


def _label_table(names: Sequence[str], tests: Sequence[Backtest], labels: Mapping[str, Label]) -> dict[str, Any]:
    rows = []
    for name, test in zip(names, tests, strict=True):
        found = score(test.runs, labels)
        rows.append([
            name, f"{found.loops_warned} of {found.loops}", f"{found.loops_stopped} of {found.loops}",
            "-" if found.stopped_late is None else f"{found.stopped_late:g}",
            f"{found.good_warned} of {found.good}", f"{found.good_stopped} of {found.good}",
        ])  # fmt: skip
    return {
        "title": "On labelled runs", "numbers": {1, 2, 3, 4, 5}, "rows": rows,
        "columns": ["policy", "loops warned", "loops stopped", "calls late (median)", "good warned", "good stopped"],
    }  # fmt: skip
