"""`streamguard replay`: judge recorded events; verdicts on standard output, everything else on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from streamguard.cli.service import load_policy
from streamguard.errors import UnreadableRecordError
from streamguard.guard import Guard
from streamguard.replay import STDIN, Line, Replay, lines_of
from streamguard.verdicts import encode_verdict

__all__ = ["command"]

SHOWN: Final = 20
"""Unreadable lines that are named one by one."""

REFRESH_LINES: Final = 2_000


@click.command("replay", short_help="Judge recorded events from files, without Kafka.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--policy", "policy_file", type=click.Path(path_type=Path), help="Policy or configuration file.")
@click.option("--agent", "agent_id", help="Judge every event by the policy of this agent.")
@click.option("--record-bytes", type=click.IntRange(min=1), default=1 << 20, show_default=True, help="Longest line.")
@click.option("--json-depth", type=click.IntRange(1, 500), default=128, show_default=True, help="Deepest nesting.")
def command(
    files: tuple[str, ...], policy_file: Path | None, agent_id: str | None, record_bytes: int, json_depth: int
) -> None:
    """Judge recorded events (one JSON object a line, plain or gzip, - for standard input) with the worker's own core.

    Verdicts are JSON lines on standard output; their source's offset is the line, counted from 0 over all files.
    Without --policy the documented defaults hold: rolling detectors off, post-compaction guard on.
    Exits 1 if a line could not be read as an event; the others are judged all the same.
    """
    console = Console(stderr=True)
    policies = load_policy(policy_file)
    if policy_file is None:
        console.print("no --policy given: only the post-compaction guard is on", style="yellow", highlight=False)
    replay = Replay(Guard(policies), record_bytes=record_bytes, json_depth=json_depth, agent_id=agent_id)
    start = time.perf_counter()
    for line in _with_progress(files, record_bytes, console):
        try:
            verdicts = replay.judge(line)
        except UnreadableRecordError as error:
            _complain(console, replay.unreadable, line, error)
            continue
        for verdict in verdicts:
            sys.stdout.buffer.write(encode_verdict(verdict) + b"\n")
    sys.stdout.buffer.flush()
    console.print(_verdicts(replay))
    console.print(_counts(replay, time.perf_counter() - start), soft_wrap=True, highlight=False)
    if replay.unreadable:
        raise SystemExit(1)


def _with_progress(files: tuple[str, ...], limit: int, console: Console) -> Iterator[Line]:
    """Yield the lines of all files; show how far it is while standard error is a terminal."""
    sizes = [Path(name).stat().st_size if name != STDIN and Path(name).is_file() else 0 for name in files]
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("replaying", total=sum(sizes) or None)
        before = 0
        for name, size in zip(files, sizes, strict=True):
            for count, line in enumerate(lines_of(name, limit)):
                if count % REFRESH_LINES == 0:
                    progress.update(task, completed=before + line.read)
                yield line
            before += size


def _complain(console: Console, count: int, line: Line, error: UnreadableRecordError) -> None:
    if count <= SHOWN:
        console.print(f"{line.file}:{line.number}: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
    if count == SHOWN + 1:
        console.print("more lines could not be read; they are counted below", style="red")


def _verdicts(replay: Replay) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("action")
    table.add_column("detector")
    table.add_column("verdicts", justify="right")
    for (action, detector), number in sorted(replay.found.items()):
        table.add_row(action, detector, f"{number:,}")
    if not replay.found:
        table.add_row("none", "", "0")
    return table


def _counts(replay: Replay, seconds: float) -> str:
    counters = replay.guard.counters
    return (
        f"{replay.events:,} events of {counters.runs:,} runs in {seconds:.1f} s "
        f"({replay.events / seconds:,.0f} a second); "
        f"{replay.unreadable:,} unreadable, {replay.skipped:,} of unknown type, "
        f"{counters.duplicates:,} duplicates, {counters.orphans:,} results without a call"
    )
