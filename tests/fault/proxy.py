"""A TCP proxy on loopback that spoils connections on demand."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

CHUNK_BYTES: Final = 16 * 1024
SLICE_SECONDS: Final = 0.05
"""How much of a throttled chunk goes out at once: so long may a new rate take to be obeyed."""

RESET: Final = struct.pack("ii", 1, 0)
"""Linger for no time: closing resets the connection."""


class Proxy:
    """Forwards connections to `target`; everything can be set at any time, also for what is under way.

    What a side sends before it closes arrives, and then the close does; only `cut`, `refuse` and `stop` reset.
    """

    def __init__(self) -> None:
        self.target = ("127.0.0.1", 0)
        self.bytes_per_second: float | None = None  # of each connection and direction
        self.refuse = False  # new connections are closed at once
        self._delay_seconds = 0.0
        self._silent = False
        self._changed = asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    @property
    def address(self) -> str:
        """Where it listens."""
        if self._server is None:
            raise RuntimeError("the proxy does not run")
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    @property
    def delay_seconds(self) -> float:
        """How long each chunk is held back, in both directions."""
        return self._delay_seconds

    @delay_seconds.setter
    def delay_seconds(self, seconds: float) -> None:
        self._delay_seconds = seconds
        self._wake()

    @property
    def silent(self) -> bool:
        """Whether nothing is forwarded, not even a close; connections stay open and new ones are taken."""
        return self._silent

    @silent.setter
    def silent(self, silent: bool) -> None:
        self._silent = silent
        self._wake()

    @contextmanager
    def blackhole(self) -> Iterator[None]:
        """Be silent while the block runs."""
        self.silent = True
        try:
            yield
        finally:
            self.silent = False

    def cut(self) -> Awaitable[object]:
        """Reset all connections; they are gone when what this returns is done. It need not be awaited."""
        for connection in self._connections:
            connection.cancel()
        return asyncio.gather(*self._connections, return_exceptions=True)

    async def stop(self) -> None:
        """Stop listening and reset all connections."""
        if self._server is not None:
            self._server.close()
            self._server = None
        await self.cut()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or self.refuse or self._server is None:
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
            writer.close()
            back_writer.close()
            await back_writer.wait_closed()
            await writer.wait_closed()
        except* OSError:
            pass
        finally:
            _reset(back_writer)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one direction, and its end."""
        clock = asyncio.get_running_loop()
        while chunk := await reader.read(CHUNK_BYTES):
            await self._hold(clock.time())
            await self._write(writer, chunk)
        await self._hold(clock.time())
        writer.write_eof()

    async def _hold(self, since: float) -> None:
        """Wait out the silence and the delay, whatever they become meanwhile."""
        clock = asyncio.get_running_loop()
        while self._silent or clock.time() < since + self._delay_seconds:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(None if self._silent else since + self._delay_seconds):
                    await self._changed.wait()

    async def _write(self, writer: asyncio.StreamWriter, chunk: bytes) -> None:
        """Write a chunk, slowly if need be."""
        while chunk:
            rate = self.bytes_per_second
            size = max(1, int(rate * SLICE_SECONDS)) if rate else len(chunk)
            if rate:
                await asyncio.sleep(min(size, len(chunk)) / rate)
            writer.write(chunk[:size])
            await writer.drain()
            chunk = chunk[size:]


def _reset(writer: asyncio.StreamWriter) -> None:
    """Reset a connection; nothing happens to one that is closed."""
    with suppress(OSError):
        connection = writer.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()
