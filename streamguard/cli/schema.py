"""`streamguard schema`: what goes over the wire, for producers and executors in any language."""

from __future__ import annotations

import json
from typing import Final

import click

from streamguard.schema import asyncapi, events_schema, verdicts_schema

__all__ = ["command"]

DOCUMENTS: Final = {"events": events_schema, "verdicts": verdicts_schema, "asyncapi": asyncapi}


@click.command("schema", short_help="Print the schemas of events, verdicts and topics.")
@click.argument("document", type=click.Choice(list(DOCUMENTS)))
def command(document: str) -> None:
    """Print JSON Schema (2020-12) of events or verdicts, or an AsyncAPI 3 document of the topics, as JSON."""
    click.echo(json.dumps(DOCUMENTS[document](), indent=2, ensure_ascii=False))
