"""`streamguard audit stats`: how much was called, looped and stopped."""

from __future__ import annotations

import asyncio
import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from streamguard.audit.stats import BY, Row, Stats
from streamguard.cli.audit_options import TIMES, Moment, check_span, file_options
from streamguard.cli.audit_output import printable
from streamguard.cli.audit_query import partitions_of, reading, topic_settings
from streamguard.cli.service import service_options

if TYPE_CHECKING:
    from streamguard.settings import Settings

__all__ = ["command"]

NUMBERS: Final = Row.__struct_fields__
FOREVER: Final = 1 << 60


@click.command("stats", short_help="Count calls, loops and blocks by agent, tool, detector or day.")
@service_options
@file_options
@click.option(
    "--by", type=click.Choice(BY), multiple=True, default=("agent", "tool"), show_default=True, help="May be repeated."
)
@click.option("--since", type=Moment(), help=TIMES)
@click.option("--until", type=Moment(), help="Before a time.")
@click.option("--json", "form", flag_value="json", help="Print JSON lines.")
@click.option("--csv", "form", flag_value="csv", help="Print CSV.")
def command(
    *,
    config: Path | None,
    bootstrap: str | None,
    events: tuple[str, ...],
    verdicts: tuple[str, ...],
    by: tuple[str, ...],
    since: int | None,
    until: int | None,
    form: str | None,
) -> None:
    """Count by agent, tool, detector or day (UTC): times are those of the events.

    \b
    calls    made, of tools (not told by detector: no detector has them)
    loops    different calls of a run that were warned of or stopped
    warns, blocks, aborts   enforced verdicts
    shadows  verdicts that were only recorded
    saved    calls that were blocked, and so did not run; what an aborted run
             would have gone on to do nobody knows, and it is not counted
    """  # noqa: D301 - \b is click's mark against rewrapping
    check_span(since, until)
    stats = Stats(tuple(name for name in BY if name in by))
    span = since or 0, until or FOREVER
    if events or verdicts:
        from streamguard.audit.counting import count_files  # noqa: PLC0415 - Kafka clients load only when they are used

        count_files(stats, events, verdicts, span)
    else:
        asyncio.run(_of_topic(topic_settings(config, bootstrap), stats, span))
    names: list[str] = [name for name in BY if name in by]
    if form is None and not stats.in_order():
        click.echo("no events and no verdicts", err=True)
    elif form is None:
        Console(soft_wrap=not sys.stdout.isatty()).print(_table(names, stats))
    else:
        _write(names, stats, form)


async def _of_topic(settings: Settings, stats: Stats, span: tuple[int, int]) -> None:
    from streamguard.audit.counting import count_topic  # noqa: PLC0415 - as above

    with reading(Console(stderr=True)) as progress:
        task = progress.add_task("reading records", read="")
        await count_topic(
            settings, stats, span, range(await partitions_of(settings)),
            lambda count: progress.update(task, read=f"{count:,}"),
        )  # fmt: skip


def _table(names: list[str], stats: Stats) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in names:
        table.add_column(name, overflow="fold")
    for name in NUMBERS:
        table.add_column(name, justify="right", no_wrap=True)
    for key, row in stats.in_order().items():
        numbers = [getattr(row, name) for name in NUMBERS]
        table.add_row(
            *(Text(printable(name)) for name in key), *("" if number is None else f"{number:,}" for number in numbers)
        )
    return table


def _write(names: list[str], stats: Stats, form: str) -> None:
    if form == "csv":
        writer = csv.writer(sys.stdout)
        writer.writerow((*names, *NUMBERS))
        writer.writerows((*key, *msgspec.structs.astuple(row)) for key, row in stats.in_order().items())
        return
    for key, row in stats.in_order().items():
        click.echo(msgspec.json.encode({**dict(zip(names, key, strict=True)), **msgspec.structs.asdict(row)}))
