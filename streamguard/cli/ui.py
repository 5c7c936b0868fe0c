"""`streamguard ui`: the live page, until a signal stops it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import click
import structlog

from streamguard.cli.service import load, need, service_options
from streamguard.cli.signals import obey_signals

__all__ = ["check_extra", "command"]

log = structlog.get_logger("streamguard.web")

NEEDED: Final = ("starlette", "uvicorn", "jinja2")


@click.command("ui", short_help="Serve the live page.")
@service_options
@click.option("--group", help="Consumer group of the workers to show.")
@click.option("--policy", type=click.Path(path_type=Path), help="What is in force, where no record says so.")
@click.option("--host", help="Address to listen at; one that others reach needs tokens [default: 127.0.0.1].")
@click.option("--port", type=click.IntRange(0, 65_535), help="Port to listen at; 0: a free one [default: 8322].")
def command(
    *,
    config: Path | None,
    bootstrap: str | None,
    group: str | None,
    policy: Path | None,
    host: str | None,
    port: int | None,
) -> None:
    """Serve a page that shows what the guard sees now: runs at risk, verdicts, lag and latency, workers.

    It reads the topics as no member of a group, from the newest minutes on, and writes nothing. Arguments and results
    are never shown. Needs the extra: pip install 'streamguard[ui]'.
    """
    settings, policies = load(
        config, policy, kafka__bootstrap=bootstrap, worker__group=group, ui__host=host, ui__port=port
    )
    check_extra()
    from streamguard.web.server import LivePage  # noqa: PLC0415 - Kafka clients load only when they are used

    async def serve() -> None:
        page = LivePage(settings, policies)
        obey_signals(page.stop, log)
        await page.run()

    asyncio.run(serve())


def check_extra() -> None:
    """Raise `MissingExtraError` if the page cannot be served."""
    need("the live page", NEEDED, "ui")
