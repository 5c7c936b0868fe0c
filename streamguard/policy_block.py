"""Checking one `loopDetection` block of a file that people write, key by key; every fault is named by its place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from streamguard.faults import camel, fault, unknown_key
from streamguard.policy import COUNTS, DETECTORS, FLAGS, NAMES, NESTED, Block, positive_whole

__all__ = ["FIELDS", "SHADOWABLE", "checked_block", "unknown_keys"]

WHOLE: Final = "a positive whole number"
SWITCH: Final = "true or false"

SHADOWABLE: Final = (
    "generic_repeat",
    "known_poll_no_progress",
    "ping_pong",
    "unknown_tool_repeat",
    "global_circuit_breaker",
    "compaction_loop_persisted",
)
"""Detectors, as verdicts name them."""

FIELDS: Final[Mapping[str, str]] = {
    "enabled": "true, false, or null for unset",
    **dict.fromkeys(COUNTS, WHOLE),
    **{f"detectors.{key}": SWITCH for key in DETECTORS},
    "postCompactionGuard.windowSize": WHOLE,
    "sendTools": "a list of tool names",
    **dict.fromkeys(FLAGS, SWITCH),
    "shadowDetectors": "a list of detectors: " + ", ".join(SHADOWABLE),
}
"""Every field of a block by its path, and what is allowed there."""


def checked_block(block: Any, path: str, faults: list[str], *, snake_case: bool = False) -> Block | None:
    """Check a block key by key; return it with documented key names, and add what is wrong to `faults`."""
    if block is None:
        return None
    if not isinstance(block, Mapping):
        faults.append(fault(path, block, "a loopDetection block"))
        return None
    return _object(block, path, "", faults, snake_case=snake_case)


def _object(value: Mapping[str, Any], path: str, prefix: str, faults: list[str], *, snake_case: bool) -> dict[str, Any]:
    known = _known(prefix)
    checked: dict[str, Any] = {}
    for written, item in value.items():
        key = camel(written) if snake_case else written
        place = f"{path}.{written}"
        if key not in known:
            faults.append(unknown_key(place, written, known))
        elif key in checked:
            faults.append(f"{place}: given twice, in camelCase and in snake_case")
        elif key in NESTED and not prefix:
            if isinstance(item, Mapping):
                checked[key] = _object(item, place, f"{key}.", faults, snake_case=snake_case)
            elif item is not None:
                faults.append(fault(place, item, "an object"))
        elif _allowed(prefix + key, item):
            checked[key] = item
        else:
            faults.append(fault(place, item, FIELDS[prefix + key]))
    return checked


def _known(prefix: str) -> set[str]:
    """Return the keys that an object of a block may have."""
    return {field[len(prefix) :].split(".")[0] for field in FIELDS if field.startswith(prefix)}


def _allowed(field: str, value: Any) -> bool:
    if field == "enabled":
        return value is None or isinstance(value, bool)
    if field in NAMES:
        names = isinstance(value, list) and all(isinstance(name, str) and name.strip() for name in value)
        return names and (field != "shadowDetectors" or set(value) <= set(SHADOWABLE))
    return isinstance(value, bool) if FIELDS[field] == SWITCH else positive_whole(value) is not None


def unknown_keys(block: Any, path: str, prefix: str = "") -> list[str]:
    """Name every key of a block, as OpenClaw spells it, that no policy has; its values may be anything."""
    if not isinstance(block, Mapping):
        return []
    known = _known(prefix)
    faults = [unknown_key(f"{path}.{key}", key, known) for key in block if key not in known]
    for key in NESTED if not prefix else ():
        faults += unknown_keys(block.get(key), f"{path}.{key}", f"{key}.")
    return faults
