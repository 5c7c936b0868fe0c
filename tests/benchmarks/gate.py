"""What asking costs: from a call to its verdict through client, Kafka and worker, beside a bare echo by the same Kafka.

    python tests/benchmarks/gate.py [--runs 200] [--faults]

Needs Java 17 and Maven. A Kafka node and two workers are started. Printed, in the same run: p50 and p99 of a bare
produce -> consume echo (one record there, nothing in between), with nothing else going on and while the runs are under
way; of a gate, where the record is judged and its verdict produced and consumed (two records); and of both, one asker
at a time. With
--faults, too: the same runs through two kill -9 of a worker and a restart of the broker, and whether every decision
was the one that the rules say.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, Self

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("", "cli", "stream", "executor")]

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from brokers.jars import java, resolve
from brokers.nodes import KafkaNodes
from cluster import Cluster
from commands import Running, started
from runs import policy_file
from scenario import CALL_SECONDS, Faults, Stopwatch, play

from streamguard.executor import ExecutorOptions, GuardClient, Run
from streamguard.logs import configure_logs

WORKERS: Final = 2
CALLS: Final = 20
"""Echoes of each asker: about what a run calls."""

ALONE: Final = 300

MEANWHILE: Final = 20
"""Askers of echoes while the runs are under way: what the broker takes for one hop then."""


class TimedRun:
    """A run whose gates are timed."""

    def __init__(self, run: Run, watch: Stopwatch) -> None:
        self._run = run
        self._watch = watch
        self.after_tool = run.after_tool
        self.compacted = run.compacted

    async def before_tool(self, tool: str, args: Any) -> Any:
        """Ask, and note how long that took."""
        return await self._watch.time(self._run.before_tool(tool, args))


@asynccontextmanager
async def timed(run: Run, watch: Stopwatch) -> AsyncIterator[TimedRun]:
    """Open a run; note how long its gates take."""
    async with run:
        yield TimedRun(run, watch)


class Echo:
    """Produces records and waits until they are consumed again, with a bare aiokafka producer and consumer."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self._producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all")
        self._consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, fetch_max_wait_ms=100)
        self._places = [TopicPartition(topic, number) for number in range(partitions)]
        self._asked: dict[bytes, asyncio.Future[None]] = {}
        self._numbers = itertools.count()

    async def __aenter__(self) -> Self:
        await self._producer.start()
        await self._consumer.start()
        self._consumer.assign(self._places)
        await self._consumer.seek_to_end()
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self._consumer.stop()
        await self._producer.stop()

    async def ask(self) -> None:
        """Send a record of the size of an event; return when it came back."""
        number = str(next(self._numbers)).encode()
        answered = self._asked[number] = asyncio.get_running_loop().create_future()
        await self._producer.send(self._places[0].topic, number + b" " * 150, key=number)
        await answered

    async def _read(self) -> None:
        while True:
            for records in (await self._consumer.getmany(timeout_ms=1000)).values():
                for record in records:
                    self._asked.pop(record.key).set_result(None)


async def one_at_a_time(ask: Callable[[], Awaitable[object]]) -> Stopwatch:
    """Ask again and again, alone."""
    watch = Stopwatch()
    for _ in range(ALONE):
        await watch.time(ask())
    return watch


async def many_at_once(ask: Callable[[], Awaitable[object]], askers: int) -> Stopwatch:
    """Ask as many runs do, each at the pace of a run."""
    watch = Stopwatch()
    rng = random.Random(1)

    async def asker() -> None:
        await asyncio.sleep(rng.uniform(0, 1))
        for _ in range(CALLS):
            await watch.time(ask())
            await asyncio.sleep(rng.uniform(*CALL_SECONDS))

    await asyncio.gather(*(asker() for _ in range(askers)))
    return watch


async def gate_alone(client: GuardClient) -> Stopwatch:
    """Ask the guard again and again, in one run, always something else."""
    numbers = itertools.count()
    async with client.run("alone") as run:

        async def ask() -> None:
            await run.before_tool("read", {"line": next(numbers)})

        await ask()
        return await one_at_a_time(ask)


