"""The guard against the written rules, on whatever hypothesis comes up with."""

from __future__ import annotations

import random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET
from plain_guard import PlainRun

from streamguard.events import Compaction, Event, Source, ToolCall, ToolResult
from streamguard.guard import Guard
from streamguard.policy import Policy, clamp
from streamguard.verdicts import encode_verdict

TOOLS = st.sampled_from(["read", "exec", "bash", "process", "ghost", "command_status"])
ARGS = st.sampled_from([{"path": "/a"}, {"path": "/b"}, {"action": "poll"}, {"action": "log"}, None])
CALL_IDS = st.sampled_from([None, "c1", "c2", "c3"])
RESULTS = st.sampled_from(
    [
        {"result": "same"},
        {"result": "other"},
        {"result": {"content": [{"type": "text", "text": "x"}], "details": {"status": "running", "tail": "t"}}},
        {"error": "Tool ghost not found"},
        {"error": "unknown tool: spook"},
        {"error": {"code": 1}},
        {"status": "blocked"},
        {},
    ]
)

POLICIES = st.builds(
    lambda **fields: clamp(Policy(**fields)),
    enabled=st.sampled_from([True, True, True, None]),
    history_size=st.integers(1, 12),
    warning_threshold=st.integers(1, 5),
    critical_threshold=st.integers(1, 7),
    unknown_tool_threshold=st.integers(1, 4),
    global_circuit_breaker_threshold=st.integers(1, 9),
    generic_repeat=st.booleans(),
    known_poll_no_progress=st.booleans(),
    ping_pong=st.booleans(),
    compaction_window=st.integers(1, 6),
)

calls = st.builds(ToolCall, tool=TOOLS, args=ARGS, call_id=CALL_IDS, run_id=st.just("r"))
results = st.builds(
    lambda call_id, tool, args, fields: ToolResult(run_id="r", call_id=call_id, tool=tool, args=args, **fields),
    CALL_IDS,
    st.one_of(st.none(), TOOLS),
    st.one_of(st.just(UNSET), ARGS),
    RESULTS,
)
pairs = st.builds(
    lambda tool, args, call_id, fields: [
        ToolCall(tool=tool, args=args, call_id=call_id, run_id="r"),
        ToolResult(run_id="r", call_id=call_id, tool=tool, args=args, **fields),
    ],
    TOOLS,
    ARGS,
    CALL_IDS,
    RESULTS,
)
alternations = st.builds(lambda first, second, times: (first + second) * times, pairs, pairs, st.integers(2, 8))
repeats = st.builds(lambda pair, times: pair * times, pairs, st.integers(2, 8))
streams = st.lists(
    st.one_of(
        calls.map(lambda event: [event]),
        results.map(lambda event: [event]),
        repeats,
        alternations,
        st.just([Compaction(run_id="r")]),
    ),
    max_size=14,
).map(lambda parts: [event for part in parts for event in part])


def published(policy: Policy, events: list[Event]) -> list[tuple[object, ...]]:
    """Run the guard; return (event index, action, detector, count, evidence) per verdict."""
    guard = Guard(policy)
    return [
        (offset, verdict.action, verdict.detector, verdict.count, verdict.evidence)
        for offset, event in enumerate(events)
        for verdict in guard.observe(event, Source("t", 0, offset, offset))
    ]


@settings(max_examples=600)
@given(policy=POLICIES, events=streams)
def test_the_incremental_window_agrees_with_a_plain_scan(policy: Policy, events: list[Event]) -> None:
    """Whatever comes in whatever order, the guard publishes what a plain scan of the history gives."""
    plain = PlainRun(policy)
    expected = [(offset, *found) for offset, event in enumerate(events) for found in plain.observe(event, offset)]

    assert expected == published(policy, events)


@settings(max_examples=100)
@given(policy=POLICIES, parts=st.lists(streams, min_size=2, max_size=4), choice=st.randoms(use_true_random=False))
def test_interleaved_runs_do_not_touch_one_another(
    policy: Policy, parts: list[list[Event]], choice: random.Random
) -> None:
    """However runs are interleaved, each gets the verdicts it gets alone."""
    queues = [
        [msgspec.structs.replace(event, run_id=f"r{number}") for event in part] for number, part in enumerate(parts)
    ]
    alone = {f"r{number}": [row[1:4] for row in published(policy, queue)] for number, queue in enumerate(queues)}
    guard = Guard(policy)
    together: dict[str, list[tuple[object, ...]]] = {run: [] for run in alone}
    offset = 0
    left = [list(queue) for queue in queues if queue]
    while left:
        queue = choice.choice(left)
        for verdict in guard.observe(queue.pop(0), Source("t", 0, offset, offset)):
            together[verdict.run_id].append((verdict.action, verdict.detector, verdict.count))
        offset += 1
        left = [queue for queue in left if queue]

    assert alone == together


@settings(max_examples=100)
@given(policy=POLICIES, events=streams)
def test_the_same_log_gives_the_same_bytes(policy: Policy, events: list[Event]) -> None:
    """Two guards that read the same log publish the same bytes."""

    def read() -> list[bytes]:
        guard = Guard(policy)
        return [
            encode_verdict(verdict)
            for offset, event in enumerate(events)
            for verdict in guard.observe(event, Source("t", 0, offset, offset))
        ]

    assert read() == read()
