"""`streamguard audit tail`: the newest verdicts, and those that come."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console
from rich.text import Text

from streamguard.cli.audit_list import write
from streamguard.cli.audit_output import action_of, csv_row_of, csv_writer, moment, printable
from streamguard.cli.audit_query import (
    Chosen,
    Found,
    partitions_of,
    query_of,
    query_options,
    read_topic,
    topic_settings,
)
from streamguard.cli.service import service_options

if TYPE_CHECKING:
    from streamguard.audit.query import Query
    from streamguard.settings import Settings
    from streamguard.verdicts import Verdict

__all__ = ["command"]

NARROW: Final = "\n              "
"""Begins a second line, below the action."""


@click.command("tail", short_help="Follow verdicts as they come.")
@service_options
@query_options
@click.option("-n", "--limit", type=click.IntRange(min=0), default=10, show_default=True, help="The newest, first.")
@click.option("--no-follow", is_flag=True, help="End after the newest.")
@click.option("--json", "form", flag_value="json", help="JSON lines: each verdict as it stands, byte for byte.")
@click.option("--csv", "form", flag_value="csv", help="CSV with a line of names.")
def command(
    *, config: Path | None, bootstrap: str | None, limit: int, no_follow: bool, form: str | None, **options: Any
) -> None:
    """Print the newest verdicts, then each one as it comes, until Ctrl-C."""
    settings = topic_settings(config, bootstrap)
    query = query_of(options)
    positions: dict[int, int] = {}
    if limit:
        chosen = Chosen(query, limit)
        positions = read_topic(settings, chosen, query.since, Console(stderr=True))
        _print(chosen.in_order(), form, head=True)
    elif form == "csv":
        _print([], form, head=True)
    if not no_follow:
        asyncio.run(_follow(settings, query, form, positions))


async def _follow(settings: Settings, query: Query, form: str | None, positions: dict[int, int]) -> None:
    from streamguard.audit.standing import following  # noqa: PLC0415 - Kafka clients load only when they are used

    async for standing in following(settings, range(await partitions_of(settings)), positions):
        if query.holds(standing.verdict):
            _print([Found(standing.verdict, standing.value)], form)


def _print(found: list[Found], form: str | None, *, head: bool = False) -> None:
    if form == "csv":
        csv_writer(head=head).writerows(csv_row_of(each.verdict) for each in found)
    elif form == "json":
        write(found, form)
    else:
        console = Console(soft_wrap=True)
        for each in found:
            line = _line(each.verdict)
            if console.is_terminal and line.cell_len > console.width:
                line = _line(each.verdict, NARROW)
            console.print(line, highlight=False)
    sys.stdout.flush()


def _line(verdict: Verdict, between: str = "  ") -> Text:
    """Return a verdict as a line; `between` what is said and whom it is about."""
    about = f"{verdict.detector} {verdict.count} of {verdict.threshold}" if verdict.detector else ""
    return Text.assemble(
        (moment(verdict.source.timestamp)[11:-1], "dim"), "  ", action_of(verdict), f"  {printable(about)}  ",
        (printable(verdict.tool), "bold"), f"{between}run {printable(verdict.run_id)}",
        f"  agent {printable(verdict.agent_id)}" if verdict.agent_id else "",
        (f"  {printable(verdict.verdict_id)}", "dim"),
    )  # fmt: skip
