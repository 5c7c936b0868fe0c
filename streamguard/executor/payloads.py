"""Events from what an executor does; with `hash_payloads`, arguments and results leave as hashes only.

The hashes are made by the guard's own code, so that what is equal for the guard stays equal, keyed if there is a key.
What the guard must know beside them goes along: whether a call is a poll, and which tool an error calls unknown.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import msgspec
from msgspec import UNSET

from streamguard.errors import NotPublishableError, UnreadableRecordError
from streamguard.events import Event, ToolCall, ToolResult, decode_event
from streamguard.guard.outcome import LOG, POLL, kind_of, outcome_of, unknown_tool
from streamguard.guard.signature import public_signature, signature_of, tool_named

__all__ = ["Payloads", "as_guard_reads", "encode_event"]

DIGEST_CHARACTERS: Final = 32

AnyEvent = TypeVar("AnyEvent", bound=Event)


def _plain(value: Any) -> Any:
    """Return what stands for a value that JSON does not know: what its model says, else its text."""
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if callable(dump) else str(value)


_encoder: Final = msgspec.json.Encoder(enc_hook=_plain)


def encode_event(event: Event) -> bytes:
    """Encode an event. Values that are no JSON go as their `model_dump`, else as their text.

    Raises `NotPublishableError` if that is impossible; what the values are is not in it.
    """
    encoded = _tried(_encoder.encode, event)
    if encoded is UnicodeEncodeError:  # half a surrogate pair; as an escape the guard can read it
        encoded = _tried(_escaped, event)
    if isinstance(encoded, bytes):
        return encoded
    raise NotPublishableError(
        f"the {type(event).__name__} cannot be written as JSON ({encoded.__name__}): arguments and results are JSON "
        "values, or have a model_dump or a text"
    )


def _tried(encode: Callable[[Event], bytes], event: Event) -> bytes | type[Exception]:
    """Return what it is encoded to, or the kind of error: the error itself quotes the values."""
    try:
        return encode(event)
    except Exception as error:  # noqa: BLE001 - a model_dump may raise anything
        return type(error)


def _escaped(event: Event) -> bytes:
    return json.dumps(msgspec.to_builtins(event, enc_hook=_plain), allow_nan=False).encode()


def as_guard_reads(event: AnyEvent) -> AnyEvent:
    """Return an event as the guard will read it: what is equal there is then equal here, too.

    Raises `NotPublishableError` if the guard would refuse it.
    """
    try:
        return cast("AnyEvent", decode_event(encode_event(event)))
    except UnreadableRecordError as error:
        raise NotPublishableError(f"the guard would refuse this {type(event).__name__}: {error}") from None


class Payloads:
    """Turns arguments and results into what is published. `send_tools`: the policy's `sendTools`."""

    def __init__(self, *, hashed: bool = False, key: bytes | None = None, send_tools: tuple[str, ...] = ()) -> None:
        self._hashed = hashed
        self._key = key
        self._send_tools = send_tools

    def call(self, event: ToolCall) -> ToolCall:
        """Return a call as it is published; one without arguments has none to hide."""
        if not self._hashed or event.args is UNSET or event.args is None:
            return event
        poll = self._kind(event.tool, event.args) in (POLL, LOG) or None
        return _with(event, args=UNSET, args_hash=self._args_hash(event.tool, event.args), poll=poll)

    def result(self, event: ToolResult, call: ToolCall | None) -> ToolResult:
        """Return a result as it is published; `call` is the one that it belongs to, as it was made, if it is known."""
        if not self._hashed:
            return event
        changes: dict[str, Any] = {}
        name = event.tool or (call.tool if call is not None else "")
        args = call.args if call is not None and event.args is UNSET else event.args
        kind = self._kind(name, args)
        if event.args is not UNSET and event.args is not None:
            changes |= {"args": UNSET, "args_hash": self._args_hash(name, event.args)}
            changes["poll"] = kind in (POLL, LOG) or None
        outcome = outcome_of(event, kind)
        changes |= {"result": UNSET, "error": None, "unknown_tool": unknown_tool(event)}
        changes["result_hash"] = None if outcome is None else self._digest(outcome)
        return _with(event, **changes)

    def signature(self, event: ToolCall) -> str:
        """Return the signature of a call as verdicts name it; the event is what was published."""
        tool = tool_named(event.tool)
        return public_signature(tool.name, signature_of(tool, event.args, event.args_hash))

    def _args_hash(self, name: str, args: Any) -> str:
        return self._digest(signature_of(tool_named(name), args, None))

    def _kind(self, name: str, args: Any) -> int:
        return kind_of(tool_named(name).name, args, self._send_tools)

    def _digest(self, value: bytes) -> str:
        """Return a hash from which a short argument cannot be computed back; with a key, not even be guessed."""
        if self._key is None:
            return hashlib.sha256(value).hexdigest()[:DIGEST_CHARACTERS]
        return hmac.new(self._key, value, hashlib.sha256).hexdigest()[:DIGEST_CHARACTERS]


def _with(event: AnyEvent, **changes: Any) -> AnyEvent:
    return msgspec.structs.replace(event, **changes)
