"""What a verdict tells the model or a person: what is wrong and what to do instead. Never a payload."""

from __future__ import annotations

from typing import Final

__all__ = ["abort_message", "finding_message"]

_MESSAGES: Final = {
    ("block", "unknown_tool_repeat"): (
        "The tool {tool} does not exist; it was called {count} times in a row. "
        "Use a tool from the list you were given, or answer without it."
    ),
    ("block", "global_circuit_breaker"): (
        "{tool} gave the same result {count} times for the same arguments. This call is stopped: "
        "report what you know, or do something different."
    ),
    ("block", "known_poll_no_progress"): (
        "{tool} was polled {count} times and nothing changed. Polling is stopped: "
        "check whether what you wait for is stuck, end it, or report it."
    ),
    ("warn", "known_poll_no_progress"): (
        "{tool} was polled {count} times and nothing changed. Wait longer between polls, or check whether it is stuck."
    ),
    ("block", "ping_pong"): (
        "{tool} and {paired} took turns for {count} calls and neither result changed. This call is stopped: "
        "try another approach, or report that you are stuck."
    ),
    ("warn", "ping_pong"): (
        "{tool} and {paired} have taken turns for {count} calls. If this makes no progress, try another approach."
    ),
    ("block", "generic_repeat"): (
        "{tool} gave the same result {count} times for the same arguments. This call is stopped: "
        "use the result you have, change the arguments, or try another approach."
    ),
    ("warn", "generic_repeat"): (
        "{tool} was called {count} times with the same arguments. "
        "If the result does not help, change the arguments or try another approach."
    ),
}


def finding_message(action: str, detector: str, tool: str, count: int, paired: str | None) -> str:
    """Word a warning or a block; `count` is in calls."""
    return _MESSAGES[action, detector].format(tool=tool, count=count, paired=paired)


def abort_message(tool: str, count: int) -> str:
    """Word the abort of a run that loops on after a compaction."""
    return (
        f"The context was compacted, and {tool} then gave the same result {count} times for the same arguments: "
        "the loop persists. The run is stopped."
    )
