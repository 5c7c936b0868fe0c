"""The executor's client: one for a process, a run for each agent run."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Self

from streamguard.errors import GuardUnavailableError, NotStartedError, RunTakenError
from streamguard.events import ToolCall
from streamguard.executor.channel import Channel, Following
from streamguard.executor.hearing import Hearing
from streamguard.executor.local import NOWHERE, LocalJudge
from streamguard.executor.options import ExecutorOptions, Mode, checked_mode
from streamguard.executor.payloads import Payloads, encode_event
from streamguard.executor.run import DecidedBy, Run

if TYPE_CHECKING:
    from streamguard.events import Event
    from streamguard.policy import PolicySet
    from streamguard.verdicts import Verdict

__all__ = ["GuardClient"]


class GuardClient:
    """Publishes what agents do, and obeys what the guard says: `async with GuardClient(options) as client: ...`.

    Starting does not wait for Kafka, nor does anything else for longer than `options` say. With a policy as `fallback`
    calls that get no answer in time are judged here, by what this process has seen; `options.fail` then counts no more.
    `counters`: events `published` and `dropped_...`, `unanswered` calls, `refused` calls, `refused_verdicts`, and
    verdicts by action.
    """

    def __init__(self, options: ExecutorOptions | None = None, *, fallback: PolicySet | None = None) -> None:
        self.options = options or ExecutorOptions()
        self.counters: Counter[str] = Counter()
        key = self.options.hash_key
        self.payloads = Payloads(
            hashed=self.options.hash_payloads,
            key=key.encode() if key else None,
            send_tools=self.options.send_tools,
        )
        self._fallback = LocalJudge(fallback) if fallback is not None else None
        self._said: dict[str, tuple[str | None, list[Verdict]]] = {}  # by the fallback, of each run's latest call
        self._hearing: dict[str, Hearing] = {}
        self._channel: Channel | None = None
        self._runs: dict[str, Run] = {}
        self._following: dict[str, Following] = {}

    async def __aenter__(self) -> Self:
        """Start."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.close()

    async def start(self) -> None:
        """Begin to connect; returns at once. Raises a `ConfigurationError` if keys or certificates cannot be used."""
        if self._channel is None:
            self._channel = Channel(self.options, self.counters)
            self._channel.start()

    async def connected(self) -> None:
        """Wait until Kafka has been reached. Raises `NotStartedError`."""
        await self._started().connected.wait()

    async def close(self) -> None:
        """Send what is buffered, within `options.close_timeout`, and close all connections."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    def run(
        self,
        run_id: str | None = None,
        *,
        agent_id: str | None = None,
        session_id: str | None = None,
        mode: Mode | None = None,
    ) -> Run:
        """Return the context of one run; without an id it gets a new one. `agent_id` selects the agent's policy."""
        return Run(
            self,
            (run_id or "").strip() or f"run-{uuid.uuid4()}",
            agent_id=agent_id,
            session_id=session_id,
            mode=checked_mode(mode or self.options.mode),
            calls=f"{uuid.uuid4().hex[:8]}-",
        )

    # what a run needs

    async def begin(self, run: Run) -> None:
        """Take a run. Raises `NotStartedError`, `RunTakenError`."""
        channel = self._started()
        if run.run_id in self._runs:
            raise RunTakenError(
                f"run {run.run_id} is open in this client already: each run needs an id of its own, and one "
                "`async with`, however many calls are made in it"
            )
        self._runs[run.run_id] = run
        self._hearing[run.run_id] = hearing = Hearing(run.heed)
        try:
            self._following[run.run_id] = await channel.follow(run.run_id, hearing.hear)
        except BaseException:
            self.end(run)
            raise

    async def publish(self, run: Run, event: Event) -> bool:
        """Send an event; returns within `publish_timeout`. False: it was dropped."""
        channel = self._started()
        value = encode_event(event)
        if self._fallback is not None:
            self._hear_fallback(channel, run, event, list(self._fallback.judge(event)))
        hearing = self._hearing.get(run.run_id)
        placed = None if hearing is None or hearing.begun else hearing.begins_at
        return await channel.publish(run.run_id, value, placed) is not None

    async def answer(
        self, run: Run, call_id: str, asked: asyncio.Future[Verdict], *, published: bool
    ) -> Verdict | None:
        """Wait for the verdict of a call within `gate_timeout`; None: go ahead. Raises `GuardUnavailableError`."""
        channel = self._started()
        partition = channel.partition_of(run.run_id)
        if published and not asked.done() and partition not in channel.silence:
            try:
                async with asyncio.timeout(self.options.gate_timeout):
                    return await asyncio.shield(asked)
            except TimeoutError:
                if not asked.done():
                    channel.silence.begins(partition, self._then)
        return asked.result() if asked.done() else self._unanswered(run, call_id, asked)

    def end(self, run: Run) -> None:
        """Forget a run."""
        if self._runs.get(run.run_id) is run:
            del self._runs[run.run_id]
            self._hearing.pop(run.run_id, None)
            self._said.pop(run.run_id, None)
            following = self._following.pop(run.run_id, None)
            if self._channel is not None and following is not None:
                self._channel.unfollow(following)

    def decided_by(self, verdict: Verdict) -> DecidedBy:
        """Tell whose a verdict is."""
        return "fallback" if verdict.source.partition == NOWHERE else "guard"

    def note(self, what: str) -> None:
        """Count something that happened."""
        self.counters[what] += 1

    # inside

    def _started(self) -> Channel:
        if self._channel is None:
            raise NotStartedError(
                "this GuardClient is not started, or closed: use it as `async with GuardClient(...) as client`, and "
                "its runs within"
            )
        return self._channel

    @property
    def _then(self) -> str:
        if self._fallback is not None:
            return "are judged here"
        return "go ahead" if self.options.fail == "open" else "are refused"

    def _hear_fallback(self, channel: Channel, run: Run, event: Event, verdicts: list[Verdict]) -> None:
        """Heed what is judged here while the guard is silent; else keep it, in case the guard does not answer."""
        if not channel.connected.is_set() or channel.silence.holds(channel.partition_of(run.run_id)):
            for verdict in verdicts:
                run.heed(verdict)
        elif run.mode == "gate" and isinstance(event, ToolCall):
            self._said[run.run_id] = (event.call_id, verdicts)

    def _unanswered(self, run: Run, call_id: str, asked: asyncio.Future[Verdict]) -> Verdict | None:
        self.counters["unanswered"] += 1
        if self._fallback is not None:
            asked_of, verdicts = self._said.pop(run.run_id, (None, []))
            for verdict in verdicts if asked_of == call_id else ():
                run.heed(verdict)
            return asked.result() if asked.done() else None
        if self.options.fail == "closed":
            raise GuardUnavailableError(
                f"the guard did not answer within {self.options.gate_timeout:g} s (gate_timeout) and is set to fail "
                "closed: are the workers (`streamguard run`) and Kafka up?"
            )
        return None
