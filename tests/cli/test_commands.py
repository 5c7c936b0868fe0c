"""Commands without Kafka, as a user runs them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from aiokafka.errors import NotLeaderForPartitionError, TopicAuthorizationFailedError
from commands import streamguard

from streamguard import cli
from streamguard.cli.service import need
from streamguard.errors import MissingExtraError


def test_help_lists_every_command() -> None:
    """Without arguments or with --help the commands are listed, each with a word on it."""
    done = streamguard("--help")

    assert 0 == done.returncode
    assert [] == [
        name
        for name in (
            "run",
            "gateway",
            "topics",
            "policy",
            "replay",
            "publish",
            "schema",
            "demo",
            "hook",
            "integrations",
        )
        if f"  {name} " not in done.stdout
    ]


@pytest.mark.parametrize("document", ["events", "verdicts", "asyncapi"])
def test_schemas_are_json(document: str) -> None:
    """Each schema is printed as JSON on standard output."""
    assert json.loads(streamguard("schema", document).stdout)


def test_policy_check(tmp_path: Path) -> None:
    """A right file exits 0 and is counted; a wrong one exits 2 with its fault on standard error."""
    right, wrong = tmp_path / "right.toml", tmp_path / "wrong.toml"
    right.write_text("[policy]\nwarningThreshold = 30\n[agents.a]\nenabled = true\n")
    wrong.write_text("[policy]\nenabled = 1\n")
    checked, refused = streamguard("policy", "check", right), streamguard("policy", "check", wrong)

    assert (0, f"{right}: ok (1 agent with a block)\n") == (checked.returncode, checked.stdout)
    assert "policy thresholds out of order, clamped" in checked.stderr
    assert (2, f"error: {wrong}: policy.enabled is 1; allowed: true, false, or null for unset\n") == (
        refused.returncode, refused.stderr,
    )  # fmt: skip


def test_checking_a_policy_checks_the_settings_beside_it(tmp_path: Path) -> None:
    """A file that `run` would refuse is not ok, though its policy is."""
    file = tmp_path / "both.toml"
    file.write_text("[policy]\nenabled = true\n[kafka]\nbootstrp = 'a:1'\n")
    checked = streamguard("policy", "check", file)

    assert 2 == checked.returncode
    assert "kafka.bootstrp: unknown key" in checked.stderr


def test_a_status_file_without_a_folder_is_refused(tmp_path: Path) -> None:
    """A health check that could never succeed is an error before anything is started."""
    file = tmp_path / "nowhere" / "status.json"
    done = streamguard("run", variables={"STREAMGUARD_WORKER_STATUS_FILE": str(file)})

    assert 2 == done.returncode
    assert f"there is no folder {file.parent}" in done.stderr


def test_health_says_when_nothing_is_judged(tmp_path: Path) -> None:
    """A worker whose group rebalances is alive, but not ready, and says for how long."""
    file = tmp_path / "status.json"
    status = {
        **dict.fromkeys(("pid", "judged", "dead_letters"), 1),
        "time": time.time(),
        "ready": False,
        "rebalancing": 7.2,
        "stuck": [],
        "opening": [],
        "partitions": [],
        "verdicts": {},
        "dropped": {},
    }
    file.write_text(json.dumps(status))
    alive, ready = streamguard("health", file), streamguard("health", "--ready", file)

    assert (0, 1) == (alive.returncode, ready.returncode)
    assert "rebalancing for 7 s" in alive.stdout
    assert ready.stderr.startswith("error: ")
    assert "rebalancing for 7 s" in ready.stderr


def test_policy_show(tmp_path: Path) -> None:
    """The effective policy of an agent is shown with the origin of each value, as a table or as JSON."""
    file = tmp_path / "p.toml"
    file.write_text("[policy]\nenabled = true\n[agents.a]\nhistorySize = 7\n")
    table = streamguard("policy", "show", "--agent", "a", file).stdout
    shown = json.loads(streamguard("policy", "show", "--agent", "a", "--json", file).stdout)

    assert "agents.a.historySize" in table
    assert {"value": 7, "from": "agents.a.historySize"} == shown["fields"]["historySize"]
    assert {"value": True, "from": "policy.enabled"} == shown["fields"]["enabled"]


def test_policy_show_names_overrides(tmp_path: Path) -> None:
    """Who allows what, until when and why; those of other agents are not shown for an agent."""
    file, signature = tmp_path / "p.toml", f"read:{'0' * 32}"
    lines = (f'signature = "{signature}"', 'until = "2026-12-31T18:00:00Z"', 'by = "ops [red]"', 'why = "known"')
    file.write_text("\n".join(("[policy]", "enabled = true", "[overrides.slow]", *lines, 'agent = "a"', "")))
    everyone, other = streamguard("policy", "show", file), streamguard("policy", "show", file, "--agent", "b")
    machines = json.loads(streamguard("policy", "show", file, "--agent", "a", "--json").stdout)

    told = f"override slow: {signature} goes on until 2026-12-31 18:00:00.000Z for agent a; by ops [red]: known"
    assert told in everyone.stdout
    assert "override" not in other.stdout
    assert signature == machines["overrides"]["slow"]["signature"]


def test_policy_test(tmp_path: Path) -> None:
    """Mismatches are printed with file, line, case and difference; the last line counts; the exit code is 1."""
    file = tmp_path / "cases.jsonl"
    event = {"type": "tool_call", "run_id": "r", "tool": "ls"}
    file.write_text(json.dumps({"id": "quiet", "note": "too calm", "events": [event], "expect": {"action": "warn"}}))
    done = streamguard("policy", "test", file)

    assert 1 == done.returncode
    assert [
        f"{file}:1: quiet: warn is missing, got nothing (too calm)",
        "1 cases, 1 events, 1 mismatches",
    ] == done.stdout.splitlines()


@pytest.mark.parametrize(
    "arguments", [("audit", "list"), ("audit", "stats"), ("audit", "verify"), ("topics", "create"), ("audit", "tail")]
)
def test_without_a_broker_a_command_says_it_twice_at_most(arguments: tuple[str, ...]) -> None:
    """It says that it waits, and how that ended; the Kafka client's own complaints are not repeated."""
    variables = {"STREAMGUARD_KAFKA_CONNECT_TIMEOUT_SECONDS": "3"}
    done = streamguard(*arguments, "--bootstrap", "127.0.0.1:1", variables=variables)
    waiting, ended = done.stderr.splitlines()

    assert (1, "") == (done.returncode, done.stdout)
    assert "no broker answers yet" in waiting
    assert ended.startswith("error: no Kafka broker answered at 127.0.0.1:1 within 3 s")


