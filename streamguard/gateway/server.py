"""One gateway from start to end: it listens at once, connects behind that, and drains when it is told to stop."""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

import structlog
import uvicorn

from streamguard.executor.channel import Channel
from streamguard.executor.options import ExecutorOptions
from streamguard.gateway.access import read_tokens
from streamguard.gateway.app import Service, event_limit
from streamguard.http_server import BACKLOG, HttpServer, listen

if TYPE_CHECKING:
    from streamguard.settings import Settings

__all__ = ["Gateway"]

log = structlog.get_logger("streamguard.gateway")

KEEP_ALIVE_SECONDS: Final = 75
"""How long an idle connection is kept: longer than clients keep theirs, so that none is used as it is closed."""

LEAST_FLUSH_SECONDS: Final = 1.0


class Gateway:
    """Serves HTTP: `run` until `stop`. Raises a `ConfigurationError` if tokens, keys or certificates cannot be used."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._tokens = read_tokens(settings.gateway)
        self.counters: Counter[str] = Counter()
        self.address: tuple[str, int] | None = None
        self._listening = asyncio.Event()
        self._stopping = asyncio.Event()
        self._channel = Channel(_options(settings), self.counters)

    async def listening(self) -> tuple[str, int]:
        """Wait until requests are taken; return host and port."""
        await self._listening.wait()
        if self.address is None:
            raise RuntimeError("listening without an address")
        return self.address

    def stop(self) -> None:
        """Begin to drain: `run` returns when open requests are answered and buffered events are sent."""
        self._stopping.set()

    async def run(self) -> None:
        """Serve. Raises `CannotListenError` at the start, `NotAuthorizedError` if Kafka refuses us."""
        listener = listen("gateway", self._settings.gateway.host, self._settings.gateway.port)
        self.address = listener.getsockname()[:2]
        service = Service(self._settings, self._channel, self._tokens)
        server = HttpServer(self._config(service))
        self._channel.start()
        serving = asyncio.create_task(server.serve(sockets=[listener]), name="http")
        self._listening.set()
        log.info("listening", host=self.address[0], port=self.address[1], tokens=len(self._tokens))
        await self._until_stopped(serving)
        end = time.monotonic() + self._settings.gateway.stop_grace_seconds
        service.streams.stopping.set()
        server.should_exit = True
        await serving
        await service.ears.close()
        await self._channel.close(max(LEAST_FLUSH_SECONDS, end - time.monotonic()))
        if self._channel.refusal is not None and not self._stopping.is_set():
            raise self._channel.refusal
        log.info("stopped")

    async def _until_stopped(self, serving: asyncio.Task[None]) -> None:
        """Wait for a reason to stop: we are told to, Kafka refuses us, or the server ended by itself."""
        reasons = [asyncio.ensure_future(event.wait()) for event in (self._stopping, self._channel.refused)]
        try:
            await asyncio.wait({*reasons, serving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for reason in reasons:
                reason.cancel()

    def _config(self, service: Service) -> uvicorn.Config:
        return uvicorn.Config(
            service.app,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,  # paths hold run ids
            server_header=False,
            proxy_headers=False,  # whoever comes can write them
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=math.ceil(self._settings.gateway.stop_grace_seconds),
        )


def _options(settings: Settings) -> ExecutorOptions:
    return ExecutorOptions(
        kafka=settings.kafka,
        topics=settings.topics,
        signing=settings.signing,
        gate_timeout=settings.gateway.gate_timeout_seconds,
        fail=settings.gateway.fail,
        buffer_events=settings.gateway.buffer_events,
        buffer_bytes=sys.maxsize,  # the publisher bounds them, a body at a time
        event_bytes=event_limit(settings),
    )
