"""Traces go through: the `traceparent` of an event's record is that of the verdicts about it (W3C Trace Context)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

__all__ = ["TRACEPARENT", "traceparent_of"]

TRACEPARENT: Final = "traceparent"
"""The header, in records of events and of verdicts alike."""

_is_valid: Final = re.compile(rb"(?!ff)[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}").fullmatch


def traceparent_of(headers: Iterable[tuple[str, bytes | None]]) -> bytes | None:
    """Return the traceparent among a record's headers; None if there is none, or one that is not well-formed."""
    for key, value in headers:
        if value is not None and key.lower() == TRACEPARENT and _is_valid(value):
            return value
    return None
