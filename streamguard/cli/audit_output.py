"""How verdicts are printed: tables for people, JSON lines and CSV for machines, Parquet for those who count on."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from streamguard.audit.times import utc
from streamguard.errors import MissingExtraError
from streamguard.verdicts import Verdict

__all__ = [
    "COLUMNS",
    "STYLES",
    "action_of",
    "csv_row_of",
    "csv_writer",
    "moment",
    "narrow_table_of",
    "printable",
    "row_of",
    "table_of",
    "write_parquet",
]

COLUMNS: Final = (
    "time", "action", "shadow", "detector", "count", "threshold", "run_id", "agent_id", "tool", "call_id",
    "signature", "paired_tool", "message", "override", "policy", "verdict_id", "partition", "offset",
)  # fmt: skip
"""Of CSV and Parquet; `time`, `partition` and `offset` are the event's."""

STYLES: Final = {"allow": "green", "warn": "yellow", "block": "red", "abort": "bold red"}


def moment(timestamp: int) -> str:
    """Return a time in milliseconds since 1970 as people read it, in UTC."""
    return utc(timestamp).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"


def action_of(verdict: Verdict) -> Text:
    """Return what a verdict does, or would do."""
    if not verdict.shadow:
        return Text(verdict.action, STYLES[verdict.action])
    return Text(f"{verdict.action} (shadow)", "dim")


def printable(text: str | None) -> str:
    """Return a name as a terminal may show it: agents choose names, and none of them moves the cursor."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text or "")


def row_of(verdict: Verdict) -> list[Any]:
    """Return the values of `COLUMNS`."""
    source = verdict.source
    known = {"time": moment(source.timestamp), "partition": source.partition, "offset": source.offset}
    return [known[name] if name in known else getattr(verdict, name) for name in COLUMNS]


def csv_row_of(verdict: Verdict) -> list[Any]:
    """Return the values of `COLUMNS` as CSV is read elsewhere: the time as ISO 8601, whether in shadow as in JSON."""
    row = dict(zip(COLUMNS, row_of(verdict), strict=True))
    row["time"] = row["time"].replace(" ", "T")
    row["shadow"] = "true" if verdict.shadow else "false"
    return list(row.values())


def table_of(verdicts: Iterable[Verdict]) -> Table:
    """Return verdicts as a table for people."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("time (UTC)", no_wrap=True)
    table.add_column("action", no_wrap=True)
    table.add_column("detector", no_wrap=True)
    table.add_column("count", justify="right")
    table.add_column("run", overflow="fold")
    table.add_column("agent", overflow="fold")
    table.add_column("tool", overflow="fold")
    table.add_column("verdict", no_wrap=True)
    for verdict in verdicts:
        count = f"{verdict.count} of {verdict.threshold}" if verdict.threshold is not None else ""
        table.add_row(
            moment(verdict.source.timestamp)[5:-1], action_of(verdict), Text(printable(verdict.detector)), count,
            *(Text(printable(name)) for name in (verdict.run_id, verdict.agent_id, verdict.tool, verdict.verdict_id)),
        )  # fmt: skip
    return table


def narrow_table_of(verdicts: Iterable[Verdict]) -> Table:
    """Return verdicts as a table for a narrow terminal: two lines each, ids whole."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("time (UTC)", no_wrap=True)
    table.add_column("action", no_wrap=True)
    table.add_column("run, verdict: why", overflow="fold")
    for verdict in verdicts:
        count = f" {verdict.count} of {verdict.threshold}" if verdict.threshold is not None else ""
        why = " · ".join(filter(None, (f"{verdict.detector or ''}{count}", verdict.tool, verdict.agent_id)))
        table.add_row(
            moment(verdict.source.timestamp)[5:19], action_of(verdict),
            Text.assemble(
                printable(verdict.run_id), (f"  {printable(verdict.verdict_id)}", "dim"), f"\n{printable(why)}"
            ),
        )  # fmt: skip
    return table


def csv_writer(*, head: bool = True) -> Any:
    """Return a writer of CSV to standard output; with a head it has written the names of the columns."""
    writer = csv.writer(sys.stdout)  # RFC 4180: lines end with CR LF, and a name that holds either is quoted
    if head:
        writer.writerow(COLUMNS)
    return writer


def write_parquet(file: Path, verdicts: Sequence[Verdict], console: Console) -> None:
    """Write verdicts to a Parquet file. Raises `MissingExtraError`."""
    try:
        import pyarrow as pa  # noqa: PLC0415 - an extra
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError:
        raise MissingExtraError(
            "--parquet needs pyarrow, which is not installed: pip install 'streamguard[parquet]'"
        ) from None
    whole, told = pa.int64(), {"count", "threshold", "partition", "offset"}
    kinds = {name: whole if name in told else pa.string() for name in COLUMNS}
    kinds |= {"time": pa.timestamp("ms", "UTC"), "shadow": pa.bool_()}
    rows = [dict(zip(COLUMNS, row_of(verdict), strict=True)) for verdict in verdicts]
    for row, verdict in zip(rows, verdicts, strict=True):
        row["time"] = verdict.source.timestamp
    columns = [pa.array([row[name] for row in rows], kind) for name, kind in kinds.items()]
    parquet.write_table(pa.table(columns, names=list(kinds)), file)
    console.print(f"{len(rows):,} verdicts written to {file}", highlight=False)
