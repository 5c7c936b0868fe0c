"""Reading events: both encodings, what newer producers send, and what is refused."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamguard.errors import TooDeepError, UnreadableRecordError, WrongShapeError
from streamguard.events import Compaction, RunEnded, ToolCall, ToolResult, decode_event
from streamguard.json_text import nested_deeper_than

CALL = {"type": "tool_call", "run_id": "r", "tool": "read", "args": {"a": [1, 2.0, None]}, "gate": True}


def encode(record: dict[str, Any]) -> bytes:
    """Write a record as JSON."""
    return json.dumps(record).encode()


def nested(depth: int, bracket: str = "[]") -> bytes:
    """Write a call whose record is nested this deep."""
    inner = (bracket[0] if bracket == "[]" else '{"a":') * (depth - 1) + "1" + bracket[1] * (depth - 1)
    return f'{{"type":"tool_call","run_id":"r","tool":"t","args":{inner}}}'.encode()


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        (CALL, ToolCall),
        ({"type": "tool_result", "run_id": "r", "result": None}, ToolResult),
        ({"type": "compaction", "run_id": "r", "trigger": "overflow", "tokens_before": 9}, Compaction),
        ({"type": "run_ended", "run_id": "r", "reason": "done"}, RunEnded),
    ],
)
def test_both_encodings_give_the_same_event(record: dict[str, Any], kind: type) -> None:
    """Each type of event reads the same from JSON and from MessagePack."""
    event = decode_event(encode(record))

    assert isinstance(event, kind)
    assert event == decode_event(msgspec.msgpack.encode(record), msgpack=True)


@pytest.mark.parametrize("field", ["run_id", "session_id", "agent_id", "call_id", "tool"])
def test_names_have_a_longest_length(field: str) -> None:
    """Ids and tool names stay in memory and stand in verdicts: one of 512 characters is read, a longer one refused."""
    assert decode_event(encode({**CALL, field: "é" * 512})) is not None
    with pytest.raises(WrongShapeError, match=field):
        decode_event(encode({**CALL, field: "é" * 513}))


def test_unknown_fields_are_ignored() -> None:
    """A newer producer may send more."""
    assert decode_event(encode(CALL)) == decode_event(encode({**CALL, "novelty": [1]}))


@pytest.mark.parametrize("msgpack", [False, True])
def test_unknown_types_are_skipped(msgpack: bool) -> None:
    """An event of a type this version does not know is no error."""
    record = {"type": "tool_progress", "run_id": "r"}

    assert decode_event(msgspec.msgpack.encode(record) if msgpack else encode(record), msgpack=msgpack) is None


@pytest.mark.parametrize(
    "value",
    [
        None, b"", b"garbage", b"{", b'{"type":"tool_call","tool":"\xff"}', b"\x00", b'{"type":"run_ended"} x', b"NaN",
        b'{"type":"tool_call","run_id":"r","tool":"t","args":"\\ud8"}', b'{"type":"tool_call","args":\\ud800}',
    ],
)  # fmt: skip
def test_what_is_no_json_is_refused(value: bytes | None) -> None:
    """Bad UTF-8, bad JSON and empty records raise the error that dead letters carry."""
    with pytest.raises(UnreadableRecordError):
        decode_event(value)


@pytest.mark.parametrize(
    "record",
    [
        {}, {"type": 1}, {"type": None}, {"type": "tool_call", "run_id": "r"},
        {"type": "tool_call", "run_id": 1, "tool": "t"},
        {"type": "tool_call", "run_id": "r", "tool": ["t"]}, {"type": "tool_result", "run_id": "r", "call_id": 1},
        {"type": "tool_call", "run_id": "r", "tool": "t", "gate": "yes"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("msgpack", [False, True])
def test_wrong_shapes_are_refused(record: dict[str, Any], msgpack: bool) -> None:
    """A missing or wrongly typed field is named."""
    with pytest.raises(WrongShapeError):
        decode_event(msgspec.msgpack.encode(record) if msgpack else encode(record), msgpack=msgpack)


@pytest.mark.parametrize("value", [b"[1]", b'"x"', b"1", b"null"])
def test_an_event_is_an_object(value: bytes) -> None:
    """JSON that is no object is refused."""
    with pytest.raises(WrongShapeError):
        decode_event(value)


@pytest.mark.parametrize("bracket", ["[]", "{}"])
def test_depth_is_limited_exactly(bracket: str) -> None:
    """As deep as the limit is read, one deeper is refused, whatever follows."""
    assert decode_event(nested(128, bracket)) is not None
    for depth in (129, 130, 900, 5000, 100_000):
        with pytest.raises(TooDeepError):
            decode_event(nested(depth, bracket))


def test_brackets_in_strings_are_no_depth() -> None:
    """Text full of brackets is text."""
    record = {**CALL, "args": {"text": '[{"' * 500 + "\\" * 3}}

    assert decode_event(encode(record)) is not None


def test_deep_msgpack_is_refused() -> None:
    """MessagePack has the same limit."""
    value: Any = 1
    for _ in range(200):
        value = [value]
    with pytest.raises(TooDeepError):
        decode_event(msgspec.msgpack.encode({**CALL, "args": value}), msgpack=True)


@pytest.mark.parametrize("args", [{1: 2}, b"raw", msgspec.msgpack.Ext(5, b"x")])
def test_msgpack_says_no_more_than_json(args: Any) -> None:
    """What JSON cannot say is refused: binary, extensions, keys that are no strings."""
    with pytest.raises(WrongShapeError):
        decode_event(msgspec.msgpack.encode({**CALL, "args": args}), msgpack=True)


@pytest.mark.parametrize("escape", ["\\ud83d", "\\uDE00", "\\ud83dx", "\\\\\\ud83d", "\\ud83d\\ud83d\\ude00"])
def test_half_a_surrogate_pair_is_read(escape: str) -> None:
    """JavaScript cuts texts within a character; such a text is read with U+FFFD in its place."""
    event = decode_event(f'{{"type":"tool_result","run_id":"r","result":"cut {escape}"}}'.encode())

    assert isinstance(event, ToolResult)
    assert "\ufffd" in event.result


def depth_of(value: Any) -> int:
    """Count how deep arrays and objects are nested."""
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


@given(
    value=st.recursive(
        st.one_of(st.integers(), st.text('[]{}"\\a')),
        lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text('[{"\\'), inner)),
    ),
    limit=st.integers(0, 6),
)
@example(value=[[[["]"]]], {"{": [[1]]}], limit=3)
def test_depth_is_measured_on_the_text(value: Any, limit: int) -> None:
    """The look at the text agrees with the depth of what it says."""
    assert (depth_of(value) > limit) == nested_deeper_than(json.dumps(value).encode(), limit)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(value: bytes) -> None:
    """No record, in either encoding, raises anything but the documented error."""
    for msgpack in (False, True):
        with contextlib.suppress(UnreadableRecordError):
            decode_event(value, msgpack=msgpack)
