"""The paths of the gateway, and what each does with a request."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from streamguard.events import NAME_CHARACTERS
from streamguard.gateway.access import Access, Buckets, Tokens
from streamguard.gateway.cursor import read_cursor
from streamguard.gateway.ear import Ears
from streamguard.gateway.gate import Gate
from streamguard.gateway.health import Health
from streamguard.gateway.incoming import EventLimits, gated_call, incoming_events, read_body
from streamguard.gateway.openapi import openapi
from streamguard.gateway.publishing import Publisher
from streamguard.gateway.responses import CatchAll, JsonResponse, Refusal, refuse
from streamguard.gateway.stream import Streams, VerdictStream

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from streamguard.executor.channel import Channel
    from streamguard.settings import Settings

__all__ = ["Service", "event_limit"]

LONGEST_WAIT_SECONDS: Final = 30.0
RUNS_OF_A_STREAM: Final = 100
AGAIN_SECONDS: Final = 1.0


def event_limit(settings: Settings) -> int:
    """Return the largest event in bytes: what the guard reads, and a broker takes as it comes."""
    return min(settings.limits.record_bytes, 900_000)


class Service:
    """Serves requests through a channel. `app` is the ASGI application."""

    def __init__(self, settings: Settings, channel: Channel, tokens: tuple[str, ...]) -> None:
        gateway = settings.gateway
        self._settings = settings
        self._channel = channel
        self._limits = EventLimits(event_limit(settings), settings.limits.json_depth, gateway.buffer_events)
        self._publisher = Publisher(channel, gateway)
        self.ears = Ears(channel)
        self._gate = Gate(channel, self.ears, self._publisher, gateway)
        self.streams = Streams(channel, settings)
        self._health = Health(channel)
        self.app: ASGIApp = self._routes(Tokens(tokens), Buckets(gateway.requests_per_second))

    def _routes(self, tokens: Tokens, buckets: Buckets) -> Starlette:
        routes = [
            Route("/v1/events", self._post_events, methods=["POST"]),
            Route("/v1/gate", self._post_gate, methods=["POST"]),
            Route("/v1/verdicts", self._get_verdicts, methods=["GET"]),
            Route("/healthz", self._get_health, methods=["GET"]),
            Route("/openapi.json", self._get_openapi, methods=["GET"]),
        ]
        for route in routes:
            (route.methods or set()).discard("HEAD")  # of a stream it would never end
        app = Starlette(
            routes=routes,
            middleware=[Middleware(CatchAll), Middleware(Access, tokens=tokens, buckets=buckets)],
            exception_handlers={HTTPException: refuse},
        )
        app.router.redirect_slashes = False
        return app

    async def _post_events(self, request: Request) -> Response:
        wait = _switch(request, "ack")
        events = incoming_events(await read_body(request, self._settings.gateway.body_bytes), self._limits)
        if wait:
            await self._publisher.acknowledged(events)
        else:
            await self._publisher.buffer(events)
        return JsonResponse({"accepted": len(events)}, 202)

    async def _post_gate(self, request: Request) -> Response:
        seconds = _seconds(request, "timeout", self._settings.gateway.gate_timeout_seconds)
        call = gated_call(await read_body(request, self._settings.gateway.body_bytes), self._limits)
        return JsonResponse(await self._gate.ask(call, seconds))

    async def _get_verdicts(self, request: Request) -> VerdictStream:
        run_ids = _run_ids(request)
        last = request.headers.get("last-event-id", "")
        cursor = read_cursor(last) if last else {}
        if not self._channel.connected.is_set():
            raise Refusal(503, "not connected to Kafka yet", retry_after=AGAIN_SECONDS)
        most = self._settings.gateway.streams
        if self.streams.open >= most:
            raise Refusal(503, f"{most} streams are open: gateway.streams", retry_after=AGAIN_SECONDS)
        return VerdictStream(self.streams, run_ids, cursor)

    async def _get_health(self, _: Request) -> Response:
        if await self._health.connected():
            return JsonResponse({"status": "connected"})
        raise Refusal(503, "not connected to Kafka", retry_after=AGAIN_SECONDS)

    async def _get_openapi(self, _: Request) -> Response:
        return JsonResponse(openapi(self._settings.gateway))


def _switch(request: Request, name: str) -> bool:
    given = request.query_params.get(name, "1")
    if given not in ("0", "1"):
        raise Refusal(400, f"?{name}= is neither 0 nor 1")
    return given == "1"


def _seconds(request: Request, name: str, default: float) -> float:
    try:
        seconds = float(request.query_params.get(name, default))
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= LONGEST_WAIT_SECONDS:
        raise Refusal(400, f"?{name}= is no number of seconds above 0 and up to {LONGEST_WAIT_SECONDS:g}")
    return seconds


def _run_ids(request: Request) -> list[str]:
    run_ids = list(dict.fromkeys(run.strip() for run in request.query_params.getlist("run_id")))
    if not 1 <= len(run_ids) <= RUNS_OF_A_STREAM:
        raise Refusal(400, f"?run_id= is needed, 1 to {RUNS_OF_A_STREAM} times")
    if not all(1 <= len(run) <= NAME_CHARACTERS for run in run_ids):
        raise Refusal(400, f"?run_id= is empty, or longer than {NAME_CHARACTERS} characters")
    return run_ids
