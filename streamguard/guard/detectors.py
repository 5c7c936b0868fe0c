"""The detectors, in their documented order; the first that fires decides.

Source of every rule: the section "Detectors" of the detection rules. Each looks at the window as it was before the
call that is judged.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Literal, TypeAlias

import msgspec

from streamguard.guard.outcome import LOG, POLL
from streamguard.guard.window import EVIDENCE_LIMIT, Call, RunWindow, SameCalls
from streamguard.policy import Policy

__all__ = [
    "GENERIC_REPEAT",
    "GLOBAL_CIRCUIT_BREAKER",
    "KNOWN_POLL_NO_PROGRESS",
    "PING_PONG",
    "UNKNOWN_TOOL_REPEAT",
    "Finding",
    "judge",
]

UNKNOWN_TOOL_REPEAT: Final = "unknown_tool_repeat"
GLOBAL_CIRCUIT_BREAKER: Final = "global_circuit_breaker"
KNOWN_POLL_NO_PROGRESS: Final = "known_poll_no_progress"
PING_PONG: Final = "ping_pong"
GENERIC_REPEAT: Final = "generic_repeat"

_POLLS: Final = (POLL, LOG)

WarnKey: TypeAlias = tuple[str, bytes, bytes | None]
"""What a warning is about; it is not repeated until its count has grown (detection rules, below the detectors)."""


class Finding(msgspec.Struct, frozen=True):
    """What a detector found. `evidence` is asked for only when a verdict is published."""

    action: Literal["warn", "block"]
    detector: str
    count: int
    threshold: int
    evidence: Callable[[], tuple[int, ...]]
    warn_key: WarnKey | None = None
    paired_tool: str | None = None


def judge(policy: Policy, window: RunWindow, call: Call) -> Finding | None:  # noqa: C901 - a list of cases, in order
    """Judge a call against the window without itself."""
    newest = window.newest
    if newest is None:
        return None
    if newest.unknown is not None:
        finding = _unknown_tool_repeat(policy, window, call)
        if finding is not None:
            return finding
    same = window.same.get(call.signature)
    if same is None:
        return None  # every other detector counts records of this call's signature
    if same.streak >= policy.global_circuit_breaker_threshold:
        return _streak_block(GLOBAL_CIRCUIT_BREAKER, policy.global_circuit_breaker_threshold, window, call, same)
    poll = call.kind in _POLLS or call.tool == "command_status"
    if poll and policy.known_poll_no_progress:
        finding = _known_poll_no_progress(policy, window, call, same)
        if finding is not None:
            return finding
    if policy.ping_pong:
        finding = _ping_pong(policy, window, call)
        if finding is not None:
            return finding
    if policy.generic_repeat and not poll:
        return _generic_repeat(policy, window, call, same)
    return None


def _unknown_tool_repeat(policy: Policy, window: RunWindow, call: Call) -> Finding | None:
    """The same tool that does not exist, again and again, whatever the arguments."""
    count = window.unknown_row(call.tool)
    if count < policy.unknown_tool_threshold:
        return None
    evidence = partial(window.newest_offsets, count)
    return Finding("block", UNKNOWN_TOOL_REPEAT, count, policy.unknown_tool_threshold, evidence)


def _known_poll_no_progress(policy: Policy, window: RunWindow, call: Call, same: SameCalls) -> Finding | None:
    """A poll whose answer does not move."""
    count = same.streak
    if count >= policy.critical_threshold:
        return _streak_block(KNOWN_POLL_NO_PROGRESS, policy.critical_threshold, window, call, same)
    if count < policy.warning_threshold:
        return None
    return Finding(
        "warn",
        KNOWN_POLL_NO_PROGRESS,
        count,
        policy.warning_threshold,
        partial(window.streak_offsets, call.signature),
        (KNOWN_POLL_NO_PROGRESS, call.signature, same.outcome),
    )


def _ping_pong(policy: Policy, window: RunWindow, call: Call) -> Finding | None:
    """Two calls taking turns. Without progress on either side it is blocked, else only warned about."""
    length = window.alternating_with(call.signature)
    count = length + 1
    if length == 0 or count < min(policy.warning_threshold, policy.critical_threshold):
        return None
    newest = window.record(window.next - 1)
    evidence = partial(_with_this_call, window, length, call.offset)
    if count >= policy.critical_threshold and window.alternates_without_progress(length):
        return Finding("block", PING_PONG, count, policy.critical_threshold, evidence, paired_tool=newest.tool)
    if count < policy.warning_threshold:
        return None
    low, high = sorted((call.signature, newest.signature))
    return Finding("warn", PING_PONG, count, policy.warning_threshold, evidence, (PING_PONG, low, high), newest.tool)


def _generic_repeat(policy: Policy, window: RunWindow, call: Call, same: SameCalls) -> Finding | None:
    """The same call: blocked when its result is always the same, warned about when it is only repeated."""
    if same.streak >= policy.critical_threshold:
        return _streak_block(GENERIC_REPEAT, policy.critical_threshold, window, call, same)
    if same.count < policy.warning_threshold:
        return None
    return Finding(
        "warn",
        GENERIC_REPEAT,
        same.count,
        policy.warning_threshold,
        partial(window.same_offsets, call.signature),
        (GENERIC_REPEAT, call.signature, None),
    )


def _streak_block(detector: str, threshold: int, window: RunWindow, call: Call, same: SameCalls) -> Finding:
    return Finding("block", detector, same.streak, threshold, partial(window.streak_offsets, call.signature))


def _with_this_call(window: RunWindow, length: int, offset: int) -> tuple[int, ...]:
    """Point at the alternating tail and the call that continues it: it is counted too."""
    return (*window.newest_offsets(min(length, EVIDENCE_LIMIT - 1)), offset)
