"""Policies from files that people write: checked hard, every fault named by its place, and where each value came from.

Two formats: streamguard's own TOML (`[policy]`, `[agents.<id>]`; also as part of the service's configuration), and
OpenClaw's configuration as it is (JSON5; `tools.loopDetection` and the same under each agent).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import json5

from streamguard.errors import PolicyFileError
from streamguard.faults import fault, quoted, unknown_key
from streamguard.overrides import checked_overrides
from streamguard.policy import (
    COUNTS,
    DETECTORS,
    FLAGS,
    NAMES,
    Block,
    Policy,
    PolicySet,
    overlay,
    positive_whole,
    resolve,
)
from streamguard.policy_block import FIELDS, checked_block

__all__ = [
    "OPENCLAW",
    "Clamped",
    "LoadedPolicy",
    "Value",
    "load_policy_file",
    "policy_from_toml",
    "read_toml",
    "unknown_sections",
]

SERVICE_SECTIONS: Final = frozenset(
    ("kafka", "topics", "worker", "limits", "signing", "gateway", "ui", "metrics", "log")
)
"""Top-level tables of the service's configuration that are no business of the policy."""

OPENCLAW: Final = (".json", ".json5")
"""Suffixes of OpenClaw's configuration; everything else is TOML."""


class Clamped(NamedTuple):
    """A misordered pair of thresholds: `field` was `value` and is taken as `clamped`."""

    agent: str | None
    field: str
    value: int
    clamped: int
    reason: str

    def as_log(self) -> dict[str, Any]:
        """Return the fields of a log line."""
        return self._asdict()


class Value(NamedTuple):
    """An effective value and where it came from."""

    field: str
    value: Any
    origin: str


class LoadedPolicy(NamedTuple):
    """A policy file that was found right; `paths` tell where its blocks stand in it."""

    policies: PolicySet
    source: str
    warnings: tuple[Clamped, ...]
    paths: Mapping[str | None, str]

    def explain(self, agent_id: str | None) -> list[Value]:
        """Return every effective value for an agent, with its origin."""
        agent = self.policies.agents.get(agent_id) if agent_id is not None else None
        policy = resolve(self.policies.block, agent)
        clamped = {warning.field: warning for warning in _clamped(agent_id, self.policies.block, agent)}
        blocks = ((agent, self.paths.get(agent_id, "")), (self.policies.block, self.paths.get(None, "")))
        return [Value(field, _effective(policy, field), _origin(field, blocks, clamped.get(field))) for field in FIELDS]


def load_policy_file(path: Path) -> LoadedPolicy:
    """Read a policy file of either format.

    Raises `PolicyFileError` that names every fault: the key's path, its value, what is allowed.
    """
    if path.suffix in OPENCLAW:
        return _from_openclaw(read_json5(path), str(path))
    return policy_from_toml(read_toml(path), str(path))


def policy_from_toml(document: Mapping[str, Any], source: str) -> LoadedPolicy:
    """Take the policy from a parsed TOML file, which may be the service's whole configuration."""
    faults = unknown_sections(document)
    block = checked_block(document.get("policy"), "policy", faults, snake_case=True)
    tables = document.get("agents", {})
    if not isinstance(tables, Mapping):
        faults.append(fault("agents", tables, "a table for each agent, [agents.<id>]"))
        tables = {}
    names = {agent: f"agents.{quoted(agent)}" for agent in tables}
    agents = {agent: checked_block(table, names[agent], faults, snake_case=True) for agent, table in tables.items()}
    overrides = checked_overrides(document.get("overrides"), faults)
    return _loaded(PolicySet(block, agents, overrides), source, faults, {None: "policy", **names})


def unknown_sections(document: Mapping[str, Any]) -> list[str]:
    """Name every section of a TOML file that neither a policy nor the service has."""
    known = ("policy", "agents", "overrides", *SERVICE_SECTIONS)
    return [unknown_key(key, key, known) for key in document if key not in known]


def read_toml(path: Path, error: type[Exception] = PolicyFileError) -> dict[str, Any]:
    """Parse a TOML file; raises the given error with the place where it is no TOML."""
    try:
        return tomllib.loads(_text(path, error))
    except tomllib.TOMLDecodeError as problem:
        raise error(f"{path}: not TOML: {problem}") from None
    except RecursionError:
        raise error(f"{path}: nested too deep to read") from None


