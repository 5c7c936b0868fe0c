"""Canonical hashing: which calls are the same call.

Equal values give equal digests whatever the order of keys and the spelling of numbers (the decoder has already made
1.0, 1e0 and 1 one value). Digests are XXH3-128: fast, and collisions of different values do not happen by chance.
What leaves the guard is `public_signature`, a SHA-256 of the digest, so that a short argument cannot be computed back.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import UNSET
from xxhash import xxh3_64_intdigest, xxh3_128_digest

__all__ = ["Tool", "canonical_json", "public_signature", "signature_of", "tool_named"]

ALIASES: Final = {"bash": "exec", "apply-patch": "apply_patch"}

canonical_json: Final = msgspec.json.Encoder(order="sorted").encode
"""Encode a decoded JSON value so that equal values give equal bytes: keys sorted, no blanks."""

_NULL: Final = canonical_json(None)


class Tool(msgspec.Struct, frozen=True, gc=False):
    """A tool by its normalised name, and the seed that keeps its signatures apart from those of other tools."""

    name: str
    seed: int


@lru_cache(maxsize=4096)
def tool_named(name: str) -> Tool:
    """Normalise a tool name as the model gave it: trimmed, lower case, aliases resolved."""
    name = name.strip().lower()
    name = ALIASES.get(name, name)
    return Tool(name, xxh3_64_intdigest(name.encode()))


def signature_of(tool: Tool, args: Any, args_hash: str | None) -> bytes:
    """Return the 16-byte signature of a call: its tool and its arguments, or the producer's hash of them."""
    if args is UNSET or args is None:
        text = _NULL if args_hash is None else b"#" + args_hash.encode()
    else:
        text = canonical_json(args)
    return xxh3_128_digest(text, tool.seed)


def public_signature(tool: str, signature: bytes) -> str:
    """Return the signature as verdicts carry it: the tool's name and 32 hex digits."""
    return f"{tool}:{hashlib.sha256(signature).hexdigest()[:32]}"
