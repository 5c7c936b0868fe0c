"""The gateway's API as an OpenAPI 3.1 document, with the schemas of the contract and of what the code answers."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from streamguard.schema import wire_schemas

if TYPE_CHECKING:
    from streamguard.settings import GatewaySettings

__all__ = ["openapi"]

SCHEMAS: Final = "#/components/schemas/"
EVENT: Final = {
    "oneOf": [{"$ref": f"{SCHEMAS}{name}"} for name in ("ToolCall", "ToolResult", "Compaction", "RunEnded")],
    "discriminator": {
        "propertyName": "type",
        "mapping": {
            "tool_call": f"{SCHEMAS}ToolCall",
            "tool_result": f"{SCHEMAS}ToolResult",
            "compaction": f"{SCHEMAS}Compaction",
            "run_ended": f"{SCHEMAS}RunEnded",
        },
    },
}
ERROR: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {"type": "string", "description": "What is wrong, and what to do."},
        "index": {"type": "integer", "minimum": 0, "description": "Of the event that is wrong; 0 for a single one."},
    },
}
ACCEPTED: Final = {
    "type": "object",
    "required": ["accepted"],
    "properties": {"accepted": {"type": "integer", "minimum": 0, "description": "Events taken: all of the body."}},
}
ANSWER: Final = {
    "type": "object",
    "required": ["action", "message", "decided_by", "verdict"],
    "properties": {
        "action": {"enum": ["allow", "warn", "block", "abort"]},
        "message": {"type": ["string", "null"], "description": "For the model or a person."},
        "decided_by": {"enum": ["guard", "nobody"], "description": "nobody: no verdict came in time."},
        "verdict": {"oneOf": [{"$ref": f"{SCHEMAS}Verdict"}, {"type": "null"}]},
    },
}
HEALTH: Final = {"type": "object", "required": ["status"], "properties": {"status": {"const": "connected"}}}

RETRY_AFTER: Final = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds after which to retry."}}
REFUSALS: Final = {
    "400": "The request is wrong; nothing was published.",
    "401": "No token, or none that is known.",
    "405": "The path has other methods.",
    "413": "The body is too large (gateway.body_bytes), has too many events, or Kafka does not take one of its events.",
    "429": "Too many requests of this token or address (gateway.requests_per_second).",
    "500": "The gateway failed.",
}


def openapi(gateway: GatewaySettings) -> dict[str, Any]:
    """Return the document; limits and times are those of the settings."""
    own = {"Event": EVENT, "Error": ERROR, "Accepted": ACCEPTED, "Answer": ANSWER, "Health": HEALTH}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "streamguard gateway",
            "version": version("streamguard"),
            "description": "Events in, verdicts out, for executors without a Kafka client. Errors are JSON.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "paths": {
            "/v1/events": {"post": _events(gateway)},
            "/v1/gate": {"post": _gate(gateway)},
            "/v1/verdicts": {"get": _verdicts(gateway)},
            "/healthz": {"get": _healthz()},
            "/openapi.json": {"get": _itself()},
        },
        "components": {
            "schemas": {**wire_schemas(f"{SCHEMAS}{{name}}"), **own},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "If tokens are set."}},
        },
    }


def _events(gateway: GatewaySettings) -> dict[str, Any]:
    return {
        "operationId": "publishEvents",
        "summary": "Publish one event or an array of them, in order: all or none.",
        "parameters": [
            _query("ack", {"enum": ["0", "1"], "default": "1"}, "0: answer as soon as the events are buffered.")
        ],
        "requestBody": _body({"oneOf": [_ref("Event"), {"type": "array", "items": _ref("Event")}]}),
        "responses": {
            "202": _json("Accepted", "Kafka has acknowledged all events; with ack=0: they are buffered."),
            "503": _unavailable(
                "The buffer is full and nothing was published; or Kafka did not acknowledge the events within "
                f"{gateway.publish_timeout_seconds:g} s, and they are still sent."
            ),
            **_refusals("400", "401", "405", "413", "429", "500"),
        },
    }


def _gate(gateway: GatewaySettings) -> dict[str, Any]:
    default = gateway.gate_timeout_seconds
    seconds = {"type": "number", "exclusiveMinimum": 0, "maximum": 30, "default": default}
    call = {"allOf": [_ref("ToolCall"), {"required": ["call_id"], "properties": {"call_id": {"type": "string"}}}]}
    return {
        "operationId": "askBeforeCall",
        "summary": "Publish a tool_call and wait for its verdict. `gate` is set here.",
        "parameters": [_query("timeout", seconds, "Longest wait for the verdict, in seconds.")],
        "requestBody": _body(call),
        "responses": {
            "200": _json("Answer", "The verdict; or allow, decided by nobody, if none came in time (gateway.fail)."),
            "503": _unavailable("No verdict came in time, and gateway.fail is closed: the call must not run."),
            **_refusals("400", "401", "405", "413", "429", "500"),
        },
    }


def _verdicts(gateway: GatewaySettings) -> dict[str, Any]:
    runs = {"type": "array", "minItems": 1, "maxItems": 100, "items": {"type": "string", "minLength": 1}}
    last = {
        "name": "Last-Event-ID",
        "in": "header",
        "schema": {"type": "string"},
        "description": "The id that came last, from any instance: what was missed since comes first.",
    }
    return {
        "operationId": "followVerdicts",
        "summary": "Follow the verdicts of runs as server-sent events.",
        "parameters": [
            {**_query("run_id", runs, "The runs."), "required": True, "style": "form", "explode": True},
            last,
        ],
        "responses": {
            "200": {
                "description": "`id`: where the stream stands; `event`: the action; `data`: the verdict's JSON as on "
                "the topic. The first block has an id and no data. Comments keep the connection alive.",
                "content": {"text/event-stream": {"schema": {"type": "string"}}},
            },
            "503": _unavailable(f"Not connected to Kafka yet; or {gateway.streams} streams are open."),
            **_refusals("400", "401", "405", "429", "500"),
        },
    }


def _healthz() -> dict[str, Any]:
    return {
        "operationId": "health",
        "summary": "Tell whether Kafka is reached. Needs no token.",
        "security": [],
        "responses": {
            "200": _json("Health", "A broker answers."),
            "503": _unavailable("None does: events are buffered."),
            **_refusals("405", "500"),
        },
    }


def _itself() -> dict[str, Any]:
    document = {"description": "This document.", "content": {"application/json": {"schema": {"type": "object"}}}}
    return {
        "operationId": "describe",
        "summary": "This document.",
        "responses": {"200": document, **_refusals("401", "405", "429", "500")},
    }


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"{SCHEMAS}{name}"}


def _query(name: str, schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": schema, "description": description}


def _body(schema: dict[str, Any]) -> dict[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _json(name: str, description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": _ref(name)}}}


def _unavailable(description: str) -> dict[str, Any]:
    return {**_json("Error", description), "headers": RETRY_AFTER}


def _refusals(*statuses: str) -> dict[str, Any]:
    refusals = {status: _json("Error", REFUSALS[status]) for status in statuses}
    if "429" in refusals:
        refusals["429"]["headers"] = RETRY_AFTER
    return refusals
