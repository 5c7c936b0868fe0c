"""Runs that a reader has judged: which of them loop, and from which call on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import median

import msgspec

from streamguard.audit.backtest import Judged
from streamguard.errors import ReplayInputError
from streamguard.replay import lines_of

__all__ = ["Label", "Score", "good_outcomes", "read_labels", "score", "upper_bound"]


class Label(msgspec.Struct, frozen=True):
    """What a reader says of a run. `first_bad_index`: the first call, from 0, that should not have been let through."""

    run_id: str
    label: str
    kind: str | None = None
    first_bad_index: int | None = None


class _Outcome(msgspec.Struct):
    run_id: str
    outcome: float | None = None


_label = msgspec.json.Decoder(Label).decode
_outcome = msgspec.json.Decoder(_Outcome).decode

LINE_BYTES = 1 << 20


def read_labels(file: str) -> dict[str, Label]:
    """Read labels, one JSON object a line: `run_id`, `label` (loop, ok, ...), `first_bad_index`.

    Raises `ReplayInputError` that names a line which is none.
    """
    labels: dict[str, Label] = {}
    for line in lines_of(file, LINE_BYTES):
        try:
            label = _label(line.text or b"")
        except msgspec.MsgspecError as error:
            raise ReplayInputError(f"{line.file}:{line.number}: no label: {error}") from None
        labels[label.run_id] = label
    return labels


def good_outcomes(file: str) -> set[str]:
    """Read the runs whose recorded `outcome` is 1: their task succeeded. Raises `ReplayInputError`."""
    good: set[str] = set()
    for line in lines_of(file, LINE_BYTES):
        try:
            found = _outcome(line.text or b"")
        except msgspec.MsgspecError as error:
            raise ReplayInputError(f"{line.file}:{line.number}: no run with an outcome: {error}") from None
        if found.outcome == 1:
            good.add(found.run_id)
    return good


class Score(msgspec.Struct, kw_only=True):
    """How a policy does on labelled runs. Delays are medians, in calls after the first that should not have run."""

    loops: int = 0
    loops_warned: int = 0
    loops_stopped: int = 0
    warned_late: float | None = None
    stopped_late: float | None = None
    good: int = 0
    good_warned: int = 0
    good_stopped: int = 0


def score(runs: Mapping[str, Judged], labels: Mapping[str, Label], good: Iterable[str] = ()) -> Score:
    """Compare what was said with the labels; runs in `good` are good unless labelled otherwise."""
    result = Score()
    warned: list[int] = []
    stopped: list[int] = []
    for run_id, label in labels.items():
        run = runs.get(run_id)
        if run is None or label.label != "loop":
            continue
        result.loops += 1
        result.loops_warned += run.warned is not None or run.stopped is not None
        result.loops_stopped += run.stopped is not None
        begin = label.first_bad_index or 0
        first = [moment.call for moment in (run.warned, run.stopped) if moment is not None]
        warned += [min(first) - begin] if first else []
        stopped += [run.stopped.call - begin] if run.stopped is not None else []
    of_good = {run_id for run_id, label in labels.items() if label.label == "ok"} | (set(good) - labels.keys())
    for run_id in of_good & runs.keys():
        run = runs[run_id]
        result.good += 1
        result.good_warned += run.warned is not None or run.stopped is not None
        result.good_stopped += run.stopped is not None
    result.warned_late = median(warned) if warned else None
    result.stopped_late = median(stopped) if stopped else None
    return result


def upper_bound(found: int, of: int, confidence: float = 0.95) -> float:
    """Return the rate that is not exceeded with a confidence, if `found` of `of` were seen (Clopper-Pearson, exact)."""
    if of == 0 or found >= of:
        return 1.0
    low, high = found / of, 1.0
    # In logarithms: the binomial coefficients of thousands of runs are larger than any float.
    ways = [math.lgamma(of + 1) - math.lgamma(k + 1) - math.lgamma(of - k + 1) for k in range(found + 1)]
    for _ in range(60):
        middle = (low + high) / 2
        if middle == 1.0:
            return 1.0
        yes, no = math.log(middle), math.log1p(-middle)
        below = math.fsum(math.exp(way + k * yes + (of - k) * no) for k, way in enumerate(ways))
        low, high = (middle, high) if below > 1 - confidence else (low, middle)
    return high
