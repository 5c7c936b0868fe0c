"""The OpenAI Agents SDK's own loop, with a model that loops: warned, blocked, aborted."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path
from typing import Any

import pytest

agents = pytest.importorskip("agents", reason="the OpenAI Agents SDK is not installed: streamguard[openai-agents]")

from agents import Agent, RunConfig, RunContextWrapper, Runner, ToolOutputText, UserError, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call
from looping import BLOCKED_AT, POLICIES, WARNED_AT, Shelf, compacted, readme
from mcp_shelf import ShelfServer
from openai.types.responses import ResponseCompactionItem

from streamguard.adapters import guarding
from streamguard.adapters.openai_agents import CompactionHooks, GuardedAgent, guarded_tool
from streamguard.errors import RunAbortedError, RunOverError
from streamguard.executor import LocalGuard

PAGE = {"type": "object", "properties": {"page": {"type": "string"}}, "required": ["page"]}
QUIET = RunConfig(tracing_disabled=True)


def look(times: int, book: str = "a", calls: int = 1, tool: str = "look") -> ScriptedModel:
    """Look at the same book, so many turns, with so many calls each; then be done."""
    turns: list[Any] = [
        [
            function_call(tool, {"book": book.format(turn=turn, number=number)}, call_id=f"t{turn}-{number}")
            for number in range(calls)
        ]
        for turn in range(times)
    ]
    return ScriptedModel([*turns, [assistant_message("done")]])


def agent_of(model: ScriptedModel, shelf: Shelf, **more: Any) -> GuardedAgent[Any]:
    """Return a guarded agent."""

    @function_tool
    def look(book: str) -> str:
        return shelf.look(book)

    return GuardedAgent(name="reader", model=model, tools=[look], **more)


def results(items: Any) -> list[str]:
    """Return the results of tools among a model's input."""
    return [str(item["output"]) for item in items if item.get("type") == "function_call_output"]


async def run(agent: Agent[Any], **more: Any) -> Any:
    """Run an agent to its end."""
    return await Runner.run(agent, "go", max_turns=40, run_config=more.pop("run_config", QUIET), **more)


async def test_a_warning_reaches_the_model() -> None:
    """A model that repeats itself reads the warning after the result of the call it is about."""
    model = look(WARNED_AT + 1)

    async with LocalGuard(POLICIES) as guard, guarding(guard.run()):
        await run(agent_of(model, Shelf()))

    seen = results(model.calls[-1].input)
    assert [False] * WARNED_AT + [True] == ["look was called" in text for text in seen]
    assert seen[-1].startswith("page one of a")


async def test_a_blocked_call_does_not_run() -> None:
    """From the critical threshold on the tool is left alone, and the model reads why as the tool's result."""
    shelf, model = Shelf(), look(BLOCKED_AT + 3)

    async with LocalGuard(POLICIES) as guard, guarding(guard.run()):
        answer = await run(agent_of(model, shelf))

    blocked = ["This call is stopped" in text for text in results(model.calls[-1].input)]
    assert ([False] * BLOCKED_AT + [True] * 3, BLOCKED_AT) == (blocked, shelf.looked)
    assert "done" == answer.final_output


async def test_a_blocked_call_of_a_tool_with_a_schema_is_an_object() -> None:
    """A tool that promises an object gives one when it is blocked, too: {"error": why}."""
    shelf, model = Shelf(), look(BLOCKED_AT + 1)

    @function_tool(output_json_schema=PAGE)
    def look_up(book: str) -> dict[str, str]:
        return {"page": shelf.look(book)}

    look_up.name = "look"
    async with LocalGuard(POLICIES) as guard, guarding(guard.run()):
        await run(GuardedAgent.of(Agent(name="reader", model=model, tools=[look_up])))

    blocked = ast.literal_eval(results(model.calls[-1].input)[-1])
    assert (BLOCKED_AT, ["error"]) == (shelf.looked, list(blocked))


