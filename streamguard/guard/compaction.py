"""The post-compaction guard: a run that was compacted and falls back into the same hole is aborted.

Source of the rule: the section "Post-compaction guard" of the detection rules.
"""

from __future__ import annotations

from typing import Final, Self

from streamguard.guard.window import EVIDENCE_LIMIT

__all__ = ["COMPACTION_LOOP_PERSISTED", "CompactionWatch"]

COMPACTION_LOOP_PERSISTED: Final = "compaction_loop_persisted"


class CompactionWatch:
    """Watches the first outcomes after a compaction."""

    __slots__ = ("_first", "_same", "attempts_left", "offsets")

    def __init__(self) -> None:
        self.attempts_left = 0
        self.offsets: list[int] = []  # of the newest calls watched
        self._first: tuple[bytes, bytes] | None = None
        self._same = 0

    @classmethod
    def of(cls, attempts_left: int, first: tuple[bytes, bytes] | None, same: int, offsets: list[int]) -> Self:
        """Return a watch in the state that `state` told."""
        watch = cls()
        watch.attempts_left, watch._first, watch._same, watch.offsets = attempts_left, first, same, offsets
        return watch

    @property
    def state(self) -> tuple[int, tuple[bytes, bytes] | None, int, list[int]]:
        """Everything that it remembers."""
        return self.attempts_left, self._first, self._same, self.offsets

    def arm(self, attempts: int) -> None:
        """Watch the next `attempts` outcomes; what was watched before is forgotten."""
        self.attempts_left = attempts
        self.offsets = []
        self._first = None
        self._same = 0

    def observe(self, signature: bytes, outcome: bytes, offset: int) -> int:
        """Take one outcome (the signature holds its tool); return how many were equal if all were, else 0."""
        pair = (signature, outcome)
        if self._first is None:
            self._first = pair
        elif pair != self._first:
            self.arm(0)
            return 0
        self._same += 1
        self.offsets.append(offset)
        del self.offsets[:-EVIDENCE_LIMIT]
        self.attempts_left -= 1
        return self._same if self.attempts_left == 0 else 0
