"""What an executor must obey, and what changes nothing."""

from __future__ import annotations

from typing import Any

from streamguard.events import Source
from streamguard.executor.enforcement import Enforcement
from streamguard.verdicts import Action, Verdict

SIGNATURE = "read:0"


def verdict(number: int, action: Action, **fields: Any) -> Verdict:
    """Write a verdict about a call of the run."""
    source = Source("events", 0, number, 0)
    return Verdict(verdict_id=f"0-{number}-0", run_id="r", action=action, policy="p", source=source, **fields)


def test_a_block_holds_until_the_guard_lets_such_a_call_go() -> None:
    """A blocked signature stays blocked for every later call; an allow, which names only the call, lifts it."""
    enforcement = Enforcement()
    enforcement.take(verdict(1, "block", signature=SIGNATURE, call_id="c1"))
    enforcement.take(verdict(2, "allow", call_id="c-other"))
    held = enforcement.standing(SIGNATURE)
    enforcement.asked("c2", SIGNATURE)
    enforcement.take(verdict(3, "allow", call_id="c2"))

    assert (True, None) == (held is not None, enforcement.standing(SIGNATURE))


def test_a_warning_lifts_a_block_too() -> None:
    """A call that is warned of may run: what was blocked repeats no longer."""
    enforcement = Enforcement()
    enforcement.take(verdict(1, "block", signature=SIGNATURE))
    enforcement.take(verdict(2, "warn", signature=SIGNATURE))

    assert enforcement.standing(SIGNATURE) is None
    assert ["0-2-0"] == [warning.verdict_id for warning in enforcement.take_warnings()]
    assert [] == enforcement.take_warnings()


def test_shadow_verdicts_are_never_obeyed() -> None:
    """A verdict that is only recorded changes nothing, whatever its action."""
    enforcement = Enforcement()
    actions: tuple[Action, ...] = ("warn", "block", "abort")
    taken = [
        enforcement.take(verdict(number, action, signature=SIGNATURE, shadow=True))
        for number, action in enumerate(actions)
    ]

    assert [False] * 3 == taken
    assert (None, None, []) == (enforcement.abort, enforcement.standing(SIGNATURE), enforcement.take_warnings())


def test_a_verdict_that_comes_again_changes_nothing() -> None:
    """By its verdict_id: a block that stands on the topic twice does not come back after it was lifted."""
    enforcement = Enforcement()
    block = verdict(1, "block", signature=SIGNATURE)
    enforcement.take(block)
    enforcement.take(verdict(2, "warn", signature=SIGNATURE))
    again = enforcement.take(block)

    assert (False, None) == (again, enforcement.standing(SIGNATURE))


def test_an_abort_is_for_good() -> None:
    """The first abort stays the reason, whatever comes after it."""
    enforcement = Enforcement()
    actions: tuple[Action, ...] = ("abort", "allow", "abort")
    for number, action in enumerate(actions):
        enforcement.take(verdict(number, action, signature=SIGNATURE))

    assert enforcement.abort is not None
    assert "0-0-0" == enforcement.abort.verdict_id
