"""Who may come in, and how often: bearer tokens and a bucket for each, before anything of a request is read."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from streamguard.errors import SettingsFileError
from streamguard.gateway.responses import Refusal, refuse

if TYPE_CHECKING:
    from streamguard.settings import GatewaySettings, UiSettings

__all__ = ["Access", "Buckets", "Tokens", "read_tokens"]

OPEN_PATHS: Final = frozenset(("/healthz",))
"""What needs no token, and is never too often."""

TOKEN_CHARACTERS: Final = 16
"""Shortest token."""

KNOWN_CALLERS: Final = 10_000
"""Buckets kept; the least recently used goes first, and is then full again."""

BEARER: Final = "bearer "


def read_tokens(gateway: GatewaySettings | UiSettings, section: str = "gateway") -> tuple[str, ...]:
    """Return the tokens of a section of the settings; none: everybody is served. Lines that begin with # do not count.

    Raises `SettingsFileError` if the file cannot be read or holds none, or if a token is too short or no ASCII text.
    """
    text, where = gateway.tokens or "", f"{section}.tokens"
    if gateway.tokens_file:
        where = f"{section}.tokens_file: {gateway.tokens_file}"
        try:
            lines = Path(gateway.tokens_file).read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise SettingsFileError(f"{where} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError:
            raise SettingsFileError(f"{where} is no UTF-8 text") from None  # its cause would quote a token
        text = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    tokens = tuple(text.split())
    if not tokens and (gateway.tokens_file or gateway.tokens):
        raise SettingsFileError(f"{where} holds no token: nobody could be served")
    if any(len(token) < TOKEN_CHARACTERS or not token.isascii() for token in tokens):
        raise SettingsFileError(
            f"{where}: a token is too short or not ASCII; allowed: at least {TOKEN_CHARACTERS} characters. "
            "`openssl rand -hex 32` makes one"
        )
    return tokens


class Tokens:
    """Knows tokens by their hashes; looking one up takes the same time whatever was given."""

    def __init__(self, tokens: tuple[str, ...]) -> None:
        self._digests = [hashlib.sha256(token.encode()).digest() for token in tokens]

    def __bool__(self) -> bool:
        """Whether a token is needed."""
        return bool(self._digests)

    def number(self, authorization: str) -> int | None:
        """Return the number of the token that an Authorization header bears; None if it is none of ours."""
        if not authorization.lower().startswith(BEARER):
            return None
        given = hashlib.sha256(authorization[len(BEARER) :].strip().encode("utf-8", "replace")).digest()
        equal = [hmac.compare_digest(given, known) for known in self._digests]
        return equal.index(True) if any(equal) else None


class Buckets:
    """A token bucket for each caller: `rate` requests a second, and as many at once after a pause (at least one)."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._most = max(rate, 1.0)
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # caller → requests left, and when

    def take(self, caller: str) -> float:
        """Take one request; return 0, or the seconds after which to come again."""
        now = self._clock()
        left, then = self._left.pop(caller, (self._most, now))
        left = min(self._most, left + (now - then) * self._rate)
        allowed = left >= 1
        self._left[caller] = (left - allowed, now)
        if len(self._left) > KNOWN_CALLERS:
            self._left.popitem(last=False)
        return 0.0 if allowed else (1 - left) / self._rate


class Access:
    """Lets requests in."""

    def __init__(self, app: ASGIApp, tokens: Tokens, buckets: Buckets) -> None:
        self._app = app
        self._tokens = tokens
        self._buckets = buckets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or say why not."""
        refusal = self._refusal(scope) if scope["path"] not in OPEN_PATHS else None
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            answer = await refuse(Request(scope), refusal)
            await answer(scope, receive, send)

    def _refusal(self, scope: Scope) -> Refusal | None:
        number = self._tokens.number(Headers(scope=scope).get("authorization", "")) if self._tokens else None
        address = scope["client"][0] if scope.get("client") else ""
        wait = self._buckets.take(f"address {address}" if number is None else f"token {number}")
        if wait:
            return Refusal(429, "too many requests (gateway.requests_per_second)", retry_after=wait)
        if self._tokens and number is None:
            refusal = Refusal(401, "a token is needed: Authorization: Bearer TOKEN", close=True)
            refusal.headers = {**(refusal.headers or {}), "www-authenticate": "Bearer"}
            return refusal
        return None
