"""What comes in: the events of version 1 of the contract, and the decoders of their two encodings."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import UNSET

from streamguard.errors import MissingRunError, TooDeepError, UnreadableRecordError, WrongShapeError
from streamguard.json_text import nested_deeper_than, replace_lone_surrogates

__all__ = [
    "MSGPACK",
    "NAME_CHARACTERS",
    "Compaction",
    "Event",
    "RunEnded",
    "Source",
    "ToolCall",
    "ToolResult",
    "decode_event",
    "run_of",
]

MSGPACK: Final = "application/msgpack"
"""The value of the header `content-type` that marks a record as MessagePack."""

JSON_DEPTH: Final = 128
"""Deepest nesting of arrays and objects, unless the settings say otherwise."""


NAME_CHARACTERS: Final = 512
"""Longest id or tool name. They are kept in memory and stand in verdicts, which a broker must take."""

Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS)]


class Source(msgspec.Struct, frozen=True, gc=False):
    """Where an event stands in the log. `timestamp` is the record's, in milliseconds since 1970."""

    topic: str
    partition: int
    offset: int
    timestamp: int


# Fields stand in the order in which producers write them: the decoder then finds each at its first guess.
# gc=False: decoded JSON holds no cycles.


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="tool_call", tag_field="type"):
    """The agent is about to call a tool; published before it runs."""

    run_id: Name | None = None
    agent_id: Name | None = None
    call_id: Name | None = None
    tool: Name
    args: Any = UNSET
    args_hash: str | None = None
    gate: bool | None = None
    session_id: Name | None = None
    root_run_id: str | None = None
    parent_run_id: str | None = None
    round_id: str | None = None
    event_id: str | None = None
    time: str | None = None
    poll: bool | None = None


class ToolResult(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="tool_result", tag_field="type"):
    """A call came back: with a result, an error, a hash made by the producer, or blocked."""

    run_id: Name | None = None
    agent_id: Name | None = None
    call_id: Name | None = None
    tool: Name | None = None
    args: Any = UNSET
    args_hash: str | None = None
    result: Any = UNSET
    error: Any = None
    result_hash: str | None = None
    status: str | None = None
    session_id: Name | None = None
    root_run_id: str | None = None
    parent_run_id: str | None = None
    round_id: str | None = None
    event_id: str | None = None
    time: str | None = None
    poll: bool | None = None
    unknown_tool: Name | None = None


class Compaction(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="compaction", tag_field="type"):
    """The agent's context was compacted and the run goes on."""

    run_id: Name | None = None
    agent_id: Name | None = None
    session_id: Name | None = None
    root_run_id: str | None = None
    parent_run_id: str | None = None
    round_id: str | None = None
    event_id: str | None = None
    time: str | None = None
    trigger: str | None = None
    tokens_before: int | None = None
    tokens_after: int | None = None


class RunEnded(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="run_ended", tag_field="type"):
    """The run is over; its memory can go."""

    run_id: Name | None = None
    agent_id: Name | None = None
    session_id: Name | None = None
    root_run_id: str | None = None
    parent_run_id: str | None = None
    round_id: str | None = None
    event_id: str | None = None
    time: str | None = None
    reason: str | None = None


Event: TypeAlias = ToolCall | ToolResult | Compaction | RunEnded

_KNOWN_TYPES: Final = frozenset(("tool_call", "tool_result", "compaction", "run_ended"))

_EXACT: Final = 2.0**53


class _Typed(msgspec.Struct):
    type: str


def _number(literal: str) -> int | float:
    """Read a number with a point or an exponent: whole ones become int, so that 1.0, 1e0 and 1 are one value.

    From 2**53 on a double no longer holds every whole number: the literal itself is read.
    """
    value = float(literal)
    if not value.is_integer():
        return value
    if abs(value) < _EXACT:
        return int(value)
    exact = Decimal(literal)
    return int(exact) if exact == exact.to_integral_value() else value


