"""`streamguard replay`: recorded events in, verdicts out, in constant memory."""

from __future__ import annotations

import gzip
import json
import subprocess
from pathlib import Path

import pytest
from commands import STREAMGUARD, environment, streamguard

MEASURED = """
import resource, runpy, sys
sys.argv = sys.argv[1:]
try:
    runpy.run_module("streamguard", run_name="__main__")
except SystemExit:
    pass
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def loop(run: str, times: int, **fields: str) -> bytes:
    """Write the same call with the same result, again and again, a line each."""
    events = [
        ({"type": "tool_call", "run_id": run, "call_id": f"c{n}", "tool": "read", **fields},
         {"type": "tool_result", "run_id": run, "call_id": f"c{n}", "result": "same"})
        for n in range(times)
    ]  # fmt: skip
    return b"".join(json.dumps(event).encode() + b"\n" for pair in events for event in pair)


@pytest.fixture
def policy(repository: Path) -> Path:
    """The shipped configuration."""
    return repository / "config" / "streamguard.toml"


def said(output: str) -> list[tuple[str, int, int]]:
    """Return action, count and offset of each verdict line."""
    verdicts = [json.loads(line) for line in output.splitlines()]
    return [(verdict["action"], verdict["count"], verdict["source"]["offset"]) for verdict in verdicts]


def test_verdicts_are_lines_on_stdout(tmp_path: Path, policy: Path) -> None:
    """Plain and gzip files and standard input are judged one after the other, and the summary is on stderr."""
    plain, packed = tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz"
    plain.write_bytes(loop("a", 11))
    packed.write_bytes(gzip.compress(loop("b", 11)))
    done = streamguard("replay", "--policy", policy, plain, packed, "-", stdin=loop("c", 11))

    assert 0 == done.returncode
    assert [("warn", 10, 20), ("warn", 10, 42), ("warn", 10, 64)] == said(done.stdout)
    assert "66 events of 3 runs" in done.stderr


def test_without_a_policy_the_documented_default_holds(tmp_path: Path) -> None:
    """Without --policy the rolling detectors are off, and standard error says so."""
    file = tmp_path / "a.jsonl"
    file.write_bytes(loop("a", 40))
    done = streamguard("replay", file)

    assert (0, "") == (done.returncode, done.stdout)
    assert "only the post-compaction guard is on" in done.stderr


def test_agent_chooses_the_policy(tmp_path: Path) -> None:
    """--agent judges every event by that agent's policy, whoever the events name."""
    file, policy = tmp_path / "a.jsonl", tmp_path / "p.toml"
    file.write_bytes(loop("a", 6, agent_id="somebody"))
    policy.write_text("[policy]\nenabled = true\n[agents.careful]\nwarningThreshold = 5\n")
    done = streamguard("replay", "--policy", policy, "--agent", "careful", file)

    assert [("warn", 5, 10)] == said(done.stdout)


def test_bad_lines_are_named_and_the_others_judged(tmp_path: Path, policy: Path) -> None:
    """A line that is no event is named by file and line; the rest is judged; the exit code is 1."""
    file = tmp_path / "a.jsonl"
    file.write_bytes(
        b"garbage\n" + loop("a", 11) + b'{"type":"tool_call","tool":"t"}\n' + b"x" * 3000 + b"\n" + loop("a", 1)
    )
    done = streamguard("replay", "--policy", policy, "--record-bytes", "2000", file)

    assert (1, [("warn", 10, 21)]) == (done.returncode, said(done.stdout))
    for place in (":1: not JSON", ":24: the event has neither", ":25: the line has more than 2000 bytes"):
        assert f"{file}{place}" in done.stderr
    assert "3 unreadable" in done.stderr


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    """A file that is not there is named."""
    done = streamguard("replay", tmp_path / "nowhere.jsonl")

    assert 1 == done.returncode
    assert "nowhere.jsonl: cannot be opened: No such file" in done.stderr


def test_a_damaged_gzip_is_an_error(tmp_path: Path, policy: Path) -> None:
    """A gzip file that ends in the middle is an error that says up to where it was read."""
    file = tmp_path / "a.jsonl.gz"
    file.write_bytes(gzip.compress(loop("a", 2000), mtime=0)[:-40])
    done = streamguard("replay", "--policy", policy, file)

    assert 1 == done.returncode
    assert "a.jsonl.gz: damaged after line" in done.stderr


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path, policy: Path) -> None:
    """`| head` ends the replay quietly."""
    file = tmp_path / "a.jsonl"
    file.write_bytes(loop("a", 20_000))
    pipeline = f"{' '.join(STREAMGUARD)} replay --policy {policy} {file} 2>err | head -1; test ! -s err || cat err"
    done = subprocess.run(
        ["bash", "-c", pipeline],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=environment(),
        timeout=60,
    )

    assert "Traceback" not in done.stdout
    assert '"warn"' in done.stdout


def test_memory_does_not_grow_with_the_file(tmp_path: Path, policy: Path) -> None:
    """Ten times the events of as many runs need no more memory (runs end; one line is a megabyte)."""
    sizes = []
    for times in (40, 400):
        file = tmp_path / f"{times}.jsonl"
        big = json.dumps({"type": "tool_result", "run_id": "r", "call_id": "c", "result": "x" * 1_000_000})
        with file.open("w") as output:
            for number in range(times):
                call = {"type": "tool_call", "run_id": "r", "call_id": "c", "tool": "read", "args": number}
                output.write(f"{json.dumps(call)}\n{big}\n")
        done = subprocess.run(
            [STREAMGUARD[0], "-c", MEASURED, "streamguard", "replay", "--policy", policy, file],
            capture_output=True,
            text=True,
            check=True,
            env=environment(),
            timeout=120,
        )
        sizes.append(int(done.stdout.splitlines()[-1]))

    assert sizes[1] < sizes[0] * 1.2
