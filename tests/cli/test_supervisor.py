"""`streamguard run --workers N`: several processes, restarted after a crash, stopped together, never left alone."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from cluster import PARTITIONS, Cluster
from commands import Running, started, streamguard

from streamguard.cli.supervisor import Backoff, Supervisor, own_variables, worker_command
from streamguard.settings import MetricsSettings, Settings, WorkerSettings

CONFIG = "config/streamguard.toml"

PAIRS = 21
"""The same call with the same result so often gives two verdicts."""


@pytest.fixture
async def cluster(broker: Any, topic_prefix: str) -> AsyncIterator[Cluster]:
    """Give a test topics of its own."""
    async with Cluster(broker, topic_prefix) as cluster:
        yield cluster


def loop(run: str) -> list[bytes]:
    """Write the same call with the same result, again and again."""
    events = [
        ({"type": "tool_call", "run_id": run, "call_id": f"c{n}", "tool": "read"},
         {"type": "tool_result", "run_id": run, "call_id": f"c{n}", "result": "same"})
        for n in range(PAIRS)
    ]  # fmt: skip
    return [json.dumps(event).encode() for pair in events for event in pair]


def said(running: Running, event: str) -> list[dict[str, Any]]:
    """Return what was logged of an event so far."""
    lines = [json.loads(line) for line in running.lines if line.startswith("{")]  # others: a command's last words
    return [line for line in lines if line["event"] == event]


async def until(running: Running, holds: Callable[[], bool]) -> None:
    """Read the log until something holds."""
    if holds():
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(60):
            async for _ in running.more():
                if holds():
                    return
    raise AssertionError(f"it never held:\n{''.join(running.lines)}")


async def pids(running: Running, count: int) -> list[int]:
    """Wait until so many processes were started in all; return their ids."""
    await until(running, lambda: len(said(running, "worker process started")) >= count)
    return [line["pid"] for line in said(running, "worker process started")]


async def shared(running: Running, after: int = 0) -> None:
    """Wait until two workers hold all partitions between them, each its own part."""

    def holds() -> bool:
        parts = [set(line["partitions"]) for line in said(running, "partitions open")[after:]][-2:]
        return len(parts) == 2 and all(parts) and sorted([*parts[0], *parts[1]]) == list(range(PARTITIONS))

    await until(running, holds)


def alive(pid: int) -> bool:
    """Tell whether a process exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# with workers and a broker


async def test_workers_share_the_partitions_and_stop_together(cluster: Cluster, repository: Path) -> None:
    """Two processes share the partitions; one SIGTERM drains both, the exit code is 0, and no process is left."""
    async with started("run", "--workers", "2", "--config", repository / CONFIG, **cluster.variables()) as running:
        await shared(running)
        await cluster.publish_everywhere(loop)
        await cluster.verdicts(2 * PARTITIONS)
        code = await running.ends(signal.SIGTERM)

    assert (0, 2 * PAIRS * PARTITIONS) == (code, await cluster.committed())
    assert [0, 0] == [line["code"] for line in said(running, "worker process ended")]
    assert not [pid for pid in await pids(running, 2) if alive(pid)]


async def test_a_killed_worker_is_restarted(cluster: Cluster, repository: Path) -> None:
    """A worker that is killed is replaced after a second, takes its part again, and later events are judged."""
    async with started("run", "--workers", "2", "--config", repository / CONFIG, **cluster.variables()) as running:
        await shared(running)
        opened = len(said(running, "partitions open"))
        killed, _ = await pids(running, 2)
        os.kill(killed, signal.SIGKILL)
        await pids(running, 3)
        await shared(running, after=opened)
        await cluster.publish_everywhere(loop)
        verdicts = await cluster.verdicts(2 * PARTITIONS)
        code = await running.ends(signal.SIGTERM)

    ended = said(running, "worker process ended")[0]
    assert (killed, -signal.SIGKILL, 1.0) == (ended["pid"], ended["code"], ended["restart_in"])
    assert (0, PARTITIONS) == (code, len({verdict.run_id for verdict in verdicts}))


async def test_a_second_signal_ends_all_at_once(cluster: Cluster, repository: Path) -> None:
    """The second signal reaches the workers too: exit code 5, with no worker left."""
    async with started("run", "--workers", "2", "--config", repository / CONFIG, **cluster.variables()) as running:
        await shared(running)
        workers = await pids(running, 2)
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)  # so that both signals wait for it
        running.process.send_signal(signal.SIGTERM)
        await running.says("stopping")
        running.process.send_signal(signal.SIGINT)
        await running.says("second signal, passed on")
        for pid in workers:
            os.kill(pid, signal.SIGCONT)
        code = await running.ends()

    assert (5, [5, 5]) == (code, [line["code"] for line in said(running, "worker process ended")])
    assert not [pid for pid in workers if alive(pid)]


