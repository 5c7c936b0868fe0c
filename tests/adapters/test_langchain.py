"""LangChain's own agent loop, with a model that loops: warned, blocked, aborted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain", reason="LangChain is not installed: pip install 'streamguard[langchain]'")

from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware, ToolRetryMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt
from looping import BLOCKED_AT, POLICIES, WARNED_AT, Shelf, compacted, readme

from streamguard.adapters import guarding
from streamguard.adapters.langchain import GuardMiddleware
from streamguard.errors import RunAbortedError, RunOverError
from streamguard.executor import LocalGuard

Turn = Callable[[int], list[tuple[str, dict[str, Any]]]]


class Scripted(BaseChatModel):
    """A model that makes the calls of a turn, and says it is done when there are none."""

    turn: Turn
    seen: list[list[BaseMessage]] = []  # noqa: RUF012 - pydantic copies it

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Runnable[Any, AIMessage]:  # noqa: ARG002 - as every model
        """Take any tools."""
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        number = len(self.seen)
        self.seen.append(messages)
        calls = [
            {"name": name, "args": args, "id": f"t{number}-{place}", "type": "tool_call"}
            for place, (name, args) in enumerate(self.turn(number))
        ]
        return ChatResult(generations=[ChatGeneration(message=AIMessage("" if calls else "done", tool_calls=calls))])


def look(times: int, book: str = "a") -> Turn:
    """Look at the same book so many times, one a turn."""
    return lambda number: [("look", {"book": book})] if number < times else []


def agent_of(turn: Turn, tool: Callable[..., Any] | BaseTool, *others: Any, **more: Any) -> tuple[Any, Scripted]:
    """Return a guarded agent, and its model."""
    model = Scripted(turn=turn)
    tools = [tool if isinstance(tool, BaseTool) else StructuredTool.from_function(tool, name="look", description="-")]
    return create_agent(model, tools, middleware=[GuardMiddleware(), *others], **more), model


GO = {"messages": [("user", "go")]}


def texts(messages: Sequence[BaseMessage]) -> list[str]:
    """Return the texts of messages."""
    return [str(message.content) for message in messages]


async def test_a_warning_reaches_the_model() -> None:
    """A model that repeats itself finds the warning among its messages, once, right after the call it is about."""
    agent, model = agent_of(look(WARNED_AT + 1), Shelf().look)

    async with LocalGuard(POLICIES) as guard, guarding(guard.run()):
        await agent.ainvoke(GO)

    warned = [sum("look was called" in text for text in texts(messages)) for messages in model.seen]
    assert [0] * (WARNED_AT + 1) + [1] == warned


async def test_a_blocked_call_does_not_run() -> None:
    """From the critical threshold on the tool is left alone, and the model reads why as the tool's result."""
    shelf = Shelf()
    agent, _ = agent_of(look(BLOCKED_AT + 3), shelf.look)

    async with LocalGuard(POLICIES) as guard, guarding(guard.run()):
        answer = await agent.ainvoke(GO)

    results = [message for message in answer["messages"] if isinstance(message, ToolMessage)]
    assert BLOCKED_AT == shelf.looked
    assert ["success"] * BLOCKED_AT + ["error"] * 3 == [result.status for result in results]
    assert all("This call is stopped" in text for text in texts(results[BLOCKED_AT:]))


async def test_an_abort_ends_the_agent() -> None:
    """Three equal outcomes after a compaction raise RunAbortedError, and the model is not asked again."""
    shelf = Shelf()
    agent, model = agent_of(look(20), shelf.look)

    with pytest.raises(RunAbortedError) as aborted:
        async with compacted():
            await agent.ainvoke(GO)

    assert ("compaction_loop_persisted", 3, 3) == (aborted.value.verdict.detector, shelf.looked, len(model.seen))


async def test_a_healthy_agent_is_let_alone() -> None:
    """Calls that differ are neither warned of nor blocked, though some are made at once."""
    shelf = Shelf()
    agent, _ = agent_of(
        lambda number: [("look", {"book": f"{number}-{place}"}) for place in range(3)] if number < 5 else [], shelf.look
    )

    async with LocalGuard(POLICIES) as guard, guarding(guard.run()):
        answer = await agent.ainvoke(GO)

    assert (15, {"allow": 15}, "done") == (shelf.looked, dict(guard.counters), answer["messages"][-1].content)


async def test_a_summary_is_a_compaction() -> None:
    """What SummarizationMiddleware does is told: a loop that goes on after it is ended."""
    shelf = Shelf()
    summarizer = SummarizationMiddleware(Scripted(turn=lambda _: []), trigger=("messages", 12), keep=("messages", 2))
    agent, _ = agent_of(look(20), shelf.look, summarizer)

    with pytest.raises(RunAbortedError):
        async with LocalGuard() as guard, guarding(guard.run()):
            await agent.ainvoke(GO)

    assert 9 == shelf.looked  # six, a summary, three


