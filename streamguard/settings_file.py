"""Where settings come from: the file, then STREAMGUARD_* variables, then flags; the later wins. All faults at once."""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin

import msgspec

from streamguard.errors import SettingsFileError
from streamguard.policy import PolicySet
from streamguard.policy_file import (
    SERVICE_SECTIONS,
    LoadedPolicy,
    Value,
    load_policy_file,
    policy_from_toml,
    read_toml,
    unknown_sections,
)
from streamguard.settings import SECRETS, GatewaySettings, Settings, SigningSettings, UiSettings, masked

__all__ = ["explain_service", "load_service"]

PREFIX: Final = "STREAMGUARD_"
OF_THE_TESTS: Final = PREFIX + "TEST_"
NOT_SETTINGS: Final = frozenset(("STREAMGUARD_CONFIG", "STREAMGUARD_GATEWAY_URL", "STREAMGUARD_GATEWAY_TOKEN"))
"""Variables that are no settings: the one that names the file, and those of the gateway's clients."""


LAST_PORT: Final = 65_535

_ADDRESS: Final = re.compile(r"(\[[0-9a-fA-F:.%]+\]|[^\s:\[\]]+):0*[1-9][0-9]{0,4}")


class Loaded(NamedTuple):
    """What was read; `origins` tell where each setting comes from that is not left to its default."""

    settings: Settings
    origins: Mapping[str, str]
    policy: LoadedPolicy


def load_service(
    path: Path | None, environ: Mapping[str, str], flags: Mapping[str, Any], policy_path: Path | None = None
) -> tuple[Settings, LoadedPolicy]:
    """Read settings and policy; `flags` are by dotted key (`kafka.bootstrap`).

    Without a file (`path`, else STREAMGUARD_CONFIG) the defaults hold. The policy comes from `policy_path` if given,
    else from the same file. Raises `SettingsFileError` or `PolicyFileError`.
    """
    loaded = _load(path, environ, flags, policy_path)
    return loaded.settings, loaded.policy


def explain_service(path: Path | None, environ: Mapping[str, str], flags: Mapping[str, Any]) -> list[Value]:
    """Return every setting in force by its dotted key, with its origin; secrets are masked.

    Reads and raises what `load_service` does. Files that settings name (certificates, secrets) are not read.
    """
    loaded = _load(path, environ, flags, None)
    return [
        Value(
            f"{section}.{name}",
            masked(f"{section}.{name}", getattr(getattr(loaded.settings, section), name)),
            loaded.origins.get(f"{section}.{name}", "default"),
        )
        for section, name in (key.split(".", 1) for key in _TYPES)
    ]


def _load(path: Path | None, environ: Mapping[str, str], flags: Mapping[str, Any], policy_path: Path | None) -> Loaded:
    if path is None and environ.get("STREAMGUARD_CONFIG"):
        path = Path(environ["STREAMGUARD_CONFIG"])
    document = read_toml(path, SettingsFileError) if path is not None else {}
    faults = [f"{path}: {fault}" for fault in unknown_sections(document)]
    values: dict[str, dict[str, Any]] = {section: {} for section in SERVICE_SECTIONS}
    origins: dict[str, str] = {}
    for key, value, origin in (
        *_from_file(document, str(path), faults),
        *_from_environment(environ, faults),
        *((key, value, "flag") for key, value in flags.items()),
    ):
        section, name = key.split(".", 1)
        values[section][name] = value
        origins[key] = origin
    settings = _converted(values, origins, faults)
    if faults or settings is None:
        raise SettingsFileError("settings: " + (faults[0] if len(faults) == 1 else "\n  " + "\n  ".join(faults)))
    if policy_path is not None:
        policy = load_policy_file(policy_path)
    elif path is not None:
        policy = policy_from_toml(document, str(path))
    else:
        policy = LoadedPolicy(PolicySet(), "defaults", (), {})
    return Loaded(settings, origins, policy)


def _from_file(document: Mapping[str, Any], path: str, faults: list[str]) -> Iterator[tuple[str, Any, str]]:
    for section in SERVICE_SECTIONS & document.keys():
        table = document[section]
        if not isinstance(table, Mapping):
            faults.append(f"{path}: {section} must be a table, [{section}]")
            continue
        for name, value in table.items():
            key = f"{section}.{name}"
            if key in _TYPES:
                yield key, value, path
            else:
                faults.append(f"{path}: {key}: unknown key; {_hint(key, _TYPES)}")


def _from_environment(environ: Mapping[str, str], faults: list[str]) -> Iterator[tuple[str, Any, str]]:
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable.startswith(OF_THE_TESTS) or variable in NOT_SETTINGS:
            continue
        key = _BY_VARIABLE.get(variable)
        if key is None:
            faults.append(f"{variable}: no setting has this variable; {_hint(variable, _BY_VARIABLE)}")
        else:
            yield key, environ[variable], variable