async def test_no_worker_outlives_a_killed_supervisor(cluster: Cluster, repository: Path) -> None:
    """When the supervisor is killed its workers drain and end: the log, which they hold open too, comes to its end."""
    async with started("run", "--workers", "2", "--config", repository / CONFIG, **cluster.variables()) as running:
        await shared(running)
        async with asyncio.timeout(30):
            code = await running.ends(signal.SIGKILL)

    assert (-signal.SIGKILL, 2) == (code, len(said(running, "worker stopped")))


def test_a_wrong_setting_starts_nothing() -> None:
    """A wrong configuration is found before any process is started: exit code 2, and it is said once."""
    done = streamguard("run", "--workers", "2", variables={"STREAMGUARD_LIMITS_RUNS": "-1"})

    assert 2 == done.returncode
    assert (1, False) == (done.stderr.count("STREAMGUARD_LIMITS_RUNS"), "worker process started" in done.stderr)


def test_no_worker_is_wrong_usage() -> None:
    """`--workers 0` exits 2."""
    assert 2 == streamguard("run", "--workers", "0").returncode


# with any program


def supervisor(workers: int, program: str) -> Supervisor:
    """Supervise a Python program that finds its `index`."""
    setup = "import os, signal, sys, time; index = int(os.environ['INDEX']); "
    return Supervisor([sys.executable, "-c", setup + program], workers, lambda index: {"INDEX": str(index)})


@pytest.mark.parametrize("code", [2, 3])
async def test_a_final_code_stops_all(code: int, log_lines: list[dict[str, Any]]) -> None:
    """A worker that a restart does not mend is not restarted: the others are stopped, and its code is ours."""
    ended = await supervisor(3, f"sys.exit({code}) if index == 1 else time.sleep(60)").run()

    lines = [line for line in log_lines if line["event"] == "worker process ended"]
    assert code == ended
    assert {1: code, 0: -signal.SIGTERM, 2: -signal.SIGTERM} == {line["index"]: line["code"] for line in lines}
    assert 3 == len(lines)


async def test_a_worker_that_ends_well_is_not_restarted(log_lines: list[dict[str, Any]]) -> None:
    """A worker that was told by somebody else to stop stays away; when all have, we end with 0."""
    assert 0 == await supervisor(2, "sys.exit(0)").run()
    assert 2 == len([line for line in log_lines if line["event"] == "worker process started"])


@pytest.mark.parametrize(("end", "expected"), [("sys.exit(1)", 1), ("os.kill(os.getpid(), signal.SIGKILL)", 137)])
async def test_the_highest_code_is_ours(end: str, expected: int) -> None:
    """After a signal the highest code of a worker is the supervisor's; death by a signal counts as in a shell."""
    told = f"signal.signal(signal.SIGTERM, lambda *_: {end}); "
    tell = "index and os.kill(os.getppid(), signal.SIGTERM); "

    assert expected == await supervisor(2, told + tell + "time.sleep(60)").run()


# what each worker gets


def test_backoff_doubles_and_forgets() -> None:
    """1, 2, 4 … at most 30 s; after a life of 60 s from 1 s again."""
    backoff = Backoff()
    lives = [0, 0, 59.9, 0, 0, 0, 0, 60, 0]

    assert [1, 2, 4, 8, 16, 30, 30, 1, 2] == [backoff.after(lived) for lived in lives]


def test_flags_are_passed_on() -> None:
    """A worker gets the flags that were given, of any kind, but for `--workers`."""
    commands: list[list[str]] = []

    @click.command()
    @click.option("--config", "-c", type=click.Path(path_type=Path))
    @click.option("--group")
    @click.option("--fast/--slow", default=None)
    @click.option("--workers", type=int)
    @click.pass_context
    def command(context: click.Context, /, **_: object) -> None:
        commands.append(worker_command(context)[4:])

    for arguments in ("-c f.toml --workers 2 --slow", "--workers 2 --group=-x --fast", "--workers 2"):
        CliRunner().invoke(command, arguments.split(), catch_exceptions=False)

    assert [["--config=f.toml", "--slow"], ["--group=-x", "--fast"], []] == commands


def test_what_must_differ_differs() -> None:
    """Each worker gets an instance id, a status file and a port of its own, if they are set; else nothing."""
    worker = WorkerSettings(instance_id="a", status_file="/run/s.json")
    all_set = Settings(worker=worker, metrics=MetricsSettings(enabled=True, port=9464))
    any_port = Settings(metrics=MetricsSettings(enabled=True, port=0))

    assert [{}, {}] == [own_variables(settings, 1) for settings in (Settings(), any_port)]
    assert {
        "STREAMGUARD_WORKER_INSTANCE_ID": "a-1",
        "STREAMGUARD_WORKER_STATUS_FILE": "/run/s.json.1",
        "STREAMGUARD_METRICS_PORT": "9465",
    } == own_variables(all_set, 1)