def show(what: str, watch: Stopwatch, beside: Stopwatch | None = None) -> None:
    """Print a line of the table."""
    p50, p99 = watch.percentile(50), watch.percentile(99)
    ratio = f"{p50 / beside.percentile(50):5.1f} {p99 / beside.percentile(99):5.1f}" if beside is not None else ""
    print(f"{what:<34} {len(watch.seconds):7,} {p50:8.1f} {p99:8.1f}   {ratio}", flush=True)


async def measure(cluster: Cluster, nodes: KafkaNodes, supervisor: Running, runs: int, *, faults: bool) -> None:
    """Print all figures."""
    echo_topic = f"{cluster.prefix}.echo"
    await cluster.create_topic(echo_topic, cluster.partitions)
    print(f"{'':<34} {'asked':>7} {'p50 ms':>8} {'p99 ms':>8}   times the echo's")
    async with Echo(cluster.bootstrap, echo_topic, cluster.partitions) as echo:
        await echo.ask()
        alone, many = await one_at_a_time(echo.ask), await many_at_once(echo.ask, runs)
        await measure_gates(cluster, nodes, supervisor, Echoes(echo, alone, many), runs, faults=faults)


class Echoes(NamedTuple):
    """The echo, and what was measured of it with nothing else going on."""

    echo: Echo
    alone: Stopwatch
    many: Stopwatch


async def measure_gates(
    cluster: Cluster, nodes: KafkaNodes, supervisor: Running, echoes: Echoes, runs: int, *, faults: bool
) -> None:
    """Print what gates take."""
    settings = cluster.settings
    options = ExecutorOptions(kafka=settings.kafka, topics=settings.topics, gate_timeout=90.0, fail="closed")
    async with GuardClient(options) as client:
        await client.connected()

        def opening(watch: Stopwatch) -> Callable[[str, str], AbstractAsyncContextManager[Any]]:
            return lambda run_id, agent: timed(client.run(run_id, agent_id=agent), watch)

        show("echo, one at a time", echoes.alone)
        show("gate, one at a time", await gate_alone(client), echoes.alone)
        show(f"echo, {runs} at once, nothing else", echoes.many)
        gates = Stopwatch()
        meanwhile = asyncio.create_task(many_at_once(echoes.echo.ask, MEANWHILE))
        wrong, _ = await play(opening(gates), runs, None)
        show(f"echo, {MEANWHILE} at once, meanwhile", await meanwhile)
        show(f"gate, {runs} runs at once", gates, meanwhile.result())
        if faults:
            disturbed, happening = Stopwatch(), Faults(supervisor, nodes)
            again, _ = await play(opening(disturbed), runs, happening)
            show("gate, " + ", ".join(happening.happened), disturbed)
            wrong += again
    print(f"runs that were not decided as the rules say: {len(wrong)}", *wrong, sep="\n")


async def bench(runs: int, *, faults: bool) -> None:
    """Start everything, and measure."""
    nodes = KafkaNodes(java(), resolve(), 1)
    nodes.start()
    try:
        await nodes.wait_ready()
        broker = SimpleNamespace(bootstrap=nodes.bootstrap, is_apache=True)
        async with Cluster(broker, f"gate-{uuid.uuid4().hex[:8]}") as cluster:
            cluster.change(worker={"session_timeout_ms": 3000})
            command = ("run", "--workers", str(WORKERS), "--policy", policy_file(cluster.folder))
            async with started(*command, **cluster.variables(), STREAMGUARD_LOG_FORMAT="json") as supervisor:
                await supervisor.says('"partitions open"')
                reading = asyncio.create_task(supervisor.read_on())
                await measure(cluster, nodes, supervisor, runs, faults=faults)
                reading.cancel()
    finally:
        nodes.stop()


def main() -> None:
    """Read the options, measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--faults", action="store_true")
    options = parser.parse_args()
    configure_logs("error")
    asyncio.run(bench(options.runs, faults=options.faults))


if __name__ == "__main__":
    main()
