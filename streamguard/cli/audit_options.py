"""Options that the commands of `streamguard audit` share: which verdicts, and where from."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from streamguard.audit.times import read_time

__all__ = ["TIMES", "Moment", "Offsets", "check_span", "file_options", "files_given", "scope_options"]

TIMES: Final = "From a time on: 2026-12-01T08:00:00Z, a day: 2026-12-01 (UTC), or 24h ago: 24h."

Command = TypeVar("Command", bound=Callable[..., Any])


class Moment(click.ParamType):  # type: ignore[type-arg,unused-ignore] # newer versions of click have it
    """A time, in milliseconds since 1970."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read it."""
        if isinstance(value, int):
            return value
        try:
            return read_time(str(value), time.time())
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Offsets(click.ParamType):  # type: ignore[type-arg,unused-ignore] # newer versions of click have it
    """A range of offsets: the first, and the one behind the last."""

    name = "FIRST:END"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Read it."""
        found = re.fullmatch(r"(\d{1,18}):(\d{1,18})", str(value), re.ASCII)
        if found is None or int(found[1]) >= int(found[2]):
            self.fail(f"{value!r} is no range of offsets: FIRST:END, such as 0:1000, END behind the last", param, ctx)
        return int(found[1]), int(found[2])


def check_span(since: int | None, until: int | None) -> None:
    """Raise `click.UsageError` if a span of time ends before it begins."""
    if since is not None and until is not None and until <= since:
        raise click.UsageError("--until is not after --since: there is no time between them")


def file_options(command: Command) -> Command:
    """Add the options by which files are read instead of the topics."""
    command = click.option(
        "--verdicts", multiple=True, metavar="FILE", help="Verdicts from files, as `streamguard replay` prints them."
    )(command)
    return click.option(
        "--events", multiple=True, metavar="FILE", help="Events from files, as `streamguard replay` reads them."
    )(command)


def scope_options(command: Command) -> Command:
    """Add the options that say which verdicts, and from which files."""
    command = file_options(command)
    command = click.option("--until", type=Moment(), help="Before a time.")(command)
    command = click.option("--since", type=Moment(), help=TIMES)(command)
    return click.option("--run", "run_id", help="Of this run only.")(command)


def files_given(events: tuple[str, ...], verdicts: tuple[str, ...], policy: object) -> bool:
    """Tell whether files are to be read; half of them is a wrong usage."""
    if not events and not verdicts:
        return False
    if not (events and verdicts and policy):
        raise click.UsageError("to verify files, --events, --verdicts and --policy are needed together")
    return True
