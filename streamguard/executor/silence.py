"""Whether the guard answers: while it does not, nobody waits for it again and again."""

from __future__ import annotations

import structlog

__all__ = ["Silence"]

log = structlog.get_logger("streamguard.executor")


class Silence:
    """The partitions whose calls got no answer in time. What is logged is logged once for an outage, not per call."""

    def __init__(self) -> None:
        self._partitions: set[int] = set()

    def __contains__(self, partition: int) -> bool:
        """Whether calls of this partition go unanswered; -1 stands for all, while their number is not known."""
        return partition in self._partitions

    def begins(self, partition: int, then: str) -> None:
        """Note a call that got no answer in time."""
        if not self._partitions:
            log.warning("the guard does not answer", calls=then)
        self._partitions.add(partition)

    def ends(self, partition: int) -> None:
        """Note an answer."""
        if self._partitions:
            self._partitions.discard(partition)
            self._partitions.discard(-1)
            if not self._partitions:
                log.info("the guard answers again")
