"""Searching thresholds on recorded runs: the most loops stopped, while no more good runs than allowed are.

Every candidate is judged once over the runs of interest; choosing, and choosing on one half to look at the other, is
then only looking up.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Final, NamedTuple

import msgspec
from xxhash import xxh3_64_intdigest

from streamguard.audit.backtest import Backtest, Judged
from streamguard.audit.labels import Label, Score, score
from streamguard.audit.recorded import Recorded, of_files
from streamguard.errors import StreamguardError
from streamguard.policy import Policy, clamp

__all__ = ["Bounds", "Candidate", "Tuned", "best", "candidates", "curve", "judge_all", "tuned"]

WARNING: Final = (3, 4, 5, 6, 8, 10)
CRITICAL: Final = (4, 5, 6, 8, 10, 12, 15, 20)
UNKNOWN: Final = (3, 5, 10)
COMPACTION: Final = (2, 3)


class Bounds(msgspec.Struct, frozen=True):
    """The largest parts of good runs that may be stopped, and warned."""

    stopped: float
    warned: float


class Candidate(msgspec.Struct, frozen=True):
    """A policy, and what it did to the runs."""

    policy: Policy
    runs: Mapping[str, Judged]


def candidates() -> list[Policy]:
    """Return the policies that are tried: what the thresholds and their order allow, cautious ones first."""
    found = [
        clamp(
            Policy(
                enabled=True,
                warning_threshold=warning,
                critical_threshold=critical,
                unknown_tool_threshold=unknown,
                global_circuit_breaker_threshold=max(critical + critical // 2, critical + 1),
                compaction_window=window,
            )
        )
        for warning, critical, unknown, window in itertools.product(WARNING, CRITICAL, UNKNOWN, COMPACTION)
        if warning < critical
    ]
    return sorted(set(found), key=_caution, reverse=True)


def judge_all(
    files: Sequence[str], form: str, wanted: frozenset[str], policies: Sequence[Policy], tell: Callable[[int], None]
) -> list[Candidate]:
    """Judge the wanted runs by every policy, on all cores; `tell` hears how many policies are done.

    Raises `ReplayInputError`.
    """
    workers = os.cpu_count() or 1
    shares = [list(policies[start :: workers * 4]) for start in range(workers * 4)]
    found: list[Candidate] = []
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _read, (files, form, wanted)) as pool:
        for done in as_completed([pool.submit(_judge, share) for share in shares if share]):
            found += done.result()
            tell(len(found))
    return sorted(found, key=lambda candidate: _caution(candidate.policy), reverse=True)


_events: list[Recorded] = []
"""The events of interest, in each process."""

_faults: list[StreamguardError] = []
"""Why they could not be read."""


def _read(files: Sequence[str], form: str, wanted: frozenset[str]) -> None:
    try:
        _events.extend(
            (event, source)
            for event, source in of_files(files, form, lambda _: None)
            if (event.run_id or event.session_id) in wanted
        )
    except StreamguardError as error:  # raised here it would break the pool, and nobody would read it
        _faults.append(error)


def _judge(policies: Iterable[Policy]) -> list[Candidate]:
    if _faults:
        raise _faults[0]
    found = []
    for policy in policies:
        backtest = Backtest(policy)
        for event, source in _events:
            backtest.observe(event, source)
        found.append(Candidate(policy, backtest.runs))
    return found


def best(
    tried: Iterable[Candidate], labels: Mapping[str, Label], good: Iterable[str], bounds: Bounds
) -> tuple[Candidate, Score] | None:
    """Return what stops most loops within the bounds, then warns of most, then stops soonest, then is most cautious."""
    chosen: tuple[tuple[float, ...], Candidate, Score] | None = None
    known = frozenset(good)
    for candidate in tried:
        found = score(candidate.runs, labels, known)
        if found.good_stopped > bounds.stopped * found.good or found.good_warned > bounds.warned * found.good:
            continue
        late = found.stopped_late if found.stopped_late is not None else float("inf")
        rank = (found.loops_stopped, found.loops_warned, -late, *_caution(candidate.policy))
        if chosen is None or rank > chosen[0]:
            chosen = rank, candidate, found
    return chosen[1:] if chosen is not None else None


def curve(
    tried: Iterable[Candidate], labels: Mapping[str, Label], good: Iterable[str]
) -> list[tuple[Candidate, Score]]:
    """Return the trade-off: candidates that stop more loops than any other which stops as few good runs."""
    known = frozenset(good)
    scored = [(candidate, score(candidate.runs, labels, known)) for candidate in tried]
    scored.sort(key=lambda item: (item[1].good_stopped, -item[1].loops_stopped, item[1].good_warned))
    front: list[tuple[Candidate, Score]] = []
    for candidate, found in scored:
        if not front or found.loops_stopped > front[-1][1].loops_stopped:
            front.append((candidate, found))
    return front


class Tuned(NamedTuple):
    """What was found, and how it does on runs that it was not found on."""

    chosen: Candidate
    found: Score
    held_out: Score
    front: Sequence[tuple[Candidate, Score]]
    tried: int


def tuned(
    tried: Sequence[Candidate], labels: Mapping[str, Label], good: frozenset[str], bounds: Bounds
) -> Tuned | None:
    """Choose the best policy, and see how one does on runs that it was not chosen on; None: there is none."""
    chosen = best(tried, labels, good, bounds)
    if chosen is None:
        return None
    held_out = Score()
    for number, (half, other) in enumerate(halves(labels)):
        of_half = frozenset(run_id for run_id in good if in_half(run_id) == number)
        found = best(tried, half, of_half, bounds)
        if found is not None:
            held_out = _sum(held_out, score(found[0].runs, other, good - of_half))
    return Tuned(chosen[0], chosen[1], held_out, curve(tried, labels, good), len(tried))


def _sum(total: Score, more: Score) -> Score:
    names = ("loops", "loops_warned", "loops_stopped", "good", "good_warned", "good_stopped")
    return Score(**{name: getattr(total, name) + getattr(more, name) for name in names})


def halves(labels: Mapping[str, Label]) -> Iterator[tuple[dict[str, Label], dict[str, Label]]]:
    """Yield each half of the labelled runs with the other one; a run's id decides its half."""
    parts: tuple[dict[str, Label], dict[str, Label]] = {}, {}
    for run_id, label in labels.items():
        parts[in_half(run_id)][run_id] = label
    yield parts
    yield parts[1], parts[0]


def in_half(run_id: str) -> int:
    """Return the half that a run belongs to, 0 or 1."""
    return xxh3_64_intdigest(run_id.encode()) & 1


def _caution(policy: Policy) -> tuple[int, ...]:
    return (
        policy.critical_threshold, policy.unknown_tool_threshold, policy.compaction_window, policy.warning_threshold
    )  # fmt: skip
