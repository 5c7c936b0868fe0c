"""Another policy without a restart, on a real broker: in force from one event on, which the journal names."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, running
from commands import started
from events import call, loop, said

from streamguard.policy import PolicySet
from streamguard.policy_file import load_policy_file
from streamguard.stream.policy_watch import PolicyFile
from streamguard.stream.ruleset import Ruleset
from streamguard.stream.worker import Worker

ON = PolicySet({"enabled": True})
STRICT = PolicySet({"enabled": True, "warningThreshold": 3})


@pytest.fixture
async def cluster(broker: Any, topic_prefix: str) -> AsyncIterator[Cluster]:
    """Give a test topics of its own and clients to them."""
    async with Cluster(broker, topic_prefix) as cluster:
        cluster.change(worker={"policy_check_seconds": 0.05})
        yield cluster


def write(file: Path, text: str) -> None:
    """Replace a file as careful programs do."""
    following = file.with_suffix(".new")
    following.write_text(text)
    following.replace(file)


async def test_a_changed_policy_is_in_force_from_a_recorded_event_on(cluster: Cluster) -> None:
    """The run goes on counting; each partition's journal says from which offset on the new policy decides."""
    worker = Worker(cluster.settings, ON)
    async with running(worker):
        await cluster.publish("run-1", loop("run-1", 5), partition=0)
        await cluster.caught_up()
        worker.ruleset = Ruleset(STRICT, cluster.settings.limits)
        await cluster.in_force(STRICT)
        await cluster.publish("run-1", loop("run-1", 1, start=5), partition=0)
        verdicts = await cluster.verdicts(1)
    changes = (await cluster.journal(0)).changes

    assert [("warn", "generic_repeat", 5)] == said(verdicts)
    assert [0, 10] == [change.offset for change in changes]
    assert [Ruleset(which).fingerprint for which in (ON, STRICT)] == [change.ruleset for change in changes]


async def test_calls_that_come_while_the_policy_changes_are_judged(cluster: Cluster) -> None:
    """However often it changes under load, each call that waits is answered once, in order."""
    worker = Worker(cluster.settings, ON)
    changed = asyncio.Event()

    async def go_on() -> int:
        number = 0
        while not changed.is_set():
            await cluster.publish("run-1", [call("run-1", number, args=number, gate=True)], partition=0)
            number += 1
        return number

    async with running(worker):
        going = asyncio.create_task(go_on())
        await cluster.verdicts(1)  # a change before the first event would stand where the beginning does
        for policies in (STRICT, ON, STRICT):
            worker.ruleset = Ruleset(policies, cluster.settings.limits)
            await cluster.in_force(policies)
        changed.set()
        count = await going
        verdicts = await cluster.verdicts(count)
    offsets = [change.offset for change in (await cluster.journal(0)).changes]

    assert [f"c{number}" for number in range(count)] == [verdict.call_id for verdict in verdicts]
    assert sorted(set(offsets)) == offsets
    assert 4 == len(offsets)


async def test_a_change_at_the_beginning_says_so(cluster: Cluster) -> None:
    """A policy that changes before the first event stands where the beginning stood: nothing is remembered there."""
    worker = Worker(cluster.settings, ON)
    async with running(worker):
        await cluster.in_force(ON)
        worker.ruleset = Ruleset(STRICT, cluster.settings.limits)
        await cluster.in_force(STRICT)
    changes = (await cluster.journal(0)).changes

    assert [(0, True, worker.ruleset.fingerprint)] == [(each.offset, each.anew, each.ruleset) for each in changes]


@pytest.mark.apache
async def test_after_a_crash_each_event_is_judged_by_what_was_in_force(cluster: Cluster) -> None:
    """A worker is killed behind a change; its successor, which knows the old file only, repeats and changes nothing."""
    variables = {**cluster.variables(), "STREAMGUARD_WORKER_CHECKPOINT_INTERVAL_SECONDS": "600"}
    file = cluster.policy_file({"enabled": True})
    variables |= {"STREAMGUARD_CONFIG": str(file), "STREAMGUARD_WORKER_POLICY_CHECK_SECONDS": "0.05"}
    async with started("run", **variables) as first:
        await first.says("partitions open")
        write(file, "[policy]\nenabled = true\nwarningThreshold = 3\n")
        await cluster.in_force(STRICT)
        await cluster.publish("run-1", loop("run-1", 4), partition=0)
        await cluster.verdicts(1)
        await first.ends(signal.SIGKILL)
    async with running(Worker(cluster.settings, ON)):
        await cluster.in_force(ON)
        await cluster.publish("run-2", loop("run-2", 4), partition=0)
        await cluster.publish("run-1", [call("run-1", 9, gate=True)], partition=0)
        verdicts = await cluster.verdicts(2)
    strict, back = (await cluster.journal(0)).changes[-2:]

    assert [("warn", "generic_repeat", 3), ("allow", None, None)] == said(verdicts)
    assert strict.offset <= verdicts[0].source.offset < back.offset <= verdicts[1].source.offset


def test_a_wrong_policy_is_refused(tmp_path: Path, log_lines: list[dict[str, Any]]) -> None:
    """What cannot be read is told by its place and changes nothing; when it is right it is taken, once."""
    file = tmp_path / "policy.toml"
    write(file, "[policy]\nenabled = true\n")
    watched = PolicyFile(file, lambda: load(file), load(file))
    results: list[str] = []
    looks = [watched.changed(results.append) for _ in range(4)]
    write(file, "[policy]\nenabled = 7\n")
    looks += [watched.changed(results.append) for _ in range(4)]
    file.unlink()
    looks += [watched.changed(results.append) for _ in range(4)]
    write(file, "[policy]\nenabled = true\nwarningThreshold = 3\n")
    taken = [watched.changed(results.append) for _ in range(4)]

    assert [None] * 12 == looks
    assert [STRICT] == [policies for policies in taken if policies is not None]
    assert ["refused", "refused", "taken"] == results
    assert "policy.enabled is 7" in log_lines[0]["error"]


def test_half_of_a_file_is_not_taken(tmp_path: Path) -> None:
    """A file that changes with every look is still being written."""
    file = tmp_path / "policy.toml"
    write(file, "[policy]\nenabled = true\n")
    watched = PolicyFile(file, lambda: load(file), ON)
    looks, results = [], list[str]()
    for number in range(5):
        file.write_text(f"[policy]\nenabled = true\nwarningThreshold = 3 #{number * '.'}")
        os.utime(file, ns=(number, number))
        looks.append(watched.changed(results.append))

    assert ([None] * 5, STRICT) == (looks, watched.changed(results.append))


def load(file: Path) -> PolicySet:
    """Read a policy file."""
    return load_policy_file(file).policies
