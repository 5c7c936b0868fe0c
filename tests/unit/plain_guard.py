"""The written rules once more, read plainly and slowly: every question scans the whole history.

The property tests hold the guard's incremental window against this. Outcomes and signatures come from the guard's own
hashing (which other tests hold against its rules); everything that counts, orders and remembers is written anew.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from streamguard.events import Compaction, Event, ToolCall, ToolResult
from streamguard.guard.outcome import kind_of, outcome_of, unknown_tool
from streamguard.guard.signature import signature_of, tool_named
from streamguard.policy import Policy

Found = tuple[str, str, int, tuple[int, ...]]
"""Action, detector, count, evidence."""


class PlainRun:
    """One run under one policy."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.history: list[dict[str, Any]] = []
        self.waiting: list[dict[str, Any]] = []
        self.warned: dict[Any, int] = {}
        self.watched: list[tuple[bytes, bytes]] | None = None
        self.watched_offsets: list[int] = []
        self.aborted: Found | None = None
        self.calls_after_abort = 0

    def observe(self, event: Event, offset: int) -> list[Found]:
        """Take the next event; return what must be published."""
        if self.policy.enabled is False:
            return []
        if isinstance(event, Compaction):
            self.watched, self.watched_offsets = [], []
            return []
        if self.aborted is not None:
            if isinstance(event, ToolCall):
                self.calls_after_abort += 1
                return [self.aborted] if self.calls_after_abort.bit_count() == 1 else []
            return []
        if isinstance(event, ToolCall):
            return self._call(event, offset)
        return self._result(event, offset) if isinstance(event, ToolResult) else []

    def _call(self, event: ToolCall, offset: int) -> list[Found]:
        tool = tool_named(event.tool)
        record = {
            "tool": tool.name,
            "signature": signature_of(tool, event.args, event.args_hash),
            "kind": kind_of(tool.name, event.args, self.policy.send_tools),
            "poll": tool.name == "command_status"
            or (
                tool.name == "process" and isinstance(event.args, dict) and event.args.get("action") in ("poll", "log")
            ),
            "call_id": event.call_id,
            "outcome": None,
            "unknown": None,
            "offset": offset,
        }
        found, key = self._judge(record) if self.policy.enabled else (None, None)
        if found is None or found[0] == "warn":
            self._record(record)
        if event.call_id is not None:
            self.waiting = [*self.waiting, record][-256:]
        if found is None:
            return []
        if found[0] == "warn":
            if key in self.warned and found[2] < self.warned[key] + 10:
                return []
            self.warned[key] = found[2]
            if len(self.warned) > 256:
                del self.warned[next(iter(self.warned))]
        return [found]

    def _record(self, record: dict[str, Any]) -> None:
        self.history = [*self.history, record][-self.policy.history_size :]

    def _judge(self, call: dict[str, Any]) -> tuple[Found | None, Any]:  # noqa: C901 - the rules in a row
        policy, history = self.policy, self.history
        row = self._unknown_row(call)
        if row and len(row) >= policy.unknown_tool_threshold:
            return ("block", "unknown_tool_repeat", len(row), offsets(row)), None
        same = [record for record in history if record["signature"] == call["signature"]]
        streak = streak_of(same)
        if len(streak) >= policy.global_circuit_breaker_threshold:
            return ("block", "global_circuit_breaker", len(streak), offsets(streak)), None
        if call["poll"] and policy.known_poll_no_progress:
            if len(streak) >= policy.critical_threshold:
                return ("block", "known_poll_no_progress", len(streak), offsets(streak)), None
            if len(streak) >= policy.warning_threshold:
                key = ("poll", call["signature"], streak[-1]["outcome"])
                return ("warn", "known_poll_no_progress", len(streak), offsets(streak)), key
        if policy.ping_pong:
            found, key = self._ping_pong(call)
            if found is not None:
                return found, key
        if policy.generic_repeat and not call["poll"]:
            if len(streak) >= policy.critical_threshold:
                return ("block", "generic_repeat", len(streak), offsets(streak)), None
            if len(same) >= policy.warning_threshold:
                return ("warn", "generic_repeat", len(same), offsets(same)), ("generic", call["signature"])
        return None, None

    def _unknown_row(self, call: dict[str, Any]) -> list[dict[str, Any]]:
        row: list[dict[str, Any]] = []
        for record in reversed(self.history):
            name = self.history[-1]["unknown"]
            if name is None or record["unknown"] != name or record["tool"] != call["tool"]:
                break
            row.insert(0, record)
        return row

    def _ping_pong(self, call: dict[str, Any]) -> tuple[Found | None, Any]:
        history = self.history
        if not history:
            return None, None
        newest = history[-1]["signature"]
        others = [record["signature"] for record in history if record["signature"] != newest]
        if not others or call["signature"] != others[-1]:
            return None, None
        tail: list[dict[str, Any]] = []
        for index, record in enumerate(reversed(history)):
            if record["signature"] != (newest if index % 2 == 0 else others[-1]):
                break
            tail.insert(0, record)
        if len(tail) < 2:
            return None, None
        count = len(tail) + 1
        sides = [{record["outcome"] for record in tail[start::2]} for start in (0, 1)]
        stuck = all(len(side) == 1 and None not in side for side in sides)
        evidence = (*offsets(tail), call["offset"])[-32:]
        if count >= self.policy.critical_threshold and stuck:
            return ("block", "ping_pong", count, evidence), None
        if count >= self.policy.warning_threshold:
            return ("warn", "ping_pong", count, evidence), ("pair", frozenset((newest, others[-1])))
        return None, None

    def _result(self, event: ToolResult, offset: int) -> list[Found]:
        call = self._call_of(event, offset)
        if call is None:
            return []
        outcome = outcome_of(event, call["kind"])
        if outcome is None:
            return []
        unknown = unknown_tool(event)
        for record in reversed(self.history):
            if (
                record["signature"] == call["signature"]
                and record["outcome"] is None
                and (event.call_id is None or record["call_id"] == event.call_id)
            ):
                break
        else:
            record = {**call, "offset": offset}
            self._record(record)
        record["outcome"], record["unknown"] = outcome, unknown
        return self._watch(call, outcome, record["offset"])

    def _call_of(self, event: ToolResult, offset: int) -> dict[str, Any] | None:
        waiting = [call for call in self.waiting if call["call_id"] == event.call_id and event.call_id is not None]
        if event.args is UNSET and event.args_hash is None:
            call = waiting[-1] if waiting else None
            self.waiting = [other for other in self.waiting if other is not call]
            return dict(call, outcome=None, unknown=None) if call is not None else None
        name = event.tool if event.tool is not None else waiting[-1]["tool"] if waiting else None
        if name is None:
            return None
        tool = tool_named(name)
        signature = signature_of(tool, event.args, event.args_hash)
        answered = [call for call in waiting if call["signature"] == signature] or waiting
        if answered:
            self.waiting = [other for other in self.waiting if other is not answered[-1]]
        return {
            "tool": tool.name,
            "signature": signature,
            "kind": kind_of(tool.name, event.args, self.policy.send_tools),
            "call_id": event.call_id,
            "offset": offset,
        }

    def _watch(self, call: dict[str, Any], outcome: bytes, offset: int) -> list[Found]:
        if self.watched is None:
            return []
        self.watched.append((call["signature"], outcome))
        self.watched_offsets.append(offset)
        if len(set(self.watched)) > 1:
            self.watched = None
        elif len(self.watched) == self.policy.compaction_window:
            count = len(self.watched)
            self.aborted = ("abort", "compaction_loop_persisted", count, tuple(self.watched_offsets[-32:]))
            return [self.aborted]
        return []


def streak_of(same: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records with an outcome, from the newest back, while it equals the newest one's."""
    streak: list[dict[str, Any]] = []
    for record in reversed([record for record in same if record["outcome"] is not None]):
        if streak and record["outcome"] != streak[0]["outcome"]:
            break
        streak.insert(0, record)
    return streak


def offsets(records: list[dict[str, Any]]) -> tuple[int, ...]:
    """Return where the newest 32 stand."""
    return tuple(record["offset"] for record in records[-32:])
