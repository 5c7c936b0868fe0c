"""JSON Schema and AsyncAPI of what goes over the wire, made from the types that decode and encode it."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, Final

import msgspec

from streamguard.events import Compaction, Event, RunEnded, ToolCall, ToolResult
from streamguard.settings import TopicSettings
from streamguard.verdicts import Verdict

__all__ = ["asyncapi", "events_schema", "verdicts_schema", "wire_schemas"]

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
CONTRACT: Final = "version 1"
KINDS: Final = (ToolCall, ToolResult, Compaction, RunEnded)
HAS_SCOPE: Final = {
    "anyOf": [
        {"required": ["run_id"], "properties": {"run_id": {"type": "string", "pattern": r"\S"}}},
        {"required": ["session_id"], "properties": {"session_id": {"type": "string", "pattern": r"\S"}}},
    ]
}
"""What the types cannot say: an event names its run or its session, and blank does not count."""

DESCRIPTIONS: Final = {
    "run_id": "The scope of all history. Surrounding blanks do not count; blank is missing.",
    "session_id": "The scope where run_id is missing.",
    "agent_id": "Selects the per-agent policy.",
    "round_id": "Calls that one model turn made in parallel.",
    "event_id": "Producer's own id; a repeat within a run's window is ignored.",
    "time": "RFC 3339. Informational: the guard's clock is the record timestamp.",
    "call_id": "Matches a result to its call.",
    "tool": "Tool name as the model gave it.",
    "args": "Arguments: any JSON.",
    "args_hash": "Instead of args, for producers that keep payloads to themselves.",
    "gate": "The executor waits: answer this call with a verdict in any case.",
    "poll": "Beside args_hash: the arguments ask for the state or the log of something that runs.",
    "unknown_tool": "Beside result_hash: the tool that the error says does not exist.",
    "result": "The outcome: any JSON.",
    "error": "The failure; null means no error.",
    "result_hash": "Hash of the outcome made by the producer.",
    "status": "'blocked': the executor obeyed a block and nothing ran.",
    "verdict_id": "<partition>-<offset>-<n> of the event that caused it.",
    "count": "What was counted, in calls.",
    "threshold": "The limit that the count reached.",
    "message": "For the model or a person; never holds a payload.",
    "signature": "Tool and hash of the arguments: what is blocked.",
    "paired_tool": "The other tool of a ping-pong.",
    "evidence": "Offsets of the calls that were counted, newest last, at most 32.",
    "shadow": "True: recorded only, executors must not act.",
    "override": "Name of the override that lets the call go on; the verdict is shadow then.",
    "policy": "Short hash of the effective policy that decided.",
    "source": "The event that caused the verdict.",
}


def events_schema() -> dict[str, Any]:
    """Return the JSON Schema of an event."""
    document = msgspec.json.schema(Event)
    for kind in KINDS:
        document["$defs"][kind.__name__].update(HAS_SCOPE)
    return _titled(document, "streamguard event")


def verdicts_schema() -> dict[str, Any]:
    """Return the JSON Schema of a verdict."""
    return _titled(msgspec.json.schema(Verdict), "streamguard verdict")


def wire_schemas(ref_template: str) -> dict[str, Any]:
    """Return the schemas of events and verdicts by name, as components of a larger document."""
    _, components = msgspec.json.schema_components((*KINDS, Verdict), ref_template=ref_template)
    for kind in KINDS:
        components[kind.__name__].update(HAS_SCOPE)
    _describe(components)
    return dict(components)


def asyncapi(topics: TopicSettings | None = None) -> dict[str, Any]:
    """Return an AsyncAPI 3.0 document of the topics, from streamguard's point of view."""
    topics = topics or TopicSettings()
    components = wire_schemas("#/components/schemas/{name}")
    events = {kind.__name__: _message(kind.__name__, kind.__doc__ or "") for kind in KINDS}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "streamguard",
            "version": version("streamguard"),
            "description": f"Events in, verdicts out: contract {CONTRACT}. JSON, or MessagePack by header.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {
            "events": _channel(topics.events, topics.partitions, "What agents do, by run.", list(events)),
            "verdicts": _channel(
                topics.verdicts,
                topics.partitions,
                "Control topic and audit log. A verdict has its event's partition number.",
                ["Verdict"],
            ),
            "deadLetters": _channel(
                topics.dead_letters, topics.partitions, "Records that are no events, untouched.", ["DeadLetter"]
            ),
        },
        "operations": {
            "readEvents": {"action": "receive", "channel": {"$ref": "#/channels/events"}},
            "publishVerdicts": {"action": "send", "channel": {"$ref": "#/channels/verdicts"}},
            "publishDeadLetters": {"action": "send", "channel": {"$ref": "#/channels/deadLetters"}},
        },
        "components": {
            "schemas": components,
            "messages": {**events, "Verdict": _message("Verdict", Verdict.__doc__ or ""), "DeadLetter": _dead_letter()},
        },
    }


def _titled(document: dict[str, Any], title: str) -> dict[str, Any]:
    _describe(document["$defs"])
    name = title.rsplit(" ", 1)[-1]
    return {
        "$schema": DIALECT,
        "$id": f"urn:streamguard:contract:1:{name}",
        "title": f"{title}, {CONTRACT}",
        **document,
    }


def _describe(definitions: dict[str, Any]) -> None:
    """Write the contract's words beside the fields."""
    for definition in definitions.values():
        for name, field in definition.get("properties", {}).items():
            if name in DESCRIPTIONS:
                field["description"] = DESCRIPTIONS[name]


def _channel(topic: str, partitions: int, description: str, messages: list[str]) -> dict[str, Any]:
    return {
        "address": topic,
        "description": description,
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in messages},
        "bindings": {"kafka": {"topic": topic, "partitions": partitions, "bindingVersion": "0.5.0"}},
    }


def _message(name: str, description: str) -> dict[str, Any]:
    key = {"type": "string", "description": "run_id: every record of a run is in one partition"}
    return {
        "name": name,
        "summary": description.splitlines()[0],
        "contentType": "application/json",
        "payload": {"$ref": f"#/components/schemas/{name}"},
        "bindings": {"kafka": {"key": key, "bindingVersion": "0.5.0"}},
    }


def _dead_letter() -> dict[str, Any]:
    headers = {name: {"type": "string"} for name in ("error", "source.topic", "source.partition", "source.offset")}
    return {
        "name": "DeadLetter",
        "summary": "A record that is no event, value and key untouched; headers say why and where from.",
        "contentType": "application/octet-stream",
        "headers": {"type": "object", "properties": headers, "required": list(headers)},
        "payload": {},
    }
