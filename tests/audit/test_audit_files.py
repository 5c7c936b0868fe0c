"""`audit list`, `explain` and `stats` on files: what `replay` said, found again, explained and counted."""

from __future__ import annotations

import csv
import io
import json
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from commands import STREAMGUARD, environment, streamguard
from pyarrow import parquet
from rich.console import Console

from streamguard.cli.audit_output import narrow_table_of
from streamguard.cli.audit_story import Letters
from streamguard.verdicts import decode_verdict

SECRET = "SECRETMARKER"  # noqa: S105 - what must not come out
POLICY = """[policy]
enabled = true
warningThreshold = 4
criticalThreshold = 6
unknownToolThreshold = 3
globalCircuitBreakerThreshold = 7
[agents.calm.detectors]
genericRepeat = false
"""


def pair(run: str, number: int, tool: str = "read", args: Any = SECRET, **outcome: Any) -> list[dict[str, Any]]:
    """Return a call and its result."""
    time = f"2026-12-04T08:00:{number:02}Z"
    scope = {"run_id": run, "agent_id": "calm" if run == "breaker" else "busy", "call_id": f"c{number}", "time": time}
    return [
        {"type": "tool_call", "tool": tool, "args": args, **scope},
        {"type": "tool_result", **(outcome or {"result": f"page {SECRET}"}), **scope},
    ]


RUNS = {
    "generic": [event for number in range(7) for event in pair("generic", number)],
    "breaker": [event for number in range(8) for event in pair("breaker", number)],
    "pingpong": [event for number in range(7) for event in pair("pingpong", number, "ab"[number % 2])],
    "poll": [
        event for number in range(7) for event in pair("poll", number, "process", {"action": "poll", "s": SECRET})
    ],
    "ghost": [
        event for number in range(4) for event in pair("ghost", number, "ghost", number, error="Tool ghost not found")
    ],
    "compacted": [
        {"type": "compaction", "run_id": "compacted", "time": "2026-12-04T08:00:00Z"},
        *(event for number in range(4) for event in pair("compacted", number)),
    ],
}
DETECTORS = {
    "generic": "generic_repeat",
    "breaker": "global_circuit_breaker",
    "pingpong": "ping_pong",
    "poll": "known_poll_no_progress",
    "ghost": "unknown_tool_repeat",
    "compacted": "compaction_loop_persisted",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with events of each detector, a policy, and what `replay` says about them."""
    folder = tmp_path_factory.mktemp("recorded")
    lines = [json.dumps(event) for events in RUNS.values() for event in events]
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "policy.toml").write_text(POLICY)
    done = streamguard("replay", folder / "events.jsonl", "--policy", folder / "policy.toml")
    (folder / "verdicts.jsonl").write_text(done.stdout)
    return folder


def listed(folder: Path, *arguments: str) -> str:
    """List verdicts."""
    done = streamguard("audit", "list", "--verdicts", folder / "verdicts.jsonl", *arguments)
    assert 0 == done.returncode, done.stderr
    return done.stdout


def explained(folder: Path, *arguments: str) -> str:
    """Explain a verdict."""
    files = ("--events", folder / "events.jsonl", "--verdicts", folder / "verdicts.jsonl")
    done = streamguard("audit", "explain", *arguments, *files, "--policy", folder / "policy.toml")
    assert 0 == done.returncode, done.stderr
    return done.stdout


def verdicts(folder: Path) -> list[dict[str, Any]]:
    """Return what `replay` said."""
    return [json.loads(line) for line in (folder / "verdicts.jsonl").read_text().splitlines()]


def test_json_is_what_stands(folder: Path) -> None:
    """--json gives the verdicts back byte for byte, in the order of their events' times."""
    given = listed(folder, "--json", "--limit", "0").splitlines()

    assert sorted((folder / "verdicts.jsonl").read_text().splitlines()) == sorted(given)
    assert sorted(times := [json.loads(line)["source"]["timestamp"] for line in given]) == times


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        (("--run", "ghost"), "run_id", "ghost"),
        (("--agent", "calm"), "agent_id", "calm"),
        (("--tool", "process"), "tool", "process"),
        (("--detector", "ping_pong"), "detector", "ping_pong"),
        (("--action", "abort"), "action", "abort"),
    ],
)
def test_filters_choose(folder: Path, arguments: tuple[str, ...], field: str, value: str) -> None:
    """Each filter gives exactly the verdicts that fit."""
    found = [json.loads(line) for line in listed(folder, "--json", *arguments).splitlines()]

    assert len([each for each in verdicts(folder) if each[field] == value]) == len(found) > 0
    assert {value} == {each[field] for each in found}


