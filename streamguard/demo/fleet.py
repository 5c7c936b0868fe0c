"""The fleet's executor: publishes what agents do, reads verdicts, and obeys them.

An executor of your own does the same two things: publish before and after each call, and ask before running it.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Generator
from typing import Any, Final

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from streamguard.demo.agents import COMPACT, Kind, Step, kinds_of_fleet
from streamguard.guard.signature import public_signature, signature_of, tool_named
from streamguard.verdicts import Verdict, decode_verdict

__all__ = ["Agent", "Fleet"]

PACE_SECONDS: Final = (0.06, 0.16)
"""A call takes about this long."""

THINK_SECONDS: Final = (0.03, 0.08)
"""From a result to the next call, as a model thinks: the verdict about the result comes meanwhile."""

ANSWER_SECONDS: Final = 2.0
"""An executor does not wait longer for an answer: without one, the call runs."""

PATIENCE: Final = 5
"""Blocked calls after which an agent gives up."""

PAUSE_SECONDS: Final = 6.0
"""Before a new run begins where one was stopped."""


class Agent:
    """One agent of the fleet, as the view shows it."""

    def __init__(self, name: str, kind: Kind) -> None:
        self.name = name
        self.kind = kind
        self.run_id = ""
        self.runs = 0
        self.calls = 0
        self.saved = 0
        self.tool = ""
        self.state = "starting"
        self.verdict: Verdict | None = None
        self.blocked: set[str] = set()  # signatures
        self.aborted = False
        self.message: str | None = None  # of a warning, for the model's next turn


class Fleet:
    """All agents and their executor. `on_verdict` hears of every verdict but `allow`."""

    def __init__(
        self,
        bootstrap_options: dict[str, Any],
        events: str,
        verdicts: str,
        *,
        agents: int,
        seed: int,
        on_verdict: Callable[[Agent, Verdict], None],
    ) -> None:
        kinds = kinds_of_fleet(agents)
        seen: Counter[str] = Counter()
        self.agents = []
        for kind in kinds:
            seen[kind.name] += 1
            self.agents.append(Agent(f"{kind.name}-{seen[kind.name]}", kind))
        self.latencies: list[float] = []  # seconds from event to verdict
        self.verdicts: Counter[tuple[str, str]] = Counter()  # by action and detector, without allow
        self.aborted = 0
        self._events, self._verdicts = events, verdicts
        self._seed = seed
        self._on_verdict = on_verdict
        self._producer = AIOKafkaProducer(**bootstrap_options)
        self._consumer = AIOKafkaConsumer(**bootstrap_options, fetch_max_wait_ms=50, enable_auto_commit=False)
        self._by_run: dict[str, Agent] = {}
        self._published: dict[tuple[str, str | None], float] = {}
        self._answers: dict[tuple[str, str | None], asyncio.Future[Verdict]] = {}

    async def run(self, seconds: float) -> None:
        """Let the fleet work for so long."""
        await self._producer.start()
        try:
            await self._consumer.start()
            await self._listen_from_now()
            tasks = [asyncio.create_task(self._read_verdicts())]
            tasks += [asyncio.create_task(self._live(agent)) for agent in self.agents]
            try:
                done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
                for task in done:
                    task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            await self._consumer.stop()
            await self._producer.stop()

    # verdicts

    async def _listen_from_now(self) -> None:
        """Follow every partition of the verdict topic, without a group: each executor hears every verdict."""
        partitions = await self._producer.partitions_for(self._verdicts)
        everything = [TopicPartition(self._verdicts, number) for number in sorted(partitions)]
        self._consumer.assign(everything)
        await self._consumer.seek_to_end(*everything)

    async def _read_verdicts(self) -> None:
        while True:
            for records in (await self._consumer.getmany(timeout_ms=200)).values():
                for record in records:
                    self._take(decode_verdict(record.value))

    def _take(self, verdict: Verdict) -> None:
        agent = self._by_run.get(verdict.run_id)
        if agent is None or agent.run_id != verdict.run_id:
            return  # another fleet's, or of a run that is over
        key = (verdict.run_id, verdict.call_id)
        if key in self._published:
            self.latencies.append(time.monotonic() - self._published[key])
        answer = self._answers.get(key)
        if answer is not None and not answer.done():
            answer.set_result(verdict)
        if verdict.action == "allow":
            return
        self.verdicts[verdict.action, verdict.detector or ""] += 1
        agent.verdict = verdict
        agent.state = {"warn": "warned", "block": "blocked", "abort": "aborted"}[verdict.action]
        if verdict.action == "block" and verdict.signature is not None:
            agent.blocked.add(verdict.signature)
        if verdict.action == "warn":
            agent.message = verdict.message
        if verdict.action == "abort":
            self.aborted += not agent.aborted
            agent.aborted = True
        self._on_verdict(agent, verdict)

    # agents

    async def _live(self, agent: Agent) -> None:
        """Begin run after run until the demo is over."""
        rng = random.Random(f"{self._seed}/{agent.name}")  # noqa: S311 - a simulation
        while True:
            agent.runs += 1
            agent.run_id = f"{agent.name}/{agent.runs}-{rng.randrange(16**6):06x}"
            self._by_run[agent.run_id] = agent
            agent.blocked, agent.aborted, agent.state = set(), False, "working"
            agent.verdict = agent.message = None
            stopped = await self._work(agent, rng)
            await self._publish(agent, {"type": "run_ended"})
            agent.state = "aborted" if agent.aborted else "gave up" if stopped else "done"
            await asyncio.sleep(PAUSE_SECONDS if stopped else rng.uniform(*PACE_SECONDS))
            del self._by_run[agent.run_id]
            self._published = {key: when for key, when in self._published.items() if key[0] != agent.run_id}

    async def _work(self, agent: Agent, rng: random.Random) -> bool:
        """Follow the script; return whether the run was stopped before its end."""
        in_vain = 0
        script = agent.kind.script(rng)
        step = next(script, None)
        for number in itertools.count():
            if step is None:
                return False
            if step is COMPACT:
                await self._publish(agent, {"type": "compaction", "trigger": "overflow"})
            else:
                ran = await self._call(agent, step, f"c{number}", rng)
                in_vain = 0 if ran else in_vain + 1
                await asyncio.sleep(rng.uniform(*THINK_SECONDS))
            if agent.aborted or in_vain == PATIENCE:
                return True
            step = _next(script, agent)
        return False

    async def _call(self, agent: Agent, step: Step, call_id: str, rng: random.Random) -> bool:
        """Publish a call, ask, run it or obey; return whether it ran."""
        agent.tool, agent.calls = step.tool, agent.calls + 1
        call = {"type": "tool_call", "call_id": call_id, "tool": step.tool, "args": step.args}
        verdict: Verdict | None = None
        if agent.kind.gated:
            verdict = await self._ask(agent, call)
        else:
            await self._publish(agent, call)
        tool = tool_named(step.tool)
        signature = public_signature(tool.name, signature_of(tool, step.args, None))
        block = verdict.action == "block" if verdict is not None else signature in agent.blocked
        await asyncio.sleep(rng.uniform(*PACE_SECONDS))
        if agent.aborted:
            return False
        if block:
            agent.saved += 1
            await self._publish(agent, {"type": "tool_result", "call_id": call_id, "status": "blocked"})
            return False
        await self._publish(agent, {"type": "tool_result", "call_id": call_id, **step.answer})
        return True

    async def _ask(self, agent: Agent, call: dict[str, Any]) -> Verdict | None:
        """Publish a call with `gate` and wait for its verdict."""
        key = (agent.run_id, call["call_id"])
        answer: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._answers[key] = answer
        try:
            await self._publish(agent, {**call, "gate": True})
            async with asyncio.timeout(ANSWER_SECONDS):
                return await answer
        except TimeoutError:
            return None
        finally:
            del self._answers[key]

    async def _publish(self, agent: Agent, event: dict[str, Any]) -> None:
        self._published[agent.run_id, event.get("call_id")] = time.monotonic()
        event = {"run_id": agent.run_id, "agent_id": agent.kind.name, **event}
        await self._producer.send(self._events, msgspec.json.encode(event), key=agent.run_id.encode())


def _next(script: Generator[Step, str | None, None], agent: Agent) -> Step | None:
    """Put a warning's message, if any, before the model; return what it does next."""
    message, agent.message = agent.message, None
    try:
        step = script.send(message)
    except StopIteration:
        return None
    if agent.state == "warned" and not agent.kind.loops:
        agent.state = "working"
    return step
