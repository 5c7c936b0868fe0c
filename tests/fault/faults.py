"""The faults: what each does to the stage, and undoes."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from stage import Stage

__all__ = ["FAULTS", "Fault"]

Fault: TypeAlias = Callable[[Stage, random.Random, float], Awaitable[None]]
"""Happens to a stage; the float is the session timeout of the workers, in seconds."""

MOST_WORKERS: Final = 4
FEWEST_WORKERS: Final = 2


async def kill(stage: Stage, choice: random.Random, _: float) -> None:
    """Kill -9 of a worker; another is started."""
    worker = stage.any_running(choice)
    if worker is not None:
        await worker.end(signal.SIGKILL)
        await asyncio.sleep(choice.uniform(0, 1))
        await worker.start()


async def terminate(stage: Stage, choice: random.Random, _: float) -> None:
    """SIGTERM of a worker; another is started."""
    worker = stage.any_running(choice)
    if worker is not None:
        await worker.end(signal.SIGTERM)
        await worker.start()


async def freeze(stage: Stage, choice: random.Random, session: float) -> None:
    """SIGSTOP of a worker for longer than its session, then SIGCONT."""
    worker = stage.any_running(choice)
    if worker is not None:
        worker.signal(signal.SIGSTOP)
        await asyncio.sleep(session * choice.uniform(1.2, 2.5))
        worker.signal(signal.SIGCONT)


async def add(stage: Stage, choice: random.Random, session: float) -> None:
    """Add a worker (or remove one, where there are enough)."""
    if sum(worker.running for worker in stage.workers) >= MOST_WORKERS:
        await remove(stage, choice, session)
    else:
        await stage.add_worker()


async def remove(stage: Stage, choice: random.Random, session: float) -> None:
    """Remove a worker (or add one, where there are few)."""
    worker = stage.any_running(choice)
    if worker is None or sum(worker.running for worker in stage.workers) <= FEWEST_WORKERS:
        await add(stage, choice, session)
    else:
        await worker.end(choice.choice([signal.SIGTERM, signal.SIGKILL]))


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


FAULTS: Final[dict[str, tuple[Fault, int]]] = {
    "kill -9 of a worker": (kill, 5),
    "SIGTERM and start": (terminate, 4),
    "SIGSTOP beyond the session": (freeze, 5),
    "worker added": (add, 3),
    "worker removed": (remove, 3),
    "connections cut": (cut, 4),
    "connections delayed": (delay, 2),
    "connections slowed": (slow, 2),
    "connections silent": (silence, 3),
    "broker restarted": (restart_broker, 2),
    "kill -9 of a leader": (kill_leader, 2),
}
"""Each kind by its name, with how often it is chosen."""
