"""A run against the guard in process: what is let go, refused, aborted, and what misuse is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from runs import POLICIES, by_the_rules, follow

from streamguard.demo.agents import KINDS, Kind
from streamguard.errors import (
    ExecutorOptionsError,
    MisuseError,
    NotPublishableError,
    NotStartedError,
    RunAbortedError,
    RunOverError,
    RunTakenError,
    UnknownCallError,
)
from streamguard.executor import ExecutorOptions, GuardClient, LocalGuard, Mode, Run
from streamguard.policy import PolicySet


@pytest.fixture
async def guard() -> AsyncIterator[LocalGuard]:
    """Give a test a guard of its own."""
    async with LocalGuard(PolicySet({"enabled": True, "warningThreshold": 2, "criticalThreshold": 3})) as guard:
        yield guard


async def call(run: Run, times: int, args: Any = None, result: Any = "same") -> list[str]:
    """Make the same call again and again, obeying; return what was decided each time."""
    decided: list[str] = []
    for _ in range(times):
        decision = await run.before_tool("read", args)
        decided.append(decision.action)
        await run.after_tool(decision, result=result)
    return decided


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
async def test_every_way_of_looping_ends(kind: Kind) -> None:
    """An agent that loops is blocked or aborted; a healthy one is neither."""
    outcome = await by_the_rules(kind, "1")

    assert kind.loops == (outcome.aborted or "block" in outcome.decisions)


@pytest.mark.parametrize(
    ("mode", "decided"), [("gate", "allow allow warn block block"), ("observe", "allow " * 4 + "allow")]
)
async def test_the_mode_says_what_is_obeyed(guard: LocalGuard, mode: Mode, decided: str) -> None:
    """`gate` obeys the verdict of each call; `observe` obeys nothing."""
    async with guard.run(mode=mode) as run:
        actions = await call(run, 5)

    assert decided.split() == actions


async def test_in_async_mode_a_block_holds_from_the_next_call(guard: LocalGuard) -> None:
    """The call that is blocked goes ahead; from the next one on it is refused at once, until it is lifted."""
    async with guard.run(mode="async") as run:
        before = await call(run, 5)
        await call(run, 1, args="other", result="other")
        after = await call(run, 1)
        other = await call(run, 1, args="another")

    assert ["allow", "allow", "allow", "allow", "block"] == before
    assert (["block"], ["allow"]) == (after, other)


async def test_the_guard_can_lift_a_standing_block() -> None:
    """A refused call is put before the guard all the same: once it says that such a call may go, the next one does."""
    window = PolicySet({"enabled": True, "historySize": 4, "warningThreshold": 2, "criticalThreshold": 3})
    async with LocalGuard(window) as small, small.run(mode="async") as run:
        blocked = (await call(run, 5))[-1]
        for number in range(4):
            await call(run, 1, args=number, result=number)  # the loop leaves the window
        refused, lifted = await call(run, 2)

    assert ("block", "block", "allow") == (blocked, refused, lifted)


async def test_warnings_are_there_for_the_model(guard: LocalGuard) -> None:
    """A warning comes with the decision, and can be asked for once."""
    async with guard.run() as run:
        await call(run, 2)
        decision = await run.before_tool("read")
        warnings = run.take_warnings()

    assert ("warn", [decision.message]) == (decision.action, warnings)
    assert [] == run.take_warnings()


@pytest.mark.parametrize("mode", ["gate", "async"])
async def test_an_abort_ends_the_run(guard: LocalGuard, mode: Mode) -> None:
    """After a compaction the same outcomes again: the run ends with the verdict, and refuses every later call."""
    run = guard.run(mode=mode)

    async def agent() -> None:
        async with run:
            await run.compacted()
            await call(run, 5)

    with pytest.raises(RunAbortedError, match="compaction_loop_persisted") as caught:
        await agent()

    assert "abort" == caught.value.verdict.action
    with pytest.raises(RunAbortedError):
        await run.before_tool("read")


async def test_an_abort_cancels_what_the_run_is_doing(guard: LocalGuard) -> None:
    """Whatever the run's task waits for is cancelled; the task itself ends with the abort, not as cancelled."""
    working = asyncio.Event()

    async def agent() -> None:
        async with guard.run("long", mode="async") as run:
            await run.compacted()
            await call(run, 2)
            decision = await run.before_tool("read")
            other = asyncio.create_task(run.after_tool(decision, result="same"))
            working.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.gather(other, return_exceptions=True)

    with pytest.raises(RunAbortedError):
        async with asyncio.timeout(10):
            await agent()

    assert working.is_set()