def test_times_choose(folder: Path) -> None:
    """--since and --until are times of the events; --until itself is left out."""
    span = ("--since", "2026-12-04T08:00:05Z", "--until", "2026-12-04T08:00:06Z")
    found = [json.loads(line)["source"]["timestamp"] for line in listed(folder, "--json", *span).splitlines()]

    assert {1796371205000} == set(found)


def test_a_wrong_time_says_what_is_allowed(folder: Path) -> None:
    """A time without a zone is a wrong usage, with examples of right ones."""
    done = streamguard("audit", "list", "--verdicts", folder / "verdicts.jsonl", "--since", "2026-12-04T08:00:05")

    assert (2, True) == (done.returncode, "30m, 24h, 7d" in done.stderr)


def test_a_day_begins_in_utc(folder: Path) -> None:
    """A day alone is a time too: its first moment."""
    of_day = listed(folder, "--json", "--since", "2026-12-04", "--until", "2026-12-05")

    assert listed(folder, "--json") == of_day
    assert not listed(folder, "--json", "--since", "2026-12-05")


@pytest.mark.parametrize(
    ("span", "fault"),
    [
        (("--since", "99999999999d"), "is before 1970"),
        (("--since", "9" * 400 + "d"), "is before 1970"),
        (("--since", "2026-12-04T08:00:05Z", "--until", "2026-12-04T08:00:05Z"), "--until is not after --since"),
        (("--since", "1h", "--until", "2h"), "--until is not after --since"),
    ],
)
@pytest.mark.parametrize("command", ["list", "stats", "verify"])
def test_a_span_that_is_none_is_a_wrong_usage(command: str, span: tuple[str, ...], fault: str) -> None:
    """A time before there were any, and an end that is not after its beginning, are named."""
    done = streamguard("audit", command, *span)

    assert (2, True) == (done.returncode, fault in done.stderr), done.stderr


def test_no_events_are_said_to_be_none(tmp_path: Path) -> None:
    """Statistics of nothing are a sentence, not an empty table; for machines they are nothing."""
    (tmp_path / "none.jsonl").write_text("")
    files = ("--events", tmp_path / "none.jsonl", "--verdicts", tmp_path / "none.jsonl")
    people, machines = streamguard("audit", "stats", *files), streamguard("audit", "stats", *files, "--json")

    assert (0, "", "no events and no verdicts\n") == (people.returncode, people.stdout, people.stderr)
    assert (0, "", "") == (machines.returncode, machines.stdout, machines.stderr)


def test_a_narrow_terminal_shows_ids_whole(folder: Path) -> None:
    """On 80 columns nothing is cut: each verdict's run and id stand on one line."""
    said = [decode_verdict(line) for line in (folder / "verdicts.jsonl").read_bytes().splitlines()]
    output = io.StringIO()
    Console(width=80, file=output).print(narrow_table_of(said))
    lines = output.getvalue().splitlines()

    assert all(len(line) <= 80 for line in lines)
    for verdict in said:
        assert any({verdict.run_id, verdict.verdict_id} <= set(line.split()) for line in lines)


