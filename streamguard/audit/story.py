"""The story of one run as its guard saw it: each event, what it counted, and what was said."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple, TypeAlias

from streamguard.events import Compaction, Event, Source, ToolCall, ToolResult
from streamguard.guard import Guard
from streamguard.guard.compaction import COMPACTION_LOOP_PERSISTED
from streamguard.guard.counting import count_of
from streamguard.guard.outcome import kind_asked, outcome_of
from streamguard.guard.signature import public_signature, signature_of, tool_named
from streamguard.verdicts import Verdict

__all__ = ["Judge", "Step", "story_of"]

Kind: TypeAlias = Literal["call", "result", "compaction", "end"]

Judge: TypeAlias = Callable[[Event, Source], tuple[Guard, Sequence[Verdict]] | None]
"""Judges an event; None if it was skipped then. It also gives the guard, for the next look."""


class Step(NamedTuple):
    """An event of a run. `counted` is what a call counted for the detector of interest, `signature` what was called.

    `outcome` tells results apart: equal ones have equal digests. `ran` is False where a call was blocked.
    """

    source: Source
    kind: Kind
    tool: str | None
    call_id: str | None
    signature: str | None
    outcome: bytes | None
    counted: int | None
    verdicts: tuple[Verdict, ...]
    ran: bool = True


def story_of(events: Iterable[tuple[Event, Source]], judge: Judge, detector: str, action: str) -> list[Step]:
    """Judge the events of one run again, and note what each call counted for a detector."""
    story = _Story(judge, detector, action)
    for event, source in events:
        story.add(event, source)
    return story.steps


class _Called(NamedTuple):
    tool: str
    signature: str | None
    kind: int


class _Story:
    def __init__(self, judge: Judge, detector: str, action: str) -> None:
        self.steps: list[Step] = []
        self._judge = judge
        self._asked = detector, action
        self._guard: Guard | None = None
        self._agent: str | None = None
        self._called: dict[str, _Called] = {}  # by call id

    def add(self, event: Event, source: Source) -> None:
        self._agent = event.agent_id or self._agent
        counted = self._counted(event) if isinstance(event, ToolCall) else None
        judged = self._judge(event, source)
        if judged is None:
            return
        self._guard, verdicts = judged
        said = tuple(verdicts)
        if isinstance(event, ToolCall):
            called = self._call(event, self._guard)
            self.steps.append(Step(source, "call", called.tool, event.call_id, called.signature, None, counted, said))
        elif isinstance(event, ToolResult):
            self.steps.append(self._result(event, source, said))
        else:
            kind: Kind = "compaction" if isinstance(event, Compaction) else "end"
            self.steps.append(Step(source, kind, None, None, None, None, None, said))

    def _counted(self, call: ToolCall) -> int | None:
        if self._asked[0] == COMPACTION_LOOP_PERSISTED:
            return None  # it counts outcomes
        window = self._guard.window_of(call) if self._guard is not None else None
        if window is None:
            return 0
        tool = tool_named(call.tool)
        return count_of(*self._asked, window, tool.name, signature_of(tool, call.args, call.args_hash))

    def _call(self, call: ToolCall, guard: Guard) -> _Called:
        tool = tool_named(call.tool)
        signature = public_signature(tool.name, signature_of(tool, call.args, call.args_hash))
        kind = kind_asked(tool.name, call, guard.policy_of(self._agent).send_tools)
        called = _Called(tool.name, signature, kind)
        if call.call_id is not None:
            self._called[call.call_id] = called
        return called

    def _result(self, result: ToolResult, source: Source, said: tuple[Verdict, ...]) -> Step:
        called = self._called.pop(result.call_id or "", None)
        if called is None:
            tool = tool_named(result.tool or "").name
            called = _Called(tool, None, kind_asked(tool, result, ()))
        outcome = outcome_of(result, called.kind)
        ran = result.status != "blocked"
        return Step(source, "result", called.tool, result.call_id, called.signature, outcome, None, said, ran)
