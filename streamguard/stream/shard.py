"""One assigned partition: its guard, its position, and what it has to say."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

import structlog
from aiokafka import ConsumerRecord

from streamguard.errors import RecordTooLargeError, UnreadableRecordError
from streamguard.events import MSGPACK, Compaction, Event, RunEnded, Source, ToolCall, ToolResult, decode_event
from streamguard.guard import Guard
from streamguard.stream.deadletter import DeadLetter, dead_letter
from streamguard.stream.ruleset import Ruleset
from streamguard.stream.trace import traceparent_of
from streamguard.verdicts import Verdict

__all__ = ["Shard", "Slice", "is_msgpack", "no_events"]

log = structlog.get_logger("streamguard.shard")

CHECK_EVERY: Final = 16
"""Records between two looks at the clock."""


def no_events() -> dict[type[Event], int]:
    """Return what counts events by type: a plain dictionary, since it is on the way of each."""
    return dict.fromkeys((ToolCall, ToolResult, Compaction, RunEnded), 0)


class Slice(NamedTuple):
    """What came out of some records, in log order; `next` is the index of the first record not judged yet.

    `traces` holds, by verdict id, the traceparent of those verdicts whose event has one.
    """

    next: int
    verdicts: list[Verdict]
    dead_letters: list[DeadLetter]
    traces: dict[str, bytes]


class Shard:
    """Judges the records of one partition. Its guard's runs and its position are what a checkpoint holds.

    `refused` counts, by reason, the records that are not judged: unreadable ones, and types of a newer version;
    `events` those that are, by type.
    """

    def __init__(
        self,
        partition: int,
        guard: Guard,
        position: int,
        refused: Counter[str] | None = None,
        events: dict[type[Event], int] | None = None,
        *,
        record_bytes: int,
        json_depth: int,
    ) -> None:
        self.partition = partition
        self.guard = guard
        self.position = position  # offset of the next record to judge
        self.refused: Counter[str] = Counter() if refused is None else refused
        self.events = no_events() if events is None else events
        self._record_bytes = record_bytes
        self._json_depth = json_depth
        self._log = log.bind(partition=partition)

    def change(self, ruleset: Ruleset) -> None:
        """Judge by another ruleset from the next record on."""
        self.guard.change(ruleset.policies, ruleset.guard_limits)
        self._record_bytes = ruleset.limits.record_bytes
        self._json_depth = ruleset.limits.json_depth

    def judge(self, records: Sequence[ConsumerRecord], start: int, seconds: float) -> Slice:
        """Judge records from index `start` on, for about `seconds`: then other tasks get their turn."""
        verdicts: list[Verdict] = []
        dead_letters: list[DeadLetter] = []
        traces: dict[str, bytes] = {}
        end = time.perf_counter() + seconds
        index = start
        for index in range(start, len(records)):
            record = records[index]
            if record.offset < self.position:
                continue
            try:
                said = self.observe(record)
                if said:
                    verdicts.extend(said)
                    if record.headers and (trace := traceparent_of(record.headers)) is not None:
                        traces.update((verdict.verdict_id, trace) for verdict in said)
            except UnreadableRecordError as error:
                self._refuse(record, error, dead_letters)
            except Exception as error:  # noqa: BLE001 - one record must not stop every worker that meets it, in turn
                self._log.exception("record failed", offset=record.offset)
                failure = UnreadableRecordError(f"streamguard failed on this record: {type(error).__name__}")
                self._refuse(record, failure, dead_letters)
            self.position = record.offset + 1
            if index % CHECK_EVERY == 0 and time.perf_counter() >= end:
                break
        return Slice(index + 1, verdicts, dead_letters, traces)

    def observe(self, record: ConsumerRecord) -> Sequence[Verdict]:
        """Judge one record, whatever the position. Raises a subclass of `UnreadableRecordError` if it is no event."""
        value = record.value
        if value is not None and len(value) > self._record_bytes:
            raise RecordTooLargeError(
                f"the record has {len(value)} bytes, more than the {self._record_bytes} of limits.record_bytes"
            )
        msgpack = bool(record.headers) and is_msgpack(record)
        event = decode_event(value, msgpack=msgpack, depth=self._json_depth)
        if event is None:
            self.refused["unknown_type"] += 1
            return ()
        source = Source(record.topic, record.partition, record.offset, record.timestamp or 0)
        armed = self.guard.counters.armed
        verdicts = self.guard.observe(event, source)
        self.events[type(event)] += 1
        if type(event) is Compaction and self.guard.counters.armed > armed:
            self._say_armed(event)
        return verdicts

    def _say_armed(self, event: Compaction) -> None:
        attempts = self.guard.attempts_left(event)
        # The wording is documented; whoever searches the logs for it must find it.
        self._log.info(f"post-compaction guard armed for {attempts} attempts", run_id=event.run_id or event.session_id)

    def _refuse(self, record: ConsumerRecord, error: UnreadableRecordError, dead_letters: list[DeadLetter]) -> None:
        self.refused[error.reason] += 1
        self._log.warning("record is no event", offset=record.offset, error=str(error))
        dead_letters.append(dead_letter(record, error))


def is_msgpack(record: ConsumerRecord) -> bool:
    """Tell whether a record says that its value is MessagePack."""
    return any(
        key.lower() == "content-type" and value is not None and value.split(b";")[0].strip().lower() == MSGPACK.encode()
        for key, value in record.headers
    )
