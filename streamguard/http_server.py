"""What our HTTP servers have in common: a socket that listens, and uvicorn on a loop that is not its own."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Final

import uvicorn

from streamguard.errors import CannotListenError

__all__ = ["BACKLOG", "HttpServer", "listen"]

BACKLOG: Final = 2048


class HttpServer(uvicorn.Server):
    """Uvicorn, without its signal handlers: signals are the command's business."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them alone."""
        yield


def listen(section: str, host: str, port: int) -> socket.socket:
    """Return a socket that listens: who comes early waits. `section` names the settings that say where.

    Raises `CannotListenError`.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise CannotListenError(
            f"{section}.host, {section}.port: cannot listen at {host}:{port}: {error.strerror or error}"
        ) from error
    listener.setblocking(False)  # noqa: FBT003 - its only parameter
    return listener
