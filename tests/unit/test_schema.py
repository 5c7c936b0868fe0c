"""The printed schemas agree with what the decoder takes and the guard publishes."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from streams import Log

from streamguard.errors import UnreadableRecordError
from streamguard.events import decode_event, run_of
from streamguard.schema import asyncapi, events_schema, verdicts_schema
from streamguard.verdicts import encode_verdict

EVENTS = [
    {
        "type": "tool_call",
        "run_id": "r",
        "agent_id": "a",
        "call_id": "c",
        "tool": "exec",
        "args": {"x": 1},
        "gate": True,
    },
    {"type": "tool_call", "session_id": "s", "tool": "exec"},
    {"type": "tool_result", "run_id": "r", "call_id": "c", "result": None, "error": None},
    {"type": "tool_result", "run_id": "r", "status": "blocked", "unknown": [1]},
    {"type": "compaction", "run_id": "r", "tokens_before": 5},
    {"type": "run_ended", "run_id": "r", "time": "2026-01-01T00:00:00Z"},
    {"type": "tool_call", "run_id": "r"},
    {"type": "tool_call", "tool": "x"},
    {"type": "tool_call", "run_id": " ", "tool": "x"},
    {"type": "tool_call", "run_id": 1, "tool": "x"},
    {"type": "tool_result", "run_id": "r", "call_id": []},
    {"type": 1},
    [],
]


def readable(event: Any) -> bool:
    """Tell whether the decoder takes an event."""
    try:
        decoded = decode_event(json.dumps(event).encode())
        return decoded is not None and bool(run_of(decoded))
    except UnreadableRecordError:
        return False


@pytest.mark.parametrize("event", EVENTS)
def test_the_schema_of_events_agrees_with_the_decoder(event: Any) -> None:
    """What validates is read, and what is refused does not validate."""
    validator = jsonschema.Draft202012Validator(events_schema())

    assert readable(event) == validator.is_valid(event)


def test_published_verdicts_validate() -> None:
    """Every verdict that a loop gives fits the schema of verdicts."""
    log = Log()
    verdicts = [verdict for number in range(21) for verdict in log.pair(number)] + log.call("g", gate=True)
    validator = jsonschema.Draft202012Validator(verdicts_schema())

    assert {"warn", "block"} <= {verdict.action for verdict in verdicts}
    for verdict in verdicts:
        validator.validate(json.loads(encode_verdict(verdict)))


def test_asyncapi_refers_to_nothing_that_is_not_there() -> None:
    """Every reference of the AsyncAPI document leads somewhere within it."""
    document = asyncapi()

    def references(value: Any) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
            return own + [found for item in value.values() for found in references(item)]
        return [found for item in value for found in references(item)] if isinstance(value, list) else []

    assert "3.0.0" == document["asyncapi"]
    for reference in references(document):
        place: Any = document
        for key in reference.removeprefix("#/").split("/"):
            place = place[key]
        assert place
