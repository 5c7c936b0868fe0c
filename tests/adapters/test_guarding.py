"""What adapters share: the run of a context, call ids, aborts that a framework swallows, missing frameworks."""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from typing import Any

import pytest
from looping import POLICIES, compacted

from streamguard.adapters import guarding
from streamguard.adapters.call import Blocked, Call, Outcome, guarded_call
from streamguard.adapters.guarding import current
from streamguard.errors import MissingExtraError, RunAbortedError, RunOverError
from streamguard.executor import LocalGuard


async def same() -> str:
    """Return the same as ever."""
    return "same"


async def test_an_abort_that_a_framework_swallows_comes_out() -> None:
    """A framework that takes RunAbortedError for a failed tool and goes on does not hide it."""

    async def swallow() -> None:
        for _ in range(3):
            with suppress(RunAbortedError):
                await guarded_call(Call(current(), "look", {}), same, Outcome)

    with pytest.raises(RunAbortedError):
        async with compacted():
            await swallow()


async def test_an_abort_that_a_framework_renames_comes_out() -> None:
    """Whatever exception a framework makes of it, the caller gets RunAbortedError."""

    async def rename() -> None:
        for _ in range(3):
            try:
                await guarded_call(Call(current(), "look", {}), same, Outcome)
            except RunAbortedError as error:
                raise ValueError("tool failed") from error

    with pytest.raises(RunAbortedError):
        async with compacted():
            await rename()


async def test_call_ids_that_come_again_are_replaced() -> None:
    """Models that number their calls anew in every turn do no harm; ids that are unique are kept."""
    async with LocalGuard(POLICIES) as guard, guarding(guard.run()):
        known = [current().new(call_id) for call_id in ("call_0", "call_1", "call_0", "", None)]

    assert ["call_0", "call_1", None, None, None] == known


async def test_calls_with_one_id_at_once_are_all_told() -> None:
    """Two calls of one id that run at the same time are two calls."""
    async with LocalGuard(POLICIES) as guard, guarding(guard.run()):
        first, second = (Call(current(), "look", {"n": number}, "call_0") for number in range(2))
        await first.refused()
        await second.refused()
        await first.over(Outcome("a"))
        await second.over(Outcome("b"))

    assert {"allow": 2} == dict(guard.counters)


async def test_what_cannot_be_published_runs_unguarded(log_lines: list[dict[str, Any]]) -> None:
    """Arguments and results that are nested too deep do not end the agent; they are logged, without the payload."""
    deep: Any = "secret"
    for _ in range(500):
        deep = [deep]

    async with LocalGuard(POLICIES) as guard, guarding(guard.run()):
        one = await guarded_call(Call(current(), "look", deep), same, Outcome)
        two = await guarded_call(Call(current(), "look", {}), same, lambda _: Outcome(deep))

    assert ("same", "same") == (one, two)
    assert ["call not published, runs unguarded", "result not published"] == [line["event"] for line in log_lines]
    assert "secret" not in str(log_lines)


async def test_a_blocked_call_is_its_message() -> None:
    """A call that must not run is not run, and stands for what the model is to read."""
    ran = []

    async def run() -> None:
        ran.append(1)

    async with LocalGuard(POLICIES) as guard, guarding(guard.run()):
        answers = [await guarded_call(Call(current(), "look", {}), run, Outcome) for _ in range(7)]

    assert (5, True) == (len(ran), all(isinstance(answer, Blocked) for answer in answers[5:]))


async def test_there_is_no_run_after_its_end() -> None:
    """The run of a context ends with the block that opened it."""
    async with LocalGuard(POLICIES) as guard, guarding(guard.run()) as run:
        within = current().run

    assert within is run
    with pytest.raises(RunOverError):
        current()


@pytest.mark.parametrize(
    ("adapter", "package", "extra"),
    [
        ("langchain", "langchain", "langchain"),
        ("openai_agents", "agents", "openai-agents"),
        ("pydantic_ai", "pydantic_ai", "pydantic-ai"),
        ("claude_agent_sdk", "claude_agent_sdk", "claude-agent-sdk"),
        ("opentelemetry", "opentelemetry", "opentelemetry"),
    ],
)
def test_a_missing_framework_is_named(monkeypatch: pytest.MonkeyPatch, adapter: str, package: str, extra: str) -> None:
    """An adapter whose framework is not installed says which extra to install."""
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"streamguard.adapters.{adapter}", raising=False)

    with pytest.raises(MissingExtraError, match=rf"streamguard\[{extra}\]"):
        importlib.import_module(f"streamguard.adapters.{adapter}")
