"""Running the command line as a user does: as a program, with its output."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

STREAMGUARD = [sys.executable, "-m", "streamguard"]


def environment(**variables: str) -> dict[str, str]:
    """Return the environment without settings of the one who runs the tests."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith("STREAMGUARD_")}
    return {**mine, "COLUMNS": "140", **variables}


def streamguard(
    *arguments: str | Path, stdin: bytes = b"", variables: Mapping[str, str] | None = None, seconds: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    done = subprocess.run(
        [*STREAMGUARD, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        check=False,
        env=environment(**(variables or {})),
        timeout=seconds,
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


class Running:
    """A command that runs beside the test."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def says(self, pattern: str, seconds: float = 60) -> str:
        """Wait until a line of its log matches a pattern; return the line."""
        for line in self.lines:
            if re.search(pattern, line):
                return line
        try:
            async with asyncio.timeout(seconds):
                async for line in self.more():
                    if re.search(pattern, line):
                        return line
        except TimeoutError:
            pass
        raise AssertionError(f"it never said {pattern!r}:\n{''.join(self.lines)}")

    async def more(self) -> AsyncIterator[str]:
        """Read its log on, line by line, to the end."""
        assert self.process.stderr is not None
        while line := (await self.process.stderr.readline()).decode():
            self.lines.append(line)
            yield line

    async def read_on(self) -> None:
        """Read its log to the end, so that it is never held up by it."""
        async for _ in self.more():
            pass

    async def ends(self, number: signal.Signals | None = None) -> int:
        """Send a signal, if any; wait for its end; return the exit code."""
        if number is not None:
            self.process.send_signal(number)
        await self.read_on()
        return await self.process.wait()


@asynccontextmanager
async def started(*arguments: str | Path, **variables: str) -> AsyncIterator[Running]:
    """Start a command; whatever happens, it is gone afterwards."""
    process = await asyncio.create_subprocess_exec(
        *STREAMGUARD,
        *map(str, arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=environment(**variables),
        limit=1 << 20,
    )
    try:
        yield Running(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
