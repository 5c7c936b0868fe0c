"""What predecessors said about events that are judged again: those verdicts stand, whatever we would say now.

We may judge otherwise than they did (another policy, other limits). So a verdict of theirs is accounted for when its
event has been judged, not when we say the same; until all are, checkpoints must not leave any of them behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from streamguard.verdicts import Verdict

__all__ = ["Said", "SaidVerdict"]


class SaidVerdict(NamedTuple):
    """A verdict that stands on the verdict topic; `offset` is its event's."""

    verdict_id: str
    offset: int


class Said:
    """Ids of verdicts about events that are judged again.

    `start` is an offset of the verdict topic before which everything is about earlier events.
    """

    def __init__(self, start: int, verdicts: Iterable[SaidVerdict] = ()) -> None:
        self.start = start
        self._ids: set[str] = set()
        self._until = 0  # behind the last of their events
        for verdict in verdicts:
            self._ids.add(verdict.verdict_id)
            self._until = max(self._until, verdict.offset + 1)

    def __len__(self) -> int:
        return len(self._ids)

    def leave_out(self, verdicts: Sequence[Verdict], position: int) -> Sequence[Verdict]:
        """Return those of our verdicts that nobody has said yet; `position` is the next event that we judge."""
        if not self._ids:
            return verdicts
        fresh = [verdict for verdict in verdicts if verdict.verdict_id not in self._ids]
        if position >= self._until:
            self._ids.clear()
        return fresh

    def verdicts_before(self, end: int) -> int:
        """Return what a checkpoint notes as `start` for a successor, if our own newest verdict ends at `end`."""
        return self.start if self._ids else end
