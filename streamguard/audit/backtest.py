"""What a policy would have done to recorded runs.

The recording goes on as it did: an agent that was stopped, or that heeded a warning, would have gone another way, which
nobody knows. So what comes after the first stop is counted, and not believed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from streamguard.audit.recorded import Recorded
from streamguard.errors import MissingRunError
from streamguard.events import Event, Source, ToolCall, run_of
from streamguard.guard import Guard, Limits
from streamguard.policy import Policy, PolicySet
from streamguard.verdicts import Verdict

__all__ = ["Backtest", "Change", "Judged", "Moment", "Totals", "changes", "totals"]

UNBOUNDED: Final = Limits(runs=1 << 40, idle_ms=1 << 50)
"""Runs of a recording are kept to its end."""


class Moment(msgspec.Struct, frozen=True):
    """Where in a run something was said: at its tool call number `call`, from 0."""

    call: int
    action: str
    detector: str
    tool: str | None
    count: int
    source: Source


class Judged(msgspec.Struct):
    """One run as a policy sees it.

    `saved` are calls that would not have run: those that are blocked themselves, and after an abort every later one.
    """

    run_id: str
    agent_id: str | None = None
    begun: int = 0
    calls: int = 0
    warns: int = 0
    blocks: int = 0
    aborts: int = 0
    shadows: int = 0
    saved: int = 0
    warned: Moment | None = None
    stopped: Moment | None = None
    aborted: bool = False


class Backtest:
    """Judges recorded events by a policy. `runs` is what came out, in the order in which the runs began."""

    def __init__(self, policies: PolicySet | Policy) -> None:
        self.runs: dict[str, Judged] = {}
        self.events = 0
        self._policies = policies
        self._guards: dict[tuple[str, int], Guard] = {}

    def observe(self, event: Event, source: Source) -> None:
        """Judge the next event."""
        try:
            run_id = run_of(event)
        except MissingRunError:
            return
        self.events += 1
        run = self.runs.get(run_id)
        if run is None:
            run = self.runs[run_id] = Judged(run_id, begun=source.timestamp)
        if event.agent_id is not None:
            run.agent_id = event.agent_id
        place = source.topic, source.partition
        guard = self._guards.get(place)
        if guard is None:
            guard = self._guards[place] = Guard(self._policies, UNBOUNDED)
        if isinstance(event, ToolCall):
            run.calls += 1
            run.saved += run.aborted
        for verdict in guard.observe(event, source):
            _note(run, verdict)


def _note(run: Judged, verdict: Verdict) -> None:
    if verdict.action == "allow":
        return
    if verdict.shadow:
        run.shadows += 1
        return
    moment = Moment(
        max(0, run.calls - 1), verdict.action, verdict.detector or "", verdict.tool, verdict.count or 0, verdict.source
    )
    if verdict.action == "warn":
        run.warns += 1
        run.warned = run.warned or moment
        return
    run.stopped = run.stopped or moment
    if verdict.action == "block":
        run.blocks += 1
        run.saved += not run.aborted
    else:
        run.aborts += 1
        run.aborted = True


class Totals(msgspec.Struct, kw_only=True):
    """Sums over runs. `warned` and `stopped` count runs; `saved` calls."""

    runs: int = 0
    calls: int = 0
    warned: int = 0
    stopped: int = 0
    warns: int = 0
    blocks: int = 0
    aborts: int = 0
    shadows: int = 0
    saved: int = 0


def totals(runs: Iterable[Judged]) -> Totals:
    """Add up."""
    sums = Totals()
    for run in runs:
        sums.runs += 1
        sums.warned += run.warned is not None
        sums.stopped += run.stopped is not None
        for name in ("calls", "warns", "blocks", "aborts", "shadows", "saved"):
            setattr(sums, name, getattr(sums, name) + getattr(run, name))
    return sums


class Change(msgspec.Struct, frozen=True):
    """A run that two policies treat otherwise: what each does first, if anything."""

    run_id: str
    agent_id: str | None
    kind: str
    first: Moment | None
    second: Moment | None


def changes(first: Mapping[str, Judged], second: Mapping[str, Judged]) -> Iterator[Change]:
    """Yield the runs that the second policy stops otherwise than the first, or, of those that neither does, warns."""
    for run_id, before in first.items():
        after = second[run_id]
        one, two = (before.stopped, after.stopped)
        what = "stopped"
        if one is None and two is None:
            one, two, what = before.warned, after.warned, "warned of"
        kind = _kind(one, two, what)
        if kind is not None:
            yield Change(run_id, before.agent_id, kind, one, two)


def _kind(first: Moment | None, second: Moment | None, what: str) -> str | None:
    if first is None or second is None:
        return f"{what} by B only" if second is not None else f"{what} by A only" if first is not None else None
    if first.call == second.call:
        return None
    return f"{what} earlier by B" if second.call < first.call else f"{what} later by B"


def judged(events: Iterable[Recorded], policies: PolicySet | Policy) -> Backtest:
    """Judge recorded events by a policy."""
    backtest = Backtest(policies)
    for event, source in events:
        backtest.observe(event, source)
    return backtest
