"""What the gateway answers: JSON, errors too, each with a status and what to do about it."""

from __future__ import annotations

import traceback
from typing import Any, Final

import msgspec
import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["CatchAll", "JsonResponse", "Refusal", "refuse"]

log = structlog.get_logger("streamguard.gateway")

FRAMES: Final = 3
"""How much of a traceback is logged: where it went wrong; the error's own words might quote a payload."""

_encoder: Final = msgspec.json.Encoder()


class JsonResponse(Response):
    """A response of JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Encode the content."""
        return _encoder.encode(content)


class Refusal(HTTPException):
    """A request is not served. `index`: of the event that is wrong; `retry_after`: seconds; `close`: read no more."""

    def __init__(
        self,
        status: int,
        error: str,
        *,
        index: int | None = None,
        retry_after: float | None = None,
        close: bool = False,
    ) -> None:
        headers = {"connection": "close"} if close else {}
        if retry_after is not None:
            headers["retry-after"] = str(max(1, round(retry_after)))
        super().__init__(status, error, headers)
        self.index = index


async def refuse(_: Request, error: Exception) -> Response:
    """Answer with an error."""
    if not isinstance(error, HTTPException):
        raise TypeError("only HTTP errors are answered here")
    body: dict[str, Any] = {"error": error.detail}
    if isinstance(error, Refusal) and error.index is not None:
        body["index"] = error.index
    return JsonResponse(body, error.status_code, error.headers)


class CatchAll:
    """The outermost of our layers: an error of our own is answered with 500, and logged without its words."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        begun = False

        async def note(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, note)
        except Exception as error:  # noqa: BLE001 - the last one to know
            frames = traceback.extract_tb(error.__traceback__)[-FRAMES:]
            where = [f"{frame.filename}:{frame.lineno}" for frame in frames]
            log.error("request failed", error=type(error).__name__, where=where)  # noqa: TRY400 - no payloads in logs
            if not begun:
                answer = JsonResponse({"error": "the gateway failed; its log says where"}, 500, {"connection": "close"})
                await answer(scope, receive, send)
