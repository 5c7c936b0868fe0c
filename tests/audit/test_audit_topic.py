"""`audit list`, `tail`, `explain` and `stats` on the live topics of a real broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from cluster import Cluster, running
from commands import STREAMGUARD, environment, streamguard
from events import call, loop

from streamguard.audit.standing import following, standing_verdicts
from streamguard.policy import PolicySet
from streamguard.stream.worker import Worker

pytestmark = pytest.mark.apache

ON = PolicySet({"enabled": True, "warningThreshold": 3, "criticalThreshold": 5})


@pytest.fixture
async def cluster(broker: Any, topic_prefix: str) -> AsyncIterator[Cluster]:
    """Give topics on which two runs looped, one of them with a warning only."""
    async with Cluster(broker, topic_prefix, partitions=2) as cluster:
        async with running(Worker(cluster.settings, ON)):
            await cluster.publish("run-1", loop("run-1", 7), partition=0)
            await cluster.publish("run-2", loop("run-2", 4), partition=1)
            await cluster.verdicts(4)
            await cluster.caught_up()
        yield cluster


def audit(cluster: Cluster, *arguments: str) -> str:
    """Run a command of `audit`."""
    done = streamguard("audit", *arguments, variables=cluster.variables())
    assert 0 == done.returncode, done.stderr
    return done.stdout


async def test_what_stands_is_listed_and_explained(cluster: Cluster) -> None:
    """`list` finds what was said in all partitions, `explain` tells the policy and since when it was in force."""
    found = [json.loads(line) for line in audit(cluster, "list", "--json").splitlines()]
    by_run = audit(cluster, "explain", "--run", "run-1")
    by_id = audit(cluster, "explain", by_run.split()[1])

    assert {("run-1", "warn"), ("run-1", "block"), ("run-2", "warn")} == {(v["run_id"], v["action"]) for v in found}
    assert "counted 4, below 5" in by_run
    assert "in force since event 0" in by_run
    assert "byte for byte" in by_run
    assert by_run == by_id


async def test_stats_of_the_topics(cluster: Cluster) -> None:
    """Calls are counted from the events, blocks from the verdicts; a time chooses both."""
    [row] = [json.loads(line) for line in audit(cluster, "stats", "--by", "tool", "--json").splitlines()]

    assert (11, 2, 2, 2) == (row["calls"], row["loops"], row["blocks"], row["warns"])
    assert "" == audit(cluster, "stats", "--json", "--until", "1h")


async def test_tail_follows(cluster: Cluster) -> None:
    """The newest come first, then what comes, as it comes: none is left out in between."""
    process = await asyncio.create_subprocess_exec(
        *STREAMGUARD,
        "audit",
        "tail",
        "-n",
        "1",
        "--json",
        env=environment(**cluster.variables()),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    async with asyncio.timeout(60):
        newest = json.loads(await process.stdout.readline())
    async with running(Worker(cluster.settings, ON)), asyncio.timeout(60):
        await cluster.publish("run-3", loop("run-3", 4), partition=0)
        following = json.loads(await process.stdout.readline())
    process.terminate()  # who started the tests may have had SIGINT ignored
    await process.communicate()

    assert ("run-3", True) == (following["run_id"], newest["run_id"] in {"run-1", "run-2"})


async def test_following_goes_on_where_reading_ended(cluster: Cluster) -> None:
    """What is said after the reading and before the following is not lost, in partitions with and without verdicts."""
    positions: dict[int, int] = {}
    later = 1 << 42
    async for _ in standing_verdicts(cluster.settings, [0], positions=positions):
        pass
    async for _ in standing_verdicts(cluster.settings, [1], since=later, positions=positions):
        pass
    async with running(Worker(cluster.settings, ON)):
        await cluster.publish("run-3", loop("run-3", 4), partition=0)
        await cluster.publish("run-4", loop("run-4", 4), partition=1)
        await cluster.verdicts(6)
    found: set[str] = set()
    async with asyncio.timeout(60):
        async for standing in following(cluster.settings, [0, 1], positions):
            found.add(standing.verdict.run_id)
            if len(found) == 2:
                break

    assert {"run-3", "run-4"} == found


async def test_events_that_are_gone_are_told(cluster: Cluster) -> None:
    """When retention took the event itself there is nothing to explain it from, and that is said."""
    await cluster.publish("run-1", [call("run-1", 99)], partition=0)
    await cluster.delete_records()
    done = streamguard("audit", "explain", "--run", "run-1", variables=cluster.variables())

    assert (1, True) == (done.returncode, "is no longer on the topic" in done.stderr)
