"""A server as a subprocess that cannot outlive us, not even if we are killed.

A child that is only stopped on the way out is left behind when there is no way out (SIGKILL, a crash). So each server
is tethered: a watcher beside it reads a pipe that we hold open, and ends the server's process group when the pipe
closes. The kernel closes it for us, however we end. Stopping the server on purpose is closing that same pipe.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["ServerProcess", "free_port"]

TETHER: Final = 'exec 3<&0; (read -r _ <&3; kill -TERM 0) >/dev/null 2>&1 & exec "$@" 3<&- </dev/null'
"""The shell starts the watcher (of built-in commands only: no PATH is needed) and becomes the server."""

TAIL_BYTES: Final = 4_000


class ServerProcess:
    """One run of a server program, from its start to its end. Nothing here blocks but `stop`."""

    def __init__(self, command: Sequence[str | Path], *, env: Mapping[str, str] | None = None) -> None:
        """Start the command in a session of its own: a Ctrl-C meant for us must not reach the server before we do.

        It runs in `/`, so that no file of the working directory (`.env`) changes what it does: all paths in the command
        must be absolute. Its output goes to a file, as a pipe that nobody reads would stop it.
        """
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the command is ours
                ["/bin/sh", "-c", TETHER, "sh", *map(str, command)],
                stdin=subprocess.PIPE,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                env=env,
                cwd="/",
                start_new_session=True,
            )
        except BaseException:
            self._output.close()
            raise

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the server has not ended yet."""
        return self._process.poll() is None

    def output(self) -> str:
        """Return the last few thousand bytes that the server wrote; empty after `stop`."""
        if self._output.closed:
            return ""
        # pread leaves alone the file position, which the server shares
        size = os.fstat(self._output.fileno()).st_size
        tail = os.pread(self._output.fileno(), TAIL_BYTES, max(0, size - TAIL_BYTES))
        return tail.decode(errors="replace").strip()

    def stop(self, grace_seconds: float = 5) -> None:
        """End the server: ask (SIGTERM), wait, then kill. It is gone when this returns; stopping twice is fine."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        finally:
            self._process.kill()
            self._process.wait()
            self._output.close()


def free_port() -> int:
    """Return a port of the loopback interface that is free now (another program may take it the next moment)."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
