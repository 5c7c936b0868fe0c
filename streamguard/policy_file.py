"""Policies from files that people write: checked hard, every fault named by its place, and where each value came from.

Two formats: streamguard's own TOML (`[policy]`, `[agents.<id>]`; also as part of the service's configuration), and
OpenClaw's configuration as it is (JSON5; `tools.loopDetection` and the same under each agent).
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import json5

from streamguard.errors import PolicyFileError
from streamguard.policy import COUNTS, DETECTORS, NESTED, Block, Policy, PolicySet, overlay, positive_whole, resolve

__all__ = [
    "OPENCLAW",
    "Clamped",
    "LoadedPolicy",
    "Value",
    "load_policy_file",
    "policy_from_toml",
    "read_toml",
    "unknown_keys",
    "unknown_sections",
]

SERVICE_SECTIONS: Final = frozenset(("kafka", "topics", "worker", "limits", "signing", "gateway", "log"))
"""Top-level tables of the service's configuration that are no business of the policy."""

OPENCLAW: Final = (".json", ".json5")
"""Suffixes of OpenClaw's configuration; everything else is TOML."""

WHOLE: Final = "a positive whole number"
SWITCH: Final = "true or false"

FIELDS: Final[Mapping[str, str]] = {
    "enabled": "true, false, or null for unset",
    **dict.fromkeys(COUNTS, WHOLE),
    **{f"detectors.{key}": SWITCH for key in DETECTORS},
    "postCompactionGuard.windowSize": WHOLE,
    "sendTools": "a list of tool names",
}
"""Every field of a block by its path, and what is allowed there."""


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
    block = _checked(document.get("policy"), "policy", faults, snake_case=True)
    tables = document.get("agents", {})
    if not isinstance(tables, Mapping):
        faults.append(_fault("agents", tables, "a table for each agent, [agents.<id>]"))
        tables = {}
    names = {agent: f"agents.{_quoted(agent)}" for agent in tables}
    agents = {agent: _checked(table, names[agent], faults, snake_case=True) for agent, table in tables.items()}
    return _loaded(block, agents, source, faults, {None: "policy", **names})


def unknown_keys(block: Any, path: str, prefix: str = "") -> list[str]:
    """Name every key of a block, as OpenClaw spells it, that no policy has; its values may be anything."""
    if not isinstance(block, Mapping):
        return []
    known = _known(prefix)
    faults = [_unknown_key(f"{path}.{key}", key, known) for key in block if key not in known]
    for key in NESTED if not prefix else ():
        faults += unknown_keys(block.get(key), f"{path}.{key}", f"{key}.")
    return faults


def unknown_sections(document: Mapping[str, Any]) -> list[str]:
    """Name every section of a TOML file that neither a policy nor the service has."""
    known = ("policy", "agents", *SERVICE_SECTIONS)
    return [_unknown_key(key, key, known) for key in document if key not in known]


def read_toml(path: Path, error: type[Exception] = PolicyFileError) -> dict[str, Any]:
    """Parse a TOML file; raises the given error with the place where it is no TOML."""
    try:
        return tomllib.loads(_text(path, error))
    except tomllib.TOMLDecodeError as fault:
        raise error(f"{path}: not TOML: {fault}") from None


def read_json5(path: Path) -> Mapping[str, Any]:
    """Parse a JSON5 file; raises `PolicyFileError` with the place where it is none."""
    try:
        document = json5.loads(_text(path, PolicyFileError))
    except ValueError as fault:
        where = re.sub(r"^<string>:", "line ", str(fault))
        raise PolicyFileError(f"{path}: not JSON5: {where}") from None
    except RecursionError:
        raise PolicyFileError(f"{path}: nested too deep to read") from None
    if not isinstance(document, Mapping):
        raise PolicyFileError(f"{path}: an object was expected, as in OpenClaw's configuration")
    return document


