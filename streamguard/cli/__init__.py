"""The command line. Commands load what they need when they are called: `--help` is quick, and no extra is needed."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Final, NoReturn

import click

from streamguard.errors import ConfigurationError, NotAuthorizedError, StreamguardError, StuckError

__all__ = ["cli", "main"]

COMMANDS: Final = {
    "run": "Run a worker: events in, verdicts out.",
    "gateway": "Serve executors without a Kafka client over HTTP.",
    "ui": "Serve the live page.",
    "health": "Tell whether a worker is well, by its status file.",
    "topics": "Create the topics that streamguard needs.",
    "policy": "Check, show and test policies.",
    "config": "Show the settings in force, and where each comes from.",
    "hook": "Guard Claude Code: to be called by its hooks.",
    "integrations": "Say where the plugins for agents' hosts are.",
    "replay": "Judge recorded events from files, without Kafka.",
    "publish": "Send recorded events to the events topic.",
    "audit": "Read, explain and verify verdicts.",
    "backtest": "Try policies on recorded events.",
    "tune": "Search thresholds on recorded runs, under a bound.",
    "schema": "Print the schemas of events, verdicts and topics.",
    "demo": "Watch looping agents being stopped.",
}

EXIT_CODES: Final = {ConfigurationError: 2, NotAuthorizedError: 3, StuckError: 4}
"""Exit codes of errors; every other one ends with 1."""


class LazyGroup(click.Group):
    """A group whose commands are modules of this package, imported when used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the commands in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Import a command."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"streamguard.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    "streamguard",
    cls=LazyGroup,
    epilog="Exit codes: 0 done; 1 failed; 2 wrong usage or configuration. `streamguard run` and `gateway` have more.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="streamguard")
def cli() -> None:
    """Stop looping agents from outside: tool calls in from Kafka, warn, block and abort verdicts out."""


def main() -> None:
    """Run the command line; errors that a user can meet are one line, not a traceback."""
    try:
        cli(standalone_mode=False)
    except click.exceptions.Exit as leaving:
        sys.exit(leaving.exit_code)
    except click.UsageError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        click.echo(f"error: {error.format_message()}", err=True)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except StreamguardError as error:
        _leave(error)
    except BrokenPipeError:
        # Whoever read our output has seen enough; nothing more can be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        told = _of_kafka(error)
        if told is None:
            raise
        _leave(told)


def _leave(error: StreamguardError) -> NoReturn:
    click.echo(f"error: {error}", err=True)
    sys.exit(next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), 1))


def _of_kafka(error: Exception) -> StreamguardError | None:
    """Return what a user is told for an error of the Kafka client, which is not imported for that."""
    client = sys.modules.get("aiokafka.errors")
    if client is None or not isinstance(error, client.KafkaError):
        return None
    refusal = importlib.import_module("streamguard.stream.refusal")
    told: StreamguardError = refusal.as_error(error)
    return told