def read_json5(path: Path) -> Mapping[str, Any]:
    """Parse a JSON5 file; raises `PolicyFileError` with the place where it is none."""
    try:
        document = json5.loads(_text(path, PolicyFileError))
    except ValueError as problem:
        where = re.sub(r"^<string>:", "line ", str(problem))
        raise PolicyFileError(f"{path}: not JSON5: {where}") from None
    except RecursionError:
        raise PolicyFileError(f"{path}: nested too deep to read") from None
    if not isinstance(document, Mapping):
        raise PolicyFileError(f"{path}: an object was expected, as in OpenClaw's configuration")
    return document


def _from_openclaw(document: Mapping[str, Any], source: str) -> LoadedPolicy:
    faults: list[str] = []
    block = checked_block(_at(document, "tools", "loopDetection"), "tools.loopDetection", faults)
    agents: dict[str, Block | None] = {}
    names: dict[str | None, str] = {None: "tools.loopDetection"}
    for agent, path, value in _openclaw_agents(document, faults):
        if agent in agents:
            faults.append(f"{path}: agent {agent!r} has a block already, at {names[agent]}")
            continue
        names[agent] = path
        agents[agent] = checked_block(value, path, faults)
    return _loaded(PolicySet(block, agents), source, faults, names)


def _openclaw_agents(document: Mapping[str, Any], faults: list[str]) -> Iterator[tuple[str, str, Any]]:
    """Yield (agent, path, block) of every agent that has a block, in either place that OpenClaw knows."""
    listed = _at(document, "agents", "list")
    for index, entry in enumerate(listed if isinstance(listed, list) else ()):
        value = _at(entry, "tools", "loopDetection")
        path = f"agents.list[{index}]"
        if value is None:
            continue
        agent = entry.get("id")
        if isinstance(agent, str) and agent.strip():
            yield agent, f"{path}.tools.loopDetection", value
        else:
            faults.append(fault(f"{path}.id", agent, "the agent's id, because it has a loopDetection block"))
    entries = _at(document, "agents", "entries")
    for agent, entry in entries.items() if isinstance(entries, Mapping) else ():
        value = _at(entry, "tools", "loopDetection")
        if value is not None:
            yield agent, f"agents.entries.{quoted(agent)}.tools.loopDetection", value


def _loaded(
    policies: PolicySet,
    source: str,
    faults: list[str],
    paths: Mapping[str | None, str],
) -> LoadedPolicy:
    if faults:
        raise PolicyFileError(f"{source}: " + (faults[0] if len(faults) == 1 else "\n  " + "\n  ".join(faults)))
    block = policies.block
    warnings = list(_clamped(None, block, None))
    for agent, agent_block in policies.agents.items():
        warnings += (
            warning for warning in _clamped(agent, block, agent_block) if warning._replace(agent=None) not in warnings
        )
    return LoadedPolicy(policies, source, tuple(warnings), paths)


def _clamped(agent: str | None, block: Block | None, agent_block: Block | None) -> Iterator[Clamped]:
    """Yield what clamping changes in a merged block (the written numbers against the effective ones)."""
    merged, policy = overlay(block, agent_block), resolve(block, agent_block)
    above = {"criticalThreshold": "warningThreshold", "globalCircuitBreakerThreshold": "criticalThreshold"}
    for field, lower in above.items():
        written = positive_whole(merged.get(field)) or getattr(Policy(), COUNTS[field])
        effective = getattr(policy, COUNTS[field])
        if written != effective:
            yield Clamped(agent, field, written, effective, f"{field} must be above {lower}")


def _effective(policy: Policy, field: str) -> Any:
    others = {"enabled": "enabled", "postCompactionGuard.windowSize": "compaction_window", **FLAGS, **NAMES}
    name = COUNTS.get(field) or DETECTORS.get(field.removeprefix("detectors.")) or others[field]
    value = getattr(policy, name)
    return list(value) if isinstance(value, tuple) else value


def _origin(field: str, blocks: tuple[tuple[Block | None, str], ...], clamped: Clamped | None) -> str:
    outer, _, inner = field.rpartition(".")
    where = "default"
    for block, path in blocks:
        holder = _at(block, outer) if outer else block
        if isinstance(holder, Mapping) and inner in holder:
            where = f"{path}.{field}"
            break
    return where if clamped is None else f"{where}, clamped from {clamped.value}: {clamped.reason}"


def _text(path: Path, error: type[Exception]) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as problem:
        raise error(f"{path}: cannot be read: {problem.strerror}") from problem
    except UnicodeDecodeError as problem:
        raise error(f"{path}: not UTF-8: byte {problem.start} is wrong") from None


def _at(value: Any, *keys: str) -> Any:
    """Follow keys into nested objects; None where there is no way."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
