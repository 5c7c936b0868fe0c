"""OTLP's attributes: `{"key": ..., "value": {"stringValue": ...}}`, and what they say."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from streamguard.importers.fragments import NotReadableError

__all__ = ["KeyValue", "values_of"]

DEEPEST: Final = 128
"""Levels of arrays and maps in a value."""

PLAIN: Final = ("stringValue", "boolValue", "doubleValue", "bytesValue")


class KeyValue(msgspec.Struct):
    """An attribute."""

    key: str
    value: Any = None


def values_of(attributes: Iterable[KeyValue] | None) -> dict[str, Any]:
    """Return the attributes as a mapping of plain values. Raises `NotReadableError` if one is nested too deep."""
    return {attribute.key: _value(attribute.value, DEEPEST) for attribute in attributes or ()}


def _value(value: Any, depth: int) -> Any:
    """Return what an AnyValue says; None for one that says nothing."""
    if depth == 0:
        raise NotReadableError(f"an attribute is nested more than {DEEPEST} deep")
    if not isinstance(value, dict):
        return None
    for name in PLAIN:
        if name in value:
            return value[name]
    if "intValue" in value:
        return _integer(value["intValue"])
    if "arrayValue" in value:
        return [_value(item, depth - 1) for item in _values(value["arrayValue"])]
    if "kvlistValue" in value:
        pairs = [pair for pair in _values(value["kvlistValue"]) if isinstance(pair, dict)]
        return {pair["key"]: _value(pair.get("value"), depth - 1) for pair in pairs if isinstance(pair.get("key"), str)}
    return None


def _values(value: Any) -> list[Any]:
    values = value.get("values") if isinstance(value, dict) else None
    return values if isinstance(values, list) else []


def _integer(value: Any) -> Any:
    """Read a 64-bit number, which OTLP's JSON writes as a string."""
    try:
        return int(value) if isinstance(value, str) else value
    except ValueError:
        return value
