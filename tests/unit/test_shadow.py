"""Shadow and overrides: what is found is recorded, and nothing is stopped."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from streams import Log, said
from test_guard_property import POLICIES, streams

from streamguard.events import Compaction, Event
from streamguard.policy import Override, Policy, PolicySet, resolve
from streamguard.verdicts import Verdict

BLOCK = {"enabled": True, "warningThreshold": 2, "criticalThreshold": 4}
ALWAYS = 1 << 50


def loop(log: Log, times: int, **fields: Any) -> list[Verdict]:
    """Make the same call with the same result again and again; return all verdicts."""
    return [verdict for number in range(times) for verdict in log.pair(number, **fields)]


def shadowed(policy: dict[str, Any]) -> list[tuple[str, bool, int | None]]:
    """Return what is said of a loop of six calls."""
    return [(verdict.action, verdict.shadow, verdict.count) for verdict in loop(Log(resolve(policy)), 6)]


def test_in_shadow_everything_is_only_recorded() -> None:
    """A policy in shadow says what it would do, at the same calls; calls go on and are counted on."""
    assert [("warn", True, 2), ("block", True, 4), ("block", True, 5)] == shadowed({**BLOCK, "shadow": True})


def test_an_agent_may_be_in_shadow() -> None:
    """An agent's block puts that agent alone in shadow; or takes it out."""
    policies = PolicySet({**BLOCK, "shadow": True}, {"known": {"shadow": False}})

    assert [True, True, True] == [verdict.shadow for verdict in loop(Log(policies), 6)]
    log = Log(policies)
    log.call("first", agent_id="known")
    assert [False] == [verdict.shadow for verdict in log.pair() + log.pair(1) if verdict.action == "warn"]


def test_a_detector_may_be_in_shadow() -> None:
    """Only what that detector finds is recorded; the others are enforced as ever."""
    policy = {**BLOCK, "shadowDetectors": ["ping_pong"]}
    log = Log(resolve(policy))
    pingpong = [verdict for n in range(4) for tool in "ab" for verdict in log.pair(n, tool=tool)]

    assert {("ping_pong", True)} <= {(verdict.detector, verdict.shadow) for verdict in pingpong}
    assert [("warn", False, 2), ("block", False, 4), ("block", False, 5)] == shadowed(policy)


def test_a_shadow_hides_nothing_that_is_enforced() -> None:
    """A detector in shadow that fires first leaves the call to the next one: both verdicts stand, numbered."""
    log = Log(resolve({**BLOCK, "globalCircuitBreakerThreshold": 5, "shadowDetectors": ["generic_repeat"]}))
    loop(log, 5)
    other = Log(resolve({**BLOCK, "shadowDetectors": ["global_circuit_breaker"], "globalCircuitBreakerThreshold": 5}))
    loop(other, 4)

    assert [("block", "global_circuit_breaker", 5)] == said(log.call("x"))
    assert [("block", "generic_repeat", 4)] == said(other.call("x"))


def test_a_warning_in_shadow_was_not_heard() -> None:
    """When shadow is taken away a run that goes on looping is warned, though it was in shadow just before."""
    log = Log(PolicySet({"enabled": True, "warningThreshold": 2, "criticalThreshold": 9, "shadow": True}))
    shadow = loop(log, 4)
    log.guard.change(PolicySet({"enabled": True, "warningThreshold": 2, "criticalThreshold": 9}))
    enforced = [verdict for number in range(4, 7) for verdict in log.pair(number)]

    assert [("warn", True)] == [(verdict.action, verdict.shadow) for verdict in shadow]
    assert [("warn", False, 4)] == [(verdict.action, verdict.shadow, verdict.count) for verdict in enforced]


def test_both_verdicts_about_one_call() -> None:
    """The shadow is number 0, what is enforced number 1."""
    log = Log(resolve({**BLOCK, "shadowDetectors": ["ping_pong"]}))
    verdicts = [verdict for n in range(3) for tool in "ab" for verdict in log.pair(n, tool=tool)]
    last = [(v.verdict_id, v.detector, v.shadow) for v in verdicts if v.source.offset == 8]

    assert [("3-8-0", "ping_pong", True), ("3-8-1", "generic_repeat", False)] == last


def test_a_call_that_waits_is_allowed_in_shadow() -> None:
    """The shadow verdict is no answer: an `allow` comes behind it."""
    log = Log(resolve({**BLOCK, "shadow": True}))
    loop(log, 4)

    assert [("block", True), ("allow", False)] == [(v.action, v.shadow) for v in log.call("x", gate=True)]


def test_an_abort_in_shadow_ends_nothing() -> None:
    """The run goes on being judged; the abort is said once."""
    log = Log(resolve({**BLOCK, "warningThreshold": 5, "criticalThreshold": 6, "shadowDetectors": [
        "compaction_loop_persisted"]}))  # fmt: skip
    log.add(Compaction(run_id="r"))
    verdicts = loop(log, 7)

    assert [("abort", True), ("warn", False), ("block", False)] == [(v.action, v.shadow) for v in verdicts]


@pytest.mark.parametrize(
    ("agent", "until", "shadow"),
    [(None, ALWAYS, True), ("a", ALWAYS, True), ("b", ALWAYS, False), (None, 1000, False)],
    ids=["every agent", "its agent", "another agent", "over"],
)
def test_an_override_lets_its_call_go_on(agent: str | None, until: int, *, shadow: bool) -> None:
    """Until its end, by stream time, and for its agent; the verdict is shadow and names the override."""
    [signature] = {verdict.signature for verdict in loop(Log(resolve(BLOCK)), 5)}
    assert signature is not None
    override = Override(signature=signature, until=until, by="ops", why="-", agent=agent)
    log = Log(PolicySet(BLOCK, {}, {"sync": override}))
    log.time = 1000
    log.call("first", agent_id="a", args="other")
    blocks = [verdict for verdict in loop(log, 5) if verdict.action == "block"]

    assert {(shadow, "sync" if shadow else None)} == {(verdict.shadow, verdict.override) for verdict in blocks}


def test_an_override_holds_for_the_post_compaction_guard_too() -> None:
    """The signature that goes on may go on after a compaction."""
    [signature] = {verdict.signature for verdict in loop(Log(resolve(BLOCK)), 5)}
    assert signature is not None
    log = Log(PolicySet(BLOCK, {}, {"sync": Override(signature=signature, until=ALWAYS, by="ops", why="-")}))
    log.add(Compaction(run_id="r"))
    aborts = [verdict for verdict in loop(log, 5) if verdict.action == "abort"]

    assert [(True, "sync")] == [(verdict.shadow, verdict.override) for verdict in aborts]


@given(policy=POLICIES, events=streams)
def test_a_shadow_never_stops_anything(policy: Policy, events: list[Event]) -> None:
    """Whatever comes, a policy in shadow says nothing that an executor would act upon."""
    policies = PolicySet({"enabled": policy.enabled, "warningThreshold": policy.warning_threshold, "shadow": True})
    log = Log(policies)

    assert all(verdict.shadow or verdict.action == "allow" for event in events for verdict in log.add(event))
