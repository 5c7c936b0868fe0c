"""The hook of Claude Code, as Claude Code runs it: a process for each event, JSON in and out."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trustme
from claude_code_session import BEARER, CALL, PAYLOAD, Session, hanging, hook
from commands import streamguard
from stub_gateway import StubGateway


def test_a_session_that_loops_is_warned_denied_and_stopped() -> None:
    """Allowed calls get no answer, a warning is context, a block a denial; the loop after a compaction is stopped."""
    with StubGateway() as gateway:
        session = Session(gateway.url)
        first = [session.call("a") for _ in range(4)]
        session.compact()
        then = [session.call("b") for _ in range(4)]

    assert [{}, {}] == first[:2]
    warned, denied = first[2]["hookSpecificOutput"], first[3]["hookSpecificOutput"]
    assert {"hookEventName", "additionalContext"} == warned.keys()
    assert "read was called 2 times" in warned["additionalContext"]
    assert ("PreToolUse", "deny") == (denied["hookEventName"], denied["permissionDecision"])
    assert "read gave the same result 3 times" in denied["permissionDecisionReason"]
    assert [{}, {}] == then[:2]
    assert (False, "deny") == (then[3]["continue"], then[3]["hookSpecificOutput"]["permissionDecision"])
    assert "The run is stopped" in then[3]["stopReason"]


def test_a_blocked_call_is_reported_as_blocked() -> None:
    """The guard is told that the call was not made."""
    with StubGateway() as gateway:
        session = Session(gateway.url)
        for _ in range(4):
            session.call("a")

    scope = {"run_id": "s1", "agent_id": "claude-code", "session_id": "s1"}
    assert {"type": "tool_result", **scope, "call_id": "toolu_4", "status": "blocked"} == gateway.events()[-1]


@pytest.mark.parametrize(
    ("told", "path", "event"),
    [
        (
            {"hook_event_name": "PreToolUse", "tool_use_id": "t", "tool_name": "Bash",
             "tool_input": {"command": "ls", "description": "List files"}},
            "/v1/gate", {"type": "tool_call", "call_id": "t", "tool": "Bash", "args": {"command": "ls"}},
        ),
        (
            {"hook_event_name": "PostToolUse", "tool_use_id": "t", **CALL,
             "tool_response": {"filenames": ["a"], "durationMs": 7}},
            "/v1/events?ack=0", {"type": "tool_result", "call_id": "t", "result": {"filenames": ["a"]}},
        ),
        (
            {"hook_event_name": "PostToolUseFailure", "tool_use_id": "t", **CALL, "error": "Exit code 1"},
            "/v1/events?ack=0", {"type": "tool_result", "call_id": "t", "error": "Exit code 1"},
        ),
        (
            {"hook_event_name": "PostToolUseFailure", "tool_use_id": "t", **CALL, "error": "no", "is_interrupt": True},
            "/v1/events?ack=0", {"type": "tool_result", "call_id": "t"},
        ),
        (
            {"hook_event_name": "PreCompact", "trigger": "auto", "custom_instructions": PAYLOAD},
            "/v1/events?ack=0", {"type": "compaction", "trigger": "auto"},
        ),
        (
            {"hook_event_name": "SessionEnd", "reason": "clear"},
            "/v1/events?ack=0", {"type": "run_ended", "reason": "clear"},
        ),
    ],
)  # fmt: skip
def test_each_event_of_the_contract_comes_from_its_hook(told: dict[str, Any], path: str, event: dict[str, Any]) -> None:
    """What the guard needs is sent, and nothing else: no remark of the model, no duration, no instructions."""
    with StubGateway() as gateway:
        done = hook(gateway.url, {"transcript_path": PAYLOAD, "cwd": PAYLOAD, **told})

    scope = {"run_id": "s1", "agent_id": "claude-code", "session_id": "s1"}
    assert (0, "", "") == (done.returncode, done.stdout, done.stderr)
    assert [(path, [scope | event])] == [(request.path, request.events) for request in gateway.requests]


@pytest.mark.parametrize(
    ("arguments", "told", "scope"),
    [
        ((), {"agent_id": "a7", "agent_type": "Explore"},
         {"run_id": "s1/a7", "agent_id": "Explore", "root_run_id": "s1", "parent_run_id": "s1", "session_id": "s1"}),
        ((), {"agent_type": "reviewer"}, {"run_id": "s1", "agent_id": "reviewer", "session_id": "s1"}),
        (("--agent", "mine"), {"agent_type": "reviewer"}, {"run_id": "s1", "agent_id": "mine", "session_id": "s1"}),
        (("--agent=mine",), {}, {"run_id": "s1", "agent_id": "mine", "session_id": "s1"}),
    ],
)  # fmt: skip
def test_a_sub_agent_has_a_run_of_its_own(
    arguments: tuple[str, ...], told: dict[str, Any], scope: dict[str, Any]
) -> None:
    """A sub-agent's run lies below the session's; the policy is that of --agent, else of the agent's type."""
    with StubGateway() as gateway:
        hook(gateway.url, {"hook_event_name": "SessionEnd", **told}, *arguments)

    assert [{"type": "run_ended", **scope}] == gateway.events()


