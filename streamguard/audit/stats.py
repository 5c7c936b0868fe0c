"""Counting calls, loops and what was stopped, by agent, tool, detector or day."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from streamguard.audit.times import utc
from streamguard.errors import MissingRunError
from streamguard.events import Event, ToolCall, run_of
from streamguard.guard.signature import tool_named
from streamguard.verdicts import Verdict

__all__ = ["BY", "Row", "Stats"]

BY: Final = ("agent", "tool", "detector", "day")

NOBODY: Final = "-"
"""An agent, a tool or a detector where there is none."""


class Row(msgspec.Struct, kw_only=True):
    """Numbers of one group.

    `calls` were made (of a detector: not told). `loops` are different calls of a run that were warned of or stopped.
    `blocks` and `aborts` were enforced; `shadows` were not. `saved`: calls that were blocked, and so did not run.
    """

    calls: int | None = None
    loops: int = 0
    warns: int = 0
    blocks: int = 0
    aborts: int = 0
    shadows: int = 0
    saved: int = 0


class _Where(NamedTuple):
    agent: str
    tool: str
    detector: str
    day: str


class Stats:
    """Counts by some of `BY`."""

    def __init__(self, by: tuple[str, ...]) -> None:
        self.rows: dict[tuple[str, ...], Row] = {}
        self._by = by
        self._agents: dict[str, str] = {}  # of runs, as their events last said
        self._loops: set[tuple[str, str | None, tuple[str, ...]]] = set()

    def event(self, event: Event, timestamp: int) -> None:
        """Count an event, if it is a call."""
        try:
            run_id = run_of(event)
        except MissingRunError:
            return
        if event.agent_id is not None:
            self._agents[run_id] = event.agent_id
        if not isinstance(event, ToolCall) or "detector" in self._by:
            return
        agent = self._agents.get(run_id, NOBODY)
        row = self._row(_Where(agent, tool_named(event.tool).name, NOBODY, _day(timestamp)))
        row.calls = (row.calls or 0) + 1

    def verdict(self, verdict: Verdict) -> None:
        """Count a verdict, unless it only allows."""
        if verdict.action == "allow":
            return
        day = _day(verdict.source.timestamp)
        where = _Where(verdict.agent_id or NOBODY, verdict.tool or NOBODY, verdict.detector or NOBODY, day)
        row = self._row(where)
        if verdict.shadow:
            row.shadows += 1
            return
        loop = (verdict.run_id, verdict.signature, self._key(where))
        if loop not in self._loops:
            self._loops.add(loop)
            row.loops += 1
        if verdict.action == "warn":
            row.warns += 1
        elif verdict.action == "abort":
            row.aborts += 1
        else:
            row.blocks += 1
            row.saved += 1

    def in_order(self) -> Mapping[tuple[str, ...], Row]:
        """Return the groups, those with most loops first; days in their order."""
        if self._by == ("day",):
            return dict(sorted(self.rows.items()))
        return dict(sorted(self.rows.items(), key=lambda item: (-item[1].loops, -(item[1].calls or 0), item[0])))

    def _row(self, where: _Where) -> Row:
        return self.rows.setdefault(self._key(where), Row())

    def _key(self, where: _Where) -> tuple[str, ...]:
        return tuple(getattr(where, name) for name in self._by)


def _day(timestamp: int) -> str:
    return f"{utc(timestamp):%Y-%m-%d}"
