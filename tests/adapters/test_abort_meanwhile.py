"""An abort that comes from Kafka while a tool runs or the model is waited for ends the run, in every framework."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from looping import POLICIES, Shelf

from streamguard.adapters import guarding
from streamguard.errors import RunAbortedError
from streamguard.events import Source
from streamguard.executor import LocalGuard
from streamguard.verdicts import Verdict


async def look(book: str) -> str:
    """Look for longer than any test may take."""
    await asyncio.sleep(600)
    return book


async def aborted_meanwhile(act: Callable[[], Awaitable[Any]]) -> None:
    """Run an agent that is aborted while it waits."""
    async with LocalGuard(POLICIES) as guard, guarding(guard.run()) as run:
        source = Source("agent.events", 0, 1, 1)
        verdict = Verdict(
            verdict_id="0-1-0", run_id=run.run_id, action="abort", detector="d", policy="p", source=source
        )
        asyncio.get_running_loop().call_later(0.1, run.heed, verdict)
        await act()


async def test_langchain() -> None:
    """A LangChain agent is ended."""
    import test_langchain as langchain
    from langchain_core.tools import StructuredTool

    tool = StructuredTool.from_function(coroutine=look, name="look")
    agent, _ = langchain.agent_of(langchain.look(1), tool)

    with pytest.raises(RunAbortedError):
        await aborted_meanwhile(lambda: agent.ainvoke(langchain.GO))


async def test_openai_agents() -> None:
    """A run of the OpenAI Agents SDK is ended, streamed or not."""
    import test_openai_agents as openai
    from agents import Runner, function_tool

    from streamguard.adapters.openai_agents import GuardedAgent

    agent: Any = GuardedAgent(name="reader", model=openai.look(1), tools=[function_tool(look)])

    with pytest.raises(RunAbortedError):
        await aborted_meanwhile(lambda: openai.run(agent))
    agent.model = openai.look(1)
    with pytest.raises(RunAbortedError):
        await aborted_meanwhile(lambda: openai.read(Runner.run_streamed(agent, "go", run_config=openai.QUIET)))


async def test_pydantic_ai() -> None:
    """A run of pydantic-ai is ended."""
    import test_pydantic_ai as pydantic_ai

    agent, _ = pydantic_ai.agent_of(pydantic_ai.look(1), look)

    with pytest.raises(RunAbortedError):
        await aborted_meanwhile(lambda: agent.run("go"))


async def test_claude_agent_sdk() -> None:
    """A session of the Claude Agent SDK is ended."""
    import test_claude_agent_sdk as claude

    class Slow(claude.Cli):
        async def _use(self, *_: Any) -> None:
            await look("a")

    with pytest.raises(RunAbortedError):
        await aborted_meanwhile(lambda: claude.session(Slow(Shelf(), ["a"])))
