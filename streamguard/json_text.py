"""Looking at JSON text before it is decoded: its depth, and the half characters that JavaScript writes."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["nested_deeper_than", "replace_lone_surrogates"]

_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NOT_A_BRACKET: Final = bytes(set(range(256)) - set(b"[]{}"))
_ESCAPE: Final = re.compile(
    rb"\\(?:(u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
_REPLACEMENT: Final = rb"\ufffd"


def nested_deeper_than(text: bytes, depth: int) -> bool:
    """Tell whether arrays and objects are nested more than `depth` levels deep.

    Strings and everything between brackets are removed, and each pass takes away the innermost pairs: after `depth`
    passes nothing may be left. Counting brackets first, as the caller does, settles nearly every record.
    """
    brackets = _STRING.sub(b"", text).translate(None, _NOT_A_BRACKET)
    for _ in range(depth):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    return bool(brackets)


def replace_lone_surrogates(text: bytes) -> bytes:
    r"""Replace escapes of half a surrogate pair by U+FFFD.

    JavaScript writes them when a text was cut within a character ("\ud83d"), RFC 8259 section 8.2 allows them, and
    the decoder refuses them.
    """
    return _ESCAPE.sub(lambda found: _REPLACEMENT if found[2] else found[0], text)
