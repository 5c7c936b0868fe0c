"""`streamguard audit list`: the verdicts that stand."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from streamguard.cli.audit_output import csv_row_of, csv_writer, narrow_table_of, table_of, write_parquet
from streamguard.cli.audit_query import Chosen, Found, query_of, query_options, read_files, read_topic, topic_settings
from streamguard.cli.service import service_options
from streamguard.logs import configure_logs
from streamguard.verdicts import Verdict

__all__ = ["command", "write"]

SHOWN: Final = 100
"""Verdicts in a table unless more are asked for."""


@click.command("list", short_help="List verdicts.")
@service_options
@query_options
@click.option("--verdicts", "files", multiple=True, metavar="FILE", help="From files, as `streamguard replay` prints.")
@click.option("--limit", type=click.IntRange(min=0), help="The newest so many; 0: all [default: 100 in a table].")
@click.option("--json", "form", flag_value="json", help="JSON lines: each verdict as it stands, byte for byte.")
@click.option("--csv", "form", flag_value="csv", help="CSV with a line of names.")
@click.option("--parquet", type=click.Path(path_type=Path), help="Write a Parquet file (extra `parquet`).")
def command(
    *,
    config: Path | None,
    bootstrap: str | None,
    files: tuple[str, ...],
    limit: int | None,
    form: str | None,
    parquet: Path | None,
    **options: Any,
) -> None:
    """List verdicts, oldest first, by the times of their events.

    From the verdict topic, or from files. Exits 1 if a line of a file is no verdict; the
    others are listed all the same.
    """
    console = Console(stderr=True)
    query = query_of(options)
    whole = form is not None or parquet is not None
    chosen = Chosen(query, (0 if whole else SHOWN) if limit is None else limit)
    if files:
        configure_logs()
        read_files(files, chosen, console)
    else:
        read_topic(topic_settings(config, bootstrap), chosen, query.since, console)
    found = chosen.in_order()
    if parquet is not None:
        write_parquet(parquet, [each.verdict for each in found], console)
    else:
        write(found, form)
    if len(found) < chosen.count:
        console.print(f"the newest {len(found):,} of {chosen.count:,}; --limit 0 shows all", highlight=False)
    if chosen.unreadable:
        sys.exit(1)


def write(found: list[Found], form: str | None) -> None:
    """Print verdicts."""
    if form == "json":
        sys.stdout.buffer.write(b"".join(each.value + b"\n" for each in found))
        sys.stdout.buffer.flush()
    elif form == "csv":
        csv_writer().writerows(csv_row_of(each.verdict) for each in found)
    elif found:
        _show([each.verdict for each in found])
    else:
        click.echo("no verdicts", err=True)


def _show(verdicts: list[Verdict]) -> None:
    console = Console(soft_wrap=not sys.stdout.isatty())
    table = table_of(verdicts)
    fits = console.soft_wrap or console.measure(table).maximum <= console.width
    console.print(table if fits else narrow_table_of(verdicts))
