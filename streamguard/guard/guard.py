"""The guard of one partition: many interleaved runs, each event in, its verdicts out.

A pure function of the events and the policy. Time is stream time: the highest record timestamp so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from msgspec import UNSET

from streamguard.events import Event, RunEnded, Source, ToolCall, ToolResult, run_of
from streamguard.guard.compaction import COMPACTION_LOOP_PERSISTED, CompactionWatch
from streamguard.guard.detectors import judge
from streamguard.guard.outcome import kind_asked, kind_of, outcome_of, unknown_tool
from streamguard.guard.rules import Rules
from streamguard.guard.run import Abort, EventIds, Run, abort_of
from streamguard.guard.runs import Capture, Runs
from streamguard.guard.saying import abort_verdict, allow_verdict
from streamguard.guard.shadow import in_shadow, weighed
from streamguard.guard.signature import signature_of, tool_named
from streamguard.guard.window import Call, RunWindow
from streamguard.policy import Policy, PolicySet
from streamguard.verdicts import Verdict

__all__ = ["Counters", "Guard", "Limits"]

SILENCE: Final[tuple[Verdict, ...]] = ()


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What bounds the guard's memory. `idle_ms`: time without an event after which a run is forgotten.

    `active_runs` are kept ready for their next event, the others packed: that changes memory and speed, no verdict.
    """

    runs: int = 100_000
    active_runs: int = 2_000
    idle_ms: int = 24 * 3600 * 1000
    waiting_calls: int = 256
    event_ids: int = 256


class Counters:
    """What happened, in numbers of events, calls or runs. Nothing in the guard depends on them."""

    __slots__ = ("armed", "duplicates", "evicted_runs", "expired_runs", "forgotten_calls", "orphans", "runs")

    def __init__(self) -> None:
        self.runs = 0  # begun
        self.duplicates = 0  # events whose event_id came before
        self.orphans = 0  # results without arguments whose call is not known
        self.forgotten_calls = 0  # waiting calls beyond limits.waiting_calls
        self.expired_runs = 0  # idle for longer than limits.idle_ms
        self.evicted_runs = 0  # least recently active beyond limits.runs
        self.armed = 0  # times the post-compaction guard was armed


