"""The guard in this process: the same core, no Kafka. For a single executor, for tests, and as a fallback."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Final, Self

from streamguard.errors import NotStartedError, RunTakenError
from streamguard.events import Event, Source
from streamguard.executor.options import Mode, checked_mode
from streamguard.executor.payloads import Payloads, as_guard_reads
from streamguard.executor.run import DecidedBy, Run
from streamguard.guard import Guard, Limits
from streamguard.policy import PolicySet
from streamguard.verdicts import Verdict

__all__ = ["NOWHERE", "LocalGuard", "LocalJudge"]

NOWHERE: Final = -1
"""The partition that verdicts of a local guard name: no topic has it."""


class LocalJudge:
    """Judges events as a worker would that reads this executor's events only; its clock is ours."""

    def __init__(self, policies: PolicySet, limits: Limits | None = None) -> None:
        self._guard = Guard(policies, limits)
        self._offset = -1

    def judge(self, event: Event) -> Sequence[Verdict]:
        """Return what the guard says to an event."""
        self._offset += 1
        return self._guard.observe(event, Source("local", NOWHERE, self._offset, time.time_ns() // 1_000_000))


class LocalGuard:
    """Has the API of `GuardClient`, and judges here: `async with LocalGuard(policies) as guard: ...`.

    It sees this process alone, and forgets all when it ends. `counters` count verdicts by action, and `refused` calls.
    """

    def __init__(self, policies: PolicySet | None = None, *, mode: Mode = "gate") -> None:
        self.payloads = Payloads()
        self.counters: Counter[str] = Counter()
        self._mode = mode
        self._judge = LocalJudge(policies if policies is not None else PolicySet({"enabled": True}))
        self._runs: dict[str, Run] = {}
        self._started = False

    async def __aenter__(self) -> Self:
        """Start."""
        self._started = True
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        self._started = False

    def run(
        self,
        run_id: str | None = None,
        *,
        agent_id: str | None = None,
        session_id: str | None = None,
        mode: Mode | None = None,
    ) -> Run:
        """Return the context of one run; without an id it gets a new one."""
        return Run(
            self,
            (run_id or "").strip() or f"run-{uuid.uuid4()}",
            agent_id=agent_id,
            session_id=session_id,
            mode=checked_mode(mode or self._mode),
            calls=f"{uuid.uuid4().hex[:8]}-",
        )

    # what a run needs

    async def begin(self, run: Run) -> None:
        """Take a run. Raises `NotStartedError`, `RunTakenError`."""
        if not self._started:
            raise NotStartedError("this LocalGuard is not started: use it as `async with LocalGuard(...) as guard`")
        if run.run_id in self._runs:
            raise RunTakenError(f"run {run.run_id} is open already: each run needs an id of its own")
        self._runs[run.run_id] = run

    async def publish(self, run: Run, event: Event) -> bool:
        """Judge an event, and tell its run."""
        for verdict in self._judge.judge(as_guard_reads(event)):
            run.heed(verdict)
        return True

    async def answer(
        self,
        run: Run,  # noqa: ARG002 - as every link
        call_id: str,  # noqa: ARG002
        asked: asyncio.Future[Verdict],
        *,
        published: bool,  # noqa: ARG002
    ) -> Verdict | None:
        """Return the verdict, which is there already."""
        return asked.result() if asked.done() else None

    def decided_by(self, verdict: Verdict) -> DecidedBy:  # noqa: ARG002 - as every link
        """Tell that it is ours."""
        return "guard"

    def end(self, run: Run) -> None:
        """Forget a run."""
        if self._runs.get(run.run_id) is run:
            del self._runs[run.run_id]

    def note(self, what: str) -> None:
        """Count something that happened."""
        self.counters[what] += 1
