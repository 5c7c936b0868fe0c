"""Settings: their sources, their ranges, and the shipped configuration."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamguard.errors import SettingsFileError
from streamguard.policy import Policy
from streamguard.policy_block import FIELDS
from streamguard.policy_file import load_policy_file
from streamguard.settings import SECRETS, KafkaSettings, Settings
from streamguard.settings_file import load_service


def load(tmp_path: Path, text: str = "", environ: dict[str, str] | None = None, **flags: Any) -> Settings:
    """Load settings from a file with this text, variables and flags."""
    file = tmp_path / "s.toml"
    file.write_text(text)
    return load_service(file, environ or {}, {name.replace("__", "."): value for name, value in flags.items()})[0]


def test_the_later_source_wins(tmp_path: Path) -> None:
    """Flags override variables, variables the file, the file the defaults."""
    settings = load(
        tmp_path,
        "[kafka]\nbootstrap = 'file'\nclient_id = 'file'\n[limits]\nruns = 5\n",
        {"STREAMGUARD_KAFKA_BOOTSTRAP": "variable:1", "STREAMGUARD_KAFKA_CLIENT_ID": "variable"},
        kafka__bootstrap="flag:1",
    )

    assert ("flag:1", "variable", 5, "streamguard") == (
        settings.kafka.bootstrap, settings.kafka.client_id, settings.limits.runs, settings.worker.group,
    )  # fmt: skip


def test_variables_are_converted(tmp_path: Path) -> None:
    """Numbers and switches come as text from the environment."""
    environ = {
        "STREAMGUARD_LIMITS_RUNS": "7",
        "STREAMGUARD_KAFKA_IDEMPOTENCE": "false",
        "STREAMGUARD_TEST_X": "no matter",
    }
    settings = load(tmp_path, "", environ)

    assert (7, False) == (settings.limits.runs, settings.kafka.idempotence)


def test_the_gateways_tokens_are_not_taken_for_its_clients(tmp_path: Path) -> None:
    """The variables of hook and plugin are no settings; those of the gateway itself, which begin alike, are."""
    environ = {
        "STREAMGUARD_GATEWAY_URL": "http://127.0.0.1:8321",
        "STREAMGUARD_GATEWAY_TOKEN": "client's",
        "STREAMGUARD_GATEWAY_TOKENS_FILE": "tokens",
    }

    assert "tokens" == load(tmp_path, "", environ).gateway.tokens_file


@pytest.mark.parametrize(
    ("text", "environ", "fault"),
    [
        ("[limits]\nruns = 0", {}, "limits.runs is 0; expected `int` >= 1"),
        ("[limits]\nruns = '5'", {}, "limits.runs is '5'; expected `int`, got `str`"),
        ("[limits]\nrun = 5", {}, "limits.run: unknown key; did you mean limits.runs?"),
        ("limits = 5", {}, "limits must be a table"),
        ("[kafka]\nbootstrap = 'a:1, foo:bar'", {}, "kafka.bootstrap: foo:bar is no address; allowed: HOST:PORT"),
        ("[kafka]\nbootstrap = 'localhost:99999'", {}, "kafka.bootstrap: localhost:99999 is no address"),
        ("[kafka]\nbootstrap = 'localhost'", {}, "kafka.bootstrap: localhost is no address"),
        (
            "[kafka]\nsecurity_protocol = 'TLS'",
            {},
            "kafka.security_protocol is 'TLS'; allowed: PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL",
        ),
        ("[kafka]\nsecurity_protocol = 'SASL_SSL'", {}, "kafka.sasl_username and a password are needed"),
        ("[worker]\nheartbeat_interval_ms = 20000", {}, "at most a third of worker.session_timeout_ms"),
        ("[topics]\nverdicts = 'agent.events'", {}, "must be five different topics"),
        ("[topics]\nevents = 'a b'", {}, "topics.events is 'a b'"),
        ("[gateway]\nhost = '0.0.0.0'", {}, "gateway.tokens or gateway.tokens_file is needed"),
        ("[gateway]\nhost = 'example.org'", {}, "gateway.tokens or gateway.tokens_file is needed"),
        ("[gateway]\ntokens = 'a'\ntokens_file = 'b'", {}, "gateway.tokens and gateway.tokens_file are both given"),
        ("", {"STREAMGUARD_LIMIT_RUNS": "1"}, "STREAMGUARD_LIMIT_RUNS: no setting has this variable; did you mean"),
        ("", {"STREAMGUARD_LIMITS_RUNS": "many"}, "STREAMGUARD_LIMITS_RUNS: limits.runs is 'many'"),
        ("[kafka", {}, "not TOML"),
    ],
)
def test_a_fault_names_source_key_and_value(tmp_path: Path, text: str, environ: dict[str, str], fault: str) -> None:
    """A wrong setting is refused with its key, its value and what is expected."""
    with pytest.raises(SettingsFileError, match=re.escape(fault)):
        load(tmp_path, text, environ)


def test_a_section_that_is_unknown_is_told_though_the_policy_comes_from_elsewhere(tmp_path: Path) -> None:
    """With a policy file of its own, a section misspelt in the settings is still a fault."""
    settings, policy = tmp_path / "s.toml", tmp_path / "p.toml"
    settings.write_text("[kafak]\nbootstrap = 'a:1'\n")
    policy.write_text("[policy]\nenabled = true\n")

    with pytest.raises(SettingsFileError, match=r"s\.toml: kafak: unknown key; did you mean kafka"):
        load_service(settings, {}, {}, policy)


def test_an_unknown_key_and_an_unknown_section_are_both_told(tmp_path: Path) -> None:
    """All faults of a file at once, whatever their kind."""
    with pytest.raises(SettingsFileError) as caught:
        load(tmp_path, "[kafak]\nx = 1\n[limits]\nrun = 5\n")

    assert "kafak: unknown key" in str(caught.value)
    assert "limits.run: unknown key" in str(caught.value)


def test_secrets_are_never_shown(tmp_path: Path) -> None:
    """Neither an error nor the settings' own text shows a secret."""
    with pytest.raises(SettingsFileError) as caught:
        load(tmp_path, "[kafka]\nsasl_password = 12345\n")
    shown = repr(Settings(kafka=KafkaSettings(sasl_password="swordfish", ssl_key_password="swordfish")))  # noqa: S106

    assert "12345" not in str(caught.value)
    assert "swordfish" not in shown
    assert 2 == shown.count("***")


