"""`streamguard run --workers N`: several workers as processes of this machine, each started again after a crash.

The supervisor itself reads no records: its children are members of the group like any other worker. They are tethered
to it (see `streamguard.process`), so that none lives on alone, not even if the supervisor is killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

import click
import structlog

from streamguard.process import TETHER
from streamguard.settings import Settings

__all__ = ["Backoff", "Supervisor", "own_variables", "worker_command"]

log = structlog.get_logger("streamguard.supervisor")

FIRST_SECONDS: Final = 1.0
LONGEST_SECONDS: Final = 30.0
HEALTHY_SECONDS: Final = 60.0
"""A worker that lived as long as this had come up: its next crash is a new one."""

FINAL: Final = (2, 3)
"""Exit codes of a worker that a restart does not mend: wrong configuration; refused by Kafka for good."""

FORCED: Final = 5

STOPPED_EARLY: Final = (-signal.SIGTERM, -signal.SIGINT, 130)
"""How a worker ends that is told to stop before it obeys signals: it had not begun, so nothing was left undone."""


class Backoff:
    """How long to wait before each restart: 1 s, doubling up to 30 s; from 1 s again after a life of 60 s."""

    def __init__(self) -> None:
        self._next = FIRST_SECONDS

    def after(self, lived: float) -> float:
        """Return the seconds to wait after a crash of a worker that lived for so many seconds."""
        wait = FIRST_SECONDS if lived >= HEALTHY_SECONDS else self._next
        self._next = min(wait * 2, LONGEST_SECONDS)
        return wait


class Supervisor:
    """Runs one command several times at once, until a signal stops it or a worker ends for good.

    `variables` gives each worker, by its index, what it has in its environment besides ours.
    """

    def __init__(
        self, command: Sequence[str], workers: int, variables: Callable[[int], Mapping[str, str]] = lambda _: {}
    ) -> None:
        self._command = command
        self._workers = workers
        self._variables = variables
        self._pids: dict[int, int] = {}  # of the workers that live, by index
        self._stopping = asyncio.Event()
        self._final: int | None = None
        self._signals = 0

    async def run(self) -> int:
        """Start the workers; return, when all have ended, the exit code for this process."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        codes = await asyncio.gather(*(self._keep(index) for index in range(self._workers)))
        return self._exit_code(codes)

    def _exit_code(self, codes: Iterable[int]) -> int:
        if self._final is not None:
            return self._final
        # a signal counts as shells count it
        highest = max(128 - code if code < 0 else code for code in codes)
        return FORCED if highest and self._signals > 1 else highest

    def _on_signal(self, number: signal.Signals) -> None:
        """First signal: all drain and stop. Any later one is passed on: they end at once."""
        self._signals += 1
        if self._signals > 1:
            log.warning("second signal, passed on", signal=number.name, workers=len(self._pids))
            self._send(number)
        elif not self._stopping.is_set():
            self._stop(number)

    def _stop(self, number: signal.Signals) -> None:
        log.info("stopping", signal=number.name, workers=len(self._pids))
        self._stopping.set()
        self._send(number)

    def _send(self, number: signal.Signals) -> None:
        for pid in self._pids.values():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    async def _keep(self, index: int) -> int:
        """Run one worker, again after each crash; return its last exit code."""
        backoff = Backoff()
        code = 0
        while not self._stopping.is_set():
            since = time.monotonic()
            code, pid = await self._live(index)
            stopping = self._stopping.is_set()
            crashed = code != 0 and code not in FINAL and not stopping
            wait = backoff.after(time.monotonic() - since) if crashed else None
            tell = log.info if code == 0 or stopping else log.warning
            tell("worker process ended", index=index, pid=pid, code=code, restart_in=wait)
            if stopping:
                return 0 if code in STOPPED_EARLY else code
            if code in FINAL:
                self._end_with(code)
            if wait is None:
                break
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), wait)
        return code

    def _end_with(self, code: int) -> None:
        """Stop all the others: what one worker cannot mend by a restart, they cannot either."""
        log.error("a restart does not help", code=code)
        self._final = code
        self._stop(signal.SIGTERM)

    async def _live(self, index: int) -> tuple[int, int]:
        """Run one worker once; return its exit code (of a signal: negative) and its process id."""
        async with _tethered(self._command, self._variables(index)) as process:
            log.info("worker process started", index=index, pid=process.pid)
            self._pids[index] = process.pid
            if self._stopping.is_set():  # since this start was begun: it has not been told
                process.terminate()
            try:
                return await process.wait(), process.pid
            finally:
                del self._pids[index]


@asynccontextmanager
async def _tethered(command: Sequence[str], variables: Mapping[str, str]) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a process in a session of its own, which gets SIGTERM when the block ends or we do."""
    watched, held = os.pipe()
    try:
        try:
            process = await asyncio.create_subprocess_exec(
                *("/bin/sh", "-c", TETHER, "sh", *command),
                stdin=watched,
                env={**os.environ, **variables},
                start_new_session=True,
            )
        finally:
            os.close(watched)
        yield process
    finally:
        os.close(held)
    await asyncio.to_thread(_bury, process.pid)


def _bury(session: int) -> None:
    """Wait for the tether's watcher, if it is ours to wait for: it is when we are process 1, as in a container."""
    with suppress(ChildProcessError):
        os.waitpid(-session, 0)


def worker_command(context: click.Context) -> list[str]:
    """Return the command of one worker: `streamguard run` with the flags that were given, but for `--workers`."""
    flags = []
    for option in context.command.params:
        value = context.params.get(option.name or "")
        if option.name == "workers" or value is None:
            continue
        name = max(option.opts, key=len)
        if isinstance(value, bool):
            flags += [name] if value else option.secondary_opts[:1]
        else:
            flags.append(f"{name}={value}")
    return [sys.executable, "-m", "streamguard", "run", *flags]


def own_variables(settings: Settings, index: int) -> dict[str, str]:
    """Return the settings that no two workers may share, as variables for one of them."""
    own = {}
    worker, metrics = settings.worker, settings.metrics
    if worker.instance_id is not None:
        own["STREAMGUARD_WORKER_INSTANCE_ID"] = f"{worker.instance_id}-{index}"
    if worker.status_file is not None:
        own["STREAMGUARD_WORKER_STATUS_FILE"] = f"{worker.status_file}.{index}"
    if metrics.enabled and metrics.port:
        own["STREAMGUARD_METRICS_PORT"] = str(metrics.port + index)
    return own
