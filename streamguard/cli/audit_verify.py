"""`streamguard audit verify`: every verdict derived anew, and compared byte for byte."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from streamguard.cli.audit_options import Offsets, check_span, files_given, scope_options
from streamguard.cli.audit_output import printable
from streamguard.cli.audit_query import topic_settings
from streamguard.cli.service import load_policy, service_options

if TYPE_CHECKING:
    from streamguard.audit.comparison import Tally
    from streamguard.audit.verify import Scope
    from streamguard.settings import Settings
    from streamguard.stream.ruleset import Ruleset

__all__ = ["command"]


@click.command("verify", short_help="Derive every verdict anew, and compare byte for byte.")
@service_options
@click.option("--group", help="Consumer group whose verdicts they are.")
@scope_options
@click.option("--policy", type=click.Path(path_type=Path), help="What was in force, where no record says so.")
@click.option("--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="Only these [default: all].")
@click.option("--offsets", type=Offsets(), help="Of these events of each partition: FIRST:END, END left out; 0:1000.")
@click.option("--processes", type=click.IntRange(min=1), help="Processes to use [default: one a core].")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    *,
    config: Path | None,
    bootstrap: str | None,
    group: str | None,
    run_id: str | None,
    since: int | None,
    until: int | None,
    events: tuple[str, ...],
    verdicts: tuple[str, ...],
    policy: Path | None,
    partitions: tuple[int, ...],
    offsets: tuple[int, int] | None,
    processes: int | None,
    as_json: bool,
) -> None:
    """Judge the recorded events again, by what was in force at each, and compare with the verdicts that stand.

    On the live topic (events that the group has committed), or on files: events as `streamguard replay` reads them,
    verdicts as it prints them, and the --policy they were judged by. --run, --since and --until (times of the events)
    and --offsets say which verdicts are compared; the events before them are judged all the same.

    Verdicts that depend on events which are no longer on the topic are counted as unverifiable. Exits 1 if a verdict is
    missing, extra, different, unreadable or, with a signing key, badly signed.
    """
    from streamguard.audit.verify import Scope  # noqa: PLC0415 - Kafka clients load only when they are used

    check_span(since, until)
    scope = Scope(run_id=run_id, since=since, until=until, offsets=offsets)
    console = Console(stderr=True)
    begun = time.perf_counter()
    if files_given(events, verdicts, policy):
        tally = _of_files(events, verdicts, policy, scope)
    else:
        settings = topic_settings(config, bootstrap, worker__group=group)
        tally = asyncio.run(_of_topic(settings, scope, policy, console, partitions=partitions, processes=processes))
    seconds = time.perf_counter() - begun
    if as_json:
        click.echo(msgspec.json.encode(tally))
    else:
        _show(tally, seconds)
    if not tally.clean:
        sys.exit(1)


async def _of_topic(
    settings: Settings,
    scope: Scope,
    policy: Path | None,
    console: Console,
    *,
    partitions: tuple[int, ...],
    processes: int | None,
) -> Tally:
    from streamguard.audit.verify import judged_until  # noqa: PLC0415 - as above
    from streamguard.audit.verifying import verify_topic  # noqa: PLC0415
    from streamguard.stream.ruleset import Ruleset  # noqa: PLC0415
    from streamguard.stream.topics import audit_partitions  # noqa: PLC0415

    count = await audit_partitions(settings)
    fallback: Ruleset | None = Ruleset(load_policy(policy), settings.limits) if policy is not None else None
    spans = await judged_until(settings, count)
    if partitions:
        if unknown := sorted(set(partitions) - {span.partition for span in spans}):
            raise click.UsageError(f"--partition {unknown[0]}: {settings.topics.events} has 0 to {count - 1}")
        spans = [span for span in spans if span.partition in partitions]
    spans = [scope.cut(span) for span in spans]
    total = sum(span.end - span.first for span in spans)
    with _progress(console) as progress:
        task = progress.add_task("verifying", total=total)
        return await verify_topic(
            settings, spans, scope, fallback,
            processes=processes, tell=lambda done: progress.update(task, completed=done),
        )  # fmt: skip


def _of_files(events: tuple[str, ...], verdicts: tuple[str, ...], policy: Path | None, scope: Scope) -> Tally:
    from streamguard.audit.files import verify_files  # noqa: PLC0415 - as above

    return verify_files(events, verdicts, load_policy(policy), scope)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("events"), TimeElapsedColumn(),
        TextColumn("left"), TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip


def _show(tally: Tally, seconds: float) -> None:
    for difference in tally.differences:
        where = f" at {difference.place}" if difference.place else ""
        about = f" of run {difference.run_id}" if difference.run_id else ""
        click.echo(printable(f"{difference.kind}: {difference.verdict_id or 'no verdict'}{about}{where}"))
    counts = f"{tally.missing:,} missing, {tally.extra:,} extra, {tally.different:,} different"
    for name in ("unreadable", "badly_signed", "unverifiable"):
        if number := getattr(tally, name):
            counts += f", {number:,} {name.replace('_', ' ')}"
    click.echo(f"{tally.verified:,} verdicts verified, {counts}")
    click.echo(f"{tally.events:,} events judged in {seconds:.1f} s ({tally.events / seconds:,.0f} a second)", err=True)
