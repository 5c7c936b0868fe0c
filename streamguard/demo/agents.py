"""Simulated agents: healthy ones, and one for each documented way of looping. What they do is a script of steps."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Generator, Mapping
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

Steps: TypeAlias = Generator[Step, str | None, None]
"""What an agent does; a warning's message is sent in, for those who heed it."""

Script: TypeAlias = Callable[[random.Random], Steps]


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


def _again(*steps: Step) -> Steps:
    """Do the same again, deaf to warnings."""
    for number in itertools.count():
        yield steps[number % len(steps)]


def _repeats(_: random.Random) -> Steps:
    """Read the same file and learn nothing."""
    yield from _again(Step("read", {"path": "src/main.py"}, _text("def main(): ...")))


def _polls(_: random.Random) -> Steps:
    """Poll a process that hangs."""
    answer = _text("compiled 12 of 98 files", status="running", aggregated="12 of 98")
    yield from _again(Step("process", {"action": "poll", "sessionId": "build-1"}, answer))


def _ping_pongs(_: random.Random) -> Steps:
    """Edit and revert, edit and revert."""
    edit = Step("edit", {"path": "a.py", "replace": "x", "by": "y"}, _text("a.py edited"))
    revert = Step(
        "exec", {"command": "git checkout a.py"}, _text("", status="completed", exitCode=0, aggregated="1 path")
    )
    yield from _again(edit, revert)


def _ghosts(_: random.Random) -> Steps:
    """Call a tool that does not exist, with ever new arguments."""
    for number in itertools.count():
        yield Step("web_click", {"selector": f"#button-{number}"}, {"error": "Tool web_click not found"})


def _breaks(_: random.Random) -> Steps:
    """Run a failing build; its agent's detectors are off."""
    answer = _text("", status="failed", exitCode=2, aggregated="error: missing separator")
    yield from _again(Step("exec", {"command": "make"}, answer))


def _falls_back(rng: random.Random) -> Steps:
    """Work a while, be compacted, and fall into the same hole."""
    yield from _works(rng, rounds=2)
    hole = Step("exec", {"command": "npm test"}, _text("", status="failed", exitCode=1, aggregated="1 failing"))
    for _ in range(4):
        yield hole
    yield COMPACT
    yield from _again(hole)


def _works(rng: random.Random, rounds: int | None = None) -> Steps:
    """Read, edit, test; the tests are run again, but something was changed in between."""
    for round_ in range(rounds or rng.randint(6, 10)):
        path = f"src/part{rng.randrange(40)}.py"
        yield Step("read", {"path": path}, _text(f"{path}: {rng.randrange(10**6)}"))
        yield Step("edit", {"path": path, "line": rng.randrange(300)}, _text(f"{path} edited"))
        left = max(0, 5 - round_)
        yield Step(
            "exec",
            {"command": "pytest -q"},
            _text("", status="completed", exitCode=int(left > 0), aggregated=f"{left} failed"),
        )


def _searches(rng: random.Random) -> Steps:
    """Search and read what was found."""
    for number in range(rng.randint(8, 14)):
        yield Step("web_search", {"query": f"topic {rng.randrange(10**6)}"}, _text(f"{rng.randrange(90)} hits"))
        yield Step("web_fetch", {"url": f"https://example.org/{rng.randrange(10**6)}"}, _text(f"page {number}"))


def _waits(rng: random.Random) -> Steps:
    """Poll a build that moves."""
    yield Step("exec", {"command": "make -j4", "background": True}, _text("started", status="running", tail=""))
    for done in range(0, 98, rng.randint(6, 9)):
        answer = _text(f"compiled {done} of 98 files", status="running", aggregated=f"{done} of 98")
        yield Step("process", {"action": "poll", "sessionId": "build-2"}, answer)


def _heeds(rng: random.Random) -> Steps:
    """Wait for a deployment by asking again and again, until told to do something else: then read the log."""
    status = Step("http_get", {"url": "https://example.org/deploy/7"}, _text("pending"))
    for _ in range(15):
        if (yield status) is not None:
            break
    for line in range(rng.randint(12, 18)):
        yield Step("read", {"path": "deploy.log", "from": line * 100}, _text(f"line {rng.randrange(10**6)}"))


KINDS: Final = (
    Kind("repeater", "reads the same file", _repeats),
    Kind("poller", "polls a hung build", _polls),
    Kind("ping-pong", "edits and reverts", _ping_pongs, gated=False),
    Kind("ghost", "calls a ghost tool", _ghosts),
    Kind("amnesiac", "compacts, loops on", _falls_back),
    Kind("breaker", "has detectors off", _breaks),
    Kind("coder", "reads, edits, tests", _works, loops=False),
    Kind("searcher", "searches the web", _searches, loops=False, gated=False),
    Kind("deployer", "heeds the warning", _heeds, loops=False),
    Kind("builder", "polls a live build", _waits, loops=False),
)
"""Every documented way of looping, then the healthy ones."""


def kinds_of_fleet(agents: int) -> list[Kind]:
    """Return the kinds of a fleet of this size: each kind once, then more healthy agents."""
    healthy = [kind for kind in KINDS if not kind.loops]
    return list(itertools.islice(itertools.chain(KINDS, itertools.cycle(healthy)), agents))
