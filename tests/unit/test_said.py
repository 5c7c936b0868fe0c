"""What predecessors said: it is not said again, and no checkpoint leaves any of it behind."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamguard.events import Source
from streamguard.stream.said import Said, SaidVerdict
from streamguard.verdicts import Verdict


def verdict(offset: int) -> Verdict:
    """Make our verdict about the event at this offset."""
    return Verdict(
        verdict_id=f"0-{offset}-0", run_id="r", action="warn", policy="p", source=Source("agent.events", 0, offset, 0)
    )


@given(theirs=st.sets(st.integers(0, 30)), ours=st.sets(st.integers(0, 30)), steps=st.lists(st.integers(1, 7)))
def test_every_verdict_is_said_once_by_whoever_was_first(theirs: set[int], ours: set[int], steps: list[int]) -> None:
    """Judging otherwise than a predecessor, we leave out what it said, and until its last event is judged we say so."""
    said = Said(5, [SaidVerdict(f"0-{offset}-0", offset) for offset in theirs])
    fresh: list[int] = []
    starts: dict[int, int] = {}
    position = 0
    while position <= 30:
        begun, position = position, position + (steps.pop() if steps else 31)
        mine = [verdict(offset) for offset in sorted(ours) if begun <= offset < position]
        fresh += [one.source.offset for one in said.leave_out(mine, position)]
        starts[position] = said.verdicts_before(99)

    assert sorted(ours - theirs) == fresh
    assert {place: 5 if any(offset >= place for offset in theirs) else 99 for place in starts} == starts
