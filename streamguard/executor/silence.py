"""Whether the guard answers: while it does not, nobody waits for it again and again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import structlog

__all__ = ["Silence"]

log = structlog.get_logger("streamguard.executor")

LATE_SECONDS: Final = 1.0

PROBE_SECONDS: Final = 5.0
"""So often one call of a silent partition waits all the same: its run may have ended before the answer came."""


class Silence:
    """The partitions whose calls got no answer in time. What is logged is logged once for an outage, not per call."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._probed: dict[int, float] = {}  # silent partitions, and when a call last waited
        self._late: dict[int, float] = {}  # when a late answer last made one wait

    def __contains__(self, partition: int) -> bool:
        """Whether calls of this partition go unanswered; -1 stands for all, while their number is not known.

        False also for one call now and then, which is to wait: an answer to it ends the silence.
        """
        probed = self._probed.get(partition)
        if probed is None:
            return False
        if self._clock() - probed < PROBE_SECONDS:
            return True
        self._probed[partition] = self._clock()
        return False

    def holds(self, partition: int) -> bool:
        """Tell whether it is silent, and leave it at that."""
        return partition in self._probed

    def begins(self, partition: int, then: str) -> None:
        """Note a call that got no answer in time."""
        if not self._probed:
            log.warning("the guard does not answer", calls=then)
        self._probed[partition] = self._clock()

    def late(self, partition: int) -> None:
        """Note an answer that came too late: the guard is there, so the next call waits, once in a second."""
        now = self._clock()
        if partition in self._probed and now - self._late.get(partition, -LATE_SECONDS) >= LATE_SECONDS:
            self._late[partition] = now
            self._probed[partition] = now - PROBE_SECONDS

    def ends(self, partition: int) -> None:
        """Note an answer that came in time."""
        if self._probed:
            self._probed.pop(partition, None)
            self._probed.pop(-1, None)
            if not self._probed:
                log.info("the guard answers again")
