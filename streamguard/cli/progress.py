"""What commands show of files they read: how far they are, and what of a recording was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeRemainingColumn

from streamguard.errors import ImportInputError
from streamguard.importers import Intake
from streamguard.replay import STDIN, Line

__all__ = ["Complaints", "FileProgress", "file_progress", "left_out"]

SHOWN: Final = 20
"""Unreadable places that are named one by one."""

REFRESH_LINES: Final = 2_000


class FileProgress:
    """Follows the lines of several files, one after the other."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self.progress = progress
        self.task = task
        self._before = 0

    def follow(self, lines: Iterable[Line], size: int) -> Iterator[Line]:
        """Yield a file's lines; `size` is the file's, in bytes."""
        for count, line in enumerate(lines):
            if count % REFRESH_LINES == 0:
                self.progress.update(self.task, completed=self._before + line.read)
            yield line
        self._before += size


class Complaints:
    """Names what is wrong with files, place by place, up to a number."""

    def __init__(self, console: Console) -> None:
        self.count = 0
        self._console = console

    def refuse(self, error: ImportInputError) -> None:
        """Take what an importer refuses."""
        self.say(str(error))

    def say(self, problem: str) -> None:
        """Name a place and what is wrong there."""
        self.count += 1
        if self.count <= SHOWN:
            self._console.print(problem, style="red", highlight=False, markup=False, soft_wrap=True)
        if self.count == SHOWN + 1:
            self._console.print("more lines could not be read; they are counted below", style="red")


@contextmanager
def file_progress(
    what: str, files: Sequence[str], console: Console, *columns: ProgressColumn
) -> Iterator[tuple[FileProgress, list[int]]]:
    """Show how far files are read while standard error is a terminal; give the follower and the files' sizes."""
    sizes = [Path(name).stat().st_size if name != STDIN and Path(name).is_file() else 0 for name in files]
    shown = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn(), *columns)
    with Progress(*shown, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield FileProgress(progress, progress.add_task(what, total=sum(sizes) or None, rate="")), sizes


def left_out(console: Console, form: str, intake: Intake) -> None:
    """Say what of a file was no event, and what its events lack."""
    for what, counts in (("skipped", intake.skipped), ("note", intake.noted)):
        if counts:
            console.print(
                f"{intake.file} ({form}), {what}: {_counted(counts)}", highlight=False, markup=False, soft_wrap=True
            )


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{number:,} {name}" for name, number in sorted(counts.items()))
