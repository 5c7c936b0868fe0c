"""Events as requests bring them: read no further than allowed, and judged by the guard's own decoder."""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple, TypeAlias

import msgspec
from starlette.requests import Request

from streamguard.errors import MissingRunError, UnreadableRecordError
from streamguard.events import NAME_CHARACTERS, Event, RunEnded, ToolCall, decode_event, run_of
from streamguard.gateway.responses import Refusal
from streamguard.json_text import replace_lone_surrogates

__all__ = ["EventLimits", "GatedCall", "Incoming", "gated_call", "incoming_events", "read_body"]

Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS)]

BLANKS: Final = b" \t\r\n"


class EventLimits(NamedTuple):
    """Largest event in bytes, deepest nesting, and most events in one body."""

    bytes: int
    depth: int
    events: int


class Incoming(NamedTuple):
    """An event that may be published: its run, and its bytes as they came."""

    run_id: str
    value: bytes


class GatedCall(NamedTuple):
    """A call that waits for its verdict. `repeatable`: it has an event id; a repeat gets no answer from the guard."""

    run_id: str
    call_id: str
    value: bytes
    repeatable: bool


class _Scope(msgspec.Struct):
    run_id: Name | None = None
    session_id: Name | None = None


_list: Final = msgspec.json.Decoder(list[msgspec.Raw])
_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_scope: Final = msgspec.json.Decoder(_Scope)
_encode: Final = msgspec.json.Encoder().encode


async def read_body(request: Request, most: int) -> bytes:
    """Return the body. Raises a `Refusal` (413) as soon as it is known to be larger, without reading on."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > most:
        raise _too_large(most)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise _too_large(most)
    return bytes(body)


def incoming_events(body: bytes, limits: EventLimits) -> list[Incoming]:
    """Return the events of a body: one object, or an array of them. Raises a `Refusal` (400, 413)."""
    text = body.strip(BLANKS)
    if not text.startswith(b"["):
        return [_incoming(text, limits, 0)]
    values = _values(text)
    if len(values) > limits.events:
        raise Refusal(413, f"at most {limits.events} events go into one body (gateway.buffer_events)")
    return [_incoming(value, limits, index) for index, value in enumerate(values)]


def gated_call(body: bytes, limits: EventLimits) -> GatedCall:
    """Return the call of a body, with `gate` set. Raises a `Refusal` (400)."""
    value = body.strip(BLANKS)
    event = _event(value, limits, 0)
    if not isinstance(event, ToolCall) or not event.call_id:
        raise Refusal(400, "one tool_call with a call_id is needed: its verdict is awaited", index=0)
    return GatedCall(_run_of(event, 0), event.call_id, _with_gate(value), event.event_id is not None)


def _values(text: bytes) -> list[bytes]:
    try:
        return [bytes(value) for value in _list.decode(text)]
    except RecursionError:
        raise Refusal(400, "arrays and objects are nested too deep to decode") from None
    except msgspec.DecodeError as error:
        repaired = replace_lone_surrogates(text)
        if repaired == text:
            raise Refusal(400, f"the body is not JSON: {error}") from None
    return _values(repaired)


def _incoming(value: bytes, limits: EventLimits, index: int) -> Incoming:
    event = _event(value, limits, index)
    return Incoming(_run_of(event if event is not None else _newer(value), index), value)


def _event(value: bytes, limits: EventLimits, index: int) -> Event | None:
    """Return an event; None if its type is not known here: the guard may be newer."""
    if len(value) > limits.bytes:
        raise Refusal(400, f"the event has {len(value)} bytes; at most {limits.bytes} are allowed", index=index)
    try:
        return decode_event(value, depth=limits.depth)
    except UnreadableRecordError as error:
        raise Refusal(400, str(error), index=index) from None


def _newer(value: bytes) -> RunEnded:
    """Return what says the run of an event of a newer type."""
    try:
        scope = _scope.decode(replace_lone_surrogates(value))
    except msgspec.MsgspecError:
        return RunEnded()
    return RunEnded(run_id=scope.run_id, session_id=scope.session_id)


def _run_of(event: Event, index: int) -> str:
    try:
        return run_of(event)
    except MissingRunError as error:
        raise Refusal(400, str(error), index=index) from None


def _with_gate(value: bytes) -> bytes:
    """Set `gate`, and leave everything else as it came."""
    try:
        fields = _object.decode(value)
    except msgspec.DecodeError:
        fields = _object.decode(replace_lone_surrogates(value))
    return _encode({**fields, "gate": True})


def _too_large(most: int) -> Refusal:
    return Refusal(413, f"the body is larger than {most} bytes (gateway.body_bytes)", close=True)
