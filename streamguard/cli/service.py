"""What the commands of the service share: where settings and policies come from."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import structlog

from streamguard.logs import configure_logs
from streamguard.policy import PolicySet
from streamguard.policy_file import LoadedPolicy, load_policy_file
from streamguard.settings import Settings
from streamguard.settings_file import load_service

__all__ = ["load", "load_policy", "service_options", "worker_options"]

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


def load_policy(file: Path | None) -> PolicySet:
    """Read a policy for a command without Kafka; no file: the documented defaults."""
    configure_logs()
    return _warned(load_policy_file(file)) if file is not None else PolicySet()


def _warned(loaded: LoadedPolicy) -> PolicySet:
    for warning in loaded.warnings:
        log.warning("policy thresholds out of order, clamped", **warning.as_log())
    return loaded.policies
