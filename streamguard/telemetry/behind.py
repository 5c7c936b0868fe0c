"""How far a partition is behind, in seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamguard.stream.status import PartitionStatus

__all__ = ["Behind"]


class Behind:
    """Remembers when each partition was last seen without anything to judge."""

    def __init__(self) -> None:
        self._caught_up: dict[int, float] = {}

    def seconds(self, partition: PartitionStatus, now: float) -> float | None:
        """Return the time since the last event that was judged; 0 when caught up, None when the end is not known yet.

        Never more than since the partition was last caught up: the first event after a quiet night is not a night old.
        `now` is in seconds since 1970, as record timestamps are; asked at least every second or so, it is that exact.
        """
        if partition.lag is None:
            return None
        if partition.lag == 0:
            self._caught_up[partition.partition] = now
            return 0.0
        if partition.time == 0:  # nothing was judged here, ever
            self._caught_up.setdefault(partition.partition, now)
        since = max(partition.time / 1000, self._caught_up.get(partition.partition, 0.0))
        return max(0.0, now - since)
