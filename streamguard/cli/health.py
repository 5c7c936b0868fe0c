"""`streamguard health`: whether the worker that writes a status file is well, for health checks."""

from __future__ import annotations

import time
from pathlib import Path

import click
import msgspec

__all__ = ["command"]


@click.command("health", short_help="Tell whether a worker is well, by its status file.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--ready", is_flag=True, help="Fail also while partitions are being restored.")
@click.option(
    "--max-age", type=click.FloatRange(min=0), default=15.0, show_default=True, help="Oldest status that counts, in s."
)
def command(file: Path, max_age: float, *, ready: bool) -> None:
    """Read the status FILE (`worker.status_file`) of a worker, say how it is, and exit 0 if it is well, else 1."""
    from streamguard.stream.status import Status, in_words  # noqa: PLC0415 - Kafka clients load only when they are used

    try:
        status = msgspec.json.decode(file.read_bytes(), type=Status)
    except FileNotFoundError:
        raise click.ClickException(f"{file}: no worker writes its status there") from None
    except (OSError, msgspec.MsgspecError) as error:
        raise click.ClickException(f"{file} cannot be read: {error}") from None
    age = time.time() - status.time
    if age > max_age:
        raise click.ClickException(f"worker {status.pid} has not said how it is for {age:.0f} s")
    if status.stuck:
        raise click.ClickException(f"worker {status.pid} makes no progress: {', '.join(status.stuck)}")
    doing = in_words(status)
    if ready and not status.ready:
        raise click.ClickException(f"worker {status.pid} is not ready: {doing}")
    click.echo(f"worker {status.pid} is well: {doing}")
