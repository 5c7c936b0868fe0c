"""`streamguard topics create`: make the topics with the right settings."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from streamguard.cli.service import load_briefly, service_options

__all__ = ["command"]


@click.group("topics", short_help="Create the topics that streamguard needs.")
def command() -> None:
    """Create the topics that streamguard needs."""


@command.command("create")
@service_options
@click.option("--partitions", type=click.IntRange(min=1), help="Partitions of each topic.")
@click.option("--replication-factor", type=click.IntRange(min=1), help="Copies of each partition.")
def create(config: Path | None, bootstrap: str | None, partitions: int | None, replication_factor: int | None) -> None:
    """Create the events, verdict and dead-letter topics where they are missing.

    Refuses (exit code 1) if one exists with another number of partitions.
    """
    from streamguard.stream.topics import create_topics  # noqa: PLC0415 - Kafka clients load only when they are used

    settings = load_briefly(
        config,
        kafka__bootstrap=bootstrap,
        topics__partitions=partitions,
        topics__replication_factor=replication_factor,
    )
    for name, state in asyncio.run(create_topics(settings)).items():
        click.echo(
            f"{state:<8} {name} ({settings.topics.partitions} partitions)"
            if state == "created"
            else f"{state:<8} {name}"
        )
