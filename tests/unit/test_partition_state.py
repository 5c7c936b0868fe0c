"""What the live page says of a partition."""

from __future__ import annotations

import pytest

from streamguard.web.workers import PartitionState

SLOW = 20.0


@pytest.mark.parametrize(
    ("worker", "committed", "still", "said"),
    [
        (None, 7, 0.0, "nobody's"),
        ("w", None, 0.0, "not begun"),
        ("w", 9, 99.0, "caught up"),
        ("w", 7, 3.0, "working"),
        ("w", 7, 31.4, "no checkpoint for 31 s"),
    ],
)
def test_how_a_partition_is(worker: str | None, committed: int | None, still: float, said: str) -> None:
    """Events behind the last checkpoint are no trouble, unless the next one does not come."""
    assert said == PartitionState(0, worker, committed, 9, still).state(SLOW)
