"""What importers hand their findings to: it makes events of them, as the worker would read them, and keeps count.

Every event goes through its JSON once: what an importer yields is what a worker decodes once it is published.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET

from streamguard.errors import ImportInputError, UnreadableRecordError
from streamguard.events import Event, decode_event, run_of
from streamguard.importers.fragments import NotReadableError, decoded
from streamguard.replay import Line, timestamp_of

__all__ = ["Imported", "Intake", "Refuse", "raise_it"]

Shape = TypeVar("Shape")

Refuse = Callable[[ImportInputError], None]
"""Takes what is wrong with a place in a file. If it returns, the rest of the file is read all the same."""


class Imported(NamedTuple):
    """An event of a recording, its value as it would stand on the topic, and the line that it came from."""

    event: Event
    value: bytes
    line: int


def raise_it(error: ImportInputError) -> None:
    """End the import at the first thing that is wrong."""
    raise error


class Intake:
    """Takes what an importer finds in one file.

    `skipped` counts what holds no event, by what it is; `noted` what is an event, but lacks something.
    """

    def __init__(self, file: str, *, record_bytes: int, json_depth: int, refuse: Refuse = raise_it) -> None:
        self.file = file
        self.record_bytes = record_bytes
        self.refused = 0
        self.skipped: Counter[str] = Counter()
        self.noted: Counter[str] = Counter()
        self._json_depth = json_depth
        self._refuse = refuse

    def event(self, line: int, fields: Mapping[str, Any]) -> Iterator[Imported]:
        """Yield the event of these fields, without those that are None or not set; or refuse it and yield nothing."""
        value = msgspec.json.encode(
            {name: field for name, field in fields.items() if field is not None and field is not UNSET}
        )
        return self.encoded(line, value)

    def encoded(self, line: int, value: bytes) -> Iterator[Imported]:
        """Yield the event of this JSON, or refuse it and yield nothing."""
        if len(value) > self.record_bytes:
            self.refuse(line, f"the event has more than {self.record_bytes} bytes, more than a worker takes")
            return
        try:
            event = decode_event(value, depth=self._json_depth)
            if event is not None:
                run_of(event)
        except UnreadableRecordError as error:
            self.refuse(line, str(error))
            return
        if event is None:
            self.skipped["events of unknown type"] += 1
            return
        if timestamp_of(event) is None:
            self.noted["events without an RFC 3339 time"] += 1
        yield Imported(event, value, line)

    def refuse(self, line: int, problem: str) -> None:
        """Say what is wrong with a line; it is counted."""
        self.refused += 1
        self._refuse(ImportInputError(f"{self.file}:{line}: {problem}"))

    def piece(self, line: int, what: str, piece: msgspec.Raw, shape: type[Shape]) -> Shape | None:
        """Decode a piece of a line; None if it is not of that shape and was refused."""
        try:
            return decoded(piece, shape)
        except NotReadableError as error:
            self.refuse(line, f"{what}: {error}")
            return None

    def text_of(self, line: Line) -> bytes | None:
        """Return a line's text without blanks around it; None, refused or skipped, if there is nothing to read."""
        if line.text is None:
            self.refuse(line.number, "the line is longer than an importer reads (256 MiB): split the document")
            return None
        return line.text.strip() or None
