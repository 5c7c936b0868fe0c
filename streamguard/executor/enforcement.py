"""What the guard has said about one run, as far as an executor must obey it. Pure: no clock, no I/O.

The rules are the contract's ("Actions, as an executor obeys them"): a block holds for every later call with the same
signature until the guard, asked about such a call, answers otherwise; an abort holds for good; `shadow` verdicts are
never obeyed; a verdict that comes again changes nothing.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, TypeVar

from streamguard.verdicts import Verdict

__all__ = ["Enforcement", "remember"]

Value = TypeVar("Value")

REMEMBERED: Final = 1024
"""Verdict ids, and calls that the guard was asked about, of one run; the oldest are forgotten."""

WARNINGS: Final = 100
"""Warnings kept for who never asks for them."""


class Enforcement:
    """Obeys verdicts for one run. `abort` is the verdict that ended it, if there is one."""

    def __init__(self) -> None:
        self.abort: Verdict | None = None
        self._blocks: OrderedDict[str, Verdict] = OrderedDict()
        self._warnings: deque[Verdict] = deque(maxlen=WARNINGS)
        self._asked: OrderedDict[str, str] = OrderedDict()  # call id → signature
        self._taken: OrderedDict[str, None] = OrderedDict()  # verdict ids

    def asked(self, call_id: str, signature: str) -> None:
        """Note that the guard is asked about a call: its answer need not name the signature."""
        remember(self._asked, call_id, signature)

    def take(self, verdict: Verdict) -> bool:
        """Take a verdict about this run; tell whether it counts: it is news, and not shadow."""
        if verdict.shadow or verdict.verdict_id in self._taken:
            return False
        remember(self._taken, verdict.verdict_id, None)
        signature = self._signature(verdict)
        if verdict.action == "abort":
            self.abort = self.abort or verdict
        elif verdict.action == "block" and signature is not None:
            remember(self._blocks, signature, verdict)
        elif signature is not None:
            self._blocks.pop(signature, None)  # the call may run: it no longer repeats
        if verdict.action == "warn":
            self._warnings.append(verdict)
        return True

    def standing(self, signature: str) -> Verdict | None:
        """Return the block that holds for calls with this signature, if one does."""
        return self._blocks.get(signature)

    def take_warnings(self) -> list[Verdict]:
        """Return the warnings that came since the last time."""
        warnings = list(self._warnings)
        self._warnings.clear()
        return warnings

    def _signature(self, verdict: Verdict) -> str | None:
        """Return what a verdict is about; an `allow` names only the call."""
        asked = self._asked.get(verdict.call_id) if verdict.call_id is not None else None
        return verdict.signature or asked


def remember(known: OrderedDict[str, Value], key: str, value: Value) -> None:
    """Note something by its key, and forget the oldest beyond `REMEMBERED`."""
    known[key] = value
    if len(known) > REMEMBERED:
        known.popitem(last=False)
