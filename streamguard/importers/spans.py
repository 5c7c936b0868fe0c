"""Spans: a call where one starts, its result where it ends, whatever order they were written in.

A trace is written as its spans end, the inner ones first: what a call has from the spans around it (its agent, its
conversation) is known once the file was read. Until then its calls are kept in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from streamguard.importers.fragments import iso_time
from streamguard.importers.intake import Imported, Intake

__all__ = ["Around", "Compacted", "ToolSpan", "Trace"]

DEEPEST: Final = 256
"""Spans around a span that are looked at; damaged files have rings."""

NOTED: Final = "calls without recorded arguments (all calls of one tool look the same)"


class Around(NamedTuple):
    """What a span says about what is within it."""

    parent: str | None
    agent: str | None
    conversation: str | None


class ToolSpan(msgspec.Struct, frozen=True):
    """A tool that ran. Times are nanoseconds since 1970; `end` is None while it runs."""

    line: int
    trace: str
    span: str
    tool: str | None
    call_id: str
    args: msgspec.Raw | None
    result: msgspec.Raw | None
    error: msgspec.Raw | None
    start: int
    end: int | None


class Compacted(NamedTuple):
    """A span whose context was compacted."""

    line: int
    trace: str
    span: str
    start: int


class Trace:
    """Collects the spans of a file; at its end gives the events in the order of time."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._around: dict[tuple[str, str], Around] = {}
        self._conversations: dict[str, set[str]] = {}
        self._found: list[ToolSpan | Compacted] = []

    def span(self, trace: str, span: str, around: Around) -> None:
        """Remember what a span, of any kind, says about what is within it."""
        self._around[trace, span] = around
        if around.conversation:
            self._conversations.setdefault(trace, set()).add(around.conversation)

    def add(self, found: ToolSpan | Compacted) -> None:
        """Remember a call, or a compaction."""
        self._found.append(found)

    def events(self, *, by_conversation: bool) -> Iterator[Imported]:
        """Yield all events. The run is the trace, or the conversation where there is one.

        Of spans that say that they work on a compacted context only the first of a run is a compaction.
        """
        compacted: Counter[str] = Counter()
        for _, kind, found in sorted(self._moments(), key=lambda moment: moment[:2]):
            about = self._about(found, by_conversation=by_conversation)
            if isinstance(found, ToolSpan):
                yield from self._intake.event(found.line, (_call if kind == CALL else _result)(found) | about)
                continue
            compacted[about["run_id"]] += 1
            if compacted[about["run_id"]] == 1:
                fields = {"type": "compaction", "event_id": f"{found.span}:compaction", "time": iso_time(found.start)}
                yield from self._intake.event(found.line, fields | about)
            else:
                self._intake.skipped["spans on a context that was compacted before"] += 1

    def _moments(self) -> Iterator[tuple[int, int, ToolSpan | Compacted]]:
        """Yield what happened when. At one moment results come first, but never before their own call."""
        for found in self._found:
            yield found.start, CALL, found
            if isinstance(found, Compacted):
                continue
            if found.args is None:
                self._intake.noted[NOTED] += 1
            if found.end is None or (found.result is None and found.error is None):
                self._intake.noted["calls without a recorded result"] += 1
            else:
                yield max(found.end, found.start), RESULT if found.end > found.start else OWN_RESULT, found

    def _about(self, found: ToolSpan | Compacted, *, by_conversation: bool) -> dict[str, Any]:
        agent, conversation = self._nearest(found.trace, found.span)
        if conversation is None and len(known := self._conversations.get(found.trace, set())) == 1:
            conversation = next(iter(known))
        run = conversation if by_conversation and conversation else found.trace
        return {"run_id": run, "agent_id": agent, "session_id": conversation}

    def _nearest(self, trace: str, span: str) -> tuple[str | None, str | None]:
        """Return the agent and the conversation that the span itself, or the nearest one around it, names."""
        agent = conversation = None
        at: str | None = span
        for _ in range(DEEPEST):
            around = self._around.get((trace, at)) if at else None
            if around is None or (agent and conversation):
                break
            agent, conversation, at = agent or around.agent, conversation or around.conversation, around.parent
        return agent, conversation


RESULT: Final = 0
CALL: Final = 1
OWN_RESULT: Final = 2
"""The order of what happens at one moment."""


def _call(found: ToolSpan) -> dict[str, Any]:
    return {
        "type": "tool_call",
        "call_id": found.call_id,
        "tool": found.tool,
        "args": found.args,
        "event_id": f"{found.span}:call",
        "time": iso_time(found.start),
    }


def _result(found: ToolSpan) -> dict[str, Any]:
    outcome = {"error": found.error} if found.error is not None else {"result": found.result}
    return {
        "type": "tool_result",
        "call_id": found.call_id,
        **outcome,
        "event_id": f"{found.span}:result",
        "time": iso_time(found.end or found.start),
    }
