"""A shard judges its records once, in order, in slices, whatever they hold."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from aiokafka import ConsumerRecord
from hypothesis import given
from hypothesis import strategies as st

from streamguard.guard import Guard
from streamguard.policy import resolve
from streamguard.stream.deadletter import without_value
from streamguard.stream.shard import Shard, Slice


def record(offset: int, value: bytes | None, headers: tuple[tuple[str, bytes], ...] = ()) -> ConsumerRecord[Any, Any]:
    """Make a record as the consumer hands it over."""
    size = len(value or b"")
    return ConsumerRecord("agent.events", 2, offset, 7, 0, b"key", value, None, 3, size, headers)


def loop(times: int) -> list[ConsumerRecord[Any, Any]]:
    """Make the records of the same call with the same result, again and again."""
    events = [
        event
        for number in range(times)
        for event in (
            {"type": "tool_call", "run_id": "r", "call_id": f"c{number}", "tool": "read"},
            {"type": "tool_result", "run_id": "r", "call_id": f"c{number}", "result": "same"},
        )
    ]
    return [record(offset, json.dumps(event).encode()) for offset, event in enumerate(events)]


def shard(position: int = 0) -> Shard:
    """Make a shard with everything on."""
    return Shard(2, Guard(resolve({"enabled": True})), position, record_bytes=1000, json_depth=10)


def judged(one: Shard, records: list[ConsumerRecord[Any, Any]], seconds: float = 60) -> list[Slice]:
    """Judge all records, slice by slice."""
    slices, start = [], 0
    while start < len(records):
        slices.append(one.judge(records, start, seconds))
        start = slices[-1].next
    return slices


@given(times=st.integers(11, 60), seconds=st.sampled_from([0.0, 60.0]))
def test_slices_change_nothing(times: int, seconds: float) -> None:
    """However short its turns, a shard gives the same verdicts; without time it still goes on a little each turn."""
    records = loop(times)
    slices = judged(shard(), records, seconds)
    whole = judged(shard(), records)

    assert [v for part in whole for v in part.verdicts] == [v for part in slices for v in part.verdicts]
    assert (len(slices) > 1) == (seconds == 0)
    assert all(16 >= later.next - earlier.next > 0 for earlier, later in itertools.pairwise(slices)) or seconds


def test_the_position_follows_the_log() -> None:
    """The position is the offset behind the last record judged; records below it are passed over."""
    one = shard(position=20)
    judged(one, loop(15))

    assert (30, 10) == (one.position, sum(one.events.values()))


def test_types_of_a_newer_version_are_counted() -> None:
    """An event of an unknown type is skipped and counted, and is no dead letter."""
    one = shard()
    [done] = judged(one, [record(0, b'{"type":"novelty","run_id":"r"}')])

    assert ([], 1, 1) == (done.dead_letters, one.refused["unknown_type"], one.position)


@pytest.mark.parametrize("header", [b"application/msgpack", b"Application/MsgPack; charset=x"])
def test_the_content_type_decides(header: bytes) -> None:
    """JSON under a MessagePack header is refused: the header decides, in any case and with parameters."""
    call = b'{"type":"tool_call","run_id":"r","tool":"t"}'
    [done] = judged(
        shard(), [record(0, call, (("Content-Type", header),)), record(1, call, (("content-type", b"text"),))]
    )

    assert [0] == [letter.offset for letter in done.dead_letters]


def test_a_failure_of_our_own_stops_nothing(monkeypatch: pytest.MonkeyPatch, log_lines: list[dict[str, Any]]) -> None:
    """Should the core fail on a record, the record is a dead letter, the failure is logged, and the shard goes on."""
    one = shard()
    observe = one.guard.observe

    def fails_once(event: Any, source: Any) -> Any:
        if source.offset == 0:
            raise ZeroDivisionError
        return observe(event, source)

    monkeypatch.setattr(one.guard, "observe", fails_once)
    [done] = judged(one, loop(2))

    assert [b"UnreadableRecordError: streamguard failed on this record: ZeroDivisionError"] == [
        dict(letter.headers)["error"] for letter in done.dead_letters
    ]
    assert 3 == sum(one.events.values())
    assert ["record failed"] == [line["event"] for line in log_lines if line["log_level"] == "error"]


def test_a_dead_letter_too_large_for_the_broker_keeps_its_headers() -> None:
    """Without its value a dead letter still says why, where the record stands, and how large it was."""
    [done] = judged(shard(), [record(5, b"x" * 2000, (("trace", b"1"),))])
    headers = dict(without_value(done.dead_letters[0]).headers)

    assert (b"1", b"5", b"2000") == (headers["trace"], headers["source.offset"], headers["value.omitted.bytes"])
