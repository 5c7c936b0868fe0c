"""How far a stream of verdicts has come: the `id` of its events, by which any instance can go on with it.

`3:45,0:12` is an event at offset 45 of partition 3, in a stream that also has partition 0, there at offset 12.
An offset of -1: before the first one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from streamguard.gateway.responses import Refusal

__all__ = ["read_cursor", "write_cursor"]

CHARACTERS: Final = 16_384

_CURSOR: Final = re.compile(r"[0-9]{1,6}:(?:[0-9]{1,18}|-1)(?:,[0-9]{1,6}:(?:[0-9]{1,18}|-1))*")


def write_cursor(offsets: Mapping[int, int], first: int) -> str:
    """Write the offsets that were reached, by partition; `first` is the partition of the event."""
    others = (f",{partition}:{offset}" for partition, offset in sorted(offsets.items()) if partition != first)
    return f"{first}:{offsets[first]}{''.join(others)}"


def read_cursor(text: str) -> dict[int, int]:
    """Return the offsets that were reached, by partition. Raises a `Refusal` (400)."""
    if len(text) > CHARACTERS or _CURSOR.fullmatch(text) is None:
        raise Refusal(400, "Last-Event-ID is none of this stream's ids")
    return {int(partition): int(offset) for partition, offset in (pair.split(":") for pair in text.split(","))}
