"""One run's window: its newest calls, and the counts that detectors ask for, kept up to date as calls come and go.

No question scans the window. What is kept, and what an event costs:

- per signature: how many records, and the streak of equal outcomes up to its newest outcome. A result that arrives
  after those of newer calls of the same signature and breaks their streak walks over just these newer calls;
- the length of the alternating tail, a comparison with two signatures per record;
- whether that tail makes no progress, and the row of records that name the same unknown tool: looked at when asked,
  each record once, by remembering how far was looked.

Records refer to one another by sequence number, never by reference: there are no cycles, and an evicted record is gone.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

__all__ = ["EVIDENCE_LIMIT", "Call", "RunWindow", "SameCalls"]

EVIDENCE_LIMIT = 32
"""A verdict points at no more than this many calls."""

NONE = -1
"""No sequence number."""


class Call(msgspec.Struct, eq=False, gc=False):
    """One call: judged, then recorded (or blocked, and only waited for)."""

    tool: str
    signature: bytes
    call_id: str | None
    kind: int
    offset: int
    seq: int = NONE  # its number in the window; NONE: not recorded
    outcome: bytes | None = None
    unknown: str | None = None
    older: int = NONE  # the record before it with the same signature
    beneath: int = NONE  # the pending record before it with the same signature and call id


class SameCalls(msgspec.Struct, eq=False, gc=False):
    """The records of one signature."""

    count: int = 0
    newest: int = NONE
    streak: int = 0  # records whose outcome equals the newest record's outcome, with none that differs between
    outcome: bytes | None = None  # of the newest record that has one
    newest_outcome: int = NONE  # that record
    broken_at: int = NONE  # the newest record whose outcome differs
    pending: dict[str | None, int] | None = None  # once looked for: by call id, the newest record without an outcome


class RunWindow:
    """The newest `capacity` calls of one run."""

    __slots__ = (
        "_alternating", "_checked", "_differs", "_newest_signature", "_other_signature", "_records", "_row_end",
        "_row_start", "capacity", "first", "newest", "next", "same",
    )  # fmt: skip

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.first = 0  # the oldest record
        self.next = 0  # the number that the next record gets
        self.newest: Call | None = None
        self.same: dict[bytes, SameCalls] = {}
        self._records: list[Call] = []  # a ring: record n at n % capacity
        self._newest_signature: bytes | None = None
        self._other_signature: bytes | None = None  # of the record before, if it differs
        self._alternating = 0
        self._checked = NONE  # the alternating tail was compared up to here
        self._differs = NONE  # the newest record found to differ from the one two later
        self._row_start = self._row_end = NONE  # records known to name the same unknown tool

    def __len__(self) -> int:
        return self.next - self.first

    def __iter__(self) -> Iterator[Call]:
        return map(self.record, range(self.first, self.next))

    def record(self, seq: int) -> Call:
        """Return a record of the window by its number."""
        return self._records[seq % self.capacity]

    def resized(self, capacity: int) -> RunWindow:
        """Return a window of another capacity with this one's newest records (the run's policy changed)."""
        window = RunWindow(capacity)
        for call in self:
            copy = Call(call.tool, call.signature, call.call_id, call.kind, call.offset)
            window.append(copy)
            if call.outcome is not None:
                window.settle(call.signature, call.call_id, call.outcome, call.unknown)
        return window

    def append(self, call: Call) -> None:
        """Record a call, pending its outcome; the oldest record leaves a full window."""
        call.seq = seq = self.next
        if seq < self.capacity:
            self._records.append(call)
        else:
            self._evict()
            self._records[seq % self.capacity] = call
        self.newest = call
        self.next = seq + 1
        signature = call.signature
        same = self.same.get(signature)
        if same is None:
            self.same[signature] = SameCalls(1, seq)
        else:
            same.count += 1
            call.older = same.newest
            same.newest = seq
            if same.pending is not None:
                _index(same.pending, call)
        if signature == self._newest_signature:
            self._alternating = 1
            self._other_signature = None
            return
        self._alternating = self._alternating + 1 if signature == self._other_signature else 2
        self._other_signature = self._newest_signature
        self._newest_signature = signature

    def settle(self, signature: bytes, call_id: str | None, outcome: bytes, unknown: str | None) -> Call | None:
        """Give an outcome to the newest record that waits for it; None if there is none.

        With a call id, the record must have the same one.
        """
        same = self.same.get(signature)
        if same is None:
            return None
        call = self._records[same.newest % self.capacity]
        if call.outcome is not None or (call_id is not None and call.call_id != call_id) or same.pending is not None:
            waiting = self._pending(same, call_id)
            if waiting is None:
                return None
            call = waiting
        call.outcome = outcome
        call.unknown = unknown
        if call.seq < same.newest_outcome:
            self._settle_late(same, call)
        elif outcome == same.outcome:
            same.streak += 1
            same.newest_outcome = call.seq
        else:
            same.broken_at = same.newest_outcome
            same.streak = 1
            same.outcome = outcome
            same.newest_outcome = call.seq
        return call

    def _pending(self, same: SameCalls, call_id: str | None) -> Call | None:
        """Look the record up that is not just the newest one, in an index that is made when first needed."""
        pending = same.pending
        if pending is None:
            pending = same.pending = {}
            for call in reversed(list(self._chain(same))):
                if call.outcome is None:
                    _index(pending, call)
        if call_id is None and pending:
            call_id = next(iter(pending)) if len(pending) == 1 else max(pending, key=pending.__getitem__)
        seq = pending.pop(call_id, NONE)
        if seq == NONE:
            return None
        call = self.record(seq)
        if call.beneath >= self.first:
            pending[call_id] = call.beneath
        return call

    def _settle_late(self, same: SameCalls, call: Call) -> None:
        """Bring the streak up to date where newer calls of this signature have their outcomes already."""
        if call.seq < same.broken_at:
            return
        if call.outcome == same.outcome:
            same.streak += 1
        else:
            same.broken_at = call.seq
            newer = (record for record in self._chain(same) if record.seq > call.seq)
            same.streak = sum(record.outcome is not None for record in newer)

    def _evict(self) -> None:
        call = self.record(self.first)
        self.first += 1
        same = self.same[call.signature]
        same.count -= 1
        if same.count == 0:
            del self.same[call.signature]
        elif call.outcome is not None:
            if call.seq > same.broken_at:
                same.streak -= 1
        elif same.pending is not None and same.pending.get(call.call_id) == call.seq:
            del same.pending[call.call_id]

    def _chain(self, same: SameCalls) -> Iterator[Call]:
        """Yield the records of one signature, newest first."""
        seq = same.newest
        while seq >= self.first:
            call = self.record(seq)
            seq = call.older
            yield call

    # what detectors ask

    def unknown_row(self, tool: str) -> int:
        """Count the newest records in a row that called this tool and named the same unknown tool."""
        newest = self.newest
        if newest is None or newest.unknown is None or newest.tool != tool:
            return 0
        seq = newest.seq
        while seq >= self.first:
            call = self.record(seq)
            if call.unknown != newest.unknown or call.tool != tool:
                break
            seq = self._row_start - 1 if seq == self._row_end else seq - 1
        self._row_start, self._row_end = seq + 1, newest.seq
        return newest.seq - max(seq, self.first - 1)

    def alternating_with(self, signature: bytes) -> int:
        """Return the length of the alternating tail that a call of this signature would continue, else 0."""
        if signature != self._other_signature:
            return 0
        length = min(self._alternating, len(self))
        return length if length >= 2 else 0  # noqa: PLR2004 - a pair

    def alternates_without_progress(self, length: int) -> bool:
        """Tell whether each side of the alternating tail always had the same outcome, and none is pending."""
        start = self.next - length
        for seq in range(max(self._checked + 1, start), self.next):
            outcome = self.record(seq).outcome
            if outcome is None:
                return False
            if seq - 2 >= start and self.record(seq - 2).outcome != outcome:
                self._differs = seq - 2
            self._checked = seq
        return self._differs < start

    # where the counted calls stand in the log, newest last

    def newest_offsets(self, count: int) -> tuple[int, ...]:
        """Return the offsets of the newest `count` records."""
        return tuple(self.record(seq).offset for seq in range(self.next - min(count, EVIDENCE_LIMIT), self.next))

    def same_offsets(self, signature: bytes) -> tuple[int, ...]:
        """Return the offsets of the records with this signature."""
        return self._offsets(signature, self.same[signature].count, pending=True)

    def streak_offsets(self, signature: bytes) -> tuple[int, ...]:
        """Return the offsets of the records in this signature's streak of equal outcomes."""
        return self._offsets(signature, self.same[signature].streak, pending=False)

    def _offsets(self, signature: bytes, count: int, *, pending: bool) -> tuple[int, ...]:
        wanted = min(count, EVIDENCE_LIMIT)
        offsets: list[int] = []
        for call in self._chain(self.same[signature]):
            if len(offsets) == wanted:
                break
            if pending or call.outcome is not None:
                offsets.append(call.offset)
        return tuple(reversed(offsets))


def _index(pending: dict[str | None, int], call: Call) -> None:
    """Enter a record that waits for its outcome, on top of an older one with the same call id."""
    call.beneath = pending.get(call.call_id, NONE)
    pending[call.call_id] = call.seq
