"""The loopDetection block, read the lenient way: overlay, defaults, clamping."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamguard.policy import Policy, PolicySet, clamp, overlay, resolve


@pytest.mark.parametrize("value", [True, False, "4", 2.5, 0, -1, None, [], {}, float("nan"), float("inf")])
def test_what_is_no_positive_whole_number_falls_back(value: Any) -> None:
    """A number that does not count leaves the default in place."""
    assert 10 == resolve({"warningThreshold": value}).warning_threshold


@pytest.mark.parametrize("value", [4, 4.0])
def test_a_positive_whole_number_counts(value: Any) -> None:
    """3.0 is a whole number."""
    assert 4 == resolve({"warningThreshold": value}).warning_threshold


def test_an_agents_block_is_laid_over_field_by_field() -> None:
    """What the agent's block says wins; nested objects are merged one level deeper."""
    block = {"enabled": True, "warningThreshold": 5, "detectors": {"pingPong": False, "genericRepeat": False}}
    agent = {"criticalThreshold": 9, "detectors": {"genericRepeat": True}}

    assert Policy(
        enabled=True, warning_threshold=5, critical_threshold=9, ping_pong=False, generic_repeat=True
    ) == resolve(block, agent)


@pytest.mark.parametrize("agent", [None, {}, {"detectors": None}, {"postCompactionGuard": None}])
def test_a_block_that_is_missing_or_null_changes_nothing(agent: dict[str, Any] | None) -> None:
    """Neither a missing agent block nor null within it takes anything away."""
    block = {"detectors": {"pingPong": False}, "postCompactionGuard": {"windowSize": 5}}

    assert resolve(block) == resolve(block, agent)


def test_agents_without_a_block_have_the_global_policy() -> None:
    """Unknown agents, and events without an agent, are judged by the global block."""
    policies = PolicySet({"warningThreshold": 4}, {"a": {"warningThreshold": 2}})

    assert (2, 4, 4) == tuple(policies.of(agent).warning_threshold for agent in ("a", "b", None))


@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 50))
def test_clamped_thresholds_are_in_order(warning: int, critical: int, breaker: int) -> None:
    """After clamping warning < critical < breaker, nothing is lowered, and clamping again changes nothing."""
    policy = clamp(
        Policy(warning_threshold=warning, critical_threshold=critical, global_circuit_breaker_threshold=breaker)
    )

    assert warning == policy.warning_threshold < policy.critical_threshold < policy.global_circuit_breaker_threshold
    assert policy.critical_threshold >= critical
    assert policy.global_circuit_breaker_threshold >= breaker
    assert policy == clamp(policy)


def test_clamping_does_the_least() -> None:
    """Critical becomes warning + 1, then the breaker critical + 1; what is in order stays."""
    clamped = resolve({"warningThreshold": 40})

    assert (40, 41, 42) == (
        clamped.warning_threshold,
        clamped.critical_threshold,
        clamped.global_circuit_breaker_threshold,
    )


def test_equal_policies_have_one_fingerprint() -> None:
    """The fingerprint names what is in force, however it was written; any difference changes it."""
    same = resolve({"warningThreshold": 10.0, "detectors": {}}), resolve(None), resolve({"warningThreshold": -1})

    assert 1 == len({policy.fingerprint for policy in same})
    assert resolve({"sendTools": ["x"]}).fingerprint != same[0].fingerprint


def test_overlay_leaves_its_arguments_alone() -> None:
    """Laying one block over another changes neither."""
    block: dict[str, Any] = {"detectors": {"pingPong": False}}
    overlay(block, {"detectors": {"pingPong": True}})

    assert {"detectors": {"pingPong": False}} == block
