"""Judging recorded events without Kafka: the same core, from files of one event a line, in constant memory."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, BinaryIO, Final, NamedTuple

import msgspec

from streamguard.errors import RecordTooLargeError, ReplayInputError, UnreadableRecordError
from streamguard.events import Event, Source, decode_event
from streamguard.guard import Guard
from streamguard.verdicts import Verdict

__all__ = ["STDIN", "Line", "LineLimit", "Replay", "lines_of", "timestamp_of"]

STDIN: Final = "-"
GZIP_MAGIC: Final = b"\x1f\x8b"
BUFFER_BYTES: Final = 1 << 20


class Line(NamedTuple):
    """A line of a file; `text` is None if it was longer than allowed. `read` counts the file's bytes read so far."""

    file: str
    number: int
    text: bytes | None
    read: int


class LineLimit:
    """How many bytes a line may have; it may change while a file is read."""

    __slots__ = ("bytes",)

    def __init__(self, limit: int) -> None:
        self.bytes = limit


def lines_of(name: str, limit: int | LineLimit) -> Iterator[Line]:
    """Yield the lines of a file, plain or gzip, `-` for standard input; lines over `limit` bytes come as None.

    Raises `ReplayInputError` if it cannot be opened or is damaged.
    """
    longest = limit if isinstance(limit, LineLimit) else LineLimit(limit)
    with _opened(name) as (stream, raw):
        number = 0
        try:
            while text := stream.readline(longest.bytes + 1):
                number += 1
                whole = len(text) <= longest.bytes or text.endswith(b"\n")
                if not whole:
                    _skip_line(stream)
                yield Line(name, number, text if whole else None, raw.tell() if raw.seekable() else 0)
        except (OSError, EOFError, zlib.error) as error:
            raise ReplayInputError(f"{name}: damaged after line {number}: {error}") from error


def timestamp_of(event: Event) -> int | None:
    """Return an event's `time` in milliseconds since 1970, None if it has none or it is no RFC 3339 time."""
    if event.time is None:
        return None
    try:
        moment = msgspec.convert(event.time, datetime)
    except msgspec.ValidationError:
        return None
    return round(moment.timestamp() * 1000) if moment.tzinfo is not None else None


class Replay:
    """Judges lines as if they were the records of one partition: the line is the offset, `time` the timestamp.

    Of imported events, which have no lines of their own, each counts as one.

    An event without `time` has the time of the one before it.
    """

    def __init__(self, guard: Guard, *, record_bytes: int, json_depth: int, agent_id: str | None = None) -> None:
        self.guard = guard
        self.record_bytes = record_bytes
        self.events = 0
        self.skipped = 0  # of a type that this version does not know
        self.unreadable = 0
        self.found: Counter[tuple[str, str]] = Counter()  # verdicts by action and detector
        self._json_depth = json_depth
        self._agent_id = agent_id
        self._offset = -1
        self._timestamp = 0

    def judge(self, line: Line) -> Sequence[Verdict]:
        """Judge one line. Raises a subclass of `UnreadableRecordError` if it is no event; the next may follow."""
        self._offset += 1
        try:
            event = self._decode(line)
            if event is None:
                self.skipped += 1
                return ()
            verdicts = self._observe(event)
        except UnreadableRecordError:
            self.unreadable += 1
            raise
        return verdicts

    def judge_event(self, event: Event) -> Sequence[Verdict]:
        """Judge an event that comes from elsewhere than a line of its own. Raises `MissingRunError`."""
        self._offset += 1
        return self._observe(
            event if self._agent_id is None else msgspec.structs.replace(event, agent_id=self._agent_id)
        )

    def _observe(self, event: Event) -> Sequence[Verdict]:
        timestamp = timestamp_of(event)
        if timestamp is not None:
            self._timestamp = timestamp
        verdicts = self.guard.observe(event, Source("replay", 0, self._offset, self._timestamp))
        self.events += 1
        for verdict in verdicts:
            self.found[verdict.action, verdict.detector or ""] += 1
        return verdicts

    def _decode(self, line: Line) -> Event | None:
        if line.text is None:
            raise RecordTooLargeError(f"the line has more than {self.record_bytes} bytes (limits.record_bytes)")
        event = decode_event(line.text, depth=self._json_depth)
        if event is not None and self._agent_id is not None:
            event = msgspec.structs.replace(event, agent_id=self._agent_id)
        return event


@contextmanager
def _opened(name: str) -> Iterator[tuple[IO[bytes], BinaryIO]]:
    """Open a file for reading, unpacked; also give the raw file, whose position tells the progress."""
    try:
        raw = sys.stdin.buffer if name == STDIN else Path(name).open("rb", buffering=BUFFER_BYTES)  # noqa: SIM115
    except OSError as error:
        raise ReplayInputError(f"{name}: cannot be opened: {error.strerror}") from error
    try:
        head = raw.peek(2)[:2] if hasattr(raw, "peek") else b""
    except OSError as error:
        raise ReplayInputError(f"{name}: cannot be read: {error.strerror}") from error
    stream: IO[bytes] = gzip.GzipFile(fileobj=raw) if head == GZIP_MAGIC else raw  # type: ignore[assignment]
    try:
        yield stream, raw
    finally:
        if name != STDIN:
            raw.close()


def _skip_line(stream: IO[bytes]) -> None:
    """Read on to the end of a line without keeping it."""
    while (rest := stream.readline(BUFFER_BYTES)) and not rest.endswith(b"\n"):
        pass