def test_csv_and_parquet_hold_the_same(folder: Path, tmp_path: Path) -> None:
    """Both have a row for each verdict, with its numbers and its event's time."""
    rows = list(csv.DictReader(io.StringIO(listed(folder, "--csv"))))
    listed(folder, "--parquet", str(tmp_path / "verdicts.parquet"))
    table = parquet.read_table(tmp_path / "verdicts.parquet").to_pylist()

    assert len(verdicts(folder)) == len(rows) == len(table)
    assert [(row["verdict_id"], int(row["count"])) for row in rows] == [(r["verdict_id"], r["count"]) for r in table]
    assert [datetime.fromisoformat(row["time"]) for row in rows] == [r["time"] for r in table]
    assert [json.loads(row["shadow"]) for row in rows] == [r["shadow"] for r in table]


def test_names_move_no_cursor(tmp_path: Path) -> None:
    """Agents choose the names of runs and tools: whatever a terminal or a table would obey is only shown."""
    name = "\x1b[2J[/red]\u202e$x$"
    events = [{**event, "run_id": name, "agent_id": name} for n in range(7) for event in pair(name, n, name)]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (tmp_path / "policy.toml").write_text(POLICY)
    (tmp_path / "gentle.toml").write_text("[policy]\nenabled = true\n")
    of_events, policy = ("--events", tmp_path / "events.jsonl"), ("--policy", tmp_path / "policy.toml")
    said = streamguard("replay", tmp_path / "events.jsonl", *policy).stdout
    (tmp_path / "verdicts.jsonl").write_text(said)
    (tmp_path / "lost.jsonl").write_text(said.splitlines()[0].replace('"count":4', '"count":5') + "\n")
    of_verdicts = ("--verdicts", tmp_path / "verdicts.jsonl")
    shown = [
        streamguard("audit", "list", *of_verdicts),
        streamguard("audit", "stats", *of_events, *of_verdicts),
        streamguard("audit", "explain", "--run", name, *of_events, *of_verdicts, *policy),
        streamguard("audit", "verify", *of_events, "--verdicts", tmp_path / "lost.jsonl", *policy),
        streamguard("backtest", tmp_path / "events.jsonl", *policy, "--policy", tmp_path / "gentle.toml"),
    ]

    assert [0, 0, 0, 1, 0] == [done.returncode for done in shown], [done.stderr for done in shown]
    for done in shown:
        assert "\\x1b[2J[/red]\\u202e$x$" in "".join(line.strip() for line in done.stdout.splitlines())
        assert not {"\x1b", "\u202e"} & set(done.stdout + done.stderr)


def test_csv_holds_any_name_and_any_time(folder: Path, tmp_path: Path) -> None:
    """A name with line ends is one field, and a time in microseconds, which is beyond all years, stops nothing."""
    verdict = {**verdicts(folder)[0], "run_id": "a\rb\nc,d"}
    verdict["source"] = {**verdict["source"], "timestamp": verdict["source"]["timestamp"] * 1000}
    file = tmp_path / "odd.jsonl"
    file.write_text(json.dumps(verdict) + "\n")
    done = subprocess.run(
        [*STREAMGUARD, "audit", "list", "--csv", "--verdicts", file], env=environment(), capture_output=True, check=True
    )
    [row] = csv.DictReader(io.StringIO(done.stdout.decode(), newline=""))

    assert ("a\rb\nc,d", "9999-12-31T23:59:59.000Z") == (row["run_id"], row["time"])
    assert 0 == streamguard("audit", "list", "--verdicts", file).returncode


def test_letters_are_never_the_same() -> None:
    """However many different calls there are, each has a name of its own."""
    letters = Letters()

    assert 1000 == len({letters.of(number).plain for number in range(1000)})
    assert ["A", "Z", "A2"] == [letters.of(number).plain for number in (0, 25, 26)]


def test_a_line_that_is_no_verdict_is_named(folder: Path, tmp_path: Path) -> None:
    """The others are listed all the same; the exit code is 1."""
    file = tmp_path / "verdicts.jsonl"
    file.write_text((folder / "verdicts.jsonl").read_text() + "{}\n")
    done = streamguard("audit", "list", "--verdicts", file, "--json")

    assert (1, len(verdicts(folder))) == (done.returncode, len(done.stdout.splitlines()))
    assert f"{file}:{len(verdicts(folder)) + 1}: no verdict" in done.stderr