@pytest.mark.parametrize(
    ("packages", "told"),
    [
        (("json", "no_a"), "the page needs no_a, which is not installed"),
        (("no_a", "no_b"), "the page needs no_a and no_b, which are not installed"),
        (("no_a", "no_b", "no_c"), "the page needs no_a, no_b and no_c, which are not installed"),
    ],
)
def test_a_missing_extra_is_named(packages: tuple[str, ...], told: str) -> None:
    """What is not installed is said, and what to install."""
    with pytest.raises(MissingExtraError, match=f"^{told}: pip install 'streamguard\\[ui\\]'$"):
        need("the page", packages, "ui")


@pytest.mark.parametrize(("error", "code"), [(NotLeaderForPartitionError(), 1), (TopicAuthorizationFailedError(), 3)])
def test_an_error_of_kafka_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, code: int
) -> None:
    """An error of the Kafka client that no command foresaw is told as ours are, not as a traceback."""

    def fails(**_: Any) -> None:
        raise error

    monkeypatch.setattr(cli, "cli", fails)
    with pytest.raises(SystemExit) as left:
        cli.main()
    [line] = capsys.readouterr().err.splitlines()

    assert (code, True) == (left.value.code, line.startswith("error: "))


def test_an_unknown_command_is_a_usage_error() -> None:
    """A command that does not exist exits 2."""
    assert 2 == streamguard("rune").returncode
