"""`streamguard integrations`: where the plugins for agents' own hosts are, which come with this package."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

import streamguard.integrations

__all__ = ["command"]

PLUGINS: Final = Path(streamguard.integrations.__file__).parent


@click.group("integrations", short_help="Say where the plugins for agents' hosts are.")
def command() -> None:
    """Say where the plugins for agents' hosts are, which come with this package."""


@command.command("openclaw")
def openclaw() -> None:
    """Print the folder of the plugin for OpenClaw.

    To install it: openclaw plugins install "$(streamguard integrations openclaw)"
    """
    click.echo(PLUGINS / "openclaw")
