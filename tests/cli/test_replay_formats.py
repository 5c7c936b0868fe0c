"""`streamguard replay --format`: a loop in a recording of another tool comes out as the verdict that it deserves."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from commands import streamguard

RECORDED = Path(__file__).parent.parent / "unit" / "recorded"

LOOPS = {  # the guard knows Bash by the name exec
    "claude-code": ("claude_code.jsonl", [("warn", "generic_repeat", "exec", 10)]),
    "openai-agents": ("openai_agents.jsonl", [("warn", "generic_repeat", "read_file", 10)]),
    "otlp": (
        "otlp.jsonl",
        [
            ("warn", "generic_repeat", "find_order", 10),
            ("abort", "compaction_loop_persisted", "find_order", 3),
            ("abort", "compaction_loop_persisted", "find_order", 3),
        ],
    ),
    "openclaw": ("openclaw.jsonl", [("abort", "compaction_loop_persisted", "exec", 3)]),
}


@pytest.fixture
def policy(repository: Path) -> Path:
    """The shipped configuration."""
    return repository / "config" / "streamguard.toml"


def said(output: str) -> list[tuple[str, str, str, int]]:
    """Return action, detector, tool and count of each verdict line."""
    verdicts = [json.loads(line) for line in output.splitlines()]
    return [(verdict["action"], verdict["detector"], verdict["tool"], verdict["count"]) for verdict in verdicts]


@pytest.mark.parametrize("form", list(LOOPS))
def test_a_loop_comes_out(policy: Path, form: str) -> None:
    """With its format named, a recorded loop gives exactly its verdicts, and what was left out is said."""
    name, verdicts = LOOPS[form]
    done = streamguard("replay", "--policy", policy, "--format", form, RECORDED / name)

    assert (0, verdicts) == (done.returncode, said(done.stdout))
    assert f"{name} ({form}), skipped: " in done.stderr


def test_formats_are_found_out_file_by_file(policy: Path, tmp_path: Path) -> None:
    """Files of all formats, gzip or not, on standard input or not, are judged one after the other."""
    event = {"type": "tool_call", "run_id": "r", "tool": "t"}
    plain, packed = tmp_path / "plain.jsonl", tmp_path / "packed.jsonl.gz"
    plain.write_text("".join(json.dumps(event) + "\n" for _ in range(11)))
    packed.write_bytes(gzip.compress((RECORDED / "otlp.jsonl").read_bytes()))
    files = [RECORDED / LOOPS[form][0] for form in ("claude-code", "openai-agents", "openclaw")]
    done = streamguard("replay", "--policy", policy, plain, *files, "-", stdin=packed.read_bytes())
    expected = [("warn", "generic_repeat", "t", 10)]
    for form in ("claude-code", "openai-agents", "openclaw", "otlp"):
        expected += LOOPS[form][1]

    assert (0, expected) == (done.returncode, said(done.stdout))


def test_a_missing_tool_is_told_from_other_failures(policy: Path, tmp_path: Path) -> None:
    """Claude Code's own words for a tool that does not exist lead to unknown_tool_repeat."""

    def line(number: int, block: dict[str, Any], kind: str) -> str:
        about = {"type": kind, "sessionId": "s", "uuid": f"{kind}{number}", "timestamp": "2026-01-01T00:00:00Z"}
        return json.dumps({**about, "message": {"content": [block]}}) + "\n"

    text = "<tool_use_error>Error: No such tool available: Ghost</tool_use_error>"
    file = tmp_path / "ghost.jsonl"
    file.write_text(
        "".join(
            line(n, {"type": "tool_use", "id": f"t{n}", "name": "Ghost", "input": {"n": n}}, "assistant")
            + line(n, {"type": "tool_result", "tool_use_id": f"t{n}", "content": text, "is_error": True}, "user")
            for n in range(11)
        )
    )
    done = streamguard("replay", "--policy", policy, file)

    assert [("block", "unknown_tool_repeat", "ghost", 10)] == said(done.stdout.replace("Ghost", "ghost"))


def test_bad_lines_of_a_foreign_file_are_named_and_the_others_judged(policy: Path, tmp_path: Path) -> None:
    """A line that is no part of the format is named by file and line; the rest is judged; the exit code is 1."""
    file = tmp_path / "cut.jsonl"
    file.write_bytes(b'{"type":"assistant","sessio\n' + (RECORDED / "claude_code.jsonl").read_bytes())
    done = streamguard("replay", "--policy", policy, file)

    assert (1, LOOPS["claude-code"][1]) == (done.returncode, said(done.stdout))
    assert f"{file}:1: no line of a Claude Code transcript (mend or drop it, " in done.stderr
    assert "1 unreadable" in done.stderr


def test_agent_chooses_the_policy_of_imported_events(tmp_path: Path) -> None:
    """--agent judges every imported event by that agent's policy."""
    policy = tmp_path / "p.toml"
    policy.write_text("[policy]\nenabled = true\n[agents.careful]\nwarningThreshold = 5\n")
    done = streamguard("replay", "--policy", policy, "--agent", "careful", RECORDED / "claude_code.jsonl")

    assert [("warn", "generic_repeat", "exec", 5)] == said(done.stdout)
