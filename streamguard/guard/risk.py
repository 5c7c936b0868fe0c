"""How near a run is to being stopped: what its newest calls, made once more, would count. Pure, and changes nothing."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from streamguard.guard.counting import count_of
from streamguard.guard.detectors import (
    GENERIC_REPEAT,
    GLOBAL_CIRCUIT_BREAKER,
    KNOWN_POLL_NO_PROGRESS,
    PING_PONG,
    UNKNOWN_TOOL_REPEAT,
)
from streamguard.guard.outcome import LOG, POLL
from streamguard.guard.window import Call, RunWindow
from streamguard.policy import Policy

__all__ = ["Risk", "nearest"]

LOOKED_AT: Final = 2
"""Newest calls that are looked at: a loop of one, or of two that take turns, goes on with one of them."""


BEGUN: Final = {PING_PONG: 4}
"""Least count that is told: any two calls are the beginning of taking turns, and the first repeat is that of one."""


class Risk(msgspec.Struct, frozen=True):
    """What a detector would count, in calls, and from where on it warns of the call or blocks it."""

    detector: str
    count: int
    threshold: int
    tool: str
    action: Literal["warn", "block"] = "block"


def nearest(policy: Policy, window: RunWindow) -> Risk | None:
    """Return the threshold that the run's next call is nearest to; None if nothing repeats.

    Once the calls were warned of, by whichever detector, what they are near to is being blocked.
    """
    if policy.enabled is not True or window.newest is None:
        return None
    newest = [window.record(seq) for seq in range(max(window.first, window.next - LOOKED_AT), window.next)]
    risks = [risk for call in newest for risk in _of(policy, window, call) if risk.count >= BEGUN.get(risk.detector, 2)]
    if any(risk.action == "warn" and risk.count > risk.threshold for risk in risks):
        risks = [risk for risk in risks if risk.action == "block"]
    return max(risks, key=lambda risk: (risk.count / risk.threshold, risk.threshold), default=None)


def _of(policy: Policy, window: RunWindow, call: Call) -> list[Risk]:
    warning, critical = policy.warning_threshold, policy.critical_threshold
    poll = call.kind in {POLL, LOG} or call.tool == "command_status"
    known, generic = poll and policy.known_poll_no_progress, policy.generic_repeat and not poll
    asked: list[tuple[str, Literal["warn", "block"], int, bool]] = [
        (UNKNOWN_TOOL_REPEAT, "block", policy.unknown_tool_threshold, True),
        (GLOBAL_CIRCUIT_BREAKER, "block", policy.global_circuit_breaker_threshold, True),
        (KNOWN_POLL_NO_PROGRESS, "warn", warning, known),
        (KNOWN_POLL_NO_PROGRESS, "block", critical, known),
        (PING_PONG, "warn", warning, policy.ping_pong),
        (PING_PONG, "block", critical, policy.ping_pong and _stuck(window, call)),
        (GENERIC_REPEAT, "warn", warning, generic),
        (GENERIC_REPEAT, "block", critical, generic),
    ]
    return [
        Risk(detector, count_of(detector, action, window, call.tool, call.signature), threshold, call.tool, action)
        for detector, action, threshold, on in asked
        if on
    ]


def _stuck(window: RunWindow, call: Call) -> bool:
    """Tell whether neither side of two calls that take turns makes progress: only then are they stopped."""
    length = window.alternating_with(call.signature)
    return length > 0 and window.alternates_without_progress(length)
