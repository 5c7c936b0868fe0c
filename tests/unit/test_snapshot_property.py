"""Snapshots: a guard that is stopped and restored at any point says what one that was never stopped says."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from typing import TypeAlias

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from test_guard_property import POLICIES, streams

from streamguard.events import Event, RunEnded, Source, ToolCall
from streamguard.guard import Guard, Limits
from streamguard.policy import Policy, PolicySet
from streamguard.verdicts import encode_verdict

LIMITS = st.builds(
    Limits,
    runs=st.integers(1, 5),
    active_runs=st.integers(1, 3),
    idle_ms=st.integers(5, 60),
    waiting_calls=st.integers(1, 4),
    event_ids=st.integers(1, 4),
)


def interleaved(parts: list[list[Event]], choice: random.Random) -> list[Event]:
    """Mix the events of several runs; some runs end on the way, some events come twice, some name an agent."""
    queues = [
        [msgspec.structs.replace(event, run_id=f"r{number}") for event in part] for number, part in enumerate(parts)
    ]
    events: list[Event] = []
    left = [queue for queue in queues if queue]
    while left:
        event = choice.choice(left).pop(0)
        if choice.random() < 0.3:
            event = msgspec.structs.replace(event, event_id=f"e{choice.randrange(6)}")
        if choice.random() < 0.1:
            event = msgspec.structs.replace(event, agent_id=f"a{choice.randrange(2)}")
        events.append(event)
        if choice.random() < 0.03:
            events.append(RunEnded(run_id=event.run_id))
        left = [queue for queue in left if queue]
    return events


Clock: TypeAlias = Callable[[int], int]
"""From an offset to its record's timestamp in milliseconds."""


def steady(offset: int) -> int:
    """Tell the time on which time passes."""
    return offset * 3


def standing(_offset: int) -> int:
    """Tell the time of a producer without a clock."""
    return 100


def wandering(offset: int) -> int:
    """Tell the time of producers whose clocks differ: it goes back again and again."""
    return 100 + offset * 3 + offset * 37 % 50


CLOCKS = st.sampled_from([steady, standing, wandering])


def judge(guard: Guard, event: Event, offset: int, clock: Clock = steady) -> list[bytes]:
    """Judge one event; return the bytes of its verdicts."""
    return [encode_verdict(verdict) for verdict in guard.observe(event, Source("t", 0, offset, clock(offset)))]


def with_agents(policy: Policy, more: int = 0) -> PolicySet:
    """Return a policy set in which agents differ: a run that changes hands has a window of another size."""
    block = {
        "enabled": policy.enabled,
        "historySize": policy.history_size + more,
        "warningThreshold": policy.warning_threshold,
        "criticalThreshold": policy.critical_threshold,
        "unknownToolThreshold": policy.unknown_tool_threshold,
        "postCompactionGuard": {"windowSize": policy.compaction_window},
    }
    return PolicySet(block, {"a0": {"historySize": policy.history_size + 3}, "a1": {"historySize": 2}})


class Timeline:
    """Which policy and limits are in force from which offset on."""

    def __init__(self, policy: Policy, limits: Limits, changes: list[int]) -> None:
        self._limits = limits
        self._sets = {
            offset: (with_agents(policy, 2 * number % 5), number) for number, offset in enumerate([0, *sorted(changes)])
        }

    def guard(self, offset: int, **limits: int) -> Guard:
        """Return a guard as of before the event at an offset."""
        policies, number = self._sets[max(at for at in self._sets if at < offset or at == 0)]
        return Guard(policies, self._limited(number, **limits))

    def judge(self, guard: Guard, event: Event, offset: int, clock: Clock) -> list[bytes]:
        """Judge one event, by what is in force at it."""
        if offset in self._sets:
            policies, number = self._sets[offset]
            guard.change(policies, self._limited(number, active_runs=guard.limits.active_runs))
        return judge(guard, event, offset, clock)

    def _limited(self, number: int, **limits: int) -> Limits:
        runs = max(1, self._limits.runs - number)
        return msgspec.structs.replace(self._limits, **{"runs": runs, **limits})


class Topic:
    """What a compacted topic remembers: the newest snapshot of each run, as of the last whole checkpoint."""

    def __init__(self) -> None:
        self.snapshots: dict[str, bytes] = {}
        self.position = 0
        self.time = 0

    def apply(self, changes: dict[str, bytes | None], position: int, time: int) -> None:
        """Take a whole checkpoint."""
        for run_id, snapshot in changes.items():
            if snapshot is None:
                self.snapshots.pop(run_id, None)
            else:
                self.snapshots[run_id] = snapshot
        self.position, self.time = position, time


