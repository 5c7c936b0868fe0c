"""Times as people give them on the command line: a moment, or how long ago."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time
from typing import Final

import msgspec

__all__ = ["read_time", "utc"]

EARLIEST: Final = -62_135_596_800_000
LATEST: Final = 253_402_300_799_000
"""Of a datetime, in milliseconds since 1970: a producer may stamp its records in microseconds."""

UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
"""Seconds of each unit."""

_AGO: Final = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


def read_time(text: str, now: float) -> int:
    """Return a time in milliseconds since 1970; `now` is in seconds. Raises `ValueError` that says what is allowed."""
    ago = _AGO.fullmatch(text.strip())
    found = now - float(ago[1]) * UNITS[ago[2]] if ago is not None else _moment(text.strip())
    if found is None:
        raise ValueError(
            f"{text!r} is no time; allowed: one with its zone, such as 2026-12-01T08:00:00Z, a day (in UTC), such as "
            "2026-12-01, or how long ago: 90s, 30m, 24h, 7d"
        )
    if found < 0:
        raise ValueError(f"{text!r} is before 1970")
    return round(found * 1000)


def utc(timestamp: int) -> datetime:
    """Return a time in milliseconds since 1970 as a datetime; what lies beyond its years is their end or beginning."""
    return datetime.fromtimestamp(min(max(timestamp, EARLIEST), LATEST) / 1000, UTC)


def _moment(text: str) -> float | None:
    """Return a time in seconds since 1970, a day's beginning in UTC; None if it is none, or has no zone."""
    try:
        return datetime.combine(msgspec.convert(text, date), time(), UTC).timestamp()
    except msgspec.ValidationError:
        pass
    try:
        moment = msgspec.convert(text, datetime)
    except msgspec.ValidationError:
        return None
    return moment.timestamp() if moment.tzinfo is not None else None