def test_what_is_large_goes_as_its_hash() -> None:
    """Arguments and results that Kafka would not take are sent as hashes: equal ones stay equal."""
    large = {"tool_use_id": "t", "tool_name": "Write", "tool_input": {"content": "x" * 300_000}}
    with StubGateway() as gateway:
        for name in ("PreToolUse", "PostToolUse", "PreToolUse"):
            hook(gateway.url, {"hook_event_name": name, **large, "tool_response": "y" * 300_000})

    call, result, again = gateway.events()
    assert (64, 64) == (len(call["args_hash"]), len(result["result_hash"]))
    assert (call["args_hash"], False, False) == (again["args_hash"], "args" in call, "result" in result)


def test_the_token_is_sent() -> None:
    """The token goes in the Authorization header, and --url wins over the variable."""
    with StubGateway() as gateway:
        hook("http://127.0.0.1:1", {"hook_event_name": "SessionEnd"}, "--url", gateway.url, token=BEARER)

    assert ["Bearer the-token"] == [request.authorization for request in gateway.requests]


def test_answers_that_come_in_chunks_are_read() -> None:
    """A proxy between the hook and the gateway may send them so."""
    with StubGateway(chunked=True) as gateway:
        session = Session(gateway.url)
        answers = [session.call("a") for _ in range(4)]

    assert "deny" == answers[3]["hookSpecificOutput"]["permissionDecision"]


@pytest.mark.parametrize(("trusted", "asked"), [(True, 1), (False, 0)])
def test_over_https_the_gateway_must_be_trusted(tmp_path: Path, *, trusted: bool, asked: int) -> None:
    """A certificate that is not trusted gets no token: that is as if nobody answered."""
    authority = trustme.CA()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    file = tmp_path / "ca.pem"
    (authority if trusted else trustme.CA()).cert_pem.write_to_path(str(file))
    with StubGateway(tls=tls) as gateway:
        done = hook(gateway.url, {"hook_event_name": "SessionEnd"}, token=BEARER, SSL_CERT_FILE=str(file))

    assert (0, "", "", asked) == (done.returncode, done.stdout, done.stderr, len(gateway.requests))