class Guard:
    """Judges the events of one partition, in their order.

    Not for use from several threads. `policies` may be one policy for all agents; `counters` may be shared.
    """

    def __init__(
        self, policies: PolicySet | Policy, limits: Limits | None = None, counters: Counters | None = None
    ) -> None:
        self.counters = counters or Counters()
        self._rules = Rules(policies)
        self.limits = limits or Limits()
        self._runs = Runs(self._policy_of, self.limits.active_runs)
        self._active = self._runs.active
        self._latest: Run | None = None  # the run of the event before: it need not be moved to the end
        self._time = 0  # stream time, ms
        self._next_expiry: float = 0  # no run expires before

    def __len__(self) -> int:
        """Count the runs in memory."""
        return len(self._runs)

    def observe(self, event: Event, source: Source) -> Sequence[Verdict]:
        """Take the next event of the partition; return its verdicts, in order, usually none.

        Raises `MissingRunError` if the event names neither run nor session.
        """
        run = self._active.get(event.run_id)  # nearly always known under the id as it is written
        run_id = run_of(event) if run is None else run.run_id
        now = source.timestamp
        if now > self._time:
            self._time = now
            if now > self._next_expiry:
                self._expire()
                run = None
        if type(event) is RunEnded:
            self._runs.remove(run_id)
            return SILENCE
        if run is None:
            run = self._runs.find(run_id) or self._begin(run_id, event.agent_id)
        if run is not self._latest or run.generation != self._runs.generation:
            self._touch(run)
        agent_id = event.agent_id
        if agent_id is not None and agent_id != run.agent_id:
            run.follow(agent_id, *self._policy_of(agent_id))
        run.last_seen = self._time
        run.last_offset = source.offset
        if event.event_id is not None and self._repeated(run, event.event_id):
            return SILENCE
        if type(event) is ToolCall:
            return self._call(run, event, source)
        if type(event) is ToolResult:
            return self._result(run, event, source)
        return self._compaction(run)

    def change(self, policies: PolicySet | Policy, limits: Limits | None = None) -> None:
        """Judge by another policy, and other limits, from the next event on.

        Each run goes over to it with its own next event, so that it does not matter which runs were kept packed.
        """
        self._rules = Rules(policies)
        self.limits = limits or self.limits
        self._runs.generation += 1  # every run is looked at once more
        self._next_expiry = 0

    def attempts_left(self, event: Event) -> int:
        """Return how many outcomes the post-compaction guard still watches in this event's run; 0: not armed."""
        run = self._active.get(run_of(event))
        return run.watch.attempts_left if run is not None and run.watch is not None else 0

    def window_of(self, event: Event) -> RunWindow | None:
        """Return the window of this event's run as it is now, to look at; None if the run is not known."""
        run = self._runs.find(run_of(event))
        return run.window if run is not None else None

    def policy_of(self, agent_id: str | None) -> Policy:
        """Return the effective policy of an agent."""
        return self._policy_of(agent_id)[0]

    # checkpoints

    @property
    def time(self) -> int:
        """Stream time: the highest record timestamp so far, in milliseconds."""
        return self._time

    def capture(self) -> Capture:
        """Begin to write down the runs that changed since the last capture, as they are now."""
        return self._runs.capture()

    def give_up(self, capture: Capture) -> None:
        """Take back a capture that could not be kept: the next one holds its runs too."""
        self._runs.give_up(capture)

    def restore(self, snapshots: Iterable[tuple[str, bytes]], time: int) -> None:
        """Take up where another guard was: its runs' snapshots, in any order, and its stream time (ms).

        Only for a guard that has seen nothing yet. Raises `SnapshotVersionError` if the snapshots are too new.
        """
        self._runs.restore(snapshots)
        self._time = time

    def forget_all(self) -> None:
        """Forget every run and the time; what stands written of them is taken back by the next capture."""
        self._runs.forget_all()
        self._latest = None
        self._time = 0
        self._next_expiry = 0

    # runs

    def _begin(self, run_id: str, agent_id: str | None) -> Run:
        run = Run(run_id, agent_id, *self._rules.of(agent_id))
        run.rules = self._rules
        self._runs.add(run)
        self.counters.runs += 1
        while len(self._runs) > self.limits.runs and (oldest := self._runs.oldest()) is not None:
            self._runs.remove(oldest[0])
            self.counters.evicted_runs += 1
        return run

    def _policy_of(self, agent_id: str | None) -> tuple[Policy, str]:
        return self._rules.of(agent_id)

    def _touch(self, run: Run) -> None:
        """Note that the run of this event is another one than that of the event before, or is to be looked at anew."""
        self._runs.touch(run)
        self._latest = run
        if run.rules is not self._rules:
            run.follow(run.agent_id, *self._rules.of(run.agent_id))
            run.rules = self._rules

    def _expire(self) -> None:
        """Forget runs that were idle for too long; the least recently active come first."""
        latest = self._time - self.limits.idle_ms
        first = self._time
        while (oldest := self._runs.oldest()) is not None:
            run_id, first = oldest
            if first >= latest:
                break
            self._runs.remove(run_id)
            self.counters.expired_runs += 1
        self._next_expiry = first + self.limits.idle_ms

    def _repeated(self, run: Run, event_id: str) -> bool:
        if run.event_ids is None:
            run.event_ids = EventIds()
        if run.event_ids.seen(event_id, max(self.limits.event_ids, 2 * run.policy.history_size)):
            self.counters.duplicates += 1
            return True
        return False

    # events

    def _call(self, run: Run, event: ToolCall, source: Source) -> Sequence[Verdict]:
        policy = run.policy
        if run.abort is not None:
            return self._call_after_abort(run, run.abort, event, source)
        if policy.enabled is False:
            return (allow_verdict(run, event, source),) if event.gate else SILENCE
        tool = tool_named(event.tool)
        signature = signature_of(tool, event.args, event.args_hash)
        if event.poll is None:  # nearly always: one call less on the way of every event
            kind = kind_of(tool.name, event.args, policy.send_tools)
        else:
            kind = kind_asked(tool.name, event, policy.send_tools)
        call = Call(tool.name, signature, event.call_id, kind, source.offset)
        finding = judge(policy, run.window, call) if policy.enabled else None
        verdicts: Sequence[Verdict] = SILENCE
        if finding is not None:  # said before the call changes what was counted
            override = self._rules.override(run.agent_id, call.tool, call.signature, self._time)
            verdicts, finding = weighed(run, call, finding, override, event, source)
        elif event.gate:
            verdicts = (allow_verdict(run, event, source),)
        if finding is None or finding.action != "block":
            run.window.append(call)
        if event.call_id is not None and run.waiting.add(event.call_id, call, self.limits.waiting_calls):
            self.counters.forgotten_calls += 1
        return verdicts

    def _result(self, run: Run, event: ToolResult, source: Source) -> Sequence[Verdict]:
        if run.abort is not None or run.policy.enabled is False:
            return SILENCE
        if event.args is not UNSET or event.args_hash is not None:
            call = self._call_by_arguments(run, event, source.offset)
        else:
            call = run.waiting.take(event.call_id) if event.call_id is not None else None
        if call is None:
            self.counters.orphans += 1
            return SILENCE
        outcome = outcome_of(event, call.kind)
        if outcome is None:
            return SILENCE
        unknown = unknown_tool(event) if event.error is not None or event.unknown_tool is not None else None
        settled = run.window.settle(call.signature, event.call_id, outcome, unknown)
        if settled is None:
            settled = Call(call.tool, call.signature, event.call_id, call.kind, source.offset)
            run.window.append(settled)
            run.window.settle(call.signature, event.call_id, outcome, unknown)
        watch = run.watch
        if watch is None or watch.attempts_left == 0:
            return SILENCE
        count = watch.observe(call.signature, outcome, settled.offset)
        if count == 0:
            return SILENCE
        abort = abort_of(run, call, count, watch.offsets)
        override = self._rules.override(run.agent_id, call.tool, call.signature, self._time)
        if override is not None or in_shadow(run.policy, COMPACTION_LOOP_PERSISTED):
            return (abort_verdict(run, abort, event.call_id, source, shadow=True, override=override),)
        run.abort = abort
        return (abort_verdict(run, abort, event.call_id, source),)

    def _call_by_arguments(self, run: Run, event: ToolResult, offset: int) -> Call | None:
        """Find out what call a result belongs to by its own arguments; the tool may come from the waiting call."""
        waiting: Call | None = None
        tool = tool_named(event.tool) if event.tool is not None else None
        signature = signature_of(tool, event.args, event.args_hash) if tool is not None else None
        if event.call_id is not None:
            waiting = run.waiting.take(event.call_id, signature)
        if tool is None:
            if waiting is None:
                return None
            tool = tool_named(waiting.tool)
        signature = signature or signature_of(tool, event.args, event.args_hash)
        if waiting is not None and waiting.signature == signature:
            return waiting
        kind = kind_asked(tool.name, event, run.policy.send_tools)
        return Call(tool.name, signature, event.call_id, kind, offset)

    def _compaction(self, run: Run) -> Sequence[Verdict]:
        if run.policy.enabled is not False and run.abort is None:
            if run.watch is None:
                run.watch = CompactionWatch()
            run.watch.arm(run.policy.compaction_window)
            self.counters.armed += 1
        return SILENCE

    # aborted runs

    def _call_after_abort(self, run: Run, abort: Abort, event: ToolCall, source: Source) -> Sequence[Verdict]:
        """Say it again at the 1st, 2nd, 4th, 8th ... call, and to whoever waits for an answer."""
        run.calls_after_abort += 1
        calls = run.calls_after_abort
        if event.gate or calls & (calls - 1) == 0:
            return (abort_verdict(run, abort, event.call_id, source),)
        return SILENCE
