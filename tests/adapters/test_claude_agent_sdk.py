"""The Claude Agent SDK's own client and hooks, on a transport that plays a CLI whose model loops."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

pytest.importorskip("claude_agent_sdk", reason="the Claude Agent SDK is not installed: 'streamguard[claude-agent-sdk]'")

from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, HookMatcher, ResultMessage, Transport
from looping import BLOCKED_AT, POLICIES, WARNED_AT, Shelf, compacted, readme

from streamguard.adapters import guarding
from streamguard.adapters.claude_agent_sdk import guarded_options
from streamguard.errors import RunAbortedError, RunOverError
from streamguard.executor import LocalGuard

Books = list[str]


class Cli(Transport):
    """What Claude Code does as far as hooks go: ask before a tool, tell after it, and obey what it is answered."""

    def __init__(self, shelf: Shelf, books: Books, compact_before: int | None = None) -> None:
        self.shelf = shelf
        self.books = books
        self.compact_before = compact_before
        self.read: list[str] = []  # what the model reads after each call
        self.stopped: str | None = None
        self.hooks: dict[str, list[str]] = {}
        self._out, self._messages = anyio.create_memory_object_stream[dict[str, Any]](100)
        self._answers, self._answered = anyio.create_memory_object_stream[dict[str, Any]](100)
        self._prompted = anyio.Event()
        self._asked = 0

    async def connect(self) -> None:
        """Nothing to connect to."""

    def is_ready(self) -> bool:
        """Tell that it is there."""
        return True

    async def end_input(self) -> None:
        """Nothing comes after the prompt."""

    async def close(self) -> None:
        """Close what the SDK reads from."""
        for stream in (self._out, self._messages, self._answers, self._answered):
            stream.close()

    async def write(self, data: str) -> None:
        """Take what the SDK says."""
        said = json.loads(data)
        if said["type"] == "control_request":
            if said["request"]["subtype"] == "initialize":
                for event, matchers in said["request"]["hooks"].items():
                    self.hooks[event] = [hook for matcher in matchers for hook in matcher["hookCallbackIds"]]
            done = {"subtype": "success", "request_id": said["request_id"], "response": {}}
            await self._out.send({"type": "control_response", "response": done})
        elif said["type"] == "control_response":
            await self._answers.send(said["response"])
        else:
            self._prompted.set()

    async def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        """Say what the CLI says."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._play)
            async for message in self._messages:
                yield message
            tasks.cancel_scope.cancel()

    async def _play(self) -> None:
        await self._prompted.wait()
        for number, book in enumerate(self.books):
            if number == self.compact_before:
                await self._hook("PreCompact", trigger="auto", custom_instructions=None)
            await self._use(number, book)
            if self.stopped is not None:
                break
        result = {"type": "result", "subtype": "success", "is_error": False, "session_id": "s", "result": "done"}
        await self._out.send({**result, "duration_ms": 1, "duration_api_ms": 1, "num_turns": 1, "total_cost_usd": 0.0})

    async def _use(self, number: int, book: str) -> None:
        about = {"tool_name": "Look", "tool_input": {"book": book}, "tool_use_id": f"toolu_{number}"}
        asked = await self._hook("PreToolUse", **about)
        said = asked.get("hookSpecificOutput", {})
        if said.get("permissionDecision") == "deny":
            self.read.append(said["permissionDecisionReason"])
            return
        try:
            page = self.shelf.look(book)
        except ValueError as error:
            page, told = str(error), await self._hook("PostToolUseFailure", **about, error=str(error))
        else:
            response = {"text": page, "durationMs": number}
            told = await self._hook("PostToolUse", **about, tool_response=response)
        self.read.append(page + told.get("hookSpecificOutput", {}).get("additionalContext", ""))

    async def _hook(self, event: str, **fields: Any) -> dict[str, Any]:
        answer: dict[str, Any] = {}
        for callback in self.hooks.get(event, []):
            self._asked += 1
            request = {
                "subtype": "hook_callback",
                "callback_id": callback,
                "input": {"hook_event_name": event, "session_id": "s", "transcript_path": "-", "cwd": "/", **fields},
                "tool_use_id": fields.get("tool_use_id"),
            }
            await self._out.send({"type": "control_request", "request_id": f"r{self._asked}", "request": request})
            reply = await self._answered.receive()
            assert "success" == reply["subtype"]
            answer |= reply["response"]
        if answer.get("continue") is False:
            self.stopped = answer["stopReason"]
        return answer


async def session(cli: Cli, options: ClaudeAgentOptions | None = None) -> list[Any]:
    """Run a session to its end; return what the SDK hands out."""
    messages: list[Any] = []
    async with ClaudeSDKClient(guarded_options(options), transport=cli) as client:
        await client.query("go")
        messages.extend([message async for message in client.receive_response()])
    return messages