async def test_an_abort_ends_the_run() -> None:
    """Three equal outcomes after a compaction raise RunAbortedError, and the model is not asked again."""
    shelf, model = Shelf(), look(20)

    with pytest.raises(RunAbortedError) as aborted:
        async with compacted():
            await run(agent_of(model, shelf))

    assert ("compaction_loop_persisted", 3, 3) == (aborted.value.verdict.detector, shelf.looked, len(model.calls))


async def test_an_abort_among_parallel_calls_ends_the_run() -> None:
    """It does not matter which of several calls at once brings the abort."""
    shelf, model = Shelf(), look(20, calls=3)

    with pytest.raises(RunAbortedError):
        async with compacted():
            await run(agent_of(model, shelf))

    assert (3, 1) == (shelf.looked, len(model.calls))


async def test_an_abort_ends_the_run_of_another_task() -> None:
    """A run that goes on in a task of its own ends, too, and whoever entered the context gets the RunAbortedError."""
    shelf = Shelf()

    with pytest.raises(RunAbortedError):
        async with compacted():
            await asyncio.create_task(run(agent_of(look(20), shelf)))

    assert 3 == shelf.looked


async def test_an_abort_ends_a_streamed_run() -> None:
    """A streamed run is ended as any other."""
    shelf = Shelf()

    with pytest.raises(RunAbortedError):
        async with compacted():
            await read(Runner.run_streamed(agent_of(look(20), shelf), "go", max_turns=40, run_config=QUIET))

    assert 3 == shelf.looked


async def read(streamed: Any) -> None:
    """Read a streamed run to its end."""
    async for _ in streamed.stream_events():
        pass


async def test_a_healthy_agent_is_let_alone() -> None:
    """Calls that differ are neither warned of nor blocked, though some are made at once."""
    shelf, model = Shelf(), look(5, "{turn}-{number}", calls=3)

    async with LocalGuard(POLICIES) as guard, guarding(guard.run()):
        answer = await run(agent_of(model, shelf))

    assert (15, {"allow": 15}, "done") == (shelf.looked, dict(guard.counters), answer.final_output)


async def test_a_compaction_by_the_provider_is_told() -> None:
    """A compaction item in a response arms the guard: a loop that goes on after it is ended."""
    item = ResponseCompactionItem(id="c", encrypted_content="-", type="compaction")
    turns: list[Any] = [[function_call("look", {"book": "a"}, call_id=f"t{turn}")] for turn in range(20)]
    turns[2] = [item, *turns[2]]
    model, shelf = ScriptedModel(turns), Shelf()

    with pytest.raises(RunAbortedError):
        async with LocalGuard() as guard, guarding(guard.run()):
            await run(agent_of(model, shelf), hooks=CompactionHooks())

    assert 5 == shelf.looked


async def test_agents_handed_off_to_and_agents_as_tools_are_guarded() -> None:
    """Every GuardedAgent of a run counts for that run."""
    shelf = Shelf()
    inner = agent_of(look(2), shelf)
    handed: Agent[Any] = agent_of(look(1), shelf, handoff_description="-")
    handed.name = "second"
    first: GuardedAgent[Any] = GuardedAgent(
        name="first",
        model=ScriptedModel(
            [
                [function_call("inner", {"input": "go"}, call_id="i")],
                [function_call("transfer_to_second", {}, call_id="h")],
            ]
        ),
        tools=[inner.as_tool("inner", "-")],
        handoffs=[handed],
    )

    async with LocalGuard(POLICIES) as guard, guarding(guard.run()):
        answer = await run(first)

    assert ({"allow": 4}, 3, "done") == (dict(guard.counters), shelf.looked, answer.final_output)


async def test_an_agent_can_be_guarded_afterwards() -> None:
    """GuardedAgent.of makes an agent that was there already a guarded one; twice guarded is asked about once."""
    shelf = Shelf()

    @function_tool
    def look_twice(book: str) -> str:
        return shelf.look(book)

    plain = Agent(name="reader", model=look(2, tool="look_twice"), tools=[guarded_tool(look_twice)])

    async with LocalGuard(POLICIES) as guard, guarding(guard.run()):
        await run(GuardedAgent.of(plain))

    assert ({"allow": 2}, 2) == (dict(guard.counters), shelf.looked)


