"""A recorded file, opened: its format, found out or given, and its events in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Final, NamedTuple, Protocol

from streamguard.importers.claude_code import ClaudeCode
from streamguard.importers.detect import CLAUDE_CODE, EVENTS, FORMATS, OPENAI_AGENTS, OPENCLAW, OTLP, format_of
from streamguard.importers.intake import Imported, Intake
from streamguard.importers.openai_agents import OpenAIAgents
from streamguard.importers.openclaw import OpenClaw
from streamguard.importers.otlp import Otlp
from streamguard.replay import Line, LineLimit, lines_of

__all__ = ["AUTO", "CHOICES", "Recording", "events_of", "recording"]

AUTO: Final = "auto"
CHOICES: Final = (AUTO, *FORMATS)

FOREIGN_BYTES: Final = 256 * 1024 * 1024
"""Longest line of a foreign file: whole traces may stand on one."""

HEAD_LINES: Final = 100
HEAD_BYTES: Final = 8 * 1024 * 1024
"""How far is read to find out a format."""


class Importer(Protocol):
    """Reads one file of a foreign format."""

    def read(self, line: Line) -> Iterator[Imported]:
        """Yield the events that this line completes."""
        ...

    def finish(self) -> Iterator[Imported]:
        """Yield the events that come at the end of the file."""
        ...


class Events:
    """Reads a file of events, one a line."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake

    def read(self, line: Line) -> Iterator[Imported]:
        """Yield the event of a line."""
        if line.text is None:
            self._intake.refuse(line.number, f"the line has more than {self._intake.record_bytes} bytes")
            return iter(())
        return self._intake.encoded(line.number, line.text.rstrip(b"\r\n"))

    def finish(self) -> Iterator[Imported]:
        """Yield what is left at the end of the file: nothing."""
        return iter(())


IMPORTERS: Final[Mapping[str, Callable[[Intake], Importer]]] = {
    EVENTS: Events,
    CLAUDE_CODE: ClaudeCode,
    OPENAI_AGENTS: OpenAIAgents,
    OTLP: Otlp,
    OPENCLAW: OpenClaw,
}


class Recording(NamedTuple):
    """A file's format and its lines."""

    format: str
    lines: Iterator[Line]


def recording(name: str, form: str, record_bytes: int) -> Recording:
    """Open a file (`-`: standard input); with the format `auto` its first lines tell whose it is, else it is events.

    Lines of events that are longer than `record_bytes` come as None. Raises `ReplayInputError`, now or while the lines
    are read.
    """
    limit = LineLimit(record_bytes if form == EVENTS else FOREIGN_BYTES)
    lines = lines_of(name, limit)
    if form != AUTO:
        return Recording(form, lines)
    head, found = _head(lines)
    if found == EVENTS:
        limit.bytes = record_bytes
        head = [_shortened(line, record_bytes) for line in head]
    return Recording(found, chain(head, lines))


def events_of(lines: Iterable[Line], form: str, intake: Intake) -> Iterator[Imported]:
    """Yield the events of a file's lines. What is wrong goes to `intake.refuse`, what is no event is counted there."""
    importer = IMPORTERS[form](intake)
    for line in lines:
        yield from importer.read(line)
    yield from importer.finish()


def _head(lines: Iterator[Line]) -> tuple[list[Line], str]:
    """Read lines until one decides."""
    head: list[Line] = []
    size = 0
    for line in lines:
        head.append(line)
        size += len(line.text or b"")
        found = format_of(line.text) if line.text is not None else None
        if found is not None:
            return head, found
        if len(head) == HEAD_LINES or size > HEAD_BYTES:
            break
    return head, EVENTS


def _shortened(line: Line, limit: int) -> Line:
    if line.text is None or len(line.text.rstrip(b"\n")) <= limit:
        return line
    return line._replace(text=None)
