"""Comparing the verdicts that stand with those that follow from the events, byte for byte, as both are read along."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from streamguard.verdicts import Verdict, encode_verdict

__all__ = ["Comparison", "Difference", "Tally", "sum_of"]

SHOWN: Final = 20
"""Differences that are named one by one."""


class Difference(msgspec.Struct, frozen=True):
    """What is wrong with one verdict; `place` is where it stands, if it does."""

    kind: str
    verdict_id: str
    run_id: str = ""
    place: str = ""


class Tally(msgspec.Struct, kw_only=True):
    """What came out, in numbers of verdicts; `events` were judged to find out.

    `verified`: they stand as they follow from the events. `missing` do not stand, `extra` stand and do not follow,
    `different` stand otherwise. `unreadable` are no verdicts, `badly_signed` are not signed by a known key.
    `unverifiable` cannot be decided, because events that they depend on are no longer on the topic.
    """

    events: int = 0
    verified: int = 0
    missing: int = 0
    extra: int = 0
    different: int = 0
    unreadable: int = 0
    badly_signed: int = 0
    unverifiable: int = 0
    differences: list[Difference] = []

    @property
    def clean(self) -> bool:
        """Tell whether every verdict stands as it should."""
        return not (self.missing or self.extra or self.different or self.unreadable or self.badly_signed)


def sum_of(tallies: Iterable[Tally]) -> Tally:
    """Add up what came out of several partitions."""
    total = Tally(differences=[])
    for tally in tallies:
        for name in tally.__struct_fields__:
            setattr(total, name, getattr(total, name) + getattr(tally, name))
    return total


class Comparison:
    """Takes verdicts of one partition from both sides, each in about the order of their events.

    Before one that stands is taken, all that follow from events up to its own should be: what is left over waits.
    `counts` tells whether a verdict is of interest; `excused` whether its run has a past that is not known.
    """

    def __init__(self, counts: Callable[[Verdict], bool], excused: Callable[[str], bool]) -> None:
        self.tally = Tally(differences=[])
        self.position = 0  # of the next event to be judged
        self._counts = counts
        self._excused = excused
        self._derived: dict[str, tuple[Verdict, bytes]] = {}
        self._standing: dict[str, tuple[Verdict, bytes, str]] = {}

    def derived(self, verdict: Verdict) -> None:
        """Take a verdict that follows from the events."""
        stands = self._standing.pop(verdict.verdict_id, None)
        if not self._counts(verdict) and (stands is None or not self._counts(stands[0])):
            return
        value = encode_verdict(verdict)
        if stands is None:
            self._derived[verdict.verdict_id] = verdict, value
        else:
            self._compare(verdict, value, stands[1], stands[2])

    def stands(self, verdict: Verdict, value: bytes, place: str) -> None:
        """Take a verdict that stands, its bytes, and where."""
        found = self._derived.pop(verdict.verdict_id, None)
        if found is not None:
            self._compare(found[0], found[1], value, place)
        elif verdict.source.offset >= self.position and verdict.verdict_id not in self._standing:
            self._standing[verdict.verdict_id] = verdict, value, place
        elif self._counts(verdict):
            self._note("extra", verdict, place)

    def unreadable(self, place: str) -> None:
        """Take a record of the verdict topic that is no verdict."""
        self.tally.unreadable += 1
        self._show(Difference("unreadable", "", "", place))

    def badly_signed(self, verdict: Verdict, place: str) -> None:
        """Take a verdict whose signature is missing or wrong."""
        if not self._counts(verdict):
            return
        self.tally.badly_signed += 1
        self._show(Difference("badly signed", verdict.verdict_id, verdict.run_id, place))

    def end(self, end: int) -> Tally:
        """Count what is left over about events below an offset, and return all counts."""
        for verdict, _ in self._derived.values():
            self._note("missing", verdict, "")
        for verdict, _, place in self._standing.values():
            if verdict.source.offset < end and self._counts(verdict):
                self._note("extra", verdict, place)
        return self.tally

    def _compare(self, verdict: Verdict, derived: bytes, stands: bytes, place: str) -> None:
        if derived == stands:
            self.tally.verified += 1
        else:
            self._note("different", verdict, place)

    def _note(self, kind: str, verdict: Verdict, place: str) -> None:
        if self._excused(verdict.run_id):
            self.tally.unverifiable += 1
            return
        setattr(self.tally, kind, getattr(self.tally, kind) + 1)
        self._show(Difference(kind, verdict.verdict_id, verdict.run_id, place))

    def _show(self, difference: Difference) -> None:
        if len(self.tally.differences) < SHOWN:
            self.tally.differences.append(difference)
