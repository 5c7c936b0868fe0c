"""Which verdicts are asked for."""

from __future__ import annotations

import msgspec

from streamguard.verdicts import Verdict

__all__ = ["Query"]


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """What a verdict must be. What is empty or None does not matter, but `allow` is left out unless asked for.

    `since` and `until` (left out itself) are times of the event, in milliseconds since 1970.
    """

    run_id: str | None = None
    agent_id: str | None = None
    tools: frozenset[str] = frozenset()
    detectors: frozenset[str] = frozenset()
    actions: frozenset[str] = frozenset()
    shadow: bool | None = None
    since: int | None = None
    until: int | None = None

    def holds(self, verdict: Verdict) -> bool:
        """Tell whether a verdict is asked for."""
        return (
            (verdict.action in self.actions if self.actions else verdict.action != "allow")
            and self.run_id in {None, verdict.run_id}
            and self.agent_id in {None, verdict.agent_id}
            and (not self.tools or verdict.tool in self.tools)
            and (not self.detectors or verdict.detector in self.detectors)
            and self.shadow in {None, verdict.shadow}
            and (self.since is None or verdict.source.timestamp >= self.since)
            and (self.until is None or verdict.source.timestamp < self.until)
        )
