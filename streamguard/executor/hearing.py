"""Verdicts about a run, and not about an earlier one that had the same id.

Its last events may still be judged when the next run begins. Where that begins is known when its first event stands on
the topic; until then verdicts wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from streamguard.verdicts import Verdict

if TYPE_CHECKING:
    from streamguard.executor.channel import Heard

__all__ = ["Hearing"]

WAITING: Final = 1000
"""Verdicts that wait at the most."""


class Hearing:
    """Hands verdicts about events from the run's first one on to `heed`."""

    def __init__(self, heed: Callable[[Verdict], None]) -> None:
        self.begun = False
        self._heed = heed
        self._first = -1
        self._waiting: deque[Verdict] = deque(maxlen=WAITING)

    def begins_at(self, offset: int) -> None:
        """Hear where the run's first event is; -1: that is not known, all verdicts count."""
        if self.begun:
            return
        self.begun, self._first = True, offset
        while self._waiting:
            self._hear(self._waiting.popleft())

    def hear(self, heard: Heard) -> None:
        """Hear a verdict about a run of this id."""
        if self.begun:
            self._hear(heard.verdict)
        else:
            self._waiting.append(heard.verdict)

    def _hear(self, verdict: Verdict) -> None:
        if verdict.source.offset >= self._first:
            self._heed(verdict)
