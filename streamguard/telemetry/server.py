"""Serving metrics and health on the worker's own event loop: an answer shows that the loop turns."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import structlog
import uvicorn
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from streamguard.http_server import HttpServer, listen
from streamguard.telemetry.health import Answer, alive, ready
from streamguard.telemetry.state import WorkerState

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from streamguard.settings import MetricsSettings
    from streamguard.stream.status import Status
    from streamguard.telemetry.metrics import Metrics

__all__ = ["serving"]

log = structlog.get_logger("streamguard.telemetry")

TICK_SECONDS: Final = 0.25
"""How often it is looked how late the loop is, and how far the partitions are behind."""

CONNECTIONS: Final = 64
"""Most at once: whoever scrapes too much is turned away, and the worker goes on."""

CLOSE_SECONDS: Final = 1
"""Longest wait for answers that are under way at the end."""


@asynccontextmanager
async def serving(
    settings: MetricsSettings, metrics: Metrics, status: Callable[[], Status | None]
) -> AsyncIterator[tuple[str, int]]:
    """Serve while the block runs; give host and port. `status` is a worker's.

    A server that ends by itself is an error in the log; the worker goes on. Raises `CannotListenError`.
    """
    listener = listen("metrics", settings.host, settings.port)
    state = WorkerState(status)
    metrics.registry.register(state)
    server = HttpServer(_config(_app(metrics, status)))
    host, port = listener.getsockname()[:2]
    tasks = (
        asyncio.create_task(_serve(server, listener), name="metrics"),
        asyncio.create_task(_watch_loop(metrics, state), name="loop-lag"),
    )
    log.info("metrics served", host=host, port=port)
    try:
        yield host, port
    finally:
        server.should_exit = True
        await asyncio.wait(tasks[:1], timeout=CLOSE_SECONDS + 1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        listener.close()
        metrics.registry.unregister(state)


async def _serve(server: HttpServer, listener: socket.socket) -> None:
    try:
        await server.serve(sockets=[listener])
    except Exception as error:  # noqa: BLE001 - whatever it is, the worker goes on
        log.error("metrics no longer served", error=f"{type(error).__name__}: {error}")  # noqa: TRY400 - one line
        return
    if not server.should_exit:
        log.error("metrics no longer served", error="the server has ended")


async def _watch_loop(metrics: Metrics, state: WorkerState) -> None:
    """Sleep, and see how late the loop wakes us."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + TICK_SECONDS
        await asyncio.sleep(TICK_SECONDS)
        metrics.loop_was_late(max(0.0, loop.time() - due))
        state.look()


def _app(metrics: Metrics, status: Callable[[], Status | None]) -> ASGIApp:
    async def get_metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(metrics.registry), headers={"content-type": content_type})

    async def get_alive(_: Request) -> Response:
        return _answered(alive(status()))

    async def get_ready(_: Request) -> Response:
        return _answered(ready(status()))

    return Starlette(routes=[Route("/metrics", get_metrics), Route("/healthz", get_alive), Route("/readyz", get_ready)])


def _answered(answer: Answer) -> Response:
    return PlainTextResponse(answer.text + "\n", 200 if answer.well else 503)


def _config(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=CLOSE_SECONDS,
    )
