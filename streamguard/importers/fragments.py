"""Pieces of foreign JSON: decoding them leniently, and carrying arguments and results over as they were written."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from streamguard.json_text import replace_lone_surrogates

__all__ = ["NotReadableError", "Piece", "decoded", "iso_time", "moment_of", "present", "raw", "texts_of"]

Shape = TypeVar("Shape")

Piece: TypeAlias = msgspec.Raw | UnsetType
"""A part of a record that is carried over as it was written."""

NANOSECONDS: Final = 1_000_000_000

FIRST: Final = (b"{", b"[")
"""How objects and arrays begin."""


class NotReadableError(Exception):
    """A piece of JSON is not what it should be; the message says why, without quoting it."""


class Block(msgspec.Struct):
    """A block of a message's content."""

    type: str | None = None
    text: str | None = None


def decoded(text: bytes | msgspec.Raw, shape: type[Shape]) -> Shape:
    """Decode JSON to a shape; half surrogate pairs, which JavaScript writes, become U+FFFD.

    Raises `NotReadableError`.
    """
    value = bytes(text)
    try:
        try:
            return msgspec.json.decode(value, type=shape)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            repaired = replace_lone_surrogates(value)
            if repaired == value:
                raise
            return msgspec.json.decode(repaired, type=shape)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise NotReadableError(str(error) if isinstance(error, msgspec.MsgspecError) else "not UTF-8") from None
    except RecursionError:
        raise NotReadableError("arrays and objects are nested too deep to decode") from None


def present(piece: Piece) -> msgspec.Raw | None:
    """Return a piece of JSON, None if it is missing or `null`."""
    return None if piece is UNSET or bytes(piece).strip() == b"null" else piece


def raw(text: str) -> msgspec.Raw:
    """Return a text as JSON: itself where it is an object or an array (tools print them as text), else a string."""
    encoded = text.encode("utf-8", "replace")
    if encoded.lstrip().startswith(FIRST):
        try:
            msgspec.json.decode(encoded)
        except (msgspec.MsgspecError, RecursionError):
            pass
        else:
            return msgspec.Raw(encoded)
    return msgspec.Raw(msgspec.json.encode(encoded.decode()))


def texts_of(content: Piece) -> str | None:
    """Return the text of a message's content, a string or blocks of text; None if it is anything else."""
    begins = bytes(content or b"").lstrip()[:1]
    try:
        if begins == b'"':
            return decoded(content or b"", str)
        blocks = decoded(content or b"", list[Block]) if begins == b"[" else []
    except NotReadableError:
        return None
    texts = [block.text for block in blocks if block.type == "text" and block.text is not None]
    return "\n".join(texts) if blocks and len(texts) == len(blocks) else None


def moment_of(time: str | None) -> int | None:
    """Return an RFC 3339 time in nanoseconds since 1970 (to the microsecond), None if it is none."""
    try:
        moment = msgspec.convert(time, datetime)
    except msgspec.ValidationError:
        return None
    if moment.tzinfo is None:
        return None
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1_000


def iso_time(nanoseconds: int) -> str | None:
    """Write nanoseconds since 1970 as an RFC 3339 time, to the microsecond; None if no calendar has it."""
    try:
        moment = datetime.fromtimestamp(nanoseconds // NANOSECONDS, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return moment.replace(microsecond=nanoseconds % NANOSECONDS // 1_000).isoformat().replace("+00:00", "Z")
