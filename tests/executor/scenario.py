"""The whole way: many runs at once on a real Kafka, workers killed and the broker restarted meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from brokers.nodes import KafkaNodes
from commands import Running
from runs import Guarded, Outcome, by_the_rules, fleet, follow

OpenRun = Callable[[str, str], AbstractAsyncContextManager[Guarded]]
"""Begins a run, by its id and its agent."""

CALL_SECONDS = (0.2, 0.9)


async def play(open_run: OpenRun, runs: int, faults: Callable[[], Awaitable[None]] | None) -> tuple[list[str], int]:
    """Let agents work while faults happen; return what executors did that the rules do not say, and the calls."""
    kinds = fleet(runs)
    rng = random.Random(1)

    def pause() -> float:
        return rng.uniform(*CALL_SECONDS)

    async def one(number: int) -> Outcome:
        await asyncio.sleep(rng.uniform(0, 1))
        kind = kinds[number]
        return await follow(open_run(f"{kind.name}-{number}", kind.name), kind, str(number), pause)

    working = asyncio.gather(*(one(number) for number in range(runs)))
    disturbing = asyncio.ensure_future(faults()) if faults is not None else None
    outcomes = await working
    if disturbing is not None:
        await disturbing
    expected = [await by_the_rules(kind, str(number)) for number, kind in enumerate(kinds)]
    wrong = [
        f"{kinds[number].name}-{number}: {want} expected, {got} done"
        for number, (want, got) in enumerate(zip(expected, outcomes, strict=True))
        if want != got
    ]
    blocked = {kinds[number].loops for number, outcome in enumerate(outcomes) if "block" in outcome.decisions}
    assert False not in blocked, "a healthy run was blocked"
    return wrong, sum(len(outcome.decisions) for outcome in outcomes)


class Faults:
    """Two kills of a worker and a restart of the broker, one after the other."""

    def __init__(self, supervisor: Running, nodes: KafkaNodes) -> None:
        self._supervisor = supervisor
        self._nodes = nodes
        self.happened: list[str] = []

    async def __call__(self) -> None:
        """Let them happen."""
        await asyncio.sleep(2)
        await self._kill_worker()
        await asyncio.sleep(4)
        await asyncio.to_thread(self._nodes.terminate, 0)
        self._nodes.restart(0)
        await self._nodes.wait_ready()
        self.happened.append("broker restarted")
        await asyncio.sleep(3)
        await self._kill_worker()

    async def _kill_worker(self) -> None:
        started = [json.loads(line) for line in self._supervisor.lines if '"worker process started"' in line]
        pid = next(line["pid"] for line in reversed(started) if _lives(line["pid"]))
        os.kill(pid, signal.SIGKILL)
        self.happened.append("worker killed")


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class Stopwatch:
    """Durations of what was waited for, in seconds."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def percentile(self, percent: float) -> float:
        """Return the duration in milliseconds that so many percent do not exceed."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] * 1000

    async def time(self, waiting: Awaitable[object]) -> object:
        """Wait, and note how long."""
        since = time.perf_counter()
        try:
            return await waiting
        finally:
            self.seconds.append(time.perf_counter() - since)
