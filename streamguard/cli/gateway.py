"""`streamguard gateway`: events in and verdicts out over HTTP, until a signal stops it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final

import click
import structlog

from streamguard.cli.service import load, need, service_options
from streamguard.cli.signals import obey_signals

__all__ = ["command"]

log = structlog.get_logger("streamguard.gateway")

NEEDED: Final = ("starlette", "uvicorn")


@click.command("gateway", short_help="Serve executors without a Kafka client over HTTP.")
@service_options
@click.option("--host", help="Address to listen at; one that others reach needs tokens [default: 127.0.0.1].")
@click.option("--port", type=click.IntRange(0, 65_535), help="Port to listen at; 0: a free one [default: 8321].")
def command(config: Path | None, bootstrap: str | None, host: str | None, port: int | None) -> None:
    """Take events over HTTP, answer gated calls, stream verdicts, until SIGTERM or SIGINT.

    The first signal drains: open requests are answered, streams end, buffered events are sent. A second one ends the
    process at once.

    \b
    Exit codes:
      0  stopped by a signal, drained
      1  cannot go on: the port is taken, the extra is missing
      2  wrong usage or configuration; nothing was started
      3  refused by Kafka: wrong credentials, a certificate that is not trusted, a missing ACL
      5  forced by a second signal

    Needs the extra: pip install 'streamguard[gateway]'.
    """  # noqa: D301 - \b is click's mark against rewrapping
    settings, _ = load(config, kafka__bootstrap=bootstrap, gateway__host=host, gateway__port=port)
    need("the gateway", NEEDED, "gateway")
    from streamguard.gateway import Gateway  # noqa: PLC0415 - Kafka clients load only when they are used

    async def serve() -> None:
        structlog.contextvars.bind_contextvars(pid=os.getpid())
        gateway = Gateway(settings)
        obey_signals(gateway.stop, log)
        await gateway.run()

    asyncio.run(serve())