@pytest.mark.parametrize("run", RUNS)
def test_every_detector_is_explained(folder: Path, run: str) -> None:
    """What stopped the run first is explained with its count, its threshold, and that it follows from the events."""
    first = next(each for each in verdicts(folder) if each["run_id"] == run and each["action"] in {"block", "abort"})
    text = explained(folder, "--run", run)

    assert DETECTORS[run] == first["detector"]
    assert f"{first['verdict_id']}  {first['action']}  {first['detector']}" in text
    assert f"{first['count']}, and " in text
    assert f" is {first['threshold']}" in text
    assert "comes out the same, byte for byte" in text
    assert len(first["evidence"]) == text.count("*") - 1  # and once in the caption


def test_the_call_before_counted_one_less(folder: Path) -> None:
    """A first block says that the call before stayed below the threshold; a later one, where the row began."""
    blocks = [each for each in verdicts(folder) if each["run_id"] == "breaker" and each["action"] == "block"]

    assert "counted 6, below 7" in explained(folder, blocks[0]["verdict_id"])
    generic = [each for each in verdicts(folder) if each["run_id"] == "generic" and each["action"] == "warn"]
    assert "counted 3, below 4" in explained(folder, generic[0]["verdict_id"])


def test_a_forged_verdict_does_not_follow(folder: Path, tmp_path: Path) -> None:
    """A verdict whose count was changed, or of another policy, is told to be so."""
    forged = verdicts(folder)[-1] | {"count": 99, "policy": "000000000000"}
    (tmp_path / "events.jsonl").write_bytes((folder / "events.jsonl").read_bytes())
    (tmp_path / "policy.toml").write_text(POLICY)
    (tmp_path / "verdicts.jsonl").write_text(json.dumps(forged) + "\n")
    text = explained(tmp_path, forged["verdict_id"])

    assert "follows another" in text
    assert "not the one at hand" in text


@pytest.mark.parametrize("by", ["agent", "tool", "detector", "day"])
def test_stats_count_calls_and_blocks(folder: Path, by: str) -> None:
    """Whatever they are grouped by, the sums are those of the events and verdicts."""
    done = streamguard(
        "audit", "stats", "--by", by, "--json",
        "--events", folder / "events.jsonl", "--verdicts", folder / "verdicts.jsonl",
    )  # fmt: skip
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    calls = sum(event["type"] == "tool_call" for events in RUNS.values() for event in events)
    actions = [each["action"] for each in verdicts(folder)]

    assert (None if by == "detector" else calls) == (rows[0]["calls"] and sum(row["calls"] or 0 for row in rows))
    assert [actions.count(name) for name in ("warn", "block", "abort")] == [
        sum(row[name] for row in rows) for name in ("warns", "blocks", "aborts")
    ]


def test_no_payload_comes_out(folder: Path) -> None:
    """Neither arguments nor results stand in any output."""
    outputs = [listed(folder), listed(folder, "--csv"), *(explained(folder, "--run", run) for run in RUNS)]

    assert not any(SECRET in output for output in outputs)


def test_what_is_not_there_says_so(folder: Path) -> None:
    """A run about which nothing was said, and a verdict that does not stand, are errors in a sentence."""
    files = ("--events", folder / "events.jsonl", "--verdicts", folder / "verdicts.jsonl", "--policy",
             folder / "policy.toml")  # fmt: skip
    nobody = streamguard("audit", "explain", "--run", "nobody", *files)
    nothing = streamguard("audit", "explain", "0-9999-0", *files)

    assert [1, 1] == [nobody.returncode, nothing.returncode]
    assert "nothing was ever said about run nobody" in nobody.stderr
    assert "0-9999-0 is not in the files" in nothing.stderr