def _converted(values: Mapping[str, Any], origins: Mapping[str, str], faults: list[str]) -> Settings | None:
    """Check each value by its type, then the sections; a secret's value is never shown."""
    checked: dict[str, dict[str, Any]] = {}
    for section, fields in values.items():
        for name, value in fields.items():
            key = f"{section}.{name}"
            try:
                text = origins[key].startswith(PREFIX)
                checked.setdefault(section, {})[name] = msgspec.convert(value, _TYPES[key], strict=not text)
            except msgspec.ValidationError as error:
                shown = "***" if key in SECRETS else repr(value)
                faults.append(f"{origins[key]}: {key} is {shown}; {_allowed(key, error)}")
    if faults:
        return None
    settings = msgspec.convert(checked, Settings)
    faults += _contradictions(settings)
    return settings


def _allowed(key: str, error: msgspec.ValidationError) -> str:
    if get_origin(_TYPES[key]) is Literal:
        return "allowed: " + ", ".join(get_args(_TYPES[key]))
    return f"{str(error)[0].lower()}{str(error)[1:]}"


def _contradictions(settings: Settings) -> Iterator[str]:
    """Yield what is wrong between settings that are right one by one."""
    kafka, worker, topics = settings.kafka, settings.worker, settings.topics
    for server in filter(None, map(str.strip, kafka.bootstrap.split(","))):
        if _ADDRESS.fullmatch(server) is None or int(server.rpartition(":")[2]) > LAST_PORT:
            yield f"kafka.bootstrap: {server} is no address; allowed: HOST:PORT, several separated by commas"
    if kafka.security_protocol.startswith("SASL") and not (
        kafka.sasl_username and (kafka.sasl_password or kafka.sasl_password_file)
    ):
        yield f"kafka.security_protocol is {kafka.security_protocol}: kafka.sasl_username and a password are needed"
    if bool(kafka.ssl_keyfile) and not kafka.ssl_certfile:
        yield "kafka.ssl_keyfile is given without kafka.ssl_certfile"
    if worker.heartbeat_interval_ms * 3 > worker.session_timeout_ms:
        yield (
            f"worker.heartbeat_interval_ms is {worker.heartbeat_interval_ms}; allowed: at most a third of "
            f"worker.session_timeout_ms ({worker.session_timeout_ms})"
        )
    names = (topics.events, topics.verdicts, topics.dead_letters, settings.state_topic, settings.policies_topic)
    if len(set(names)) < len(names):
        yield (
            "topics.events, topics.verdicts, topics.dead_letters, topics.state and topics.policies must be five "
            "different topics"
        )
    yield from _half_keys(settings.signing)
    yield from _open("gateway", settings.gateway)
    yield from _open("ui", settings.ui)


def _open(section: str, served: GatewaySettings | UiSettings) -> Iterator[str]:
    """Yield what would let anybody in."""
    if not _loopback(served.host) and not (served.tokens or served.tokens_file):
        yield (
            f"{section}.host is {served.host}, which others reach: {section}.tokens or {section}.tokens_file is needed "
            "(`openssl rand -hex 32` makes a token)"
        )
    if served.tokens and served.tokens_file:
        yield f"{section}.tokens and {section}.tokens_file are both given: which of them holds?"


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _half_keys(signing: SigningSettings) -> Iterator[str]:
    """Yield what would leave verdicts unsigned, or signed by another key than was meant."""
    keys = {
        "signing.key": (signing.key_id, signing.key, signing.key_file),
        "signing.previous_key": (signing.previous_key_id, signing.previous_key, signing.previous_key_file),
    }
    for name, (key_id, secret, file) in keys.items():
        if key_id and not secret and not file:
            yield f"{name}_id is given without {name} or {name}_file"
        if not key_id and (secret or file):
            yield f"{name} or {name}_file is given without {name}_id"
        if secret and file:
            yield f"{name} and {name}_file are both given: which of them holds?"
    if signing.previous_key_id and not signing.key_id:
        yield "signing.previous_key_id is given without signing.key_id: nothing would be signed"
    if signing.key_id and signing.key_id == signing.previous_key_id:
        yield f"signing.key_id and signing.previous_key_id are both {signing.key_id}: each key needs an id of its own"


def _hint(written: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(written, known, n=1)
    return f"did you mean {close[0]}?" if close else "allowed: " + ", ".join(sorted(known))


def _field_types() -> dict[str, Any]:
    types: dict[str, Any] = {}
    for section in msgspec.structs.fields(Settings):
        for field in msgspec.structs.fields(section.type):
            types[f"{section.name}.{field.name}"] = field.type
    return types


_TYPES: Final = _field_types()
_BY_VARIABLE: Final = {PREFIX + key.replace(".", "_").upper(): key for key in _TYPES}