async def test_a_warning_reaches_the_model() -> None:
    """A model that repeats itself reads the warning after the result of the call it is about."""
    cli = Cli(Shelf(), ["a"] * (WARNED_AT + 1))

    async with LocalGuard(POLICIES) as guard, guarding(guard.run()):
        await session(cli)

    assert [False] * WARNED_AT + [True] == ["look was called" in text for text in cli.read]


async def test_a_blocked_call_does_not_run() -> None:
    """From the critical threshold on calls are denied, and the model reads why; how long a tool took does not count."""
    cli = Cli(Shelf(), ["a"] * (BLOCKED_AT + 3))

    async with LocalGuard(POLICIES) as guard, guarding(guard.run()):
        messages = await session(cli)

    blocked = ["This call is stopped" in text for text in cli.read]
    assert ([False] * BLOCKED_AT + [True] * 3, BLOCKED_AT) == (blocked, cli.shelf.looked)
    assert isinstance(messages[-1], ResultMessage)


async def test_an_abort_stops_the_session() -> None:
    """Three equal outcomes after a compaction stop the CLI, and raise RunAbortedError."""
    cli = Cli(Shelf(), ["a"] * 20)

    with pytest.raises(RunAbortedError) as aborted:
        async with compacted():
            await session(cli)

    assert ("compaction_loop_persisted", 3) == (aborted.value.verdict.detector, cli.shelf.looked)


async def test_an_abort_tells_the_cli_to_stop() -> None:
    """The hook that brings the abort says stop, and so does every later one, which denies its call."""
    answers: list[Any] = []

    async def play() -> None:
        hooks: Any = guarded_options().hooks
        about = {"tool_name": "Look", "tool_input": {}, "tool_response": "same"}
        for number in range(4):
            answers.append(await hooks["PreToolUse"][0].hooks[0](about, f"t{number}", {}))
            answers.append(await hooks["PostToolUse"][0].hooks[0](about, f"t{number}", {}))

    with pytest.raises(RunAbortedError):
        async with compacted():
            await play()

    assert [{}] * 5 == answers[:5]
    assert [False, False] == [answer["continue_"] for answer in answers[5:7]]
    assert "deny" == answers[6]["hookSpecificOutput"]["permissionDecision"]


async def test_a_compaction_is_told() -> None:
    """PreCompact arms the guard: a loop that goes on after it is ended."""
    cli = Cli(Shelf(), ["a"] * 20, compact_before=2)

    with pytest.raises(RunAbortedError):
        async with LocalGuard() as guard, guarding(guard.run()):
            await session(cli)

    assert 5 == cli.shelf.looked


async def test_a_healthy_session_is_let_alone() -> None:
    """Calls that differ are neither warned of nor blocked, and one that fails is told as such."""
    cli = Cli(Shelf(), [*map(str, range(10)), "none"])

    async with LocalGuard(POLICIES) as guard, guarding(guard.run()):
        await session(cli)

    assert ({"allow": 11}, "no such book") == (dict(guard.counters), cli.read[-1])


async def test_hooks_that_are_there_stay() -> None:
    """The guard's hooks come beside those of the user."""
    seen: list[str] = []

    async def note(event: Any, *_: Any) -> Any:
        seen.append(event["hook_event_name"])
        return {}

    options = ClaudeAgentOptions(hooks={"PreToolUse": [HookMatcher(hooks=[note])]})

    async with LocalGuard(POLICIES) as guard, guarding(guard.run()):
        await session(Cli(Shelf(), ["a"]), options)

    assert (["PreToolUse"], 1, {"allow": 1}) == (seen, len(options.hooks or {}), dict(guard.counters))


async def test_a_session_that_outlives_its_run_is_denied() -> None:
    """Without a run nothing may be used: what nobody guards does not run."""
    async with LocalGuard(POLICIES) as guard, guarding(guard.run()):
        hooks: Any = guarded_options().hooks

    answer = await hooks["PreToolUse"][0].hooks[0]({"tool_name": "Look", "tool_input": {}}, "t", {})

    assert "deny" == answer["hookSpecificOutput"]["permissionDecision"]


async def test_options_outside_of_a_run_are_refused() -> None:
    """Options are guarded for a run: without one they are not made."""
    with pytest.raises(RunOverError, match="guarding"):
        guarded_options()


async def test_the_readme_works(repository: Path) -> None:
    """The README's code guards a session as it stands there."""
    cli = Cli(Shelf(), ["a"] * (BLOCKED_AT + 1))
    code = readme(repository, "claude_agent_sdk")
    code["ClaudeSDKClient"] = partial(ClaudeSDKClient, transport=cli)

    async with LocalGuard(POLICIES) as guard:
        await code["ask"](guard, "go")

    assert (BLOCKED_AT, 1) == (cli.shelf.looked, guard.counters["refused"])
