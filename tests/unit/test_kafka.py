"""How clients are made from settings: security, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streamguard.errors import ClusterSettingsError
from streamguard.settings import KafkaSettings
from streamguard.stream.kafka import client_options


def test_plain_settings_need_no_security() -> None:
    """Brokers are a list; without security nothing of it is set."""
    options = client_options(KafkaSettings(bootstrap="a:1, b:2"))

    assert ["a:1", "b:2"] == options["bootstrap_servers"]
    assert not {"ssl_context", "sasl_mechanism"} & options.keys()


def test_a_password_comes_from_a_file(tmp_path: Path) -> None:
    """A password file is read, without its line end."""
    file = tmp_path / "password"
    file.write_text("swordfish\n")
    settings: dict[str, Any] = {
        "sasl_username": "u",
        "sasl_password_file": str(file),
        "sasl_mechanism": "SCRAM-SHA-512",
    }
    options = client_options(KafkaSettings(security_protocol="SASL_PLAINTEXT", **settings))

    assert ("SCRAM-SHA-512", "u", "swordfish") == (
        options["sasl_mechanism"], options["sasl_plain_username"], options["sasl_plain_password"],
    )  # fmt: skip


def test_tls_checks_the_broker_unless_told_otherwise() -> None:
    """Certificates are required; only the host name's check can be switched off."""
    strict = client_options(KafkaSettings(security_protocol="SSL"))["ssl_context"]
    lax = client_options(KafkaSettings(security_protocol="SSL", ssl_check_hostname=False))["ssl_context"]

    assert (True, False) == (strict.check_hostname, lax.check_hostname)
    assert strict.verify_mode == lax.verify_mode == 2


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"security_protocol": "SSL", "ssl_cafile": "/nowhere/ca.pem"}, r"kafka\.ssl_cafile: /nowhere/ca\.pem cannot"),
        (
            {"security_protocol": "SSL", "ssl_certfile": "/nowhere/c.pem"},
            r"kafka\.ssl_certfile: /nowhere/c\.pem cannot",
        ),
        (
            {"security_protocol": "SSL", "ssl_cafile": __file__},
            r"kafka\.ssl_cafile: .*test_kafka\.py holds no certificate",
        ),
        (
            {"security_protocol": "SSL", "ssl_certfile": __file__},
            r"test_kafka\.py and the key in it cannot be used together",
        ),
        (
            {"security_protocol": "SASL_SSL", "sasl_password_file": "/nowhere/p"},
            "sasl_password_file: /nowhere/p cannot",
        ),
    ],
)
def test_files_that_cannot_be_used_are_named(settings: dict[str, Any], fault: str) -> None:
    """A missing certificate, key or password file is an error of the settings, before anything is started."""
    with pytest.raises(ClusterSettingsError, match=fault):
        client_options(KafkaSettings(**settings))
