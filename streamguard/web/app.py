"""The page, and what it asks for: a shell, its state as server-sent events, one run at a time. It writes nothing."""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

import msgspec
from jinja2 import Environment, select_autoescape
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from streamguard.gateway.access import Buckets, Tokens
from streamguard.gateway.responses import JsonResponse
from streamguard.web.model import as_json

if TYPE_CHECKING:
    from streamguard.settings import Settings
    from streamguard.web.follow import Follower
    from streamguard.web.model import Model, Track
    from streamguard.web.workers import Workers

__all__ = ["Page"]

STATE_SECONDS: Final = 1.0
"""How often the page hears what is new."""

AT_RISK: Final = 40
FEED: Final = 60
FOUND: Final = 100
COOKIE: Final = "streamguard"
OPEN_PATHS: Final = frozenset(("/login", "/healthz", "/static/style.css"))
FORM_BYTES: Final = 4096
"""Longest login."""

LOGINS_PER_SECOND: Final = 1.0
SECURITY: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
STATIC: Final = {"app.js": "text/javascript", "style.css": "text/css"}


class Page:
    """Serves the page. Whoever has a token gets in; without any tokens everybody does, on loopback."""

    def __init__(
        self, settings: Settings, model: Model, follower: Follower, workers: Workers, tokens: Sequence[str]
    ) -> None:
        self.stopping = asyncio.Event()
        self._settings = settings
        self._model = model
        self._follower = follower
        self._workers = workers
        self._tokens = Tokens(tuple(tokens))
        self._logins = Buckets(LOGINS_PER_SECOND)
        self._session = secrets.token_urlsafe(32)  # a restart asks for the token again
        self._templates = Environment(autoescape=select_autoescape(default_for_string=True))
        self.app = Starlette(
            routes=[
                Route("/", self._get_page),
                Route("/static/{name}", self._get_static),
                Route("/api/stream", self._get_stream),
                Route("/api/runs", self._get_runs),
                Route("/api/run", self._get_run),
                Route("/healthz", self._get_health),
                Route("/login", self._login, methods=["GET", "POST"]),
            ],
            middleware=[Middleware(_Guarded, page=self)],
        )

    def lets_in(self, request: Request) -> bool:
        """Tell whether a request may look."""
        if not self._tokens or request.scope["path"] in OPEN_PATHS:  # the URL's would be made of the Host header
            return True
        cookie = request.cookies.get(COOKIE, "")
        return hmac.compare_digest(cookie.encode(), self._session.encode()) or (
            self._tokens.number(request.headers.get("authorization", "")) is not None
        )

    # what is served

    async def _get_page(self, _: Request) -> Response:
        topics = self._settings.topics
        return self._rendered(
            "index.html", kafka=self._settings.kafka.bootstrap, events=topics.events, verdicts=topics.verdicts,
            group=self._settings.worker.group, minutes=self._settings.ui.minutes,
        )  # fmt: skip

    async def _get_static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in STATIC:
            return Response("no such file\n", 404, media_type="text/plain")
        text = resources.files("streamguard.web").joinpath("static", name).read_text(encoding="utf-8")
        return Response(text, media_type=STATIC[name])

    async def _get_stream(self, _: Request) -> Response:
        return StreamingResponse(self._states(), media_type="text/event-stream")

    async def _states(self) -> AsyncIterator[bytes]:
        while not self.stopping.is_set():
            yield b"data: " + msgspec.json.encode(self._state()) + b"\n\n"
            try:
                async with asyncio.timeout(STATE_SECONDS):
                    await self.stopping.wait()
            except TimeoutError:
                continue

    async def _get_runs(self, request: Request) -> Response:
        found = self._model.found(request.query_params.get("q", ""))
        return JsonResponse([as_json(track) for track, _ in zip(found, range(FOUND), strict=False)])

    async def _get_run(self, request: Request) -> Response:
        track = self._model.runs.get(request.query_params.get("run_id", ""))
        if track is None:
            return JsonResponse({"error": "this run was not seen, or is no longer kept"}, 404)
        return JsonResponse(_run(track))

    async def _get_health(self, _: Request) -> Response:
        trouble = self._follower.trouble
        return Response(f"{trouble or 'following'}\n", 200 if trouble is None else 503, media_type="text/plain")

    async def _login(self, request: Request) -> Response:
        if request.method == "GET":
            return self._rendered("login.html", wrong=False)
        wait = self._logins.take(request.client.host if request.client else "")
        form = b""
        async for part in request.stream():
            form += part
            if len(form) > FORM_BYTES:
                return self._rendered("login.html", 413, wrong=True)
        token = parse_qs(form.decode("utf-8", "replace")).get("token", [""])[0].strip()
        if wait or self._tokens.number(f"bearer {token}") is None:
            return self._rendered("login.html", 429 if wait else 401, wrong=True)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(COOKIE, self._session, httponly=True, samesite="strict", secure=request.url.scheme == "https")
        return answer

    def _rendered(self, name: str, status: int = 200, **values: Any) -> Response:
        text = resources.files("streamguard.web").joinpath(name).read_text(encoding="utf-8")
        return HTMLResponse(self._templates.from_string(text).render(**values), status)

    def _state(self) -> dict[str, Any]:
        model, workers = self._model, self._workers
        risks = [as_json(track) for track, _ in zip(model.found(""), range(AT_RISK), strict=False)]
        return {
            "now": round(time.time() * 1000),
            "trouble": self._follower.trouble,
            "events": model.events,
            "runs": len(model.runs),
            "risks": risks,
            "verdicts": list(model.verdicts)[:-FEED - 1:-1],
            "minutes": model.by_minute(),
            "latency": {"p50": model.latency(0.5), "p99": model.latency(0.99)},
            "group": workers.state,
            "partitions": [
                {**msgspec.structs.asdict(each), "lag": each.lag, "state": each.state(workers.slow)}
                for each in workers.partitions
            ],
        }  # fmt: skip


def _run(track: Track) -> dict[str, Any]:
    return {**as_json(track), "begun": track.begun, "steps": list(track.steps)}


class _Guarded:
    """Lets in who may look, and puts what a browser must not do into every answer."""

    def __init__(self, app: ASGIApp, page: Page) -> None:
        self._app = app
        self._page = page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve, or send to the login."""

        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.encode(), value.encode()) for name, value in SECURITY.items()]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        request = Request(scope)
        if self._page.lets_in(request):
            await self._app(scope, receive, secured)
            return
        answer: Response = Response("a token is needed\n", 401, {"www-authenticate": "Bearer"}, "text/plain")
        if request.scope["path"] == "/":
            answer = RedirectResponse("/login", 303)
        await answer(scope, receive, secured)
