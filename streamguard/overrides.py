"""The `[overrides.<name>]` tables of a policy file: calls that are let go on for a time, by whom and why."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from streamguard.faults import fault, quoted, unknown_key
from streamguard.policy import Override

__all__ = ["checked_overrides"]

SIGNATURE: Final = re.compile(r".+:[0-9a-f]{32}", re.DOTALL)

ALLOWED: Final = {
    "signature": "a signature as verdicts carry it: TOOL:32 hex digits",
    "until": "a time with its zone, such as 2026-12-31T18:00:00Z",
    "by": "who allows it",
    "why": "why it is allowed",
    "agent": "an agent's id",
}
REQUIRED: Final = ("signature", "until", "by", "why")


def checked_overrides(tables: Any, faults: list[str]) -> dict[str, Override]:
    """Check the overrides of a file key by key; add what is wrong to `faults`."""
    if tables is None:
        return {}
    if not isinstance(tables, Mapping):
        faults.append(fault("overrides", tables, "a table for each override, [overrides.<name>]"))
        return {}
    overrides: dict[str, Override] = {}
    for name, table in tables.items():
        place = f"overrides.{quoted(name)}"
        if not isinstance(table, Mapping):
            faults.append(fault(place, table, "a table"))
        elif (override := _override(table, place, faults)) is not None:
            overrides[name] = override
    return overrides


def _override(table: Mapping[str, Any], place: str, faults: list[str]) -> Override | None:
    wrong = [unknown_key(f"{place}.{key}", key, ALLOWED) for key in table if key not in ALLOWED]
    wrong += [f"{place}.{key} is missing: {ALLOWED[key]}" for key in REQUIRED if key not in table]
    values: dict[str, Any] = {}
    for key in ALLOWED.keys() & table.keys():
        value = _until(table[key]) if key == "until" else _name(table[key])
        if value is None or (key == "signature" and SIGNATURE.fullmatch(str(value)) is None):
            wrong.append(fault(f"{place}.{key}", table[key], ALLOWED[key]))
        else:
            values[key] = value
    faults += sorted(wrong)
    return None if wrong else Override(**values)


def _name(value: object) -> str | None:
    return value if isinstance(value, str) and value.strip() else None


def _until(value: object) -> int | None:
    """Return a time in milliseconds since 1970, None if it is none with a zone."""
    if isinstance(value, str):
        try:
            value = msgspec.convert(value, datetime)
        except msgspec.ValidationError:
            return None
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return round(value.timestamp() * 1000)
