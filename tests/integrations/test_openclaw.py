"""The plugin of OpenClaw, in a bare host with the same API, and in OpenClaw's own loader and hook runner."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from claude_code_session import BEARER, PAYLOAD, hanging
from commands import environment, streamguard
from conftest import NEEDS_OPENCLAW
from openclaw_npm import CannotInstallError, install, node
from stub_gateway import StubGateway

pytestmark = pytest.mark.timeout(1200)  # the first one may have to download OpenClaw

HOST = Path(__file__).parent / "openclaw_host.mjs"
AWAY = "http://127.0.0.1:9"


class Said(NamedTuple):
    """What came of each step, and what was logged."""

    said: list[dict[str, Any]]
    logs: list[str]


class Host:
    """Runs steps in a host; a process of its own for each time."""

    def __init__(self, node: str, dist: str, folder: Path) -> None:
        self._command = [node, str(HOST), dist]
        self._folder = folder

    def run(self, url: str, steps: list[dict[str, Any]], **config: Any) -> Said:
        """Load the plugin, and take the steps."""
        plugin = streamguard("integrations", "openclaw").stdout.strip()
        done = subprocess.run(
            [*self._command, plugin, json.dumps({"url": url, **config})],
            input=json.dumps(steps),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env=environment(HOME=str(self._folder), OPENCLAW_STATE_DIR=str(self._folder / "state")),
        )
        assert 0 == done.returncode, done.stderr
        said = Said(**json.loads(done.stdout.splitlines()[-1]))
        assert PAYLOAD not in "".join(said.logs) + done.stderr
        assert BEARER not in "".join(said.logs) + done.stderr
        return said


@pytest.fixture(params=["bare", "openclaw"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Host:
    """Give a test a host."""
    try:
        path, version = node()
        if request.param == "bare":
            if version < (20, 0):
                raise CannotInstallError(f"Node 20 is needed, {path} is {version[0]}.{version[1]}")  # noqa: TRY301
            return Host(path, "bare", tmp_path)
        if not os.environ.get("STREAMGUARD_TEST_OPENCLAW"):
            pytest.skip(f"{NEEDS_OPENCLAW}: STREAMGUARD_TEST_OPENCLAW=1 downloads it, some 800 MB with its Node")
        installed = install()
    except CannotInstallError as error:
        pytest.skip(f"{NEEDS_OPENCLAW}: {error}" if request.param == "openclaw" else str(error))
    return Host(installed.node, str(installed.dist), tmp_path)


class Steps:
    """Makes steps of one run of an agent."""

    def __init__(self, run: str = "r1") -> None:
        self._run = run
        self._number = 0

    def call(self, path: str, times: int = 1, **changes: Any) -> list[dict[str, Any]]:
        """Call a tool again and again."""
        return [self._call(path, changes) for _ in range(times)]

    def _call(self, path: str, changes: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        call = {"toolName": "read", "runId": self._run, "toolCallId": f"{self._run}-{self._number}"}
        result = {"content": [{"type": "text", "text": "same"}], "details": {"text": PAYLOAD}}
        event = {**call, "params": {"path": path + PAYLOAD}}
        return {"hook": "call", "event": event, "ctx": {**self._session(), **call}, "result": result, **changes}

    def compact(self) -> list[dict[str, Any]]:
        """Compact the context, as OpenClaw tells of it in the midst of a run: by the session's key alone."""
        before = {"messageCount": 9, "tokenCount": 900, "messages": [PAYLOAD]}
        after = {"messageCount": 2, "tokenCount": 90, "compactedCount": 1}
        ctx = {"sessionKey": f"key-{self._run}"}
        return [
            {"hook": "before_compaction", "event": before, "ctx": ctx},
            {"hook": "after_compaction", "event": after, "ctx": ctx},
        ]

    def end(self, reason: str) -> list[dict[str, Any]]:
        """End the session."""
        session = self._session()
        event = {"sessionId": session["sessionId"], "messageCount": 9, "reason": reason}
        return [{"hook": "session_end", "event": event, "ctx": session}]

    def _session(self) -> dict[str, str]:
        return {"agentId": "main", "sessionId": f"session-{self._run}", "sessionKey": f"key-{self._run}"}


def test_a_run_that_loops_is_warned_blocked_and_stopped(host: Host) -> None:
    """A warning stands below the result, a block is the reason, and after the abort nothing of the run is asked."""
    one, other = Steps("r1"), Steps("r2")
    steps = [*one.call("a", 5), *one.compact(), *one.call("b", 6), *other.call("b")]
    with StubGateway() as gateway:
        said = [answer for answer in host.run(gateway.url, steps).said if answer]

    assert [False] * 3 + [True] * 2 + [False] * 3 + [True] * 3 + [False] == ["block" in answer for answer in said]
    assert "read was called 2 times" in said[2]["shown"][1]
    assert "read gave the same result 3 times" in said[3]["blockReason"]
    assert ["The run is stopped"] * 3 == [answer["blockReason"][-19:-1] for answer in said[8:11]]
    asked = [event["call_id"] for event in gateway.events() if event["type"] == "tool_call"]
    assert [f"r1-{number}" for number in range(1, 10)] + ["r2-1"] == asked


