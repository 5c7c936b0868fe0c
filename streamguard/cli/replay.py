"""`streamguard replay`: judge recorded events; verdicts on standard output, everything else on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from streamguard.cli.progress import Complaints, file_progress, left_out
from streamguard.cli.service import load_policy
from streamguard.errors import UnreadableRecordError
from streamguard.guard import Guard
from streamguard.importers import AUTO, CHOICES, EVENTS, Intake, events_of, recording
from streamguard.replay import Line, Replay
from streamguard.verdicts import Verdict, encode_verdict

__all__ = ["command"]


@click.command("replay", short_help="Judge recorded events from files, without Kafka.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--policy", "policy_file", type=click.Path(path_type=Path), help="Policy or configuration file.")
@click.option("--agent", "agent_id", help="Judge every event by the policy of this agent.")
@click.option(
    "--format", "form", type=click.Choice(CHOICES), default=AUTO, show_default=True, help="Whose recordings they are."
)
@click.option(
    "--record-bytes", type=click.IntRange(min=1), default=1 << 20, show_default=True, help="Longest line, or event."
)
@click.option("--json-depth", type=click.IntRange(1, 500), default=128, show_default=True, help="Deepest nesting.")
def command(
    files: tuple[str, ...],
    policy_file: Path | None,
    agent_id: str | None,
    form: str,
    *,
    record_bytes: int,
    json_depth: int,
) -> None:
    """Judge recorded events (one JSON object a line, plain or gzip, - for standard input) with the worker's own core.

    Recordings of other tools are judged too: Claude Code transcripts, exported traces of the OpenAI Agents SDK, OTLP
    JSON with spans `execute_tool`, OpenClaw session logs. With --format auto each file's first lines tell whose it is.

    Verdicts are JSON lines on standard output; their source's offset is the line (in recordings of other tools: the
    event), counted from 0 over all files. Without --policy the documented defaults hold: rolling detectors off,
    post-compaction guard on. Exits 1 if something could not be read; the rest is judged all the same.
    """
    console = Console(stderr=True)
    policies = load_policy(policy_file)
    if policy_file is None:
        console.print("no --policy given: only the post-compaction guard is on", style="yellow", highlight=False)
    replay = Replay(Guard(policies), record_bytes=record_bytes, json_depth=json_depth, agent_id=agent_id)
    complaints = Complaints(console)
    start = time.perf_counter()
    with file_progress("replaying", files, console) as (progress, sizes):
        for name, size in zip(files, sizes, strict=True):
            found = recording(name, form, record_bytes)
            lines = progress.follow(found.lines, size)
            if found.format == EVENTS:
                _write(_judged_lines(replay, lines, complaints))
                continue
            intake = Intake(name, record_bytes=record_bytes, json_depth=json_depth, refuse=complaints.refuse)
            _write(replay.judge_event(imported.event) for imported in events_of(lines, found.format, intake))
            replay.unreadable += intake.refused
            left_out(console, found.format, intake)
    console.print(_verdicts(replay))
    console.print(_counts(replay, time.perf_counter() - start), soft_wrap=True, highlight=False)
    if replay.unreadable:
        raise SystemExit(1)


def _judged_lines(replay: Replay, lines: Iterator[Line], complaints: Complaints) -> Iterator[Sequence[Verdict]]:
    for line in lines:
        try:
            yield replay.judge(line)
        except UnreadableRecordError as error:
            complaints.say(f"{line.file}:{line.number}: {error}")


def _write(judged: Iterator[Sequence[Verdict]]) -> None:
    for verdicts in judged:
        for verdict in verdicts:
            sys.stdout.buffer.write(encode_verdict(verdict) + b"\n")
    sys.stdout.buffer.flush()


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
