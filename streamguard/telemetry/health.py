"""Whether a worker is alive, and whether it is ready. That it answers at all shows that its event loop turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from streamguard.stream.status import in_words

if TYPE_CHECKING:
    from streamguard.stream.status import Status

__all__ = ["Answer", "alive", "ready"]

STARTING = "starting: it is no member of its group yet"


class Answer(NamedTuple):
    """Yes or no, and why."""

    well: bool
    text: str


def alive(status: Status | None) -> Answer:
    """Tell whether everything that must move does. A worker that starts is alive: that has a deadline of its own."""
    if status is None:
        return Answer(well=True, text=STARTING)
    if status.stuck:
        return Answer(well=False, text=f"no progress: {', '.join(status.stuck)}")
    return Answer(well=True, text=in_words(status))


def ready(status: Status | None) -> Answer:
    """Tell whether the group has said which partitions are the worker's, and all of them are restored."""
    if status is None:
        return Answer(well=False, text=STARTING)
    return Answer(status.ready, in_words(status))
