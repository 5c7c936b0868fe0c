"""The options by which verdicts are chosen, and reading those that stand."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, get_args

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from streamguard.audit.query import Query
from streamguard.cli.audit_options import TIMES, Moment, check_span
from streamguard.cli.service import load_briefly
from streamguard.verdicts import Action, Verdict

if TYPE_CHECKING:
    from streamguard.settings import Settings

__all__ = ["Chosen", "Found", "partitions_of", "query_options", "read_files", "read_topic", "topic_settings"]

Command = TypeVar("Command", bound=Callable[..., Any])

DETECTORS: Final = (
    "generic_repeat", "known_poll_no_progress", "ping_pong", "unknown_tool_repeat", "global_circuit_breaker",
    "compaction_loop_persisted",
)  # fmt: skip


class Found(NamedTuple):
    """A verdict, and its bytes as they stand."""

    verdict: Verdict
    value: bytes


class Chosen:
    """Keeps what was asked for: the newest `limit` by the time of their events, 0: all. `count` is of all that fit."""

    def __init__(self, query: Query, limit: int) -> None:
        self.count = 0
        self.unreadable = 0
        self._query = query
        self._limit = limit
        self._order = itertools.count()
        self._kept: list[tuple[int, int, int, Found]] = []

    def take(self, found: Found) -> None:
        """Take a verdict, if it is asked for."""
        if not self._query.holds(found.verdict):
            return
        self.count += 1
        source = found.verdict.source
        entry = (source.timestamp, source.partition, next(self._order), found)
        if self._limit and len(self._kept) >= self._limit:
            heapq.heappushpop(self._kept, entry)
        else:
            heapq.heappush(self._kept, entry)

    def in_order(self) -> list[Found]:
        """Return what was kept, oldest first."""
        return [found for *_, found in sorted(self._kept)]


def query_options(command: Command) -> Command:
    """Add the options by which verdicts are chosen."""
    options = (
        click.option("--run", "run_id", help="Of this run."),
        click.option("--agent", "agent_id", help="Of this agent."),
        click.option("--tool", "tools", multiple=True, help="About this tool; may be repeated."),
        click.option("--detector", "detectors", type=click.Choice(DETECTORS), multiple=True, help="Of this detector."),
        click.option(
            "--action", "actions", type=click.Choice(get_args(Action)), multiple=True,
            help="That do this [default: all but allow].",
        ),
        click.option("--shadow/--no-shadow", default=None, help="Only those in shadow, or none of them."),
        click.option("--since", type=Moment(), help=TIMES),
        click.option("--until", type=Moment(), help="Before a time."),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def query_of(options: dict[str, Any]) -> Query:
    """Take the query out of a command's options. Raises `click.UsageError` if its times are in the wrong order."""
    sets = ("tools", "detectors", "actions")
    values: dict[str, Any] = {name: frozenset(value) if name in sets else value for name, value in options.items()}
    check_span(options["since"], options["until"])
    return Query(**values)


def topic_settings(config: Path | None, bootstrap: str | None, **flags: Any) -> Settings:
    """Return the settings of a command that reads topics."""
    return load_briefly(config, kafka__bootstrap=bootstrap, **flags)


async def partitions_of(settings: Settings) -> int:
    """Return how many partitions the verdicts have. Raises `TopicMissingError`."""
    from streamguard.stream.topics import executor_partitions  # noqa: PLC0415 - Kafka clients load when they are used

    return await executor_partitions(settings)


def read_topic(settings: Settings, chosen: Chosen, since: int | None, console: Console) -> dict[int, int]:
    """Read the verdict topic to its end as of now; return, by partition, where reading on would begin."""
    positions: dict[int, int] = {}

    async def read() -> None:
        from streamguard.audit.standing import standing_verdicts  # noqa: PLC0415 - as above

        with reading(console) as progress:
            task = progress.add_task("reading verdicts", read="")
            tell = lambda count: progress.update(task, read=f"{count:,}")  # noqa: E731 - a few words
            partitions = range(await partitions_of(settings))
            async for standing in standing_verdicts(settings, partitions, since=since, tell=tell, positions=positions):
                chosen.take(Found(standing.verdict, standing.value))

    asyncio.run(read())
    return positions


def read_files(files: Iterable[str], chosen: Chosen, console: Console) -> None:
    """Read verdicts from files; what is none is named."""
    from streamguard.audit.files import verdicts_of  # noqa: PLC0415 - as above

    for filed in verdicts_of(list(files)):
        if filed.verdict is None:
            console.print(f"{filed.place}: no verdict", style="red", markup=False, highlight=False, soft_wrap=True)
            chosen.unreadable += 1
        else:
            chosen.take(Found(filed.verdict, filed.value))


def reading(console: Console) -> Progress:
    """Show how much was read, while standard error is a terminal."""
    return Progress(
        SpinnerColumn(), TextColumn("{task.description} {task.fields[read]}"), TimeElapsedColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip
