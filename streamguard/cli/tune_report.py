"""The report of a search for thresholds."""

from __future__ import annotations

from pathlib import Path

from streamguard.audit.labels import upper_bound
from streamguard.audit.report import line_plot, write_report
from streamguard.audit.tune import Tuned

__all__ = ["write_tuned"]

NOTES = (
    "A policy stands on the curve if no other one that was tried stops as many loops and fewer good runs.",
    "Held out: chosen on one half of the runs (by their ids), looked at on the other, both ways.",
    "Few good runs prove little: with none of n stopped, the true rate is below about 3/n with a confidence of 95 %.",
)


def write_tuned(file: Path, toml: str, tuned: Tuned) -> None:
    """Write the report. Raises `MissingExtraError`."""
    found, held_out, front = tuned.found, tuned.held_out, tuned.front
    xs = [score.good_stopped for _, score in front]
    lines = [
        ("loops stopped", xs, [score.loops_stopped for _, score in front]),
        ("loops warned", xs, [score.loops_warned for _, score in front]),
    ]
    rows = [
        [str(candidate.policy.warning_threshold), str(candidate.policy.critical_threshold),
         str(candidate.policy.unknown_tool_threshold), str(candidate.policy.compaction_window),
         f"{score.loops_stopped} of {score.loops}", f"{score.good_stopped} of {score.good}",
         f"{upper_bound(score.good_stopped, score.good):.2%}", f"{score.good_warned} of {score.good}"]
        for candidate, score in front
    ]  # fmt: skip
    write_report(
        file,
        title="Thresholds",
        subtitle=f"{tuned.tried} policies tried on {found.loops} labelled loops and {found.good} good runs",
        cards=[
            (f"{found.loops_stopped} of {found.loops}", "loops stopped"),
            (f"{found.good_stopped} of {found.good}", "good runs stopped"),
            (f"{held_out.loops_stopped} of {held_out.loops}", "loops stopped, held out"),
            (f"{held_out.good_stopped} of {held_out.good}", "good runs stopped, held out"),
        ],
        text_title="The policy",
        text=toml,
        plots=[("What more loops cost", "each point is a policy that no other one beats in both",
                line_plot("curve", "good runs stopped", "loops", lines))],
        tables=[{"title": "The curve", "numbers": set(range(8)), "rows": rows, "note": "",
                 "columns": ["warning", "critical", "unknown tool", "compaction", "loops stopped", "good stopped",
                             "true rate below (95 %)", "good warned"]}],
        notes=NOTES,
    )  # fmt: skip
