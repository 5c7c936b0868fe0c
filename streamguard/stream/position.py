"""Where a shard goes on: what its checkpoint says, what the group committed, and what the broker still has."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import structlog
from aiokafka import TopicPartition

from streamguard.errors import PositionLostError

if TYPE_CHECKING:
    from streamguard.settings import Settings

__all__ = ["Bounds", "Place", "find_place"]

log = structlog.get_logger("streamguard.position")


class Bounds(NamedTuple):
    """The first offset that the broker has of a partition, and the end of what is committed."""

    first: int
    end: int


class Place(NamedTuple):
    """Where a shard goes on.

    `begun`: this group has been here before. `anew`: but the topic was another one, whose offsets meant other events.
    """

    position: int
    begun: bool = True
    anew: bool = False


def find_place(
    settings: Settings, partition: TopicPartition, bounds: Bounds, committed: int | None, checkpoint: int | None
) -> Place:
    """Choose between the position that was committed and that of the newest checkpoint: the one that is further.

    A checkpoint's transaction and the commit behind it can be separated by a crash: the checkpoint is right then. A
    commit that is further was set by an operator, to skip events. Raises `PositionLostError` if the broker no longer
    has what comes next, unless the settings say where to go on then.
    """
    reached = [position for position in (committed, checkpoint) if position is not None]
    if not reached:
        return Place(bounds.end if settings.worker.offset_reset == "latest" else bounds.first, begun=False)
    if committed is not None and checkpoint is not None and committed < checkpoint:
        log.info(
            "the checkpoint is further than the committed position, and counts",
            partition=partition.partition,
            checkpoint=checkpoint,
            committed=committed,
        )
    position = max(reached)
    anew = position > bounds.end and settings.kafka.idempotence  # the embedded broker's ends are not exact
    if bounds.first <= position and not anew:
        return Place(position)
    choice = settings.worker.on_lost_position
    if choice == "fail":
        raise PositionLostError(
            f"{partition.topic}[{partition.partition}]: this group had reached {position}, but the broker has events "
            f"from {bounds.first} to {bounds.end} only: they were deleted unread, or the topic was made anew. Choose "
            "where to go on: --on-lost-position=earliest or latest (worker.on_lost_position)"
        )
    found = bounds.first if choice == "earliest" else bounds.end
    log.warning(
        "position lost", partition=partition.partition, lost=position, first=bounds.first, end=bounds.end,
        going_on=found,
    )  # fmt: skip
    return Place(found, anew=anew)
