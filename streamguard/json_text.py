"""Looking at JSON text before it is decoded: its depth, and the half characters that JavaScript writes."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["nested_deeper_than", "replace_lone_surrogates"]

_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NOT_A_BRACKET: Final = bytes(set(range(256)) - set(b"[]{}"))
_ONE_KIND: Final = bytes.maketrans(b"{}", b"[]")
_ESCAPE: Final = re.compile(
    rb"\\(?:(u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
_REPLACEMENT: Final = rb"\ufffd"


def nested_deeper_than(text: bytes, depth: int) -> bool:
    """Tell whether arrays and objects are nested more than `depth` levels deep.

    Looking for brackets one by one settles nearly every record (searching for a byte is far quicker than counting
    it). Else strings and everything between brackets are removed, and each pass takes away the innermost pairs: after
    `depth` passes nothing may be left.
    """
    if not _has_more_brackets(text, depth):
        return False
    brackets = _STRING.sub(b"", text).translate(_ONE_KIND, _NOT_A_BRACKET)
    for _ in range(depth):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def _has_more_brackets(text: bytes, count: int) -> bool:
    for bracket in (b"{", b"["):
        at = text.find(bracket)
        while at >= 0:
            if count == 0:
                return True
            count -= 1
            at = text.find(bracket, at + 1)
    return False


def replace_lone_surrogates(text: bytes) -> bytes:
    r"""Replace escapes of half a surrogate pair by U+FFFD.

    JavaScript writes them when a text was cut within a character ("\ud83d"), RFC 8259 section 8.2 allows them, and
    the decoder refuses them.
    """
    return _ESCAPE.sub(lambda found: _REPLACEMENT if found[2] else found[0], text)
