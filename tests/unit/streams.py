"""Short ways to write events in tests."""

from __future__ import annotations

import itertools
from typing import Any

from streamguard.events import Event, Source, ToolCall, ToolResult
from streamguard.guard import Guard, Limits
from streamguard.policy import Policy, PolicySet, resolve
from streamguard.verdicts import Verdict

ON = resolve({"enabled": True})


class Log:
    """A partition that is written and judged in one go."""

    def __init__(self, policy: Policy | PolicySet = ON, **limits: int) -> None:
        self.guard = Guard(policy, Limits(**limits))
        self.offset = itertools.count()
        self.time = 0

    def add(self, event: Event) -> list[Verdict]:
        """Append one event; return its verdicts."""
        return list(self.guard.observe(event, Source("agent.events", 3, next(self.offset), self.time)))

    def call(
        self, call_id: str | None = "c", *, run: str | None = "r", tool: str = "read", **fields: Any
    ) -> list[Verdict]:
        """Append a tool_call."""
        return self.add(ToolCall(tool=tool, run_id=run, call_id=call_id, **fields))

    def result(self, call_id: str | None = "c", *, run: str | None = "r", **fields: Any) -> list[Verdict]:
        """Append a tool_result."""
        return self.add(ToolResult(run_id=run, call_id=call_id, **fields))

    def pair(
        self, number: int = 0, *, run: str = "r", tool: str = "read", args: Any = None, result: Any = "same"
    ) -> list[Verdict]:
        """Append a call and its result; return the verdicts of both."""
        name = f"c{number}"
        return [
            *self.call(name, run=run, tool=tool, args=args),
            *self.result(name, run=run, result=result),
        ]


def said(verdicts: list[Verdict]) -> list[tuple[str, str | None, int | None]]:
    """Return action, detector and count of each verdict."""
    return [(verdict.action, verdict.detector, verdict.count) for verdict in verdicts]