_json_event: Final = msgspec.json.Decoder(Event, float_hook=_number)
_json_type: Final = msgspec.json.Decoder(_Typed)
_msgpack_event: Final = msgspec.msgpack.Decoder(Event)
_msgpack_type: Final = msgspec.msgpack.Decoder(_Typed)


def decode_event(value: bytes | None, *, msgpack: bool = False, depth: int = JSON_DEPTH) -> Event | None:
    """Decode a record's value; None means a type that this version does not know (producers may be newer).

    Raises a subclass of `UnreadableRecordError` whose message says what is wrong, without quoting the payload.
    """
    if not value:
        raise UnreadableRecordError("the record is empty: an event was expected as its value")
    if msgpack:
        return _decode_msgpack(value, depth)
    if len(value) > 2 * depth and nested_deeper_than(value, depth):  # each level takes two bytes
        raise TooDeepError(f"arrays and objects are nested more than {depth} deep (limits.json_depth)")
    try:
        return _json_event.decode(value)
    except (msgspec.DecodeError, RecursionError) as error:
        return _decode_again(value, error)


def run_of(event: Event) -> str:
    """Return the scope of an event's history: its run, else its session, blanks stripped.

    Raises `MissingRunError` if it has neither.
    """
    run = (event.run_id or "").strip() or (event.session_id or "").strip()
    if not run:
        raise MissingRunError("the event has neither run_id nor session_id (blank counts as missing)")
    return run


def _decode_again(value: bytes, error: Exception) -> Event | None:
    """Find out why a record could not be decoded: only a newer type and a lone surrogate are no fault of it."""
    if isinstance(error, msgspec.ValidationError):
        _raise_unless_unknown_type(_json_type, value, error)
        return None
    if isinstance(error, RecursionError):
        raise TooDeepError("arrays and objects are nested too deep to decode") from None
    repaired = replace_lone_surrogates(value)
    if repaired == value:
        raise UnreadableRecordError(f"not JSON: {error}") from None
    try:
        return _json_event.decode(repaired)
    except msgspec.ValidationError as second:
        _raise_unless_unknown_type(_json_type, repaired, second)
        return None
    except msgspec.DecodeError as second:
        raise UnreadableRecordError(f"not JSON: {second}") from None


def _decode_msgpack(value: bytes, depth: int) -> Event | None:
    try:
        event = _msgpack_event.decode(value)
    except msgspec.ValidationError as error:
        _raise_unless_unknown_type(_msgpack_type, value, error)
        return None
    except RecursionError:
        raise TooDeepError("arrays and maps are nested too deep to decode") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableRecordError(f"not MessagePack: {error}") from None
    if type(event) is ToolCall:
        return msgspec.structs.replace(event, args=_as_json(event.args, depth))
    if type(event) is ToolResult:
        return msgspec.structs.replace(
            event,
            args=_as_json(event.args, depth),
            result=_as_json(event.result, depth),
            error=_as_json(event.error, depth),
        )
    return event


def _raise_unless_unknown_type(
    decoder: msgspec.json.Decoder[_Typed] | msgspec.msgpack.Decoder[_Typed],
    value: bytes,
    error: msgspec.ValidationError,
) -> None:
    """Tell an event of a newer version (skipped) from one that is wrong (raised)."""
    try:
        kind = decoder.decode(value).type
    except (msgspec.MsgspecError, RecursionError):
        kind = None
    if kind is None or kind in _KNOWN_TYPES:
        raise WrongShapeError(f"not an event: {error}") from None


def _as_json(value: Any, depth: int) -> Any:
    """Bring a MessagePack value to what the same JSON would give, and refuse what JSON cannot say."""
    if value is None or value is UNSET or isinstance(value, bool | int | str):
        return value
    if depth == 0:
        raise TooDeepError("arrays and maps are nested deeper than limits.json_depth")
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, list):
        return [_as_json(item, depth - 1) for item in value]
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise WrongShapeError("not an event: map keys must be strings, as in JSON")
        return {key: _as_json(item, depth - 1) for key, item in value.items()}
    raise WrongShapeError(f"not an event: JSON has no {type(value).__name__}")
