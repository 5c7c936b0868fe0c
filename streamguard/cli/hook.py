"""`streamguard hook`: the hook of Claude Code, for people; `streamguard-hook` is the same and starts quicker."""

from __future__ import annotations

import sys

import click

from streamguard.hook import main

__all__ = ["command"]


@click.command(
    "hook",
    short_help="Guard Claude Code: to be called by its hooks.",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> None:
    """Hand everything on: wrong usage must not exit with click's 2, which would block the agent's tool."""
    sys.exit(main(arguments))
