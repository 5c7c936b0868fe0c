"""Judging recorded events again by what was in force then: the same guard, and the journal of its rulesets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aiokafka import ConsumerRecord

from streamguard.errors import NoRulesetError
from streamguard.events import Event, RunEnded, Source, decode_event
from streamguard.guard import Guard
from streamguard.stream.journal import Journal, PolicyChange
from streamguard.stream.ruleset import Ruleset
from streamguard.stream.shard import Shard, is_msgpack
from streamguard.verdicts import Verdict

__all__ = ["Deriver"]


class Deriver:
    """Judges the events of one partition from the first that a journal knows of.

    `start` is that event's offset, `first` the oldest one that the topic still has. Raises `NoRulesetError` if the
    journal does not say what was in force.
    """

    def __init__(self, partition: int, journal: Journal, first: int) -> None:
        self.events = 0
        self._partition = partition
        self._changes = list(journal.changes)
        self._rulesets = journal.rulesets
        self.start = max(first, self._changes[0].offset if self._changes else first)
        before = [change for change in self._changes if change.offset <= self.start]
        if not before:
            raise NoRulesetError(
                f"partition {partition}: no record of what was in force is on the policies topic. If one policy was in "
                "force all the time, name it: --policy FILE"
            )
        self._shard = self._new_shard(before[-1])
        self._changes = self._changes[len(before) :]
        self._skipping_to = 0
        known = before[-1].anew or self.start == 0  # nothing is remembered there
        self._lost = self.start > before[-1].offset or before[-1].carried or not known
        self._lost_until: int | None = None  # stream time (ms) from which on every new run is known from its beginning
        self._old: set[str] = set()  # runs that may have a past which is lost

    @property
    def lost(self) -> bool:
        """Tell whether runs may have a past that is not known any more."""
        return self._lost

    def excused(self, run_id: str) -> bool:
        """Tell whether events of a run may be lost that its verdicts depend on."""
        return run_id in self._old

    def judge(self, records: Sequence[ConsumerRecord], end: int) -> Iterator[tuple[int, Sequence[Verdict]]]:
        """Judge records below an offset; yield, after each, the next offset and its verdicts."""
        for record in records:
            if not self.start <= record.offset < end:
                continue
            while self._changes and self._changes[0].offset <= record.offset:
                self._take(self._changes.pop(0))
            if self._changes and self._is_skipped(record.offset):
                continue
            self.events += 1
            if self._lost:
                self._remember(record)
            try:
                yield record.offset + 1, self._shard.observe(record)
            except Exception:  # noqa: BLE001 - as the worker does: it went to the dead letters, whatever it was
                yield record.offset + 1, ()

    def judge_one(self, event: Event, source: Source) -> tuple[Guard, Sequence[Verdict]] | None:
        """Judge an event that was decoded already, and give the guard that did; None if it was skipped then."""
        while self._changes and self._changes[0].offset <= source.offset:
            self._take(self._changes.pop(0))
        if source.offset < self.start or (self._changes and self._is_skipped(source.offset)):
            return None
        return self._shard.guard, self._shard.guard.observe(event, source)

    def _is_skipped(self, offset: int) -> bool:
        skipped_from = self._changes[0].skipped_from
        return skipped_from is not None and skipped_from <= offset

    def _take(self, change: PolicyChange) -> None:
        if change.anew:
            self._shard = self._new_shard(change)
            self._lost, self._lost_until = False, None
            self._old.clear()
            return
        if change.carried:
            self._lost, self._lost_until = True, None
        self._shard.change(self._ruleset(change))

    def _new_shard(self, change: PolicyChange) -> Shard:
        ruleset = self._ruleset(change)
        guard = Guard(ruleset.policies, ruleset.guard_limits)
        limits = ruleset.limits
        return Shard(self._partition, guard, self.start, record_bytes=limits.record_bytes, json_depth=limits.json_depth)

    def _ruleset(self, change: PolicyChange) -> Ruleset:
        ruleset = self._rulesets.get(change.ruleset)
        if ruleset is None:
            raise NoRulesetError(
                f"partition {self._partition}: ruleset {change.ruleset}, in force from event {change.offset} on, is "
                "not on the policies topic"
            )
        return ruleset

    def _remember(self, record: ConsumerRecord) -> None:
        """Note whose past may be lost: a run that was silent for longer than runs are kept has none."""
        if self._lost_until is None:
            self._lost_until = record.timestamp + self._shard.guard.limits.idle_ms
        if record.timestamp > self._lost_until:
            self._lost = False
            return
        try:
            event = decode_event(record.value, msgpack=is_msgpack(record))
        except Exception:  # noqa: BLE001 - no event, no run
            return
        run_id = ((event.run_id or "").strip() or (event.session_id or "").strip()) if event is not None else ""
        if isinstance(event, RunEnded):
            self._old.discard(run_id)
        else:
            self._old.add(run_id)