def test_the_guard_is_told_everything_in_order(host: Host) -> None:
    """Calls, results as they were before our warning, refused calls, the compaction and the end, in this order."""
    steps = Steps()
    failing = steps.call("e", error="no such file")
    with StubGateway() as gateway:
        host.run(gateway.url, [*failing, *steps.call("a", 4), *steps.compact(), *steps.end("daily")])

    scope = {"run_id": "r1", "agent_id": "main", "session_id": "session-r1"}
    result = {"content": [{"type": "text", "text": "same"}], "details": {"text": PAYLOAD}}
    assert [
        call(scope, 1, "e"), {"type": "tool_result", **scope, "call_id": "r1-1", "error": "no such file"},
        call(scope, 2, "a"), {"type": "tool_result", **scope, "call_id": "r1-2", "result": result},
        call(scope, 3, "a"), {"type": "tool_result", **scope, "call_id": "r1-3", "result": result},
        call(scope, 4, "a"), {"type": "tool_result", **scope, "call_id": "r1-4", "result": result},
        call(scope, 5, "a"), {"type": "tool_result", **scope, "call_id": "r1-5", "status": "blocked"},
        {"type": "compaction", "run_id": "r1", "tokens_before": 900, "tokens_after": 90},
        {"type": "run_ended", **scope, "reason": "daily"},
    ] == gateway.events()  # fmt: skip


def call(scope: dict[str, str], number: int, path: str) -> dict[str, Any]:
    """Return the event of a call."""
    call_id = f"{scope['run_id']}-{number}"
    return {"type": "tool_call", **scope, "call_id": call_id, "tool": "read", "args": {"path": path + PAYLOAD}}


def test_a_session_that_is_compacted_into_a_new_one_goes_on(host: Host) -> None:
    """The session's end is the run's end, except where the session only gets a new file."""
    steps = Steps()
    with StubGateway() as gateway:
        host.run(gateway.url, [*steps.call("a"), *steps.end("compaction"), *steps.call("a"), *steps.end("reset")])

    assert ["tool_call", "tool_result"] * 2 + ["run_ended"] == [event["type"] for event in gateway.events()]


def test_what_is_large_goes_as_its_hash(host: Host) -> None:
    """Arguments and results that Kafka would not take are sent as hashes."""
    large = {"content": [{"type": "text", "text": "x" * 90_000}] * 4, "details": {}}
    with StubGateway() as gateway:
        host.run(gateway.url, Steps().call("y" * 300_000, result=large))

    asked, result = gateway.events()
    assert (64, False) == (len(asked["args_hash"]), "args" in asked)
    assert (64, False) == (len(result["result_hash"]), "result" in result)


def test_the_token_is_sent(host: Host) -> None:
    """Every request carries the token."""
    with StubGateway() as gateway:
        host.run(gateway.url, Steps().call("a"), token=BEARER)

    assert [f"Bearer {BEARER}"] * 2 == [request.authorization for request in gateway.requests]


@pytest.mark.parametrize("status", [401, 500])
def test_a_gateway_that_refuses_is_told_once(host: Host, status: int) -> None:
    """The calls go ahead, and one line says what is the matter, without what was sent."""
    with StubGateway(refuses=status) as gateway:
        said = host.run(gateway.url, Steps().call("a", 3), token=BEARER)

    assert [True] * 3 == ["block" not in answer for answer in said.said]
    line = f"warn streamguard: the gateway refuses, status {status}; tool calls go ahead unguarded"
    assert [line] == [text for text in said.logs if "streamguard:" in text]


@pytest.mark.parametrize("trickle", [None, b"", b"H"])
def test_without_a_gateway_calls_go_ahead(host: Host, trickle: bytes | None) -> None:
    """Nobody listens, or never answers, or answers without end: the calls go ahead, and that is logged once."""
    with hanging(trickle) if trickle is not None else nobody() as url:
        said = host.run(url, [*Steps().call("a", 5), *Steps().compact()], timeoutMs=200)

    assert [True] * 5 == ["block" not in answer for answer in said.said if answer]
    assert 1 == len([text for text in said.logs if "does not answer" in text])


@contextmanager
def nobody() -> Iterator[str]:
    """Give an address where nobody listens."""
    yield AWAY


def test_the_command_line_says_where_the_plugin_is() -> None:
    """The folder has what `openclaw plugins install` looks for."""
    folder = Path(streamguard("integrations", "openclaw").stdout.strip())

    package = json.loads((folder / "package.json").read_text())
    manifest = json.loads((folder / "openclaw.plugin.json").read_text())
    assert ("streamguard", "object") == (manifest["id"], manifest["configSchema"]["type"])
    assert all((folder / entry).is_file() for entry in package["openclaw"]["extensions"])
