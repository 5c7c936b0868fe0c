"""When nobody waits for the guard any more, and when somebody does again."""

from __future__ import annotations

from streamguard.executor.silence import LATE_SECONDS, PROBE_SECONDS, Silence


class Clock:
    """A clock that the test sets, in seconds."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """Tell the time."""
        return self.now


def test_one_call_waits_now_and_then() -> None:
    """In a silent partition one call in `PROBE_SECONDS` is to wait, and no other one."""
    clock = Clock()
    silence = Silence(clock)
    silence.begins(0, "go ahead")
    at_once = 0 in silence
    clock.now += PROBE_SECONDS
    probe, next_one = 0 in silence, 0 in silence

    assert (True, False, True) == (at_once, probe, next_one)


def test_an_answer_in_time_ends_it() -> None:
    """Of its own partition only; the others go on being silent."""
    silence = Silence(Clock())
    silence.begins(0, "go ahead")
    silence.begins(1, "go ahead")
    silence.ends(0)

    assert (False, True) == (0 in silence, 1 in silence)


def test_a_late_answer_makes_the_next_call_wait_but_not_every_one() -> None:
    """A guard that lags is asked again once in a second, and is silent all the while."""
    clock = Clock()
    silence = Silence(clock)
    silence.begins(0, "go ahead")
    silence.late(0)
    first = 0 in silence
    silence.late(0)
    second = 0 in silence
    clock.now += LATE_SECONDS
    silence.late(0)
    third = 0 in silence

    assert (False, True, False) == (first, second, third)
    assert silence.holds(0)
