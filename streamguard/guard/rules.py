"""What a guard goes by now: each agent's effective policy, and the overrides that hold."""

from __future__ import annotations

from streamguard.guard.signature import public_signature
from streamguard.policy import Override, Policy, PolicySet

__all__ = ["Rules"]


class Rules:
    """The policy of every agent. `policies` may be one policy for all."""

    __slots__ = ("_overrides", "_policies", "_resolved")

    def __init__(self, policies: PolicySet | Policy) -> None:
        self._policies = policies
        self._resolved: dict[str | None, tuple[Policy, str]] = {}
        self._overrides: dict[str, list[tuple[str, Override]]] = {}
        for name, override in sorted(policies.overrides.items()) if isinstance(policies, PolicySet) else ():
            self._overrides.setdefault(override.signature, []).append((name, override))

    def of(self, agent_id: str | None) -> tuple[Policy, str]:
        """Return an agent's effective policy and that policy's fingerprint."""
        if isinstance(self._policies, Policy) or agent_id not in self._policies.agents:
            agent_id = None
        known = self._resolved.get(agent_id)
        if known is None:
            policy = self._policies if isinstance(self._policies, Policy) else self._policies.of(agent_id)
            known = self._resolved[agent_id] = (policy, policy.fingerprint)
        return known

    def override(self, agent_id: str | None, tool: str, signature: bytes, time: int) -> str | None:
        """Return the name of an override that lets a call go on at a stream time (ms); None if there is none."""
        if not self._overrides:
            return None
        for name, override in self._overrides.get(public_signature(tool, signature), ()):
            if time < override.until and override.agent in {None, agent_id}:
                return name
        return None
