"""`streamguard config show`, as a user runs it."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from commands import streamguard

from streamguard.settings import SECRETS, Settings

SECRET = "swordfish-swordfish"  # noqa: S105 - what must not be shown


def shown(*arguments: str | Path, **variables: str) -> dict[str, tuple[Any, str]]:
    """Return value and origin of every setting, by its key."""
    done = streamguard("config", "show", "--json", *arguments, variables=variables)
    return {setting["key"]: (setting["value"], setting["origin"]) for setting in json.loads(done.stdout)}


def test_each_value_comes_with_its_origin(tmp_path: Path) -> None:
    """Values of the file, a variable, a flag and the defaults are shown with where they come from; the later wins."""
    file = tmp_path / "s.toml"
    file.write_text("[kafka]\nbootstrap = 'file'\nclient_id = 'file'\n[limits]\nruns = 5\n")
    flags = ("--bootstrap", "flag:1", "--on-lost-position", "latest")
    settings = shown("-c", file, *flags, STREAMGUARD_KAFKA_BOOTSTRAP="variable", STREAMGUARD_KAFKA_CLIENT_ID="v")

    assert ("flag:1", "flag") == settings["kafka.bootstrap"]
    assert ("latest", "flag") == settings["worker.on_lost_position"]
    assert ("v", "STREAMGUARD_KAFKA_CLIENT_ID") == settings["kafka.client_id"]
    assert (5, str(file)) == settings["limits.runs"]
    assert ("streamguard", "default") == settings["worker.group"]
    assert (None, "default") == settings["topics.state"]


def test_the_file_may_be_named_by_a_variable(tmp_path: Path) -> None:
    """STREAMGUARD_CONFIG stands for --config: the origin is the file."""
    file = tmp_path / "s.toml"
    file.write_text("[log]\nlevel = 'debug'\n")

    assert ("debug", str(file)) == shown(STREAMGUARD_CONFIG=str(file))["log.level"]


def test_the_text_is_toml_with_origins_as_comments(tmp_path: Path) -> None:
    """Each section holds its settings in force, one a line; what is unset is a comment."""
    file = tmp_path / "s.toml"
    file.write_text("[kafka]\nclient_id = 'grün \"x\"'\n[limits]\nruns = 5\n", encoding="utf-8")
    done = streamguard("config", "show", "-c", file, variables={"STREAMGUARD_KAFKA_IDEMPOTENCE": "false"})
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    expected = msgspec.to_builtins(Settings())
    expected["kafka"] |= {"client_id": 'grün "x"', "idempotence": False}
    expected["limits"]["runs"] = 5

    assert {
        section: {name: value for name, value in fields.items() if value is not None}
        for section, fields in expected.items()
    } == tomllib.loads(done.stdout)
    assert {
        f"runs = 5 # {file}",
        "idempotence = false # STREAMGUARD_KAFKA_IDEMPOTENCE",
        'group = "streamguard" # default',
        "# state # default",
    } <= set(lines)


@pytest.mark.parametrize("source", ["file", "variables"])
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_secrets_are_shown_as_stars(tmp_path: Path, source: str, form: list[str]) -> None:
    """That a secret is set, and where, is shown; its value is not, whether it comes from a file or a variable."""
    given = {"signing.key_id": "a", "signing.previous_key_id": "b", **dict.fromkeys(SECRETS, SECRET)}
    file = tmp_path / "s.toml"
    variables = {}
    if source == "file":
        file.write_text("\n".join(f"{key} = '{value}'" for key, value in given.items()))
    else:
        file.write_text("")
        variables = {f"STREAMGUARD_{key.replace('.', '_').upper()}": value for key, value in given.items()}
    done = streamguard("config", "show", *form, "-c", file, variables=variables)

    assert 0 == done.returncode
    assert SECRET not in done.stdout + done.stderr
    assert len(SECRETS) == done.stdout.count('"***"')


@pytest.mark.parametrize(
    "text",
    [f"[{section}]\n{name} = ['{SECRET}']" for section, name in (key.split(".") for key in sorted(SECRETS))]
    + [
        f"[signing]\nkey = '{SECRET}'",
        f"[signing]\nkye = '{SECRET}'",
        f"[signing]\nkey = {SECRET}",
        f"[signing]\nkey = '{SECRET}",
        f"[singing]\nkey = '{SECRET}'",
        f"signing = '{SECRET}'",
        f"[policy]\nkey = '{SECRET}'",
    ],
)
def test_a_wrong_file_ends_with_2_and_without_its_secret(tmp_path: Path, text: str) -> None:
    """A secret of the wrong type, in the wrong place or without its id is refused, and is not in the error."""
    file = tmp_path / "s.toml"
    file.write_text(text)
    done = streamguard("config", "show", "-c", file)

    assert (2, "") == (done.returncode, done.stdout)
    assert done.stderr.startswith("error: ")
    assert SECRET not in done.stderr


@pytest.mark.parametrize(
    ("variable", "value"),
    [("SIGNING_KEY", SECRET), ("SIGNING_KYE", SECRET), ("LIMITS_RUNS", "many")],
)
def test_a_wrong_variable_ends_with_2_and_without_its_secret(variable: str, value: str) -> None:
    """A variable that is wrong or unknown is named; a secret in it is not in the error."""
    done = streamguard("config", "show", variables={f"STREAMGUARD_{variable}": value})

    assert (2, "") == (done.returncode, done.stdout)
    assert SECRET not in done.stderr


def test_the_help_lists_the_command() -> None:
    """`streamguard --help` says what the command does."""
    assert "Show the settings in force, and where each comes from." in streamguard("--help").stdout
