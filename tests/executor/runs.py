"""Agent runs whose executor obeys the guard, whichever way it reaches it: what was decided, call by call."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from streamguard.demo.agents import AGENT_POLICIES, COMPACT, KINDS, POLICY, Kind
from streamguard.errors import RunAbortedError
from streamguard.executor import LocalGuard
from streamguard.policy import PolicySet

PATIENCE = 3
"""Blocked calls after which an agent gives up."""

POLICIES = PolicySet(POLICY, AGENT_POLICIES)

Pause = Callable[[], float]


class Decided(Protocol):
    """What an executor needs to know of a decision."""

    @property
    def action(self) -> str:
        """Allow, warn or block."""

    @property
    def message(self) -> str | None:
        """For the model."""

    @property
    def blocked(self) -> bool:
        """Whether the call must not run."""


class Guarded(Protocol):
    """A run as its agent needs it: `streamguard.executor.Run`, or one that goes through the gateway."""

    async def before_tool(self, tool: str, args: Any) -> Any:
        """Ask."""

    async def after_tool(self, call: Any, *, result: Any = ..., error: Any = None) -> None:
        """Tell."""

    async def compacted(self) -> None:
        """Tell."""


class Outcome(NamedTuple):
    """What an executor did: the decision about each call, and whether the run was aborted."""

    decisions: tuple[str, ...]
    aborted: bool


def no_pause() -> float:
    """Return no time at all."""
    return 0.0


async def follow(run: AbstractAsyncContextManager[Guarded], kind: Kind, seed: str, pause: Pause = no_pause) -> Outcome:
    """Let an agent work, and obey; `pause` gives the seconds that a call takes."""
    decisions: list[str] = []
    try:
        async with run as guarded:
            await _work(guarded, kind, seed, pause, decisions)
    except RunAbortedError:
        return Outcome(tuple(decisions), aborted=True)
    return Outcome(tuple(decisions), aborted=False)


async def _work(guarded: Guarded, kind: Kind, seed: str, pause: Pause, decisions: list[str]) -> None:
    script = kind.script(random.Random(seed))
    step = next(script, None)
    in_vain = 0
    while step is not None and in_vain < PATIENCE:
        message = None
        if step is COMPACT:
            await guarded.compacted()
        else:
            decision = await guarded.before_tool(step.tool, step.args)
            decisions.append(decision.action)
            in_vain += decision.blocked
            message = decision.message if decision.action == "warn" else None
            await asyncio.sleep(pause())
            if not decision.blocked:
                await guarded.after_tool(decision, **step.answer)
        try:
            step = script.send(message)
        except StopIteration:
            return


def policy_file(folder: Path) -> Path:
    """Write these agents' policies for workers that run as programs."""
    file = folder / "agents.toml"
    lines = ["[policy]", *(f"{key} = {json.dumps(value)}" for key, value in POLICY.items())]
    for agent, block in AGENT_POLICIES.items():
        for section, fields in block.items():
            lines += [f"[agents.{agent}.{section}]", *(f"{key} = {json.dumps(value)}" for key, value in fields.items())]
    file.write_text("\n".join(lines))
    return file


async def by_the_rules(kind: Kind, seed: str) -> Outcome:
    """Return what must come out: the same agent under the core itself."""
    async with LocalGuard(POLICIES) as guard:
        return await follow(guard.run("run", agent_id=kind.name), kind, seed)


def fleet(runs: int) -> list[Kind]:
    """Return the kinds of so many agents, of which every tenth loops, each in one of the documented ways."""
    looping = [kind for kind in KINDS if kind.loops]
    healthy = [kind for kind in KINDS if not kind.loops]
    return [
        looping[number // 10 % len(looping)] if number % 10 == 0 else healthy[number % len(healthy)]
        for number in range(runs)
    ]