@settings(max_examples=250)
@given(
    policy=POLICIES,
    limits=LIMITS,
    parts=st.lists(streams, min_size=1, max_size=6),
    choice=st.randoms(use_true_random=False),
    clock=CLOCKS,
)
def test_a_restored_guard_goes_on_as_if_nothing_had_happened(
    policy: Policy, limits: Limits, parts: list[list[Event]], choice: random.Random, clock: Clock
) -> None:
    """Checkpoints that are written while events come, given up, cut off by crashes: the verdicts are the same.

    The policy changes on the way; whoever is restored judges each event by the policy that was in force at it.
    """
    events = interleaved(parts, choice)
    timeline = Timeline(policy, limits, [choice.randrange(len(events) + 1) for _ in range(choice.randrange(4))])
    undisturbed = timeline.guard(0, active_runs=1000)
    expected = [timeline.judge(undisturbed, event, offset, clock) for offset, event in enumerate(events)]

    topic, guard, offset = Topic(), timeline.guard(0), 0
    said: list[list[bytes]] = [[] for _ in events]
    disturbances = 30  # no more: the events must come to their end, whatever is chosen
    while offset < len(events):
        what = choice.random() if disturbances else 1.0
        disturbances -= what < 0.15
        if what < 0.1:  # a checkpoint begins at this position
            capture, begun, time = guard.capture(), offset, guard.time
            changes: dict[str, bytes | None] = {}
            while some := capture.write(choice.randint(1, 2)):
                changes.update(some)
                if offset < len(events) and choice.random() < 0.7:
                    said[offset] = timeline.judge(guard, events[offset], offset, clock)
                    offset += 1
            if choice.random() < 0.8:
                topic.apply(changes, begun, time)
            else:
                guard.give_up(capture)
        elif what < 0.15:  # a crash: whoever comes next starts from the topic
            guard, offset = timeline.guard(topic.position), topic.position
            guard.restore(topic.snapshots.items(), topic.time)
        else:
            said[offset] = timeline.judge(guard, events[offset], offset, clock)
            offset += 1

    assert expected == said


@settings(max_examples=200)
@given(policy=POLICIES, parts=st.lists(streams, min_size=1, max_size=6), choice=st.randoms(use_true_random=False))
def test_which_runs_are_kept_packed_changes_no_verdict(
    policy: Policy, parts: list[list[Event]], choice: random.Random
) -> None:
    """A guard that packs every run but the newest says what one says that packs none."""
    events = interleaved(parts, choice)
    packing, plain = Guard(policy, Limits(active_runs=1)), Guard(policy)

    for offset, event in enumerate(events):
        assert judge(plain, event, offset) == judge(packing, event, offset)


def test_runs_that_are_over_leave_nothing_behind() -> None:
    """However many runs begin, are written down, and end: memory and topic hold what is live, and no more."""
    guard, topic = Guard(Policy(enabled=True)), Topic()
    live_and_let_die(guard, topic, range(1_000))
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    live_and_let_die(guard, topic, range(1_000, 4_000))
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert (0, {}) == (len(guard), topic.snapshots)
    assert after - before < 3_000 * 30  # an id alone takes more


def test_a_guard_that_forgets_all_takes_back_what_stands_written() -> None:
    """After everything was forgotten nothing is remembered, and the next checkpoint empties the topic."""
    guard, topic = Guard(Policy(enabled=True)), Topic()
    for number in range(20):
        judge(guard, ToolCall(run_id=f"r{number}", tool="read", args=None), number)
    take(guard, topic)
    other = Guard(Policy(enabled=True), Limits(active_runs=5))
    other.restore(topic.snapshots.items(), guard.time)
    judge(other, ToolCall(run_id="r3", tool="read", args=None), 20)
    other.forget_all()
    take(other, topic)

    assert (0, 0, {}) == (len(other), other.time, topic.snapshots)


def live_and_let_die(guard: Guard, topic: Topic, numbers: range) -> None:
    """Let runs begin and end, with a checkpoint now and then, before and after their ends."""
    for number in numbers:
        judge(guard, ToolCall(run_id=f"r{number}", tool="read", args=None), 2 * number)
        if number % 7 == 0:
            take(guard, topic)
        judge(guard, RunEnded(run_id=f"r{number}"), 2 * number + 1)
        if number % 11 == 0:
            take(guard, topic)
    take(guard, topic)


def take(guard: Guard, topic: Topic) -> None:
    """Take a whole checkpoint."""
    capture, changes = guard.capture(), dict[str, bytes | None]()
    while some := capture.write(100):
        changes.update(some)
    topic.apply(changes, 0, guard.time)
