"""The document of the API: valid, complete, and true of what the gateway answers."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from test_requests import CALL, serve

from streamguard.gateway.openapi import openapi
from streamguard.settings import GatewaySettings

DOCUMENT = json.loads(json.dumps(openapi(GatewaySettings())))


def fits(schema: dict[str, Any], value: Any) -> bool:
    """Tell whether a value fits a schema of the document."""
    whole = {**schema, "components": DOCUMENT["components"]}
    return bool(jsonschema.Draft202012Validator(whole).is_valid(value))


def test_it_is_valid() -> None:
    """The document is OpenAPI 3.1."""
    assert [] == list(OpenAPIV31SpecValidator(DOCUMENT).iter_errors())


async def test_it_is_served() -> None:
    """What is served is the document, with the settings' own times as defaults."""
    served = (await serve(gate_timeout_seconds=7.0).client.get("/openapi.json")).json()
    [timeout] = served["paths"]["/v1/gate"]["post"]["parameters"]

    assert (DOCUMENT["paths"].keys(), 7.0) == (served["paths"].keys(), timeout["schema"]["default"])


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("post", "/v1/events", b"nothing"),
        ("post", "/v1/events", b" " * 2_000_000),
        ("post", "/v1/events", CALL),
        ("post", "/v1/events", b"[]"),
        ("post", "/v1/gate", CALL),
        ("post", "/v1/gate", b"[]"),
        ("get", "/v1/verdicts", None),
        ("get", "/v1/verdicts?run_id=r", None),
        ("get", "/healthz", None),
        ("put", "/healthz", None),
        ("get", "/openapi.json", None),
    ],
)
async def test_every_answer_is_described(method: str, path: str, body: bytes | None) -> None:
    """Each status has a description, and what comes with it fits."""
    response = await serve().client.request(method, path, content=body)
    operations = DOCUMENT["paths"][path.partition("?")[0]]
    described = operations[method if method in operations else "get"]["responses"][str(response.status_code)]
    schema = described["content"]["application/json"]["schema"]

    assert fits(schema, response.json())
    assert ("headers" in described) == ("retry-after" in response.headers)


def test_the_events_of_the_contract_fit() -> None:
    """The body of a request is one event, or an array of them."""
    schema = DOCUMENT["paths"]["/v1/events"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    event = {"type": "run_ended", "run_id": "r"}

    assert [True, True, False, False] == [
        fits(schema, body) for body in (event, [event], [{"type": "run_ended"}], {"type": "tool_call", "run_id": "r"})
    ]