async def test_a_failing_tool_fails_as_ever() -> None:
    """What a tool raises ends the run if the tool is made so, and is the model's to read otherwise."""
    shelf = Shelf()

    @function_tool(failure_error_function=None)
    def look_hard(book: str) -> str:
        return shelf.look(book)

    soft, hard = look(1, "none"), look(1, "none", tool="look_hard")
    async with LocalGuard(POLICIES) as guard, guarding(guard.run()):
        await run(agent_of(soft, shelf))
        with pytest.raises(UserError, match="no such book"):
            await run(GuardedAgent(name="hard", model=hard, tools=[look_hard]))

    assert "An error occurred" in results(soft.calls[-1].input)[0]


async def test_a_timeout_is_a_failure() -> None:
    """A tool that is cancelled for its timeout has an outcome: a loop of timeouts is blocked."""

    @function_tool(timeout=0.01)
    async def sleep(book: str) -> str:  # noqa: ARG001 - as look
        await asyncio.sleep(60)
        return "never"

    model = look(BLOCKED_AT + 1, tool="sleep")

    async with LocalGuard(POLICIES) as guard, guarding(guard.run()):
        await run(GuardedAgent(name="sleeper", model=model, tools=[sleep]))

    assert (1, True) == (guard.counters["refused"], "stopped" in results(model.calls[-1].input)[-1])


async def test_structured_outputs_stay_structured() -> None:
    """A warning is one more text among the parts of an output."""

    @function_tool
    def see(book: str) -> list[ToolOutputText]:
        return [ToolOutputText(text=book)]

    model = look(WARNED_AT + 1, tool="see")

    async with LocalGuard(POLICIES) as guard, guarding(guard.run()):
        await run(GuardedAgent(name="seer", model=model, tools=[see]))

    given: Any = model.calls[-1].input
    parts = given[-1]["output"]
    assert ["input_text", "input_text"] == [part["type"] for part in parts]


async def test_an_agent_outside_of_a_run_is_refused() -> None:
    """A guarded agent that is called without a run does nothing, and says what is missing."""
    with pytest.raises(UserError, match="guarding") as refused:
        await run(agent_of(look(1), Shelf()))

    assert isinstance(refused.value.__cause__, RunOverError)


async def test_the_context_that_a_tool_wants_is_the_context_it_gets() -> None:
    """A tool that asks for the run's context gets it through the guard."""

    @function_tool
    def whose(context: RunContextWrapper[str], book: str) -> str:
        return f"{context.context}'s {book}"

    model = look(1, tool="whose")

    async with LocalGuard(POLICIES) as guard, guarding(guard.run()):
        await run(GuardedAgent[str](name="reader", model=model, tools=[whose]), context="Ann")

    assert ["Ann's a"] == results(model.calls[-1].input)


async def test_tools_of_mcp_servers_are_guarded() -> None:
    """Tools that the SDK calls on an MCP server are asked about as any other."""
    shelf, model = Shelf(), look(BLOCKED_AT + 1)
    agent: GuardedAgent[Any] = GuardedAgent(name="reader", model=model, mcp_servers=[ShelfServer(shelf)])

    async with LocalGuard(POLICIES) as guard, guarding(guard.run()):
        await run(agent)

    assert (BLOCKED_AT, 1) == (shelf.looked, guard.counters["refused"])
    assert any("look was called" in text for text in results(model.calls[-1].input))


async def test_the_readme_works(repository: Path) -> None:
    """The README's code guards an agent as it stands there."""
    shelf = Shelf()
    agents.set_tracing_disabled(disabled=True)

    @function_tool(name_override="look")
    def turn_to(book: str) -> str:
        return shelf.look(book)

    code = readme(repository, "openai_agents", model=look(BLOCKED_AT + 1), tools=[turn_to])

    async with LocalGuard(POLICIES) as guard:
        await code["ask"](guard, "go")

    assert (BLOCKED_AT, 1) == (shelf.looked, guard.counters["refused"])
