"""`streamguard config show`: the settings in force, and where each comes from."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Final

import click

from streamguard.cli.service import service_options, worker_options
from streamguard.policy_file import Value
from streamguard.settings_file import explain_service

__all__ = ["command"]

ORIGIN_COLUMN: Final = 40
"""Where origins stand, if the value leaves room."""


@click.group("config", short_help="Show the settings in force, and where each comes from.")
def command() -> None:
    """Show the settings in force, and where each comes from."""


@command.command("show")
@service_options
@worker_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a list of {key, value, origin}.")
def show(
    *, config: Path | None, bootstrap: str | None, group: str | None, on_lost_position: str | None, as_json: bool
) -> None:
    """Show every setting as `streamguard run` would take it, with its origin: file, variable, flag or default.

    Secrets are shown as ***, unset keys as comments. Certificates and secrets in files are not looked at. Exits 2 if
    the configuration is wrong.
    """
    flags = {"kafka.bootstrap": bootstrap, "worker.group": group, "worker.on_lost_position": on_lost_position}
    values = explain_service(config, os.environ, {key: value for key, value in flags.items() if value is not None})
    if as_json:
        shown = [{"key": value.field, "value": value.value, "origin": value.origin} for value in values]
        click.echo(json.dumps(shown, indent=2))
        return
    sections = itertools.groupby(values, key=lambda value: value.field.split(".", 1)[0])
    click.echo("\n\n".join("\n".join((f"[{name}]", *map(_line, section))) for name, section in sections))


def _line(value: Value) -> str:
    """Return a setting as a line of TOML."""
    name = value.field.split(".", 1)[1]
    assignment = f"# {name}" if value.value is None else f"{name} = {json.dumps(value.value, ensure_ascii=False)}"
    return f"{assignment:<{ORIGIN_COLUMN}}  # {value.origin}"
