"""`streamguard backtest`: what a policy would have done, and what another one would have done otherwise."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from streamguard.audit.backtest import Backtest, Change, Moment, changes, totals
from streamguard.audit.labels import Label, Score, read_labels, score
from streamguard.cli.audit_options import TIMES, check_span
from streamguard.cli.audit_options import Moment as TimeType
from streamguard.cli.audit_output import printable
from streamguard.cli.audit_query import partitions_of, reading, topic_settings
from streamguard.cli.progress import Complaints
from streamguard.cli.service import load_policy, service_options
from streamguard.importers import AUTO, CHOICES

if TYPE_CHECKING:
    from streamguard.settings import Settings

__all__ = ["command"]

EXAMPLES: Final = 3
FOREVER: Final = 1 << 60


@click.command("backtest", short_help="Try policies on recorded events.")
@click.argument("files", nargs=-1, metavar="[FILE...]")
@service_options
@click.option(
    "--policy",
    "policies",
    type=click.Path(path_type=Path),
    multiple=True,
    required=True,
    help="The policy; give a second one to compare them.",
)
@click.option("--since", "--from", "since", type=TimeType(), help=TIMES)
@click.option("--until", "--to", "until", type=TimeType(), help="Events before a time.")
@click.option("--labels", "labels_file", metavar="FILE", help="Runs that a reader judged.")
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
    config: Path | None,
    bootstrap: str | None,
    policies: tuple[Path, ...],
    since: int | None,
    until: int | None,
    labels_file: str | None,
    form: str,
    report: Path | None,
    as_json: bool,
) -> None:
    """Judge recorded events by a policy, from files or (without any) from the events topic.

    Says what would have been warned of, blocked and aborted; with a second policy also which runs it treats otherwise,
    and from which tool call on (counted from 0). Calls saved are those that would not have run: blocked ones, and every
    call after an abort. The recordings go on as they did: what an agent would have done instead nobody knows.
    """  # fmt: skip
    if len(policies) > 2:  # noqa: PLR2004 - A and B
        raise click.UsageError("two policies can be compared, not more")
    check_span(since, until)
    console = Console(stderr=True)
    sweep = []
    if report is not None:
        from streamguard.cli.backtest_report import sweep_policies  # noqa: PLC0415 - only then

        sweep = sweep_policies(load_policy(policies[0]))
    tests = [Backtest(load_policy(file)) for file in policies]
    complaints = Complaints(console)
    everything = [*tests, *(Backtest(each) for each in sweep)]
    span = (since or 0, until or FOREVER)
    if files:
        _of_files(files, form, everything, span, complaints)
    else:
        asyncio.run(_of_topic(topic_settings(config, bootstrap), everything, span, console))
    labels = read_labels(labels_file) if labels_file else {}
    unique = len({file.name for file in policies}) == len(policies)
    names = [file.name if unique else str(file) for file in policies]
    differing = list(changes(tests[0].runs, tests[1].runs)) if len(tests) > 1 else []
    if report is not None:
        from streamguard.cli.backtest_report import Tested, write_backtest  # noqa: PLC0415 - as above

        write_backtest(report, Tested(names, tests, everything[len(tests) :], differing, labels))
        console.print(f"report written to {report}", highlight=False)
    if as_json:
        click.echo(msgspec.json.encode(_as_json(names, tests, differing, labels)))
    else:
        _show(names, tests, differing, labels)
    if complaints.count:
        sys.exit(1)


def _of_files(
    files: Sequence[str], form: str, tests: Sequence[Backtest], span: tuple[int, int], complaints: Complaints
) -> None:
    from streamguard.audit.recorded import of_files  # noqa: PLC0415 - Kafka clients load only when they are used

    for event, source in of_files(files, form, complaints.say):
        if span[0] <= source.timestamp < span[1]:
            for test in tests:
                test.observe(event, source)


async def _of_topic(settings: Settings, tests: Sequence[Backtest], span: tuple[int, int], console: Console) -> None:
    from streamguard.audit.recorded import of_topic  # noqa: PLC0415 - as above

    with reading(console) as progress:
        task = progress.add_task("reading events", read="")
        partitions = range(await partitions_of(settings))
        async for event, source in of_topic(
            settings, partitions, span[0] or None, lambda count: progress.update(task, read=f"{count:,}")
        ):
            if span[0] <= source.timestamp < span[1]:
                for test in tests:
                    test.observe(event, source)


def _show(
    names: Sequence[str], tests: Sequence[Backtest], differing: Sequence[Change], labels: dict[str, Label]
) -> None:
    console = Console(soft_wrap=not sys.stdout.isatty())
    console.print(_sums(names, tests))
    if labels:
        console.print(_scores(names, [score(test.runs, labels) for test in tests]))
    if len(tests) > 1:
        console.print(_differences(differing))


def _sums(names: Sequence[str], tests: Sequence[Backtest]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("policy", overflow="fold")
    columns = ("runs", "calls", "warned", "stopped", "warns", "blocks", "aborts", "shadows", "saved")
    for name in columns:
        table.add_column({"warned": "runs warned", "stopped": "runs stopped", "saved": "calls saved"}.get(name, name),
                         justify="right")  # fmt: skip
    for name, test in zip(names, tests, strict=True):
        sums = totals(test.runs.values())
        table.add_row(Text(printable(name)), *(f"{getattr(sums, column):,}" for column in columns))
    return table


def _scores(names: Sequence[str], scores: Sequence[Score]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title="on labelled runs", title_justify="left")
    for name in ("policy", "loops warned", "loops stopped", "calls late", "good warned", "good stopped"):
        table.add_column(name, justify="left" if name == "policy" else "right")
    for name, found in zip(names, scores, strict=True):
        late = [_late(each) for each in (found.warned_late, found.stopped_late)]
        table.add_row(
            Text(printable(name)), f"{found.loops_warned} of {found.loops}", f"{found.loops_stopped} of {found.loops}",
            f"{late[0]} / {late[1]}", f"{found.good_warned} of {found.good}", f"{found.good_stopped} of {found.good}",
        )  # fmt: skip
    table.caption = "calls late: from the first call that should not have run to the first warning / stop, median"
    table.caption_justify = "left"
    return table


def _late(calls: float | None) -> str:
    return "-" if calls is None else f"{calls:g}"


def _differences(differing: Sequence[Change]) -> Table:
    kinds = {kind: [each for each in differing if each.kind == kind] for kind in sorted({c.kind for c in differing})}
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("what differs", "runs", "for example", "A", "B"):
        table.add_column(name, justify="right" if name == "runs" else "left", overflow="fold")
    for kind, found in kinds.items():
        for number, change in enumerate(found[:EXAMPLES]):
            first = (kind, f"{len(found):,}") if number == 0 else ("", "")
            texts = (change.run_id, moment_text(change.first), moment_text(change.second))
            table.add_row(*first, *(Text(printable(text)) for text in texts))
    if not differing:
        table.add_row("nothing", "0", "", "", "")
    return table


def moment_text(moment: Moment | None) -> str:
    """Return what was first said, in a few words."""
    if moment is None:
        return "-"
    return f"call {moment.call}: {moment.action} {moment.detector} ({moment.count}) {moment.tool or ''}".strip()


def _as_json(
    names: Sequence[str], tests: Sequence[Backtest], differing: Sequence[Change], labels: dict[str, Label]
) -> Any:
    def of(name: str, test: Backtest) -> Iterator[tuple[str, Any]]:
        yield "policy", name
        yield "totals", totals(test.runs.values())
        if labels:
            yield "labelled", score(test.runs, labels)
        yield "runs", [run for run in test.runs.values() if run.warned or run.stopped or run.shadows]

    document: dict[str, Any] = {"policies": [dict(of(*each)) for each in zip(names, tests, strict=True)]}
    if len(tests) > 1:
        document["differences"] = differing
    return document