async def test_an_old_summary_is_no_compaction() -> None:
    """A conversation that goes on with a summary made in an earlier run does not arm the guard."""
    shelf = Shelf()
    summarizer = SummarizationMiddleware(Scripted(turn=lambda _: []), trigger=("messages", 6), keep=("messages", 2))
    first, _ = agent_of(lambda number: [("look", {"book": str(number)})] if number < 4 else [], shelf.look, summarizer)
    second, _ = agent_of(look(4), shelf.look)

    async with LocalGuard() as guard:
        async with guarding(guard.run()):
            answer = await first.ainvoke(GO)
        async with guarding(guard.run()):
            await second.ainvoke({"messages": [*answer["messages"], ("user", "again")]})

    assert (True, 8) == ("summary" in texts(answer["messages"])[0], shelf.looked)


async def test_a_failing_tool_fails_as_ever() -> None:
    """What a tool raises is told as an error, and raised as LangChain does."""
    agent, _ = agent_of(look(2, "none"), Shelf().look)

    with pytest.raises(ValueError, match="no such book"):
        async with LocalGuard(POLICIES) as guard, guarding(guard.run()):
            await agent.ainvoke(GO)


async def test_retries_are_one_call() -> None:
    """What a retrying middleware does to one call of the model is one call for the guard."""
    shelf = Shelf()
    retry = ToolRetryMiddleware(max_retries=3, initial_delay=0.0, on_failure="continue")
    agent, _ = agent_of(look(1, "none"), shelf.look, retry)

    async with LocalGuard(POLICIES) as guard, guarding(guard.run()):
        await agent.ainvoke(GO)

    assert (4, {"allow": 1}) == (shelf.looked, dict(guard.counters))


async def test_a_tool_that_does_not_exist_is_known_as_such() -> None:
    """Calls of an unknown tool are blocked by the detector for them."""
    policies = type(POLICIES)({"enabled": True, "unknownToolThreshold": 3})
    agent, model = agent_of(lambda number: [("ghost", {"n": number})] if number < 5 else [], Shelf().look)

    async with LocalGuard(policies) as guard, guarding(guard.run()):
        await agent.ainvoke(GO)

    assert (2, True) == (guard.counters["refused"], "ghost does not exist" in texts(model.seen[-1])[-1])


async def test_an_interrupt_is_no_failure() -> None:
    """A tool that waits for a person is asked about again when it goes on, and nothing is told of it meanwhile."""

    def ask(book: str) -> str:
        return f"{book}: {interrupt('may I?')}"

    agent, _ = agent_of(look(1), ask, checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "1"}}

    async with LocalGuard(POLICIES) as guard, guarding(guard.run()):
        await agent.ainvoke(GO, config)
        answer = await agent.ainvoke(Command(resume="yes"), config)

    assert (2, "a: yes") == (guard.counters["allow"], answer["messages"][-2].content)


async def test_synchronous_agents_are_guarded_from_their_thread() -> None:
    """agent.invoke in a thread is warned, blocked and aborted as agent.ainvoke is."""
    shelf = Shelf()
    agent, model = agent_of(look(BLOCKED_AT + 1), shelf.look)

    async with LocalGuard(POLICIES) as guard, guarding(guard.run()):
        await asyncio.to_thread(agent.invoke, GO)
    with pytest.raises(RunAbortedError):
        async with compacted():
            await asyncio.to_thread(agent_of(look(20), Shelf().look)[0].invoke, GO)

    assert BLOCKED_AT == shelf.looked
    assert any("look was called" in text for text in texts(model.seen[-1]))


async def test_a_synchronous_agent_in_the_loop_is_told_how() -> None:
    """agent.invoke in the run's own event loop would wait for itself: it is refused."""
    agent, _ = agent_of(look(1), Shelf().look)

    with pytest.raises(RunOverError, match="ainvoke"):
        async with LocalGuard(POLICIES) as guard, guarding(guard.run()):
            agent.invoke(GO)


async def test_an_agent_outside_of_a_run_is_refused() -> None:
    """A guarded agent that is called without a run does nothing, and says what is missing."""
    agent, _ = agent_of(look(1), Shelf().look)

    with pytest.raises(RunOverError, match="guarding"):
        await agent.ainvoke(GO)


async def test_the_readme_works(repository: Path) -> None:
    """The README's code guards an agent as it stands there."""
    shelf = Shelf()
    tools = [StructuredTool.from_function(shelf.look, name="look", description="-")]
    code = readme(repository, "langchain", model=Scripted(turn=look(BLOCKED_AT + 1)), tools=tools)

    async with LocalGuard(POLICIES) as guard:
        await code["ask"](guard, "go")

    assert (BLOCKED_AT, 1) == (shelf.looked, guard.counters["refused"])