async def test_who_cancels_from_outside_is_not_taken_for_the_guard(guard: LocalGuard) -> None:
    """A run whose task somebody else cancels ends as cancelled."""

    async def agent() -> None:
        async with guard.run():
            await asyncio.Event().wait()

    task = asyncio.create_task(agent())
    await asyncio.sleep(0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_guarded_does_both(guard: LocalGuard) -> None:
    """The tool runs while it may, its errors are reported and raised; a blocked call gives the message instead."""
    ran = 0

    async def tool() -> str:
        nonlocal ran
        ran += 1
        return "same"

    async def broken() -> None:
        raise OSError("no such file")

    async with guard.run() as run:
        results = [await run.guarded("read", {}, tool) for _ in range(4)]
        with pytest.raises(OSError, match="no such file"):
            await run.guarded("write", {}, broken)

    assert ["same"] * 3 == results[:3]
    assert "is stopped" in results[3]
    assert 3 == ran


async def test_values_of_any_kind_are_published(guard: LocalGuard) -> None:
    """Models are published as they say themselves, other objects as their text; equal ones are equal calls."""

    class Model:
        def model_dump(self, *, mode: str) -> dict[str, str]:
            return {"path": "/a", "mode": mode}

    async with guard.run() as run:
        decided = [await call(run, 1, args=args) for args in (Model(), {"path": "/a", "mode": "json"}, Model())]

    assert [["allow"], ["allow"], ["warn"]] == decided


async def not_json(run: Run) -> None:
    """Give arguments that contain themselves."""
    args: list[Any] = []
    args.append(args)
    await run.before_tool("read", args)


async def no_name(run: Run) -> None:
    """Name no tool."""
    await run.before_tool("x" * 600)


async def no_call(run: Run) -> None:
    """Give a result without a call."""
    await run.after_tool("c7", result=1)


async def twice(run: Run) -> None:
    """Give a result twice."""
    decision = await run.before_tool("read")
    await run.after_tool(decision, result=1)
    await run.after_tool(decision, result=1)


async def taken(run: Run) -> None:
    """Begin a run whose id is taken."""
    async with run._link.run(run.run_id):  # type: ignore[attr-defined] # noqa: SLF001 - a second run of the same client
        pass


@pytest.mark.parametrize(
    ("misuse", "error", "said"),
    [
        (not_json, NotPublishableError, "cannot be written as JSON"),
        (no_name, NotPublishableError, "the guard would refuse this ToolCall"),
        (no_call, UnknownCallError, "has no call 'c7' that waits for its result: call before_tool first"),
        (twice, UnknownCallError, "after_tool once for each call"),
        (taken, RunTakenError, "each run needs an id of its own"),
    ],
)
async def test_misuse_is_told(
    guard: LocalGuard, misuse: Callable[[Run], Any], error: type[MisuseError], said: str
) -> None:
    """Each wrong use has an error of its own that says what to do; the run can go on."""
    async with guard.run() as run:
        with pytest.raises(error, match=said):
            await misuse(run)
        await call(run, 1)


async def test_a_run_is_used_within_its_context(guard: LocalGuard) -> None:
    """Before the context and after it every call says so."""
    run = guard.run()
    with pytest.raises(RunOverError, match="async with"):
        await run.before_tool("read")
    async with run:
        pass
    with pytest.raises(RunOverError, match="async with"):
        await run.compacted()


@pytest.mark.parametrize("guard_", [GuardClient(), LocalGuard()])
async def test_a_client_that_was_never_started_says_so(guard_: GuardClient | LocalGuard) -> None:
    """A run of a client outside of its context is an error that names the context."""
    with pytest.raises(NotStartedError, match="async with"):
        async with guard_.run():
            pass


async def test_no_argument_is_shown(guard: LocalGuard) -> None:
    """No decision carries the arguments or the result."""
    secret = {"token": "swordfish"}
    async with guard.run() as run:
        decisions = []
        for _ in range(4):
            decision = await run.before_tool("read", secret)
            await run.after_tool(decision, result=secret)
            decisions.append(decision)

    assert "swordfish" not in json.dumps([str(decision) for decision in decisions])


async def test_runs_of_many_agents_do_not_touch_each_other() -> None:
    """At once or one after the other, every run comes out the same."""
    async with LocalGuard(POLICIES) as guard:
        together = await asyncio.gather(
            *(follow(guard.run(kind.name, agent_id=kind.name), kind, "1") for kind in KINDS)
        )

    assert [await by_the_rules(kind, "1") for kind in KINDS] == together


def test_options_come_from_the_services_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka, topics and keys are those of the file and the variables; what is given here is laid over them."""
    file = tmp_path / "s.toml"
    file.write_text(
        "[kafka]\nbootstrap = 'a:1'\n[topics]\nevents = 'e'\n[signing]\nkey_id = 'one'\nkey = 'swordfish'\n"
    )
    monkeypatch.setenv("STREAMGUARD_KAFKA_BOOTSTRAP", "b:2")
    options = ExecutorOptions.load(file, gate_timeout=1.0, hash_key="swordfish")

    assert ("b:2", "e", "one", 1.0) == (
        options.kafka.bootstrap,
        options.topics.events,
        options.signing.key_id,
        options.gate_timeout,
    )
    assert "swordfish" not in repr(options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"fail": "close"}, "fail is 'close': allowed: open, closed"),
        ({"mode": "Gate"}, "mode is 'Gate': allowed: gate, async, observe"),
        ({"gate_timeout": None}, "gate_timeout is None"),
        ({"buffer_events": 0}, "buffer_events is 0"),
        ({"hash_key": 5}, r"hash_key is \*\*\*"),
    ],
)
def test_options_are_checked(options: dict[str, Any], said: str) -> None:
    """A value that is not allowed is an error where it is given: a misspelt `closed` must not fail open."""
    with pytest.raises(ExecutorOptionsError, match=said):
        ExecutorOptions(**options)


async def test_a_mode_that_does_not_exist_is_told(guard: LocalGuard) -> None:
    """A run's mode is checked like the options."""
    with pytest.raises(ExecutorOptionsError, match="mode is 'gated': allowed: gate, async, observe"):
        guard.run(mode="gated")  # type: ignore[arg-type]


async def test_an_abort_of_parallel_calls_is_one_error(guard: LocalGuard) -> None:
    """Calls made at once in a task group: the context raises the abort, no group of errors."""
    run = guard.run()

    async def agent() -> None:
        async with run:
            await run.compacted()
            await call(run, 2)
            async with asyncio.TaskGroup() as group:
                for _ in range(3):
                    group.create_task(call(run, 1))

    with pytest.raises(RunAbortedError):
        await agent()
    task = asyncio.current_task()

    assert task is not None
    assert 0 == task.cancelling()


async def test_a_swallowed_cancellation_ends_the_run_all_the_same(guard: LocalGuard) -> None:
    """Code that swallows the cancellation of an abort cannot go on as if nothing had been."""

    async def agent() -> None:
        async with guard.run(mode="async") as run:
            await run.compacted()
            await call(run, 2)
            decision = await run.before_tool("read")
            other = asyncio.create_task(run.after_tool(decision, result="same"))
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            await asyncio.gather(other, return_exceptions=True)

    with pytest.raises(RunAbortedError):
        await agent()
    task = asyncio.current_task()

    assert task is not None
    assert 0 == task.cancelling()


async def test_what_cannot_be_written_as_utf8_is_published(guard: LocalGuard) -> None:
    """Half a surrogate pair, as in names of files, is published as what the guard reads of it."""
    async with guard.run() as run:
        decided = await call(run, 3, result="file\udcff.txt")

    assert ["allow", "allow", "warn"] == decided


async def test_a_result_that_cannot_be_published_loses_nothing(guard: LocalGuard) -> None:
    """The tool has run: `guarded` returns its result, and `after_tool` can be called again with something else."""
    endless: list[Any] = []
    endless.append(endless)

    async def tool() -> list[Any]:
        return endless

    async with guard.run() as run:
        returned = await run.guarded("read", {}, tool)
        decision = await run.before_tool("write")
        with pytest.raises(NotPublishableError):
            await run.after_tool(decision, result=endless)
        await run.after_tool(decision, error="too much")

    assert returned is endless


async def test_observing_hands_out_no_warnings(guard: LocalGuard) -> None:
    """In observe mode nothing is put before the model."""
    async with guard.run(mode="observe") as run:
        await call(run, 5)

        assert [] == run.take_warnings()
