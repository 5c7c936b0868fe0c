"""The `loopDetection` block: its fields, their defaults, the overlay of an agent's block, and clamping.

Source of every rule: the section "Policy" of the detection rules (OpenClaw's `tools.loopDetection`). Here a block
is taken the lenient way, as one that arrives already merged: an odd value falls back to its default. Files that
people write are checked harder, in `policy_file`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

__all__ = ["DEFAULT_POLICY", "Block", "Override", "Policy", "PolicySet", "clamp", "overlay", "resolve"]

Block = Mapping[str, Any]
"""A `loopDetection` block as it stands in a file: camelCase keys, values not yet checked."""

NESTED: Final = ("detectors", "postCompactionGuard")
"""Objects within a block that an agent's block overlays one level deeper."""


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """The effective policy of one agent: every field decided, thresholds in order.

    Counts are numbers of tool calls. `enabled` has three states: True, all on; None, only the post-compaction
    guard on; False, all off and nothing remembered. In `shadow` nothing is enforced: verdicts are only recorded;
    `shadow_detectors` are the detectors, as verdicts name them, of which that holds.
    """

    enabled: bool | None = None
    history_size: int = 30
    warning_threshold: int = 10
    critical_threshold: int = 20
    unknown_tool_threshold: int = 10
    global_circuit_breaker_threshold: int = 30
    generic_repeat: bool = True
    known_poll_no_progress: bool = True
    ping_pong: bool = True
    compaction_window: int = 3
    send_tools: tuple[str, ...] = ()
    shadow: bool = False
    shadow_detectors: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits that name this policy in verdicts: equal policies, equal digits, on any machine.

        Of what differs from the defaults, so that a field that is added later changes no policy's name.
        """
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()[:12]


DEFAULT_POLICY: Final = Policy()

COUNTS: Final = {
    "historySize": "history_size",
    "warningThreshold": "warning_threshold",
    "criticalThreshold": "critical_threshold",
    "unknownToolThreshold": "unknown_tool_threshold",
    "globalCircuitBreakerThreshold": "global_circuit_breaker_threshold",
}
"""Whole-number keys of a block, and the field of `Policy` that each sets."""

FLAGS: Final = {"shadow": "shadow"}
"""Further switches of a block, and the field of `Policy` that each sets."""

NAMES: Final = {"sendTools": "send_tools", "shadowDetectors": "shadow_detectors"}
"""Lists of names in a block, and the field of `Policy` that each sets."""

DETECTORS: Final = {
    "genericRepeat": "generic_repeat",
    "knownPollNoProgress": "known_poll_no_progress",
    "pingPong": "ping_pong",
}
"""Switches under `detectors`, and the field of `Policy` that each sets."""


class Override(msgspec.Struct, frozen=True, kw_only=True):
    """Lets a call go on that would be stopped, until a stream time: what is found of it is only recorded.

    `signature` is as in verdicts; without `agent` it holds for every agent. `until` is in milliseconds since 1970.
    `by` and `why` are for those who ask later.
    """

    signature: str
    until: int
    by: str
    why: str
    agent: str | None = None


class PolicySet(msgspec.Struct, frozen=True, omit_defaults=True):
    """The global block and the blocks of agents, from which each agent's effective policy follows; and overrides."""

    block: Block | None = None
    agents: Mapping[str, Block | None] = msgspec.field(default_factory=dict)
    overrides: Mapping[str, Override] = msgspec.field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits that name the whole set: its blocks and nothing else decide them."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()[:12]

    def of(self, agent_id: str | None) -> Policy:
        """Return the effective policy of an agent; agents without a block of their own have the global one."""
        return resolve(self.block, self.agents.get(agent_id) if agent_id is not None else None)


def resolve(block: Block | None, agent_block: Block | None = None) -> Policy:
    """Overlay, read leniently, clamp: from the two blocks to the effective policy."""
    return clamp(_read(overlay(block, agent_block)))


def overlay(block: Block | None, agent_block: Block | None) -> Block:
    """Lay an agent's block over the global one, field by field, nested objects one level deeper.

    A block that is missing or null changes nothing.
    """
    merged = dict(block or {})
    for key, value in (agent_block or {}).items():
        below = merged.get(key)
        if key in NESTED and isinstance(below, Mapping) and (value is None or isinstance(value, Mapping)):
            merged[key] = {**below, **(value or {})}
        else:
            merged[key] = value
    return merged


def clamp(policy: Policy) -> Policy:
    """Put misordered thresholds in order: critical above warning, the circuit breaker above critical."""
    critical = policy.critical_threshold
    if critical <= policy.warning_threshold:
        critical = policy.warning_threshold + 1
    breaker = policy.global_circuit_breaker_threshold
    if breaker <= critical:
        breaker = critical + 1
    if (critical, breaker) == (policy.critical_threshold, policy.global_circuit_breaker_threshold):
        return policy
    return msgspec.structs.replace(policy, critical_threshold=critical, global_circuit_breaker_threshold=breaker)


def positive_whole(value: object) -> int | None:
    """Return the number if it counts as one: positive and whole. 3.0 does; True, "4", 2.5, 0 and null do not."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not value.is_integer():
        return None
    return int(value) if value > 0 else None


def _read(block: Block) -> Policy:
    """Take what is valid in a merged block; everything else keeps its default."""
    fields: dict[str, Any] = {}
    for key, name in {"enabled": "enabled", **FLAGS}.items():
        if isinstance(block.get(key), bool):
            fields[name] = block[key]
    for key, name in COUNTS.items():
        number = positive_whole(block.get(key))
        if number is not None:
            fields[name] = number
    switches = _mapping(block.get("detectors"))
    for key, name in DETECTORS.items():
        if isinstance(switches.get(key), bool):
            fields[name] = switches[key]
    window = positive_whole(_mapping(block.get("postCompactionGuard")).get("windowSize"))
    if window is not None:
        fields["compaction_window"] = window
    for key, name in NAMES.items():
        names = block.get(key)
        if isinstance(names, list):
            fields[name] = tuple(sorted({each.strip().lower() for each in names if isinstance(each, str)}))
    return Policy(**fields)


def _mapping(value: object) -> Block:
    return value if isinstance(value, Mapping) else {}
