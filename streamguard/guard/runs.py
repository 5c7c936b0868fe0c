"""The runs of one partition, least recently active first, and what changed in them since it was last written down.

Runs that are active are kept as objects; the others as their snapshots, which take a fraction of the memory. Which is
which depends on the events alone and changes nothing in what the guard says.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TypeAlias

from streamguard.guard.run import Run
from streamguard.guard.snapshot import PolicyOf, last_event, pack, unpack

__all__ = ["Capture", "Change", "Runs"]

Change: TypeAlias = tuple[str, bytes | None]
"""A run's id and its snapshot; None: the run is over."""


class Capture:
    """The runs that changed since the capture before, as they are at one position.

    Events may be judged while it is written: a run that is about to change is written just before.
    """

    def __init__(self, runs: Runs, changed: dict[str, None]) -> None:
        self._runs = runs
        self._left = changed
        self._early: list[Change] = []
        self.run_ids: list[str] = list(changed)

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._left

    def write(self, count: int) -> list[Change]:
        """Write up to `count` more runs; an empty list: all are written."""
        changes, self._early = self._early, []
        while self._left and len(changes) < count:
            run_id, _ = self._left.popitem()
            changes.append((run_id, self._runs.snapshot(run_id)))
        return changes

    def write_early(self, run_id: str) -> None:
        """Write a run now: it is about to change or to go."""
        del self._left[run_id]
        self._early.append((run_id, self._runs.snapshot(run_id)))


class Runs:
    """All runs in memory. `active` holds those that are objects; `quiet` the others; all of these are older."""

    __slots__ = ("_active_limit", "_capture", "_changed", "_policy_of", "_stored", "active", "generation", "quiet")

    def __init__(self, policy_of: PolicyOf, active_limit: int) -> None:
        self.active: OrderedDict[str | None, Run] = OrderedDict()  # None is never in it
        self.quiet: OrderedDict[str, bytes] = OrderedDict()
        self.generation = 0  # of captures: a run that was touched in this one is known to have changed
        self._active_limit = active_limit
        self._policy_of = policy_of
        self._changed: dict[str, None] = {}
        self._stored: set[str] = set()  # runs that stand written: their end must be written too
        self._capture: Capture | None = None

    def __len__(self) -> int:
        return len(self.active) + len(self.quiet)

    def find(self, run_id: str) -> Run | None:
        """Return a run, as an object."""
        run = self.active.get(run_id)
        if run is None and (snapshot := self.quiet.get(run_id)) is not None:
            run = unpack(run_id, snapshot, self._policy_of)
            self._before_change(run_id)
            del self.quiet[run_id]
            self.add(run)
        return run

    def add(self, run: Run) -> None:
        """Add a run, as the most recently active one."""
        self._before_change(run.run_id)  # one by this id may be over, and its end not written yet
        self.active[run.run_id] = run
        if len(self.active) > self._active_limit:
            oldest = next(iter(self.active.values()))
            self.quiet[oldest.run_id] = pack(oldest)
            del self.active[oldest.run_id]

    def touch(self, run: Run) -> None:
        """Note that a run has an event, and is about to change."""
        self.active.move_to_end(run.run_id)
        if run.generation != self.generation:
            self._before_change(run.run_id)
            run.generation = self.generation
            self._changed[run.run_id] = None

    def remove(self, run_id: str) -> None:
        """Forget a run, if it is known."""
        if run_id in self.active or run_id in self.quiet:
            self._before_change(run_id)
            self.active.pop(run_id, None)
            self.quiet.pop(run_id, None)
            if run_id in self._stored:
                self._changed[run_id] = None
            else:
                self._changed.pop(run_id, None)

    def forget_all(self) -> None:
        """Forget every run."""
        for run_id in [*self.quiet, *(run.run_id for run in self.active.values())]:
            self.remove(run_id)

    def oldest(self) -> tuple[str, int] | None:
        """Return the least recently active run and the stream time of its last event."""
        for run_id, snapshot in self.quiet.items():
            return run_id, last_event(snapshot)[1]
        for run in self.active.values():
            return run.run_id, run.last_seen
        return None

    def snapshot(self, run_id: str) -> bytes | None:
        """Write one run as it is now; None if there is none."""
        run = self.active.get(run_id)
        return pack(run) if run is not None else self.quiet.get(run_id)

    def capture(self) -> Capture:
        """Begin to write down what changed; the capture before must have been written to its end, or given up."""
        self._capture = Capture(self, self._changed)
        for run_id in self._changed:
            (self._stored.add if run_id in self.active or run_id in self.quiet else self._stored.discard)(run_id)
        self._changed = {}
        self.generation += 1
        return self._capture

    def give_up(self, capture: Capture) -> None:
        """Take back a capture that could not be kept: what it held counts as changed."""
        self._capture = None
        self._changed = {**dict.fromkeys(capture.run_ids), **self._changed}
        self._stored.update(capture.run_ids)  # for all that is known

    def restore(self, snapshots: Iterable[tuple[str, bytes]]) -> None:
        """Take runs from their snapshots, in any order. Raises `SnapshotVersionError`."""
        ordered = sorted(snapshots, key=lambda item: last_event(item[1]))
        self.quiet.update(ordered)
        self._stored.update(self.quiet)

    def _before_change(self, run_id: str) -> None:
        if self._capture is not None and run_id in self._capture:
            self._capture.write_early(run_id)