@pytest.mark.parametrize("name", ["PreToolUse", "PostToolUse", "PreCompact"])
def test_without_a_gateway_the_hook_says_nothing(name: str) -> None:
    """Nobody listens there: the tool runs, and nobody is bothered."""
    done = hook("http://127.0.0.1:1", {"hook_event_name": name, "tool_use_id": "t", **CALL})

    assert (0, "", "") == (done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("trickle", [b"", b"H"])
def test_a_gateway_that_hangs_is_given_up(trickle: bytes) -> None:
    """It accepts and never answers, or answers a byte at a time without end: the tool runs all the same."""
    with hanging(trickle) as url:
        done = hook(url, {"hook_event_name": "PreToolUse", "tool_use_id": "t", **CALL})

    assert (0, "", "") == (done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(("status", "code"), [(500, 0), (503, 0), (429, 0), (401, 1), (404, 1), (413, 1)])
def test_a_gateway_that_refuses_lets_the_tool_run(status: int, code: int) -> None:
    """What passes is not worth a word; what somebody has to mend is one line, without what was sent. Never exit 2."""
    with StubGateway(refuses=status) as gateway:
        done = hook(gateway.url, {"hook_event_name": "PreToolUse", "tool_use_id": "t", **CALL}, token=BEARER)

    assert (code, "", code) == (done.returncode, done.stdout, len(done.stderr.splitlines()))


@pytest.mark.parametrize(
    "text",
    [
        "", PAYLOAD, f'["{PAYLOAD}"]', "[" * 100_000, "\x00", '"\\ud800"',
        json.dumps({"hook_event_name": "PreToolUse", "session_id": "", **CALL}),
        json.dumps({"hook_event_name": "PreToolUse", "session_id": "s1", **CALL}),
        json.dumps({"hook_event_name": "PostToolUse", "session_id": ["s1"], **CALL}),
    ],
)  # fmt: skip
def test_garbage_on_stdin_does_not_block(text: str) -> None:
    """What is no hook's input is one line on stderr that does not quote it; the exit code is 1, never 2."""
    with StubGateway() as gateway:
        done = hook(gateway.url, text)

    assert (1, "", 1, []) == (done.returncode, done.stdout, len(done.stderr.splitlines()), gateway.requests)


@pytest.mark.parametrize("name", ["Stop", "SubagentStop", "UserPromptSubmit", "SomethingNew", None])
def test_other_events_are_nothing_to_it(name: str | None) -> None:
    """Hooks that are not for the guard ask nothing and say nothing."""
    with StubGateway() as gateway:
        done = hook(gateway.url, {"hook_event_name": name})

    assert (0, "", "", []) == (done.returncode, done.stdout, done.stderr, gateway.requests)


@pytest.mark.parametrize(
    ("arguments", "url"),
    [(("--bogus",), ""), (("--url",), ""), ((), "127.0.0.1:8321"), ((), f"http://u:{PAYLOAD}@h"), ((), "http://h:0")],
)
def test_wrong_usage_does_not_block(arguments: tuple[str, ...], url: str) -> None:
    """A mistake in the settings is one line and exit code 1, from either command: 2 would block every tool."""
    told = {"hook_event_name": "SessionEnd", "session_id": "s1"}
    done = hook(url, told, *arguments)
    slow = streamguard(
        "hook", *arguments, stdin=json.dumps(told).encode(), variables={"STREAMGUARD_GATEWAY_URL": url or "none"}
    )

    assert (1, "", 1) == (done.returncode, done.stdout, len(done.stderr.splitlines()))
    assert (1, "") == (slow.returncode, slow.stdout)


def test_the_command_line_has_the_same_hook() -> None:
    """`streamguard hook` does what `streamguard-hook` does."""
    with StubGateway() as gateway:
        told = {"hook_event_name": "SessionEnd", "session_id": "s1"}
        done = streamguard("hook", "--url", gateway.url, "--agent", "a", stdin=json.dumps(told).encode())

    assert (0, "a") == (done.returncode, gateway.events()[0]["agent_id"])


def test_the_hook_loads_the_standard_library_alone() -> None:
    """What makes it quick: nothing of the package but itself, nothing installed, and not the slow parts of Python."""
    code = "import sys; before = set(sys.modules); import streamguard.hook; print(*(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    ours = {name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names}
    assert {"streamguard", *(f"streamguard.hook{part}" for part in ("", ".claude_code", ".gateway"))} == ours
    assert not {"typing", "http.client", "urllib.parse", "ssl", "argparse", "asyncio", "logging"} & set(loaded)


def test_the_settings_of_the_readme_call_the_hook(repository: Path) -> None:
    """The README's snippet is JSON, and names every event that the hook answers to, and no other."""
    found = re.search(r"```jsonc\n(.*?)```", (repository / "README.md").read_text(), re.DOTALL)
    assert found is not None
    hooks = json.loads(found[1])["hooks"]

    assert {"PreToolUse", "PostToolUse", "PostToolUseFailure", "PreCompact", "SessionEnd"} == hooks.keys()
    commands = {entry["command"] for groups in hooks.values() for group in groups for entry in group["hooks"]}
    assert {"streamguard-hook"} == commands
