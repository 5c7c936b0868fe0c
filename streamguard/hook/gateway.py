"""The gateway, asked with as little code as will do: `http.client` alone takes longer to import than the hook to run.

HTTP by hand is for plain `http://`, one connection for each request; `https://` takes `http.client`. There is one
deadline for a hook's whole conversation.
"""

from __future__ import annotations

import json
import socket
from time import monotonic

TYPE_CHECKING = False  # typing's own costs some milliseconds
if TYPE_CHECKING:
    from typing import Any, Final, Self

__all__ = ["Gateway", "GatewayAwayError", "GatewayRefusesError"]

SECONDS: Final = 3.0
"""Longest time that a hook waits for the gateway, all in all; the gateway gives the guard 2 s."""

MOST_BYTES: Final = 1 << 20
"""Largest answer that is read."""

OK: Final = (200, 202)


class GatewayAwayError(Exception):
    """No gateway answers in time, or it cannot do its work. It stands here: `streamguard.errors` loads slowly."""


class GatewayRefusesError(Exception):
    """The address is no address, or the gateway refuses what it was sent: the token, for example."""


class Gateway:
    """A gateway, for one hook: `with Gateway(url, token) as gateway: ...`. Raises `GatewayRefusesError`."""

    def __init__(self, url: str, token: str | None, seconds: float = SECONDS) -> None:
        scheme, separator, rest = url.strip().partition("://")
        authority, _, path = rest.partition("/")
        if not separator or scheme not in ("http", "https") or not authority or "@" in authority:
            raise GatewayRefusesError("the gateway's address must be http://HOST:PORT or https://HOST:PORT")
        self._secure = scheme == "https"
        self._authority = authority
        self._address = _address(authority, 443 if self._secure else 80)
        self._path = "/" + path.rstrip("/") if path.strip("/") else ""
        self._token = _printable(token.strip()) if token else None
        self._seconds = seconds
        self._deadline = 0.0

    def __enter__(self) -> Self:
        """Begin: from here on the deadline runs."""
        self._deadline = monotonic() + self._seconds
        return self

    def __exit__(self, *_: object) -> None:
        """End."""

    def ask(self, call: dict[str, Any]) -> dict[str, Any]:
        """Return what the guard says to a call. Raises `GatewayAwayError`, `GatewayRefusesError`."""
        try:
            said = json.loads(self._post("/v1/gate", call))
        except ValueError:
            raise GatewayAwayError from None
        if type(said) is not dict:
            raise GatewayAwayError
        return said

    def tell(self, event: dict[str, Any]) -> None:
        """Publish an event; does not wait for Kafka. Raises `GatewayAwayError`, `GatewayRefusesError`."""
        self._post("/v1/events?ack=0", event)

    # inside

    def _post(self, path: str, event: dict[str, Any]) -> bytes:
        headers = {"Host": self._authority, "Content-Type": "application/json", "Connection": "close"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        send = self._send_secure if self._secure else self._send
        try:
            status, body = send(self._path + path, headers, json.dumps(event).encode())
        except (OSError, ValueError, IndexError):  # a timeout is an OSError; the others are no HTTP
            raise GatewayAwayError from None
        if status in OK:
            return body
        if 400 <= status < 500 and status not in (408, 429):  # noqa: PLR2004 - HTTP's own numbers
            raise GatewayRefusesError(_refusal(status))
        raise GatewayAwayError

    def _left(self) -> float:
        left = self._deadline - monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def _send(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode("latin-1")
        with socket.create_connection(self._address, self._left()) as connection:
            connection.settimeout(self._left())
            connection.sendall(head + body)
            return self._received(connection)

    def _received(self, connection: socket.socket) -> tuple[int, bytes]:
        """Read an answer to its end, as its Content-Length says, else to the end of the connection."""
        read, length, begin = b"", MOST_BYTES, 0
        while not begin or len(read) - begin < length:
            connection.settimeout(self._left())
            more = connection.recv(65536)
            if not more or len(read) > MOST_BYTES:
                break
            read += more
            if not begin and b"\r\n\r\n" in read:
                begin = read.index(b"\r\n\r\n") + 4
                length = _length(read[:begin])
        if not begin:
            raise ConnectionError
        status = int(read.split(b" ", 2)[1])
        body = read[begin : begin + length]
        return status, _joined(body) if b"transfer-encoding: chunked" in read[:begin].lower() else body

    def _send_secure(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        from http.client import HTTPException, HTTPSConnection  # noqa: PLC0415 - slow to import

        connection = HTTPSConnection(*self._address, timeout=self._left())
        try:
            connection.request("POST", path, body, headers)
            response = connection.getresponse()
            return response.status, response.read(MOST_BYTES)
        except HTTPException:
            raise ConnectionError from None
        finally:
            connection.close()


def _address(authority: str, default: int) -> tuple[str, int]:
    """Split HOST:PORT; an IPv6 address stands in brackets. Raises `GatewayRefusesError`."""
    host, colon, port = authority.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = authority, str(default)
    if not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise GatewayRefusesError("the gateway's address has no valid port: it must be http://HOST:PORT")
    return host.strip("[]"), int(port)


def _printable(token: str) -> str:
    """Refuse a token that would end a header. Raises `GatewayRefusesError`."""
    if not token.isascii() or not token.isprintable():
        raise GatewayRefusesError("STREAMGUARD_GATEWAY_TOKEN holds characters that no token has")
    return token


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name == b"content-length":
            return int(value)
    return MOST_BYTES


def _joined(body: bytes) -> bytes:
    """Put a body together that was sent in chunks, as a proxy may."""
    whole = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size.split(b";")[0], 16)
        whole, body = whole + body[:length], body[length + 2 :]
        if not length:
            break
    return whole


def _refusal(status: int) -> str:
    if status in (401, 403):
        return f"the gateway refuses the token ({status}): is STREAMGUARD_GATEWAY_TOKEN the gateway's?"
    return f"the gateway refuses the request ({status}): is it a streamguard gateway of this version?"