def test_the_shipped_configuration_holds_every_setting_with_its_default(repository: Path) -> None:
    """No key of the settings is missing from the file, none differs from its default, none is made up."""
    text = (repository / "config" / "streamguard.toml").read_text()
    active = tomllib.loads(text)
    for section in msgspec.structs.fields(Settings):
        defaults = msgspec.to_builtins(section.default)
        given = active.get(section.name, {})

        assert {name: value for name, value in defaults.items() if value is not None} == given
        for name, value in defaults.items():
            if value is None:
                assert f"\n# {name} = " in text


def test_the_shipped_policy_is_the_documented_one_switched_on(repository: Path) -> None:
    """The shipped configuration says enabled = true and spells out every other field with its default."""
    loaded = load_policy_file(repository / "config" / "streamguard.toml")

    assert Policy(enabled=True) == loaded.policies.of(None)
    assert {"policy." + field for field in FIELDS} == {value.origin for value in loaded.explain(None)}


def test_every_secret_is_a_setting() -> None:
    """What is masked exists."""
    known = {
        f"{section.name}.{field.name}"
        for section in msgspec.structs.fields(Settings)
        for field in msgspec.structs.fields(section.type)
    }

    assert known >= SECRETS


def test_variables_of_the_gateways_clients_are_no_settings(tmp_path: Path) -> None:
    """A worker that is started where agents run does not trip over the hook's address and token."""
    with_them = load(tmp_path, "", {"STREAMGUARD_GATEWAY_URL": "http://a:1", "STREAMGUARD_GATEWAY_TOKEN": "t"})

    assert load(tmp_path, "", {}) == with_them
