"""What a call would count for a detector: for those who explain a verdict, or look how near a run is to one. Pure."""

from __future__ import annotations

from streamguard.guard.detectors import GENERIC_REPEAT, PING_PONG, UNKNOWN_TOOL_REPEAT
from streamguard.guard.window import RunWindow

__all__ = ["count_of"]


def count_of(detector: str, action: str, window: RunWindow, tool: str, signature: bytes) -> int:
    """Return what the detector counts when this call comes next, in calls; 0: nothing.

    A warning and a block of one detector may count differently: repeats, or repeats with the same outcome.
    """
    if detector == UNKNOWN_TOOL_REPEAT:
        newest = window.newest
        return window.unknown_row(tool) if newest is not None and newest.unknown is not None else 0
    if detector == PING_PONG:
        length = window.alternating_with(signature)
        return length + 1 if length else 0
    same = window.same.get(signature)
    if same is None:
        return 0
    return same.count if detector == GENERIC_REPEAT and action == "warn" else same.streak
