"""`streamguard audit explain`: why a call was warned of or stopped."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from streamguard.audit.query import Query
from streamguard.cli.audit_options import file_options
from streamguard.cli.audit_query import partitions_of, reading, topic_settings
from streamguard.cli.audit_story import explained
from streamguard.cli.service import load_policy, service_options
from streamguard.errors import VerdictNotFoundError
from streamguard.settings import Settings

if TYPE_CHECKING:
    from streamguard.audit.explain import Explanation
    from streamguard.audit.standing import Standing
    from streamguard.stream.ruleset import Ruleset

__all__ = ["command"]


@click.command("explain", short_help="Say why a call was stopped, and why not the one before.")
@click.argument("verdict_id", required=False)
@service_options
@click.option("--run", "run_id", help="Explain what stopped this run first (or its newest verdict).")
@file_options
@click.option("--policy", type=click.Path(path_type=Path), help="What was in force, where no record says so.")
@click.option("--steps", type=click.IntRange(min=1), default=40, show_default=True, help="Events of the run to show.")
def command(
    verdict_id: str | None,
    *,
    config: Path | None,
    bootstrap: str | None,
    run_id: str | None,
    events: tuple[str, ...],
    verdicts: tuple[str, ...],
    policy: Path | None,
    steps: int,
) -> None:
    """Explain a verdict: the run's events up to it, what was counted, the rule, the threshold, the policy in force.

    The events are judged again for that, so it is also told whether the verdict follows from them. Arguments and
    results are never shown: calls that are alike have the same letter, and so have outcomes.
    """
    if (verdict_id is None) == (run_id is None):
        raise click.UsageError("name a verdict (its id is in `streamguard audit list`), or a run by --run")
    console = Console(stderr=True)
    if events or verdicts:
        if not (events and verdicts and policy):
            raise click.UsageError("to explain from files, --events, --verdicts and --policy are needed together")
        explanation = _of_files(events, verdicts, policy, verdict_id, run_id)
    else:
        settings = topic_settings(config, bootstrap)
        explanation = asyncio.run(_of_topic(settings, policy, verdict_id, run_id, console))
    for part in explained(explanation, steps):
        Console(soft_wrap=False, highlight=False).print(part)


async def _of_topic(
    settings: Settings, policy: Path | None, verdict_id: str | None, run_id: str | None, console: Console
) -> Explanation:
    from streamguard.audit.explain import explain_topic, find_verdict  # noqa: PLC0415 - Kafka clients load when used
    from streamguard.stream.ruleset import Ruleset  # noqa: PLC0415

    partitions = await partitions_of(settings)
    if verdict_id is not None:
        standing = await find_verdict(settings, verdict_id, partitions)
    else:
        standing = await _of_run(settings, run_id or "", partitions, console)
    fallback: Ruleset | None = Ruleset(load_policy(policy), settings.limits) if policy is not None else None
    columns = (TextColumn("reading events"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("")
        return await explain_topic(
            settings, standing.verdict, fallback,
            lambda done, total: progress.update(task, completed=done, total=total),
        )  # fmt: skip


async def _of_run(settings: Settings, run_id: str, partitions: int, console: Console) -> Standing:
    from streamguard.audit.explain import telling  # noqa: PLC0415 - as above
    from streamguard.audit.standing import standing_verdicts  # noqa: PLC0415

    query = Query(run_id=run_id)
    with reading(console) as progress:
        task = progress.add_task("reading verdicts", read="")
        found = [
            standing
            async for standing in standing_verdicts(
                settings, range(partitions), tell=lambda count: progress.update(task, read=f"{count:,}")
            )
            if query.holds(standing.verdict)
        ]
    chosen = telling(found)
    if chosen is None:
        raise _nothing_of(run_id)
    console.print(f"{len(found):,} verdicts about run {run_id}", highlight=False, markup=False)
    return chosen


def _of_files(
    events: tuple[str, ...], verdicts: tuple[str, ...], policy: Path, verdict_id: str | None, run_id: str | None
) -> Explanation:
    from streamguard.audit.explain import explain_file, telling  # noqa: PLC0415 - as above
    from streamguard.audit.files import verdicts_of  # noqa: PLC0415
    from streamguard.audit.standing import Standing  # noqa: PLC0415

    query = Query(run_id=run_id)
    found = [
        Standing(filed.verdict, filed.value, 0, 0)
        for filed in verdicts_of(verdicts)
        if filed.verdict is not None and (filed.verdict.verdict_id == verdict_id or
                                          (verdict_id is None and query.holds(filed.verdict)))
    ]  # fmt: skip
    chosen = telling(found)
    if chosen is None:
        raise (_nothing_of(run_id) if run_id is not None else VerdictNotFoundError(f"{verdict_id} is not in the files"))
    return explain_file(events, chosen.verdict, load_policy(policy))


def _nothing_of(run_id: str) -> VerdictNotFoundError:
    return VerdictNotFoundError(
        f"nothing was ever said about run {run_id} but `allow`, as far as the verdict topic reaches "
        f"(looked at {time.strftime('%Y-%m-%d %H:%M:%SZ', time.gmtime())})"
    )
