"""How faults in files that people write are named: the place, what stands there, what is allowed or was meant."""

from __future__ import annotations

import difflib
import json
import re
from typing import Any

__all__ = ["camel", "fault", "quoted", "unknown_key"]


def camel(key: str) -> str:
    """Return a key of snake_case as OpenClaw spells it."""
    first, *rest = key.split("_")
    return first + "".join(word.capitalize() for word in rest)


def quoted(key: str) -> str:
    """Return a key as it stands in a dotted path."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key)


def fault(path: str, value: Any, allowed: str) -> str:
    """Say that a value is not allowed at its place."""
    try:
        shown = json.dumps(value)
    except (TypeError, ValueError):
        shown = repr(value)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."  # noqa: PLR2004 - fits a line
    return f"{path} is {shown}; allowed: {allowed}"


def unknown_key(path: str, key: str, known: Any) -> str:
    """Say that there is no such key, and which was meant."""
    close = difflib.get_close_matches(camel(key), known, n=1)
    hint = f"did you mean {close[0]}?" if close else "allowed: " + ", ".join(sorted(known))
    return f"{path}: unknown key; {hint}"
