"""What the page shows: runs with their newest calls, verdicts, counts by minute. Bounded, and without any payload."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from streamguard.errors import MissingRunError
from streamguard.events import Event, RunEnded, Source, ToolCall, ToolResult, run_of
from streamguard.guard import Guard
from streamguard.guard.outcome import kind_asked, outcome_of
from streamguard.guard.risk import Risk, nearest
from streamguard.guard.signature import public_signature, signature_of, tool_named
from streamguard.verdicts import Verdict

__all__ = ["Model", "Step", "Track"]

VERDICTS: Final = 500
STEPS: Final = 400
"""Newest events of a run that are kept."""

EARLY: Final = 2_000
"""Verdicts that wait for their events."""

MINUTES: Final = 60
LATENCIES: Final = 2_000
SIGNATURE_CHARACTERS: Final = 12


class Step(msgspec.Struct):
    """An event of a run. `key` tells calls apart, `outcome` results: equal ones are equal."""

    offset: int
    time: int
    kind: str
    tool: str = ""
    call_id: str = ""
    key: str = ""
    outcome: str = ""
    verdicts: list[Verdict] = []


class Track(msgspec.Struct):
    """One run, as far as it was seen."""

    run_id: str
    agent_id: str | None
    partition: int
    begun: int
    seen: int = 0
    calls: int = 0
    state: str = "working"
    risk: Risk | None = None
    steps: deque[Step] = msgspec.field(default_factory=lambda: deque(maxlen=STEPS))
    called: dict[str, tuple[str, str, int]] = {}


class Model:
    """Takes events and verdicts as they come. `runs` are kept, least recently active first, up to a number.

    A run that was silent for `minutes` is at no risk any more: it ended without a word.
    """

    def __init__(self, runs: int, minutes: int) -> None:
        self.runs: OrderedDict[str, Track] = OrderedDict()
        self.verdicts: deque[Verdict] = deque(maxlen=VERDICTS)
        self.events = 0
        self._most = runs
        self._silent_ms = minutes * 60_000
        self._newest = 0
        self._minutes: OrderedDict[int, Counter[str]] = OrderedDict()
        self._early: OrderedDict[tuple[int, int], list[Verdict]] = OrderedDict()  # by the place of their events
        self._latencies: deque[float] = deque(maxlen=LATENCIES)

    def event(self, event: Event, source: Source, guard: Guard) -> None:
        """Take an event that the guard has judged already."""
        self.events += 1
        self._newest = max(self._newest, source.timestamp)
        try:
            track = self._track(run_of(event), source)
        except MissingRunError:
            return
        track.agent_id = event.agent_id or track.agent_id
        track.seen = max(track.seen, source.timestamp)
        track.steps.append(self._step(track, event, source, guard))
        for verdict in self._early.pop((source.partition, source.offset), ()):
            self._attach(track, verdict)
        if isinstance(event, RunEnded):
            track.state, track.risk = "ended", None
            return
        window = guard.window_of(event)
        risk = nearest(guard.policy_of(track.agent_id), window) if window is not None else None
        if not isinstance(event, ToolCall) or _share(risk) >= _share(track.risk):  # a call is no progress yet
            track.risk = risk

    def verdict(self, verdict: Verdict, timestamp: int) -> None:
        """Take a verdict; `timestamp` (ms since 1970) is that of its record."""
        self._latencies.append(max(0, timestamp - verdict.source.timestamp) / 1000)
        if verdict.action == "allow":
            return
        self.verdicts.append(verdict)
        minute = self._minutes.setdefault(timestamp // 60_000, Counter())
        minute[verdict.detector or "-"] += 1
        while len(self._minutes) > MINUTES:
            self._minutes.popitem(last=False)
        track = self.runs.get(verdict.run_id)
        if track is None or not self._attach(track, verdict):  # the topics are read beside each other
            place = verdict.source.partition, verdict.source.offset
            self._early[place] = [*self._early.get(place, ()), verdict]
            if len(self._early) > EARLY:
                self._early.popitem(last=False)

    def found(self, text: str) -> Iterator[Track]:
        """Yield the runs whose id or agent holds a text, those at most risk first; without a text those at risk."""
        text = text.strip().lower()
        runs = [
            track for track in self.runs.values()
            if (text in track.run_id.lower() or text in (track.agent_id or "").lower() if text else
                track.risk is not None and track.state != "aborted" and track.seen >= self._newest - self._silent_ms)
        ]  # fmt: skip
        yield from sorted(runs, key=_urgency, reverse=True)

    def by_minute(self) -> dict[str, list[int]]:
        """Return the verdicts of each detector in each of the newest minutes, oldest first."""
        if not self._minutes:
            return {}
        last = max(self._minutes)
        names = sorted({name for counts in self._minutes.values() for name in counts})
        span = range(last - MINUTES + 1, last + 1)
        return {name: [self._minutes.get(minute, Counter())[name] for minute in span] for name in names}

    def latency(self, part: float) -> float | None:
        """Return the time from event to verdict that a part of the newest verdicts did not exceed, in seconds."""
        ordered = sorted(self._latencies)
        return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else None

    # inside

    def _attach(self, track: Track, verdict: Verdict) -> bool:
        """Put a verdict to its event; tell whether that was there."""
        for step in reversed(track.steps):
            if step.offset == verdict.source.offset:
                step.verdicts = [*step.verdicts, verdict]
                if not verdict.shadow:
                    track.state = {"warn": "warned", "block": "blocked", "abort": "aborted"}[verdict.action]
                return True
            if step.offset < verdict.source.offset:
                break
        return False

    def _track(self, run_id: str, source: Source) -> Track:
        track = self.runs.get(run_id)
        if track is None:
            track = self.runs[run_id] = Track(run_id, None, source.partition, source.timestamp)
            if len(self.runs) > self._most:
                self.runs.popitem(last=False)
        else:
            self.runs.move_to_end(run_id)
            if track.state == "ended":
                track.state = "working"
        return track

    def _step(self, track: Track, event: Event, source: Source, guard: Guard) -> Step:
        kind = str(event.__struct_config__.tag)
        step = Step(source.offset, source.timestamp, kind)
        if isinstance(event, ToolCall):
            track.calls += 1
            tool = tool_named(event.tool)
            key = public_signature(tool.name, signature_of(tool, event.args, event.args_hash))
            compared = kind_asked(tool.name, event, guard.policy_of(track.agent_id).send_tools)
            step.tool, step.call_id = tool.name, event.call_id or ""
            step.key = key.rpartition(":")[2][:SIGNATURE_CHARACTERS]
            if event.call_id is not None:
                track.called[event.call_id] = tool.name, step.key, compared
                if len(track.called) > STEPS:
                    del track.called[next(iter(track.called))]
        elif isinstance(event, ToolResult):
            name = tool_named(event.tool or "").name
            known = track.called.pop(event.call_id or "", (name, "", kind_asked(name, event, ())))
            step.tool, step.key, compared = known
            step.call_id = event.call_id or ""
            outcome = outcome_of(event, compared)
            step.outcome = outcome.hex()[:SIGNATURE_CHARACTERS] if outcome is not None else ""
            if event.status == "blocked":
                step.kind = "blocked"
        return step


def _share(risk: Risk | None) -> float:
    return risk.count / risk.threshold if risk is not None else 0.0


def _urgency(track: Track) -> tuple[float, int]:
    return _share(track.risk), track.seen


def as_json(track: Track) -> dict[str, Any]:
    """Return what a list shows of a run."""
    return {
        "run": track.run_id, "agent": track.agent_id, "partition": track.partition, "calls": track.calls,
        "seen": track.seen, "state": track.state, "risk": track.risk,
    }  # fmt: skip
