"""What the guard remembers of one run."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
from xxhash import xxh3_128_digest

from streamguard.guard.compaction import COMPACTION_LOOP_PERSISTED, CompactionWatch
from streamguard.guard.detectors import Finding, WarnKey
from streamguard.guard.waiting import WaitingCalls
from streamguard.guard.window import Call, RunWindow
from streamguard.policy import Policy

__all__ = ["Abort", "EventIds", "Run", "abort_of"]

WARN_STEP: Final = 10
"""A warning is published again when its count has grown by this many calls."""

SHADOW: Final = "shadow "
"""Begins the key of a warning in shadow."""

WARN_KEYS: Final = 256
"""Warnings of one run that are remembered; the oldest is dropped first."""


class Abort(msgspec.Struct, frozen=True):
    """Why a run was aborted, to say it again to an executor that goes on all the same."""

    detector: str
    tool: str
    signature: bytes
    count: int
    threshold: int
    evidence: tuple[int, ...]


def abort_of(run: Run, call: Call, count: int, offsets: list[int]) -> Abort:
    """Return the abort of a run whose outcomes after a compaction were all the same."""
    threshold = run.policy.compaction_window
    return Abort(COMPACTION_LOOP_PERSISTED, call.tool, call.signature, count, threshold, tuple(offsets))


class EventIds:
    """The newest event ids of a run, as hashes: a repeat is a duplicate."""

    __slots__ = ("_known", "_order")

    def __init__(self, digests: Iterable[bytes] = ()) -> None:
        self._order: deque[bytes] = deque(digests)
        self._known: set[bytes] = set(self._order)

    def __iter__(self) -> Iterator[bytes]:
        """Yield the hashes, oldest first."""
        return iter(self._order)

    def seen(self, event_id: str, limit: int) -> bool:
        """Tell whether the id came before among the newest `limit`; remember it."""
        digest = xxh3_128_digest(event_id.encode())
        if digest in self._known:
            return True
        self._known.add(digest)
        self._order.append(digest)
        if len(self._order) > limit:
            self._known.remove(self._order.popleft())
        return False


class Run:
    """One run: its window, the calls that wait for results, what was warned about, and whether it is over."""

    __slots__ = (
        "abort", "agent_id", "calls_after_abort", "event_ids", "fingerprint", "generation", "last_offset", "last_seen",
        "policy", "rules", "run_id", "waiting", "warned", "watch", "window",
    )  # fmt: skip

    def __init__(self, run_id: str, agent_id: str | None, policy: Policy, fingerprint: str) -> None:
        self.run_id = run_id
        self.agent_id = agent_id
        self.policy = policy
        self.fingerprint = fingerprint
        self.last_seen = 0  # stream time of its last event, ms
        self.last_offset = 0  # of its last event
        self.rules: object = None  # of the guard, that it last followed
        self.generation = -1  # of the newest capture since which it changed
        self.window = RunWindow(policy.history_size)
        self.waiting = WaitingCalls()
        self.warned: dict[WarnKey, int] | None = None  # count at which each warning was last published
        self.watch: CompactionWatch | None = None
        self.event_ids: EventIds | None = None
        self.abort: Abort | None = None
        self.calls_after_abort = 0

    def follow(self, agent_id: str | None, policy: Policy, fingerprint: str) -> None:
        """Go on under another policy, its agent's or another agent's, with the history so far."""
        self.agent_id = agent_id
        self.fingerprint = fingerprint
        if policy.history_size != self.policy.history_size:
            self.window = self.window.resized(policy.history_size)
        self.policy = policy

    def publishes(self, finding: Finding, *, shadow: bool = False) -> bool:
        """Tell whether a finding is published now: blocks always, a warning when new or grown; remember it.

        A warning in shadow was not heard: it does not count as one that was given.
        """
        key = finding.warn_key
        if key is None or finding.action != "warn":
            return True
        if shadow:
            key = (f"{SHADOW}{key[0]}", *key[1:])
        if self.warned is None:
            self.warned = {}
        last = self.warned.get(key)
        if last is not None and finding.count < last + WARN_STEP:
            return False
        self.warned[key] = finding.count
        if len(self.warned) > WARN_KEYS:
            del self.warned[next(iter(self.warned))]
        return True
