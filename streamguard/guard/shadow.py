"""What is found but not enforced: in shadow, or because somebody allows the call for a time.

A finding in shadow must not hide one that is enforced: the other detectors are asked as if it were off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from streamguard.events import Source, ToolCall
from streamguard.guard.detectors import (
    GENERIC_REPEAT,
    GLOBAL_CIRCUIT_BREAKER,
    KNOWN_POLL_NO_PROGRESS,
    PING_PONG,
    UNKNOWN_TOOL_REPEAT,
    Finding,
    judge,
)
from streamguard.guard.run import Run
from streamguard.guard.saying import allow_verdict, finding_verdict
from streamguard.guard.window import Call
from streamguard.policy import Policy
from streamguard.verdicts import Verdict

__all__ = ["in_shadow", "weighed", "without_shadow"]

NEVER: Final = 1 << 62
"""A threshold that no count reaches."""

OFF: Final[Mapping[str, tuple[str, object]]] = {
    GENERIC_REPEAT: ("generic_repeat", False),
    KNOWN_POLL_NO_PROGRESS: ("known_poll_no_progress", False),
    PING_PONG: ("ping_pong", False),
    UNKNOWN_TOOL_REPEAT: ("unknown_tool_threshold", NEVER),
    GLOBAL_CIRCUIT_BREAKER: ("global_circuit_breaker_threshold", NEVER),
}
"""What turns a detector off."""


def in_shadow(policy: Policy, detector: str) -> bool:
    """Tell whether what a detector finds is only recorded."""
    return policy.shadow or detector in policy.shadow_detectors


@lru_cache(maxsize=256)
def without_shadow(policy: Policy) -> Policy | None:
    """Return the policy with its detectors in shadow turned off; None if nothing of it is enforced."""
    if policy.shadow:
        return None
    return msgspec.structs.replace(policy, **dict(OFF[name] for name in policy.shadow_detectors if name in OFF))


def weighed(  # noqa: PLR0917 - what a verdict is made of
    run: Run, call: Call, finding: Finding, override: str | None, event: ToolCall, source: Source
) -> tuple[Sequence[Verdict], Finding | None]:
    """Return what is said about a call of which something was found, and what of that is enforced.

    To be asked before the call changes what was counted. Whoever waits for an answer gets one that is no shadow.
    """
    shadows: Sequence[Verdict] = ()
    enforced: Finding | None = finding
    if override is not None or in_shadow(run.policy, finding.detector):
        if run.publishes(finding, shadow=True):
            shadows = (finding_verdict(run, call, finding, event, source, shadow=True, override=override),)
        policy = without_shadow(run.policy) if override is None else None
        enforced = judge(policy, run.window, call) if policy is not None else None
    if enforced is not None and run.publishes(enforced):
        return (*shadows, finding_verdict(run, call, enforced, event, source, number=len(shadows))), enforced
    if event.gate:
        return (*shadows, allow_verdict(run, event, source, len(shadows))), enforced
    return shadows, enforced
