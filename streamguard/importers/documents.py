"""JSON documents in a file: one a line, or one over many lines (printed for people), or several of those."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from streamguard.importers.fragments import FIRST, NotReadableError, decoded
from streamguard.importers.intake import Intake
from streamguard.replay import Line

__all__ = ["Document", "Documents"]

DOCUMENT_BYTES: Final = 256 * 1024 * 1024
"""Largest document over many lines, in bytes. It is held in memory."""


class Document(NamedTuple):
    """A whole JSON document, and the line that it begins in."""

    line: int
    text: bytes


class Documents:
    """Puts documents together from lines.

    A document over many lines ends with a line that closes it without being indented. A line that opens another one
    before says that the last was cut off: that one is refused.
    """

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._open: list[bytes] = []
        self._size = 0
        self._first = 0

    def read(self, line: Line) -> Iterator[Document]:
        """Yield the document that ends with this line, if one does."""
        text = self._intake.text_of(line)
        if text is None:
            return
        opens = (line.text or b"").startswith(FIRST)
        if opens or not self._open:
            self._cut_off()
            yield from self._begin(line.number, text)
            return
        self._size += len(text)
        if self._size > DOCUMENT_BYTES:
            self._intake.refuse(self._first, "the document is larger than 256 MiB: write one document a line")
            self._open = []
            return
        self._open.append(text)
        if (line.text or b"").startswith((b"}", b"]")):
            yield from self._close()

    def finish(self) -> Iterator[Document]:
        """Yield what the end of the file closes."""
        if self._open:
            yield from self._close()
        self._cut_off()

    def _begin(self, number: int, text: bytes) -> Iterator[Document]:
        if _whole(text):
            yield Document(number, text)
        elif text.startswith(FIRST):
            self._open, self._size, self._first = [text], len(text), number
        else:
            self._intake.refuse(number, "not JSON: an object or an array was expected")

    def _close(self) -> Iterator[Document]:
        text = b"\n".join(self._open)
        if _whole(text):
            self._open = []
            yield Document(self._first, text)

    def _cut_off(self) -> None:
        if self._open:
            self._intake.refuse(self._first, "not JSON: the document that begins here is damaged or cut off")
            self._open = []


def _whole(text: bytes) -> bool:
    try:
        decoded(text, msgspec.Raw)
    except NotReadableError:
        return False
    return text.startswith(FIRST)
