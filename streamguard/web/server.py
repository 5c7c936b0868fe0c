"""The live page from start to end: it listens, follows the topics behind that, and stops when it is told to."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog
import uvicorn

from streamguard.gateway.access import read_tokens
from streamguard.http_server import HttpServer, listen
from streamguard.stream.ruleset import Ruleset
from streamguard.web.app import Page
from streamguard.web.follow import Follower
from streamguard.web.model import Model
from streamguard.web.workers import Workers

if TYPE_CHECKING:
    from streamguard.policy import PolicySet
    from streamguard.settings import Settings

__all__ = ["LivePage"]

log = structlog.get_logger("streamguard.web")

CLOSE_SECONDS: Final = 2
"""Longest wait for answers that are under way at the end."""


class LivePage:
    """Serves the page: `run` until `stop`. Raises a `ConfigurationError` if tokens cannot be used."""

    def __init__(self, settings: Settings, policies: PolicySet) -> None:
        self.address: tuple[str, int] | None = None
        self._settings = settings
        self._tokens = read_tokens(settings.ui, "ui")
        self._model = Model(settings.ui.runs, settings.ui.minutes)
        self._follower = Follower(settings, self._model, Ruleset(policies, settings.limits))
        self._workers = Workers(settings)
        self._listening = asyncio.Event()
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Ask it to stop; returns at once."""
        self._stopping.set()

    async def listening(self) -> tuple[str, int]:
        """Wait until requests are taken; return host and port."""
        await self._listening.wait()
        if self.address is None:
            raise RuntimeError("listening without an address")
        return self.address

    async def run(self) -> None:
        """Serve. Raises `CannotListenError`."""
        ui = self._settings.ui
        listener = listen("ui", ui.host, ui.port)
        self.address = listener.getsockname()[:2]
        page = Page(self._settings, self._model, self._follower, self._workers, self._tokens)
        server = HttpServer(_config(page))
        following = [asyncio.create_task(self._follower.run(), name="follow"),
                     asyncio.create_task(self._workers.run(), name="workers")]  # fmt: skip
        serving = asyncio.create_task(server.serve(sockets=[listener]), name="http")
        stopping = asyncio.create_task(self._stopping.wait(), name="stopping")
        self._listening.set()
        log.info("live page", url=f"http://{self.address[0]}:{self.address[1]}/", tokens=len(self._tokens))
        try:
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            page.stopping.set()
            server.should_exit = True
            stopping.cancel()
            await asyncio.wait({serving}, timeout=CLOSE_SECONDS + 1)
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)


def _config(page: Page) -> uvicorn.Config:
    return uvicorn.Config(
        page.app,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,  # paths hold run ids
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=CLOSE_SECONDS,
    )
