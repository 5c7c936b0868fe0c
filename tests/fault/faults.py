"""The faults: what each does to the stage, and undoes."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeAlias

from stage import PROXIED_SLOT, Stage

__all__ = ["FAULTS", "Fault", "choose"]

Fault: TypeAlias = Callable[[Stage, random.Random, float], Awaitable[None]]
"""Happens to a stage; the float is the session timeout of the workers, in seconds."""

MOST_WORKERS: Final = 4
FEWEST_WORKERS: Final = 2


async def kill(stage: Stage, choice: random.Random, _: float) -> None:
    """Kill -9 of a worker; another is started."""
    worker = stage.any_running(choice)
    await worker.end(signal.SIGKILL)
    await asyncio.sleep(choice.uniform(0, 1))
    await worker.start()


async def terminate(stage: Stage, choice: random.Random, _: float) -> None:
    """SIGTERM of a worker; another is started."""
    worker = stage.any_running(choice)
    await worker.end(signal.SIGTERM)
    await worker.start()


async def freeze(stage: Stage, choice: random.Random, session: float) -> None:
    """SIGSTOP of a worker for longer than its session, then SIGCONT."""
    worker = stage.any_running(choice)
    worker.signal(signal.SIGSTOP)
    await asyncio.sleep(session * choice.uniform(1.2, 2.5))
    worker.signal(signal.SIGCONT)


async def add(stage: Stage, _choice: random.Random, _session: float) -> None:
    """Add a worker."""
    await stage.add_worker()


async def remove(stage: Stage, choice: random.Random, _: float) -> None:
    """Remove a worker, well or badly."""
    await stage.any_running(choice).end(choice.choice([signal.SIGTERM, signal.SIGKILL]))


async def restart_broker(stage: Stage, choice: random.Random, _: float) -> None:
    """Stop a broker in good order and start it again."""
    node = choice.randrange(stage.nodes_count)
    await asyncio.to_thread(stage.nodes.terminate, node)
    await asyncio.sleep(choice.uniform(0, 2))
    stage.nodes.restart(node)
    await stage.nodes.wait_ready()


async def kill_leader(stage: Stage, choice: random.Random, _: float) -> None:
    """Kill -9 of the broker that leads a partition; it is started again."""
    node = await stage.nodes.leader(stage.verdicts, choice.randrange(stage.partitions))
    node = node if node >= 0 else choice.randrange(stage.nodes_count)
    stage.nodes.kill(node)
    await asyncio.sleep(choice.uniform(0, 3))
    stage.nodes.restart(node)
    await stage.nodes.wait_ready()


async def cut(stage: Stage, choice: random.Random, _: float) -> None:
    """Cut the connections of a worker, once or for a while."""
    refuse = choice.random() < 0.5
    for proxy in stage.proxies:
        proxy.refuse = refuse
        proxy.cut()
    await asyncio.sleep(choice.uniform(0, 2))
    stage.heal()


async def delay(stage: Stage, choice: random.Random, _: float) -> None:
    """Delay what a worker sends and receives."""
    for proxy in stage.proxies:
        proxy.delay_seconds = choice.uniform(0.05, 0.5)
    await asyncio.sleep(choice.uniform(1, 3))
    stage.heal()


async def slow(stage: Stage, choice: random.Random, _: float) -> None:
    """Slow a worker's connections down to some kilobytes a second."""
    for proxy in stage.proxies:
        proxy.bytes_per_second = choice.uniform(5_000, 50_000)
    await asyncio.sleep(choice.uniform(1, 3))
    stage.heal()


async def silence(stage: Stage, choice: random.Random, session: float) -> None:
    """Let a worker's connections stay open and carry nothing, for longer than its session; then all of it arrives."""
    with stage.proxies[0].blackhole():
        for proxy in stage.proxies[1:]:
            proxy.delay_seconds = session * 1.2
        await asyncio.sleep(session * choice.uniform(0.5, 2))
    stage.heal()


def some_run(stage: Stage) -> bool:
    """Tell whether any worker is there."""
    return stage.running > 0


def room(stage: Stage) -> bool:
    """Tell whether one more worker may be added."""
    return stage.running < MOST_WORKERS


def enough(stage: Stage) -> bool:
    """Tell whether a worker may be removed."""
    return stage.running > FEWEST_WORKERS


def proxied(stage: Stage) -> bool:
    """Tell whether the worker behind the proxies is there: without it, they carry nothing."""
    return stage.workers[PROXIED_SLOT].running


def always(_: Stage) -> bool:
    """Brokers are always there."""
    return True


class Kind(NamedTuple):
    """A kind of fault: what it does, how often it is chosen, and when it can be."""

    happen: Fault
    weight: int
    possible: Callable[[Stage], bool]


FAULTS: Final[dict[str, Kind]] = {
    "kill -9 of a worker": Kind(kill, 5, some_run),
    "SIGTERM and start": Kind(terminate, 4, some_run),
    "SIGSTOP beyond the session": Kind(freeze, 5, some_run),
    "worker added": Kind(add, 3, room),
    "worker removed": Kind(remove, 3, enough),
    "connections cut": Kind(cut, 4, proxied),
    "connections delayed": Kind(delay, 2, proxied),
    "connections slowed": Kind(slow, 2, proxied),
    "connections silent": Kind(silence, 3, proxied),
    "broker restarted": Kind(restart_broker, 2, always),
    "kill -9 of a leader": Kind(kill_leader, 2, always),
}
"""Each kind by its name."""


def choose(stage: Stage, choice: random.Random) -> str:
    """Choose a fault that can happen now."""
    kinds = {name: kind.weight for name, kind in FAULTS.items() if kind.possible(stage)}
    return choice.choices(list(kinds), list(kinds.values()))[0]
