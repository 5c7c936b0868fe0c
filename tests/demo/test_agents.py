"""The fleet by itself: what its agents' scripts make of the guard, how its executor obeys, what fits the screen."""

from __future__ import annotations

import io
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from brokers.find import Broker
from cluster import Cluster, running
from rich.console import Console

from streamguard.demo.agents import AGENT_POLICIES, COMPACT, KINDS, POLICY, Kind, kinds_of_fleet
from streamguard.demo.fleet import Agent, Fleet
from streamguard.demo.view import View
from streamguard.events import Source, decode_event
from streamguard.guard import Guard
from streamguard.policy import PolicySet
from streamguard.stream.kafka import client_options
from streamguard.stream.worker import Worker
from streamguard.verdicts import Verdict, decode_verdict

HEALTHY = [kind for kind in KINDS if not kind.loops]
STOPPED_BY = {
    "repeater": ("block", "generic_repeat"),
    "poller": ("block", "known_poll_no_progress"),
    "ping-pong": ("block", "ping_pong"),
    "ghost": ("block", "unknown_tool_repeat"),
    "amnesiac": ("abort", "compaction_loop_persisted"),
    "breaker": ("block", "global_circuit_breaker"),
}


def named(kind: Kind) -> str:
    """Name a kind in the list of tests."""
    return kind.name


def events(kind: Kind, seed: int) -> Iterator[dict[str, Any]]:
    """Write down what an agent does that nobody stops."""
    run = {"run_id": "run", "agent_id": kind.name}
    for number, step in enumerate(kind.script(random.Random(seed))):
        if step is COMPACT:
            yield {"type": "compaction", **run}
            continue
        call = {"call_id": f"c{number}", **run}
        yield {"type": "tool_call", "tool": step.tool, "args": step.args, **call}
        yield {"type": "tool_result", **step.answer, **call}


def verdicts(kind: Kind, seed: int = 1, most: int = 200) -> list[Verdict]:
    """Judge an agent's first events with the demo's policy."""
    guard = Guard(PolicySet(POLICY, AGENT_POLICIES))
    found: list[Verdict] = []
    for offset, event in enumerate(itertools.islice(events(kind, seed), most)):
        decoded = decode_event(msgspec.json.encode(event))
        assert decoded is not None
        found += guard.observe(decoded, Source("agent.events", 0, offset, offset))
    return found


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.loops], ids=named)
def test_each_way_of_looping_is_stopped_by_its_own_detector(kind: Kind) -> None:
    """The first verdict that stops a looping agent is of the detector that its kind stands for."""
    stopping = next(verdict for verdict in verdicts(kind) if verdict.action != "warn")

    assert STOPPED_BY[kind.name] == (stopping.action, stopping.detector)


@pytest.mark.parametrize("kind", HEALTHY, ids=named)
def test_healthy_agents_finish_and_are_never_stopped(kind: Kind) -> None:
    """Whatever the seed, a healthy agent's run has an end, and nothing in it is blocked or aborted."""
    for seed in range(200):
        found = verdicts(kind, seed, most=1000)

        assert len(list(itertools.islice(events(kind, seed), 1000))) < 1000
        assert [] == [verdict for verdict in found if verdict.action != "warn"]


def test_the_same_seed_gives_the_same_agents() -> None:
    """An agent does the same again with the same seed, and a healthy one something else with another."""
    for kind in HEALTHY:
        assert list(events(kind, 7)) == list(events(kind, 7))
        assert list(events(kind, 7)) != list(events(kind, 8))


def test_a_fleet_shows_every_way_of_looping_once() -> None:
    """However large, a fleet has each looping kind once, and healthy agents beside."""
    for size in (6, 9, 50):
        names = Counter(kind.name for kind in kinds_of_fleet(size))

        assert size == names.total()
        assert dict.fromkeys(STOPPED_BY, 1) == {name: names[name] for name in STOPPED_BY}


def test_an_agent_that_heeds_the_warning_goes_on_with_something_else() -> None:
    """The message of a warning ends the deployer's asking."""
    script = next(kind for kind in KINDS if kind.name == "deployer").script(random.Random(1))

    assert ["http_get"] * 11 == [next(script).tool for _ in range(11)]
    assert "read" == script.send("http_get was called 10 times: do something else").tool


@pytest.mark.timeout(120)
async def test_the_executor_obeys(broker: Broker, topic_prefix: str) -> None:
    """What was blocked is answered with `blocked` and no result; no call of an aborted run goes on for long."""
    async with Cluster(broker, topic_prefix) as cluster:
        settings = cluster.settings
        async with running(Worker(settings, PolicySet(POLICY, AGENT_POLICIES))):
            heard: list[Verdict] = []
            fleet = Fleet(
                client_options(settings.kafka),
                settings.topics.events,
                settings.topics.verdicts,
                agents=10,
                seed=3,
                on_verdict=lambda _, verdict: heard.append(verdict),
            )
            await fleet.run(7)
        published = [msgspec.json.decode(value) for value in await values(broker, settings.topics.events)]
        said = [decode_verdict(value) for value in await values(broker, settings.topics.verdicts)]

    results: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for event in published:
        if event["type"] == "tool_result":
            results[event["run_id"], event["call_id"]].append(event)
    gated = {(event["run_id"], event["call_id"]) for event in published if event.get("gate")}
    blocked = {(verdict.run_id, verdict.call_id or "") for verdict in said if verdict.action == "block"}
    answered = [result for key in blocked & gated for result in results[key]]
    after_abort = Counter(verdict.run_id for verdict in said if verdict.action == "abort")

    assert len(answered) > 10
    assert {"blocked"} == {result.get("status") for result in answered}
    assert [] == [result for result in answered if "result" in result or "error" in result]
    assert sum(agent.saved for agent in fleet.agents) == sum(
        result.get("status") == "blocked" for several in results.values() for result in several
    )
    assert after_abort
    assert max(after_abort.values()) <= 2
    assert any(verdict.agent_id == "deployer" and verdict.action == "warn" for verdict in heard)
    assert {verdict.verdict_id for verdict in heard} <= {verdict.verdict_id for verdict in said}
    assert all(0 < seconds < 5 for seconds in fleet.latencies)


async def values(broker: Broker, topic: str) -> list[bytes]:
    """Read what a topic holds."""
    found: list[bytes] = []
    async with AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, fetch_max_wait_ms=50) as consumer:
        partitions = [TopicPartition(topic, number) for number in range(6)]
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        while records := await consumer.getmany(timeout_ms=1000):
            found += [record.value for several in records.values() for record in several]
    return found


@pytest.mark.parametrize("width", [80, 100])
def test_the_table_fits_the_terminal(width: int) -> None:
    """Nothing is cut off: neither the longest names, nor the longest verdict."""
    screen = Console(file=io.StringIO(), width=width, height=30, force_terminal=True, color_system=None)
    view = View(screen)
    view.agents = [Agent(f"{kind.name}-1", kind) for kind in KINDS]
    tools = {step.tool for kind in KINDS for step in itertools.islice(kind.script(random.Random(1)), 40)}
    longest = next(verdict for verdict in verdicts(KINDS[4]) if verdict.action == "abort")
    for agent, tool in zip(view.agents, itertools.cycle(tools)):
        agent.tool, agent.calls, agent.state, agent.verdict = tool, 12_345, "aborted", longest
    with view.live():
        pass
    shown = screen.file.getvalue()  # type: ignore[attr-defined]

    assert "…" not in shown
    assert "abort: compaction_loop_persisted (3)" in shown
