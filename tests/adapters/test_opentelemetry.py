"""Spans of the real OpenTelemetry SDK become events: calls are judged, whatever thread they are made in."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the OpenTelemetry SDK is not installed: 'streamguard[opentelemetry]'")

from looping import BLOCKED_AT, POLICIES, WARNED_AT, Shelf, readme
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Tracer

from streamguard.adapters import guarding
from streamguard.adapters.opentelemetry import WAITING, GuardSpanProcessor
from streamguard.executor import LocalGuard
from streamguard.policy import PolicySet

Counts = dict[str, int]

ABOUT = {
    "gen_ai.operation.name": "execute_tool",
    "gen_ai.tool.name": "look",
    "gen_ai.tool.call.arguments": '{"book": "a"}',
    "gen_ai.conversation.id": "c1",
}


def tracer_of(processor: GuardSpanProcessor) -> Tracer:
    """Return a tracer whose spans the processor sees."""
    provider = TracerProvider()
    provider.add_span_processor(processor)
    return provider.get_tracer("test")


def look(tracer: Tracer, times: int, result: str = "same", **more: str) -> None:
    """Make spans as an instrumentation does: the arguments at the start, the result at the end."""
    for number in range(times):
        about = {**ABOUT, "gen_ai.tool.call.id": f"t{number}", **more}
        with tracer.start_as_current_span("execute_tool look", attributes=about) as span:
            span.set_attribute("gen_ai.tool.call.result", result)


async def watched(act: Callable[[Tracer], Any], policies: PolicySet = POLICIES) -> tuple[Counts, Counts]:
    """Return what the guard counted, and the processor."""
    async with LocalGuard(policies) as guard:
        async with GuardSpanProcessor(guard) as processor:
            done = act(tracer_of(processor))
            if asyncio.iscoroutine(done):
                await done
        return dict(guard.counters), dict(processor.counters)


async def test_a_loop_is_judged_and_not_stopped() -> None:
    """Spans of a loop are warned of and blocked on the record; nothing else can be done about a span."""
    counted, _ = await watched(lambda tracer: look(tracer, BLOCKED_AT + 2))

    assert {"warn": 1, "block": 2} == counted


async def test_spans_come_from_any_thread() -> None:
    """Threads without an event loop make spans, too; none of them is lost."""

    async def act(tracer: Tracer) -> None:
        threads = [
            threading.Thread(target=look, args=(tracer, WARNED_AT + 1), kwargs={"gen_ai.conversation.id": f"c{number}"})
            for number in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)

    assert {"warn": 8} == (await watched(act))[0]


async def test_spans_without_a_conversation_are_a_run_by_their_trace() -> None:
    """Calls of one trace count together, calls of several do not."""

    def act(tracer: Tracer) -> None:
        for times in (WARNED_AT + 1, 1, 1, 1, 1):
            with tracer.start_as_current_span("invoke_agent"):
                for _ in range(times):
                    about = {key: value for key, value in ABOUT.items() if "conversation" not in key}
                    tracer.start_span("execute_tool look", attributes=about).end()

    assert {"warn": 1} == (await watched(act))[0]


async def test_what_a_span_above_says_holds_below() -> None:
    """The conversation and the agent are taken from the agent's span if the tool's has none."""

    def act(tracer: Tracer) -> None:
        about = {key: value for key, value in ABOUT.items() if "conversation" not in key}
        for _ in range(WARNED_AT + 1):
            agent = {"gen_ai.conversation.id": "c1", "gen_ai.agent.id": "careful"}
            with tracer.start_as_current_span("invoke_agent", attributes=agent):
                tracer.start_span("execute_tool look", attributes=about).end()

    policies = PolicySet({"enabled": False}, {"careful": POLICIES.block})

    assert {"warn": 1} == (await watched(act, policies))[0]


async def test_arguments_that_come_at_the_end_count() -> None:
    """Some instrumentations say all at the end of a span."""

    def act(tracer: Tracer) -> None:
        for _ in range(WARNED_AT + 1):
            with tracer.start_as_current_span("execute_tool look") as span:
                span.set_attributes(ABOUT)

    assert {"warn": 1} == (await watched(act))[0]


async def test_spans_without_arguments_are_left_out() -> None:
    """Calls whose arguments are not told would all look the same: they are counted, and not judged."""

    def act(tracer: Tracer) -> None:
        for _ in range(BLOCKED_AT + 1):
            tracer.start_span("execute_tool look", attributes={"gen_ai.tool.name": "look"}).end()

    assert ({}, {"without_arguments": BLOCKED_AT + 1}) == await watched(act)


async def test_an_exception_is_an_outcome() -> None:
    """A span that ends with an error tells a failure: the same one again and again is blocked on the record."""

    def act(tracer: Tracer) -> None:
        for _ in range(BLOCKED_AT + 1):
            try:
                with tracer.start_as_current_span("execute_tool look", attributes=ABOUT):
                    Shelf().look("none")
            except ValueError:
                pass

    assert {"warn": 1, "block": 1} == (await watched(act))[0]


async def test_a_compaction_is_told() -> None:
    """A span that says the conversation was compacted arms the guard."""

    def act(tracer: Tracer) -> None:
        with tracer.start_as_current_span("chat", attributes={"gen_ai.conversation.id": "c1"}) as span:
            span.set_attribute("gen_ai.conversation.compacted", value=True)
        look(tracer, 3)

    assert {"abort": 1} == (await watched(act))[0]


async def test_a_healthy_agent_is_let_alone() -> None:
    """Calls that differ bring no verdict."""

    def act(tracer: Tracer) -> None:
        for number in range(20):
            look(tracer, 1, **{"gen_ai.tool.call.arguments": f'{{"book": "{number}"}}'})

    assert ({}, {}) == await watched(act)


async def test_a_run_that_is_guarded_already_is_left_out() -> None:
    """Calls that an adapter asks about are not told a second time."""
    async with LocalGuard(POLICIES) as guard, guarding(guard.run("c1")), GuardSpanProcessor(guard) as processor:
        look(tracer_of(processor), BLOCKED_AT + 1)

    assert {} == dict(guard.counters)


async def test_more_than_can_wait_is_dropped() -> None:
    """While the event loop is busy spans wait, up to a limit; the agent never does."""

    def act(tracer: Tracer) -> None:
        look(tracer, WAITING // 2 + 5)

    assert {"dropped": 10} == (await watched(act, PolicySet({"enabled": False})))[1]


async def test_nothing_happens_outside_of_the_processor() -> None:
    """Spans before and after are not taken, and do no harm."""
    async with LocalGuard(POLICIES) as guard:
        processor = GuardSpanProcessor(guard)
        tracer = tracer_of(processor)
        look(tracer, BLOCKED_AT + 1)
        async with processor:
            pass
        look(tracer, BLOCKED_AT + 1)

    assert ({}, True) == (dict(guard.counters), processor.force_flush())


async def test_an_instrumented_agent_is_judged() -> None:
    """The spans of a real agent loop (pydantic-ai's) are read as they are."""
    pydantic_ai = pytest.importorskip("pydantic_ai", reason="pydantic-ai is not installed")
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel
    from pydantic_ai.models.instrumented import InstrumentationSettings

    turns = iter(range(WARNED_AT + 1))

    def answer(*_: Any) -> Any:
        number = next(turns, None)
        part = TextPart("done") if number is None else ToolCallPart("look", {"book": "a"}, f"t{number}")
        return ModelResponse(parts=[part])

    async def act(processor: GuardSpanProcessor) -> None:
        provider = TracerProvider()
        provider.add_span_processor(processor)
        settings = InstrumentationSettings(tracer_provider=provider)
        agent = pydantic_ai.Agent(FunctionModel(answer), tools=[Shelf().look])
        agent.instrument = settings
        await agent.run("go")

    async with LocalGuard(POLICIES) as guard, GuardSpanProcessor(guard) as processor:
        await act(processor)

    assert ({"warn": 1}, {}) == (dict(guard.counters), dict(processor.counters))


async def test_the_readme_works(repository: Path) -> None:
    """The README's code observes as it stands there."""
    code = readme(repository, "opentelemetry")

    async def serve() -> None:
        look(code["provider"].get_tracer("test"), BLOCKED_AT + 1)

    async with LocalGuard(POLICIES) as guard:
        await code["observe"](guard, serve)

    assert {"warn": 1, "block": 1} == dict(guard.counters)