def _from_openclaw(document: Mapping[str, Any], source: str) -> LoadedPolicy:
    faults: list[str] = []
    block = _checked(_at(document, "tools", "loopDetection"), "tools.loopDetection", faults)
    agents: dict[str, Block | None] = {}
    names: dict[str | None, str] = {None: "tools.loopDetection"}
    for agent, path, value in _openclaw_agents(document, faults):
        if agent in agents:
            faults.append(f"{path}: agent {agent!r} has a block already, at {names[agent]}")
            continue
        names[agent] = path
        agents[agent] = _checked(value, path, faults)
    return _loaded(block, agents, source, faults, names)


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
            faults.append(_fault(f"{path}.id", agent, "the agent's id, because it has a loopDetection block"))
    entries = _at(document, "agents", "entries")
    for agent, entry in entries.items() if isinstance(entries, Mapping) else ():
        value = _at(entry, "tools", "loopDetection")
        if value is not None:
            yield agent, f"agents.entries.{_quoted(agent)}.tools.loopDetection", value


def _checked(block: Any, path: str, faults: list[str], *, snake_case: bool = False) -> Block | None:
    """Check a block key by key; return it with documented key names, and add what is wrong to `faults`."""
    if block is None:
        return None
    if not isinstance(block, Mapping):
        faults.append(_fault(path, block, "a loopDetection block"))
        return None
    return _object(block, path, "", faults, snake_case=snake_case)


def _object(value: Mapping[str, Any], path: str, prefix: str, faults: list[str], *, snake_case: bool) -> dict[str, Any]:
    known = _known(prefix)
    checked: dict[str, Any] = {}
    for written, item in value.items():
        key = _camel(written) if snake_case else written
        place = f"{path}.{written}"
        if key not in known:
            faults.append(_unknown_key(place, written, known))
        elif key in checked:
            faults.append(f"{place}: given twice, in camelCase and in snake_case")
        elif key in NESTED and not prefix:
            if isinstance(item, Mapping):
                checked[key] = _object(item, place, f"{key}.", faults, snake_case=snake_case)
            elif item is not None:
                faults.append(_fault(place, item, "an object"))
        elif _allowed(prefix + key, item):
            checked[key] = item
        else:
            faults.append(_fault(place, item, FIELDS[prefix + key]))
    return checked


def _known(prefix: str) -> set[str]:
    """Return the keys that an object of a block may have."""
    return {field[len(prefix) :].split(".")[0] for field in FIELDS if field.startswith(prefix)}


def _allowed(field: str, value: Any) -> bool:
    if field == "enabled":
        return value is None or isinstance(value, bool)
    if field == "sendTools":
        return isinstance(value, list) and all(isinstance(tool, str) and tool.strip() for tool in value)
    return isinstance(value, bool) if FIELDS[field] == SWITCH else positive_whole(value) is not None


def _loaded(
    block: Block | None,
    agents: dict[str, Block | None],
    source: str,
    faults: list[str],
    paths: Mapping[str | None, str],
) -> LoadedPolicy:
    if faults:
        raise PolicyFileError(f"{source}: " + (faults[0] if len(faults) == 1 else "\n  " + "\n  ".join(faults)))
    warnings = list(_clamped(None, block, None))
    for agent, agent_block in agents.items():
        warnings += (
            warning for warning in _clamped(agent, block, agent_block) if warning._replace(agent=None) not in warnings
        )
    return LoadedPolicy(PolicySet(block, agents), source, tuple(warnings), paths)


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
    name = COUNTS.get(field) or DETECTORS.get(field.removeprefix("detectors."))
    others = {"enabled": "enabled", "postCompactionGuard.windowSize": "compaction_window", "sendTools": "send_tools"}
    value = getattr(policy, name or others[field])
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
    except OSError as fault:
        raise error(f"{path}: cannot be read: {fault.strerror}") from fault
    except UnicodeDecodeError as fault:
        raise error(f"{path}: not UTF-8: byte {fault.start} is wrong") from None


def _at(value: Any, *keys: str) -> Any:
    """Follow keys into nested objects; None where there is no way."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _camel(key: str) -> str:
    first, *rest = key.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _quoted(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key)


def _fault(path: str, value: Any, allowed: str) -> str:
    try:
        shown = json.dumps(value)
    except (TypeError, ValueError):
        shown = repr(value)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."  # noqa: PLR2004 - fits a line
    return f"{path} is {shown}; allowed: {allowed}"


def _unknown_key(path: str, key: str, known: Any) -> str:
    close = difflib.get_close_matches(_camel(key), known, n=1)
    hint = f"did you mean {close[0]}?" if close else "allowed: " + ", ".join(sorted(known))
    return f"{path}: unknown key; {hint}"
