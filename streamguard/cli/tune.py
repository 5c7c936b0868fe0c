"""`streamguard tune`: thresholds that stop most loops while no more good runs than allowed are stopped."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from streamguard.audit.labels import Score, good_outcomes, read_labels, upper_bound
from streamguard.audit.tune import Bounds, Candidate, Tuned, candidates, curve, judge_all, tuned
from streamguard.importers import AUTO, CHOICES
from streamguard.policy import Policy

__all__ = ["command"]

_RATIO: Final = re.compile(r"(\d+(?:\.\d+)?)/(\d+)")


class Part(click.ParamType):  # type: ignore[type-arg,unused-ignore] # newer versions of click have it
    """A part of a whole: 1/10000, 0.01 or 1%."""

    name = "PART"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read it."""
        if isinstance(value, float):
            return value
        ratio = _RATIO.fullmatch(str(value).replace(",", "").strip())
        try:
            part = float(ratio[1]) / float(ratio[2]) if ratio else float(str(value).rstrip("%"))
            part = part / 100 if str(value).endswith("%") else part
        except (ValueError, ZeroDivisionError):
            part = -1.0
        if not 0 <= part <= 1:
            self.fail(f"{value!r} is no part of a whole; allowed: 1/10000, 0.01, 1%", param, ctx)
        return part


@click.command("tune", short_help="Search thresholds on recorded runs, under a bound.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--labels",
    "labels_file",
    required=True,
    metavar="FILE",
    help="JSON lines: run_id, label (loop or ok), first_bad_index.",
)
@click.option(
    "--good-outcomes", "good_file", metavar="FILE", help="JSON lines: run_id, outcome; runs with 1 count as good, too."
)
@click.option(
    "--max-stopped-good",
    "stopped",
    type=Part(),
    default="1/10000",
    show_default=True,
    help="At most this part of the good runs may be stopped.",
)
@click.option(
    "--max-warned-good",
    "warned",
    type=Part(),
    default="1/20",
    show_default=True,
    help="At most this part of the good runs may be warned.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(CHOICES),
    default=AUTO,
    show_default=True,
    help="Whose recordings the files are.",
)
@click.option("--report", type=click.Path(path_type=Path), help="Write an HTML report (extra `report`).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    files: tuple[str, ...],
    *,
    labels_file: str,
    good_file: str | None,
    stopped: float,
    warned: float,
    form: str,
    report: Path | None,
    as_json: bool,
) -> None:
    """Try some hundred policies on labelled runs; print the one that stops most loops within the bounds, as TOML.

    Labels are JSON lines with run_id, label (loop or ok) and first_bad_index; outcomes with run_id and outcome. Runs
    labelled ok are good, and of the others those whose outcome is 1. Few good runs prove little: the upper bound of the
    true rate (95 %) stands beside what was seen. `held out`: chosen on one half of the runs, looked at on the other,
    both ways. Exits 1 if no policy keeps to the bounds.
    """  # fmt: skip
    labels = read_labels(labels_file)
    good = frozenset(_good(good_file))
    policies = candidates()
    console = Console(stderr=True)
    with _progress(console) as progress:
        task = progress.add_task("trying policies", total=len(policies))
        tried = judge_all(
            files, form, frozenset(labels) | good, policies, lambda done: progress.update(task, completed=done)
        )
    result = tuned(tried, labels, good, Bounds(stopped, warned))
    if result is None:
        click.echo("no policy that was tried keeps to the bounds; the gentlest stops good runs:", err=True)
        Console().print(_curve(curve(tried, labels, good)))
        sys.exit(1)
    if report is not None:
        from streamguard.cli.tune_report import write_tuned  # noqa: PLC0415 - only then

        write_tuned(report, _toml(result, labels_file), result)
        console.print(f"report written to {report}", highlight=False)
    if as_json:
        click.echo(msgspec.json.encode(_as_json(result)))
        return
    click.echo(_toml(result, labels_file))
    Console(stderr=True, soft_wrap=not sys.stderr.isatty()).print(_curve(result.front))


def _good(file: str | None) -> set[str]:
    return good_outcomes(file) if file is not None else set()


def _toml(tuned: Tuned, labels_file: str) -> str:
    return "\n".join(_lines(tuned, labels_file))


def _lines(tuned: Tuned, labels_file: str) -> Iterator[str]:
    policy, found, held = tuned.chosen.policy, tuned.found, tuned.held_out
    yield f"# The best of {tuned.tried} policies on the runs of {Path(labels_file).name}:"
    yield f"#   loops stopped     {found.loops_stopped} of {found.loops}; held out {held.loops_stopped} of {held.loops}"
    yield f"#   loops warned       {found.loops_warned} of {found.loops}; held out {held.loops_warned} of {held.loops}"
    bound = upper_bound(found.good_stopped, found.good)
    yield (
        f"#   good runs stopped  {found.good_stopped} of {found.good}; held out {held.good_stopped} of {held.good}. "
        f"The true rate is below {bound:.2%} (95 %)"
    )
    yield f"#   good runs warned   {found.good_warned} of {found.good}; held out {held.good_warned} of {held.good}"
    yield "[policy]"
    for key, value in _values(policy).items():
        yield f"{key} = {str(value).lower()}"
    yield ""
    yield "[policy.postCompactionGuard]"
    yield f"windowSize = {policy.compaction_window}"


def _values(policy: Policy) -> dict[str, Any]:
    return {
        "enabled": True,
        "historySize": policy.history_size,
        "warningThreshold": policy.warning_threshold,
        "criticalThreshold": policy.critical_threshold,
        "unknownToolThreshold": policy.unknown_tool_threshold,
        "globalCircuitBreakerThreshold": policy.global_circuit_breaker_threshold,
    }


def _curve(front: Sequence[tuple[Candidate, Score]]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title="what more loops cost in good runs", title_justify="left")
    for name in ("warning", "critical", "unknown", "compaction", "loops stopped", "loops warned", "good stopped",
                 "good warned", "calls late"):  # fmt: skip
        table.add_column(name, justify="right")
    for candidate, found in front:
        policy = candidate.policy
        table.add_row(
            str(policy.warning_threshold), str(policy.critical_threshold), str(policy.unknown_tool_threshold),
            str(policy.compaction_window), f"{found.loops_stopped} of {found.loops}",
            f"{found.loops_warned} of {found.loops}", f"{found.good_stopped} of {found.good}",
            f"{found.good_warned} of {found.good}",
            "-" if found.stopped_late is None else f"{found.stopped_late:g}",
        )  # fmt: skip
    return table


def _as_json(tuned: Tuned) -> Any:
    return {
        "policy": {**_values(tuned.chosen.policy), "postCompactionGuard": {
            "windowSize": tuned.chosen.policy.compaction_window}},
        "found": tuned.found,
        "held_out": tuned.held_out,
        "good_stopped_upper_bound": upper_bound(tuned.found.good_stopped, tuned.found.good),
        "curve": [{"policy": _values(candidate.policy), **msgspec.structs.asdict(found)}
                  for candidate, found in tuned.front],
    }  # fmt: skip


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
