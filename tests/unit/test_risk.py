"""Risk: who is said to have reached a threshold is stopped with the next such call, and nobody is stopped unsaid."""

from __future__ import annotations

from hypothesis import given
from streams import Log
from test_guard_property import POLICIES, streams

from streamguard.events import Event, ToolCall
from streamguard.guard.counting import count_of
from streamguard.guard.risk import Risk, nearest
from streamguard.guard.signature import signature_of, tool_named
from streamguard.policy import Policy, resolve

LOOP = resolve({"enabled": True, "warningThreshold": 2, "criticalThreshold": 6})


def test_it_grows_with_a_loop() -> None:
    """Each call with the same result brings a run one nearer, and the result of another call takes it back."""
    log, found = Log(LOOP), []
    for number in range(5):
        log.pair(number)
        window = log.guard.window_of(ToolCall(tool="read", run_id="r"))
        risk = nearest(LOOP, window) if window is not None else None
        found.append(risk.count if risk is not None else 0)

    assert [0, 2, 3, 4, 5] == found
    log.pair(9, result="other")
    assert window is not None
    assert nearest(LOOP, window) is None


def test_two_calls_that_take_turns() -> None:
    """A ping-pong is at risk though each of its calls came half as often."""
    log = Log(LOOP)
    for number in range(2):
        log.pair(number, tool="a")
        log.pair(number, tool="b")
    window = log.guard.window_of(ToolCall(tool="a", run_id="r"))
    assert window is not None
    risk = nearest(LOOP, window)

    assert risk is not None
    assert Risk("ping_pong", 5, 6, "a") == risk


def test_a_call_and_another_and_the_first_again_are_no_loop() -> None:
    """Two different calls are near to nothing, nor is going back to the first; going on so is."""
    policy = resolve({"enabled": True})
    log, told = Log(policy), []
    for number in range(4):
        log.pair(number, tool="ab"[number % 2])
        window = log.guard.window_of(ToolCall(tool="a", run_id="r"))
        assert window is not None
        risk = nearest(policy, window)
        told.append((risk.detector, risk.count) if risk is not None else None)

    assert [None, None, ("ping_pong", 4), ("ping_pong", 5)] == told


def test_the_warning_is_nearer_than_the_block() -> None:
    """Before a run is warned the warning is what it is near to, though its results differ; afterwards the block is."""
    policy = resolve({"enabled": True, "warningThreshold": 4, "criticalThreshold": 6})
    log, told = Log(policy), []
    for number in range(3):
        log.pair(number, result=f"page {number}")
    window = log.guard.window_of(ToolCall(tool="read", run_id="r"))
    assert window is not None
    assert Risk("generic_repeat", 3, 4, "read", "warn") == nearest(policy, window)

    for number in range(3, 8):
        log.pair(number)
        risk = nearest(policy, window)
        told.append((risk.action, risk.count) if risk is not None else None)
    assert [("warn", 4), ("block", 2), ("block", 3), ("block", 4), ("block", 5)] == told


@given(policy=POLICIES, events=streams)
def test_a_block_counts_what_was_told(policy: Policy, events: list[Event]) -> None:
    """Whenever a call is blocked, the count of its verdict is what was told for it just before."""
    log = Log(policy)
    for event in events:
        told: dict[tuple[str | None, str], int] = {}
        window = log.guard.window_of(event)
        if isinstance(event, ToolCall) and window is not None:
            tool = tool_named(event.tool)
            signature = signature_of(tool, event.args, event.args_hash)
            told = {
                (name, action): count_of(name, action, window, tool.name, signature)
                for name in ("generic_repeat", "known_poll_no_progress", "ping_pong", "unknown_tool_repeat",
                             "global_circuit_breaker")
                for action in ("warn", "block")
            }  # fmt: skip
        for verdict in log.add(event):
            if verdict.action in {"warn", "block"}:
                assert verdict.count == told[verdict.detector, verdict.action]
