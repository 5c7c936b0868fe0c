"""The table of log events is complete: each line that may be logged stands in it, with its level and fields."""

from __future__ import annotations

from pathlib import Path

from log_events import LogEvent, log_events


def test_the_table_names_every_line(repository: Path) -> None:
    """No line is missing from config/logs.md, and none stands there that is no longer logged."""
    rows = [line.strip("| ").split(" | ") for line in (repository / "config" / "logs.md").read_text().splitlines()]
    told = {
        LogEvent(row[0], row[1], tuple(filter(None, row[2].strip().split(", "))))
        for row in rows
        if len(row) == 4 and row[0] != "event"
    }

    assert log_events(repository / "streamguard") == told


def test_every_event_is_a_short_phrase(repository: Path) -> None:
    """Events are stable, lower-case phrases without values in them."""
    wrong = [event.event for event in log_events(repository / "streamguard") if event.event[0].isupper()]

    assert [] == wrong
