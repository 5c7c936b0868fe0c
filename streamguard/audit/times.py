"""Times as people give them on the command line: a moment, or how long ago."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

import msgspec

__all__ = ["read_time"]

UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
"""Seconds of each unit."""

_AGO: Final = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


def read_time(text: str, now: float) -> int:
    """Return a time in milliseconds since 1970; `now` is in seconds. Raises `ValueError` that says what is allowed."""
    ago = _AGO.fullmatch(text.strip())
    if ago is not None:
        return round((now - float(ago[1]) * UNITS[ago[2]]) * 1000)
    try:
        moment = msgspec.convert(text.strip(), datetime)
    except msgspec.ValidationError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ValueError(
            f"{text!r} is no time; allowed: one with its zone, such as 2026-12-01T08:00:00Z, or how long ago: "
            "90s, 30m, 24h, 7d"
        )
    return round(moment.timestamp() * 1000)
