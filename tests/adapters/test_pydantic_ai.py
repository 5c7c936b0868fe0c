"""pydantic-ai's own loop, with a model that loops: warned, blocked, aborted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic_ai", reason="pydantic-ai is not installed: pip install 'streamguard[pydantic-ai]'")

from looping import BLOCKED_AT, POLICIES, WARNED_AT, Shelf, compacted, readme
from pydantic_ai import Agent, ModelRetry, ToolReturn, UnexpectedModelBehavior
from pydantic_ai.messages import (
    CompactionPart,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from streamguard.adapters import guarding
from streamguard.adapters.pydantic_ai import GuardCapability
from streamguard.errors import RunAbortedError, RunOverError
from streamguard.executor import LocalGuard

Turn = Callable[[int], list[Any]]


class Scripted:
    """A model that answers a turn with these parts, and says it is done when there are none."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.seen: list[list[ModelMessage]] = []

    def answer(self, messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        """Answer."""
        number = len(self.seen)
        self.seen.append(list(messages))
        return ModelResponse(parts=self.turn(number) or [TextPart("done")])


def look(times: int, book: Any = "a", tool: str = "look") -> Turn:
    """Look at the same book so many times, one a turn."""
    return lambda number: [ToolCallPart(tool, {"book": book}, f"t{number}")] if number < times else []


def agent_of(turn: Turn, tool: Callable[..., Any], **more: Any) -> tuple[Agent[None, str], Scripted]:
    """Return a guarded agent, and its model."""
    model = Scripted(turn)
    return Agent(FunctionModel(model.answer), tools=[tool], capabilities=[GuardCapability()], **more), model


def results(messages: list[ModelMessage]) -> list[str]:
    """Return the results of tools."""
    return [str(part.content) for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]


def said(messages: list[ModelMessage]) -> str:
    """Return what the last request says beside results."""
    return "".join(str(part.content) for part in messages[-1].parts if isinstance(part, UserPromptPart))


async def test_a_warning_reaches_the_model() -> None:
    """A model that repeats itself reads the warning, once, right after the result of the call it is about."""
    agent, model = agent_of(look(WARNED_AT + 1), Shelf().look)

    async with LocalGuard(POLICIES) as guard, guarding(guard.run()):
        await agent.run("go")

    assert [False] * (WARNED_AT + 1) + [True] == ["look was called" in said(messages) for messages in model.seen]
    assert ["page one of a"] * (WARNED_AT + 1) == results(model.seen[-1])


async def test_a_blocked_call_does_not_run() -> None:
    """From the critical threshold on the tool is left alone, and the model reads why as the tool's result."""
    shelf = Shelf()
    agent, model = agent_of(look(BLOCKED_AT + 3), shelf.look)

    async with LocalGuard(POLICIES) as guard, guarding(guard.run()):
        answer = await agent.run("go")

    blocked = ["This call is stopped" in text for text in results(model.seen[-1])]
    assert ([False] * BLOCKED_AT + [True] * 3, BLOCKED_AT, "done") == (blocked, shelf.looked, answer.output)


async def test_an_abort_ends_the_run() -> None:
    """Three equal outcomes after a compaction raise RunAbortedError, and the model is not asked again."""
    shelf = Shelf()
    agent, model = agent_of(look(20), shelf.look)

    with pytest.raises(RunAbortedError) as aborted:
        async with compacted():
            await agent.run("go")

    assert ("compaction_loop_persisted", 3, 3) == (aborted.value.verdict.detector, shelf.looked, len(model.seen))


async def test_an_abort_among_parallel_calls_ends_the_run() -> None:
    """It does not matter which of several calls at once brings the abort."""
    shelf = Shelf()
    agent, model = agent_of(
        lambda number: [ToolCallPart("look", {"book": "a"}, f"{number}-{place}") for place in range(3)], shelf.look
    )

    with pytest.raises(RunAbortedError):
        async with compacted():
            await agent.run("go")

    assert (3, 1) == (shelf.looked, len(model.seen))


async def test_a_healthy_agent_is_let_alone() -> None:
    """Calls that differ are neither warned of nor blocked, though some are made at once."""
    shelf = Shelf()
    agent, _ = agent_of(
        lambda number: (
            [ToolCallPart("look", {"book": f"{number}-{place}"}, f"{number}-{place}") for place in range(3)]
            if number < 5
            else []
        ),
        shelf.look,
    )

    async with LocalGuard(POLICIES) as guard, guarding(guard.run()):
        answer = await agent.run("go")

    assert (15, {"allow": 15}, "done") == (shelf.looked, dict(guard.counters), answer.output)


async def test_a_compaction_by_the_provider_is_told() -> None:
    """A compaction part in a response arms the guard: a loop that goes on after it is ended."""
    shelf = Shelf()
    loop = look(20)
    agent, _ = agent_of(
        lambda number: [CompactionPart("so far"), *loop(number)] if number == 2 else loop(number), shelf.look
    )

    with pytest.raises(RunAbortedError):
        async with LocalGuard() as guard, guarding(guard.run()):
            await agent.run("go")

    assert 5 == shelf.looked


async def test_an_old_summary_is_no_compaction() -> None:
    """A conversation that goes on with a summary made in an earlier run does not arm the guard."""
    shelf = Shelf()
    agent, _ = agent_of(look(4), shelf.look)
    history: list[ModelMessage] = [ModelRequest([UserPromptPart("hello")]), ModelResponse([CompactionPart("so far")])]

    async with LocalGuard() as guard, guarding(guard.run()):
        await agent.run("go", message_history=history)

    assert 4 == shelf.looked


async def test_a_failing_tool_fails_as_ever() -> None:
    """What a tool raises is told as an error, and raised as pydantic-ai does."""
    agent, _ = agent_of(look(2, "none"), Shelf().look)

    with pytest.raises(ValueError, match="no such book"):
        async with LocalGuard(POLICIES) as guard, guarding(guard.run()):
            await agent.run("go")


async def test_a_loop_of_retries_is_blocked() -> None:
    """A tool that asks the model to try again has failed: the same failure again and again is blocked."""
    ran = []

    def look(book: str) -> str:
        ran.append(book)
        raise ModelRetry("try another book")

    agent, model = agent_of(globals()["look"](BLOCKED_AT + 1), look, retries=40)

    async with LocalGuard(POLICIES) as guard, guarding(guard.run()):
        await agent.run("go")

    assert (BLOCKED_AT, True) == (len(ran), "This call is stopped" in results(model.seen[-1])[-1])


async def test_a_loop_of_wrong_arguments_is_blocked() -> None:
    """Calls that fail for their arguments count, too."""
    shelf = Shelf()
    agent, model = agent_of(look(BLOCKED_AT + 1, book=[1]), shelf.look, retries=40)

    async with LocalGuard(POLICIES) as guard, guarding(guard.run()):
        await agent.run("go")

    assert (0, 1) == (shelf.looked, guard.counters["refused"])
    assert "This call is stopped" in str(model.seen[-1])


async def test_what_a_tool_says_beside_its_result_stays() -> None:
    """A warning comes after content that the tool itself returned."""

    def look(book: str) -> ToolReturn[str]:
        return ToolReturn(book, content="beside")

    agent, model = agent_of(globals()["look"](WARNED_AT + 1), look)

    async with LocalGuard(POLICIES) as guard, guarding(guard.run()):
        await agent.run("go")

    assert "beside" in said(model.seen[-1])
    assert "look was called" in said(model.seen[-1])


async def test_a_tool_that_does_not_exist_ends_by_itself() -> None:
    """pydantic-ai's own retries end a loop of unknown tools."""
    agent, _ = agent_of(look(9, tool="ghost"), Shelf().look)

    with pytest.raises(UnexpectedModelBehavior):
        async with LocalGuard(POLICIES) as guard, guarding(guard.run()):
            await agent.run("go")


async def test_an_agent_outside_of_a_run_is_refused() -> None:
    """A guarded agent that is called without a run does nothing, and says what is missing."""
    agent, model = agent_of(look(1), Shelf().look)

    with pytest.raises(RunOverError, match="guarding"):
        await agent.run("go")

    assert [] == model.seen


async def test_the_readme_works(repository: Path) -> None:
    """The README's code guards an agent as it stands there."""
    shelf = Shelf()
    model = FunctionModel(Scripted(look(BLOCKED_AT + 1)).answer)
    code = readme(repository, "pydantic_ai", model=model, tools=[shelf.look])

    async with LocalGuard(POLICIES) as guard:
        await code["ask"](guard, "go")

    assert (BLOCKED_AT, 1) == (shelf.looked, guard.counters["refused"])
