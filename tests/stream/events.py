"""Events as they stand on the topic, for tests."""

from __future__ import annotations

import json
from typing import Any

from streamguard.verdicts import Verdict


def call(run: str, number: int, **fields: Any) -> bytes:
    """Write a tool_call."""
    return json.dumps(
        {"type": "tool_call", "run_id": run, "call_id": f"c{number}", "tool": "read", "args": {"path": "/a"}, **fields}
    ).encode()


def result(run: str, number: int, value: Any = "same") -> bytes:
    """Write a tool_result."""
    return json.dumps({"type": "tool_result", "run_id": run, "call_id": f"c{number}", "result": value}).encode()


def loop(run: str, times: int, start: int = 0) -> list[bytes]:
    """Write the same call with the same result, again and again."""
    return [record for number in range(start, start + times) for record in (call(run, number), result(run, number))]


def said(verdicts: list[Verdict]) -> list[tuple[str, str | None, int | None]]:
    """Return action, detector and count of each verdict."""
    return [(verdict.action, verdict.detector, verdict.count) for verdict in verdicts]
