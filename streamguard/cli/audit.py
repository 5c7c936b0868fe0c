"""`streamguard audit`: reading the verdicts that stand, and finding out whether they are right."""

from __future__ import annotations

import importlib
from typing import Final

import click

__all__ = ["command"]

COMMANDS: Final = {
    "list": "List verdicts.",
    "tail": "Follow verdicts as they come.",
    "explain": "Say why a call was stopped, and why not the one before.",
    "verify": "Derive every verdict anew from the events, and compare byte for byte.",
    "stats": "Count calls, loops and blocks by agent, tool, detector or day.",
}


class AuditGroup(click.Group):
    """A group whose commands are modules of this package, imported when used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the commands in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Import a command."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"streamguard.cli.audit_{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group("audit", cls=AuditGroup, short_help="Read, explain and verify verdicts.")
def command() -> None:
    """Read the verdicts that stand on the topic or in files, explain them, and verify them."""
