"""A TCP proxy on loopback that spoils connections on demand."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

CHUNK_BYTES: Final = 16 * 1024
RESET: Final = struct.pack("ii", 1, 0)
"""Linger for no time: closing resets the connection."""


class Proxy:
    """Forwards connections to `target`; everything else can be set at any time."""

    def __init__(self) -> None:
        self.target = ("127.0.0.1", 0)
        self.delay_seconds = 0.0  # of each chunk, in both directions
        self.bytes_per_second: float | None = None
        self.refuse = False  # new connections are closed at once
        self._open = asyncio.Event()  # cleared: nothing is forwarded, connections stay open
        self._open.set()
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    @property
    def address(self) -> str:
        """Where it listens."""
        if self._server is None:
            raise RuntimeError("the proxy was not started")
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    def cut(self) -> None:
        """Reset all connections."""
        for connection in self._connections:
            connection.cancel()

    @contextmanager
    def blackhole(self) -> Iterator[None]:
        """Forward nothing while the block runs; connections stay open."""
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    async def stop(self) -> None:
        """Stop listening and reset all connections."""
        if self._server is not None:
            self._server.close()
        self.cut()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or self.refuse:
            _reset(writer)
            return
        self._connections.add(task)
        try:
            with suppress(asyncio.CancelledError, OSError):
                await self._serve(reader, writer)
        finally:
            self._connections.discard(task)
            _reset(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back_reader, back_writer = await asyncio.open_connection(*self.target)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._forward(reader, back_writer))
                both.create_task(self._forward(back_reader, writer))
        except* (OSError, EOFError):
            pass
        finally:
            _reset(back_writer)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(CHUNK_BYTES):
            await self._open.wait()
            if self.delay_seconds:
                await asyncio.sleep(self.delay_seconds)
            if self.bytes_per_second:
                await asyncio.sleep(len(chunk) / self.bytes_per_second)
            writer.write(chunk)
            await writer.drain()
        raise EOFError  # one side is done: so is the other


def _reset(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        connection = writer.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()
