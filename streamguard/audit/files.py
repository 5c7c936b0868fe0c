"""Verdicts in files: reading them, and verifying them against the events of other files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from streamguard.audit.comparison import Comparison, Tally
from streamguard.audit.verify import Scope
from streamguard.errors import ReplayInputError, UnreadableRecordError
from streamguard.guard import Guard
from streamguard.policy import PolicySet
from streamguard.replay import Replay, lines_of
from streamguard.settings import LimitSettings
from streamguard.verdicts import Verdict, decode_verdict

__all__ = ["FiledVerdict", "verdicts_of", "verify_files"]


class FiledVerdict(NamedTuple):
    """A line of a file of verdicts; `verdict` is None if it is none."""

    place: str
    value: bytes
    verdict: Verdict | None


def verdicts_of(files: Sequence[str]) -> Iterator[FiledVerdict]:
    """Yield the verdicts of files, one a line, plain or gzip. Raises `ReplayInputError` if one cannot be read."""
    for name in files:
        for line in lines_of(name, LimitSettings().record_bytes):
            value = (line.text or b"").rstrip(b"\r\n")
            try:
                yield FiledVerdict(f"{line.file}:{line.number}", value, decode_verdict(value))
            except (msgspec.MsgspecError, UnicodeDecodeError):
                yield FiledVerdict(f"{line.file}:{line.number}", value, None)


def verify_files(events: Sequence[str], verdicts: Sequence[str], policies: PolicySet, scope: Scope) -> Tally:
    """Judge events of files again, and compare with verdicts of files. Raises `ReplayInputError`."""
    if "-" in events and "-" in verdicts:
        raise ReplayInputError("standard input (-) can be the events or the verdicts, not both")
    limits = LimitSettings()
    replay = Replay(Guard(policies), record_bytes=limits.record_bytes, json_depth=limits.json_depth)
    comparison = Comparison(scope.holds, lambda _: False)
    count = 0
    for name in events:
        for line in lines_of(name, limits.record_bytes):
            count += 1
            try:
                for verdict in replay.judge(line):
                    comparison.derived(verdict)
            except UnreadableRecordError:
                continue
    comparison.position = count
    for filed in verdicts_of(verdicts):
        if filed.verdict is None:
            comparison.unreadable(filed.place)
        else:
            comparison.stands(filed.verdict, filed.value, filed.place)
    tally = comparison.end(count)
    tally.events = replay.events
    return tally
