"""What the commands of the service share: where settings and policies come from."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import structlog

from streamguard.errors import MissingExtraError
from streamguard.logs import configure_logs
from streamguard.policy import PolicySet
from streamguard.policy_file import LoadedPolicy, load_policy_file
from streamguard.settings import Settings
from streamguard.settings_file import load_service

__all__ = ["load", "load_briefly", "load_policy", "need", "service_options", "worker_options"]

log = structlog.get_logger("streamguard.policy")

Command = TypeVar("Command", bound=Callable[..., Any])


def service_options(command: Command) -> Command:
    """Add the options by which every service command finds its settings."""
    return _with(
        command,
        click.option(
            "--config",
            "-c",
            type=click.Path(path_type=Path),
            help="Settings and policy, TOML [env: STREAMGUARD_CONFIG].",
        ),
        click.option(
            "--bootstrap",
            metavar="HOST:PORT",
            help="Kafka brokers, comma-separated [env: STREAMGUARD_KAFKA_BOOTSTRAP].",
        ),
    )


def worker_options(command: Command) -> Command:
    """Add the options that are settings of a worker."""
    return _with(
        command,
        click.option("--group", help="Consumer group; workers of one group share the partitions."),
        click.option(
            "--on-lost-position",
            type=click.Choice(["fail", "earliest", "latest"]),
            help="Where to go on if events were deleted unread [default: fail].",
        ),
    )


def _with(command: Command, *options: Callable[[Command], Command]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def load(config: Path | None, policy: Path | None = None, **overrides: Any) -> tuple[Settings, PolicySet]:
    """Read settings (file, environment, flags) and policy; set up logging; warn of thresholds out of order.

    `overrides` are flags as SECTION__KEY; those that are None were not given.
    """
    flags = {name.replace("__", "."): value for name, value in overrides.items() if value is not None}
    settings, loaded = load_service(config, os.environ, flags, policy)
    configure_logs(settings.log.level, settings.log.format)
    return settings, _warned(loaded)


def load_briefly(config: Path | None, **overrides: Any) -> Settings:
    """Read the settings of a command that does one thing: it logs only what is wrong, its error says the rest."""
    settings, _ = load(config, None, **overrides)
    least = "warning" if settings.log.level == "info" else settings.log.level
    configure_logs(least, settings.log.format, libraries=least == "debug")
    return settings


def need(what: str, packages: Sequence[str], extra: str) -> None:
    """Raise `MissingExtraError` if packages of an extra are not installed."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        names = " and ".join(filter(None, (", ".join(missing[:-1]), missing[-1])))
        are = "is" if len(missing) == 1 else "are"
        raise MissingExtraError(f"{what} needs {names}, which {are} not installed: pip install 'streamguard[{extra}]'")


def load_policy(file: Path | None) -> PolicySet:
    """Read a policy for a command without Kafka; no file: the documented defaults."""
    configure_logs()
    return _warned(load_policy_file(file)) if file is not None else PolicySet()


def _warned(loaded: LoadedPolicy) -> PolicySet:
    for warning in loaded.warnings:
        log.warning("policy thresholds out of order, clamped", **warning.as_log())
    return loaded.policies
