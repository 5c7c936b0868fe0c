"""Simulated agents: healthy ones, and one for each documented way of looping. What they do is a script of steps."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from streamguard.policy import Block

__all__ = ["AGENT_POLICIES", "COMPACT", "KINDS", "POLICY", "Kind", "Step", "kinds_of_fleet"]


class Step(NamedTuple):
    """One tool call and what will come back: `answer` holds the `result` or the `error` of the tool_result."""

    tool: str
    args: Any
    answer: Mapping[str, Any]


COMPACT: Final = Step("", None, {})
"""The agent's context is compacted here."""

Script: TypeAlias = Callable[[random.Random], Iterator[Step]]


class Kind(NamedTuple):
    """A kind of agent. `gated`: its executor waits for the guard's answer before it runs a call."""

    name: str
    what: str
    script: Script
    loops: bool = True
    gated: bool = True


POLICY: Final[Block] = {"enabled": True}
AGENT_POLICIES: Final[Mapping[str, Block]] = {
    "breaker": {"detectors": {"genericRepeat": False, "knownPollNoProgress": False, "pingPong": False}}
}
"""The breaker's own detectors are off: only the global circuit breaker stops it."""


def _text(text: str, **details: Any) -> dict[str, Any]:
    return {"result": {"content": [{"type": "text", "text": text}], "details": details}}


def _repeats(_: random.Random) -> Iterator[Step]:
    """Read the same file and learn nothing."""
    yield from itertools.repeat(Step("read", {"path": "src/main.py"}, _text("def main(): ...")))


def _polls(_: random.Random) -> Iterator[Step]:
    """Poll a process that hangs."""
    answer = _text("compiled 12 of 98 files", status="running", aggregated="12 of 98")
    yield from itertools.repeat(Step("process", {"action": "poll", "sessionId": "build-1"}, answer))


def _ping_pongs(_: random.Random) -> Iterator[Step]:
    """Edit and revert, edit and revert."""
    edit = Step("edit", {"path": "a.py", "replace": "x", "by": "y"}, _text("a.py edited"))
    revert = Step(
        "exec", {"command": "git checkout a.py"}, _text("", status="completed", exitCode=0, aggregated="1 path")
    )
    yield from itertools.cycle((edit, revert))


def _ghosts(_: random.Random) -> Iterator[Step]:
    """Call a tool that does not exist, with ever new arguments."""
    for number in itertools.count():
        yield Step("web_click", {"selector": f"#button-{number}"}, {"error": "Tool web_click not found"})


def _breaks(_: random.Random) -> Iterator[Step]:
    """Run a failing build; its agent's detectors are off."""
    answer = _text("", status="failed", exitCode=2, aggregated="error: missing separator")
    yield from itertools.repeat(Step("exec", {"command": "make"}, answer))


def _falls_back(rng: random.Random) -> Iterator[Step]:
    """Work a while, be compacted, and fall into the same hole."""
    yield from itertools.islice(_works(rng), 6)
    hole = Step("exec", {"command": "npm test"}, _text("", status="failed", exitCode=1, aggregated="1 failing"))
    yield from itertools.repeat(hole, 4)
    yield COMPACT
    yield from itertools.repeat(hole)


def _works(rng: random.Random) -> Iterator[Step]:
    """Read, edit, test; the tests are run again, but something was changed in between."""
    for round_ in range(rng.randint(6, 10)):
        path = f"src/part{rng.randrange(40)}.py"
        yield Step("read", {"path": path}, _text(f"{path}: {rng.randrange(10**6)}"))
        yield Step("edit", {"path": path, "line": rng.randrange(300)}, _text(f"{path} edited"))
        left = max(0, 5 - round_)
        yield Step(
            "exec",
            {"command": "pytest -q"},
            _text("", status="completed", exitCode=int(left > 0), aggregated=f"{left} failed"),
        )


def _searches(rng: random.Random) -> Iterator[Step]:
    """Search and read what was found."""
    for number in range(rng.randint(8, 14)):
        yield Step("web_search", {"query": f"topic {rng.randrange(10**6)}"}, _text(f"{rng.randrange(90)} hits"))
        yield Step("web_fetch", {"url": f"https://example.org/{rng.randrange(10**6)}"}, _text(f"page {number}"))


def _waits(rng: random.Random) -> Iterator[Step]:
    """Poll a build that moves."""
    yield Step("exec", {"command": "make -j4", "background": True}, _text("started", status="running", tail=""))
    for done in range(0, 98, rng.randint(6, 9)):
        answer = _text(f"compiled {done} of 98 files", status="running", aggregated=f"{done} of 98")
        yield Step("process", {"action": "poll", "sessionId": "build-2"}, answer)


KINDS: Final = (
    Kind("repeater", "reads the same file", _repeats),
    Kind("poller", "polls a hung build", _polls),
    Kind("ping-pong", "edits and reverts", _ping_pongs, gated=False),
    Kind("ghost", "calls a ghost tool", _ghosts),
    Kind("amnesiac", "compacts, loops on", _falls_back),
    Kind("breaker", "has detectors off", _breaks),
    Kind("coder", "reads, edits, tests", _works, loops=False),
    Kind("searcher", "searches the web", _searches, loops=False, gated=False),
    Kind("builder", "polls a live build", _waits, loops=False),
)
"""Every documented way of looping, then the healthy ones."""


def kinds_of_fleet(agents: int) -> list[Kind]:
    """Return the kinds of a fleet of this size: each kind once, then more healthy agents."""
    healthy = [kind for kind in KINDS if not kind.loops]
    return list(itertools.islice(itertools.chain(KINDS, itertools.cycle(healthy)), agents))
