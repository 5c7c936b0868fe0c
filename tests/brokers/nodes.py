"""A cluster of Apache Kafka nodes whose processes can be killed and started again, on free loopback ports."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import socket
import tempfile
import uuid
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError

from brokers.apache import PROPERTIES, format_storage
from brokers.jars import CannotResolveError
from streamguard.process import ServerProcess

READY_SECONDS: Final = 120
ANSWER_MS: Final = 2_000
TAIL_BYTES: Final = 4_000

PORTS: Final = range(20_000, 32_000)
"""Below those that the kernel gives to outgoing connections: a node that was down must find its own ports free."""

LOGGED: Final = 'log=$1; shift; exec "$@" >>"$log" 2>&1'
"""The shell appends what the node says to a file, which outlasts the process, and becomes the node."""

JVM: Final = (
    "-Xmx320m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
"""Small and quick to start: three of them share a machine with the workers under test."""

QUICK: Final = {
    "broker.session.timeout.ms": 3000,
    "broker.heartbeat.interval.ms": 500,
    "controller.quorum.election.timeout.ms": 1000,
    "controller.quorum.fetch.timeout.ms": 2000,
    "controller.quorum.election.backoff.max.ms": 500,
    "replica.lag.time.max.ms": 3000,
    "group.min.session.timeout.ms": 1000,
    "controlled.shutdown.enable": "true",
    "unclean.leader.election.enable": "false",
    "log.cleaner.backoff.ms": 1000,
    "num.network.threads": 2,
    "num.io.threads": 4,
    "transaction.state.log.num.partitions": 8,
    "offsets.topic.num.partitions": 8,
}
"""A killed leader is replaced within a few seconds."""


class KafkaNodes:
    """Nodes counted from 0, each broker and controller. All of it blocks but the coroutines.

    With `proxied` (`HOST:PORT` of one proxy a node), node i tells clients of its second listener that it is at the i-th
    of these addresses: whoever starts there keeps to the proxies. They forward to `proxied_targets`.
    """

    def __init__(self, java: str, jars: Path, count: int = 3, proxied: Sequence[str] = ()) -> None:
        if proxied and len(proxied) != count:
            raise ValueError(f"{len(proxied)} proxies for {count} nodes: each node needs one of its own")
        self.count = count
        self._command = [java, *JVM, "-cp", f"{jars}/*"]
        self._proxied = list(proxied)
        self._folder = Path(tempfile.mkdtemp(prefix="streamguard-nodes-"))
        self._cluster = uuid.uuid4().hex
        addresses = [f"127.0.0.1:{port}" for port in free_ports(3 * count)]
        self._plain = addresses[:count]
        self._controllers = addresses[count : 2 * count]
        self.proxied_targets = addresses[2 * count :]
        self._processes: dict[int, ServerProcess] = {}

    @property
    def bootstrap(self) -> str:
        """The addresses of all nodes, as clients that use no proxy see them."""
        return ",".join(self._plain)

    def start(self) -> None:
        """Format and start all nodes; `wait_ready` tells when they answer."""
        for node in range(self.count):
            format_storage(self._command, self._write_properties(node), self._cluster)
            self.restart(node)

    def restart(self, node: int) -> None:
        """Start a node that is down, with its ports and its data."""
        if self.running(node):
            raise RuntimeError(f"node {node} is running: kill or terminate it first")
        if node in self._processes:  # it ended by itself
            self._processes.pop(node).stop()
        logged = ["/bin/sh", "-c", LOGGED, "sh", str(self._log(node))]
        self._processes[node] = ServerProcess([*logged, *self._command, "kafka.Kafka", self._properties(node)])

    def kill(self, node: int) -> None:
        """End a node at once (SIGKILL)."""
        process = self._processes.pop(node)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.stop()

    def terminate(self, node: int, grace_seconds: float = 30) -> None:
        """Stop a node: it hands its leaderships over first. Blocks until it is gone."""
        self._processes.pop(node).stop(grace_seconds)

    def running(self, node: int) -> bool:
        """Tell whether a node's process runs."""
        return node in self._processes and self._processes[node].running

    def log_tail(self, node: int) -> str:
        """Return the last few thousand bytes that a node logged, over all its starts; empty after `stop`."""
        with suppress(FileNotFoundError), self._log(node).open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
            return log.read().decode(errors="replace").strip()
        return ""

    def stop(self) -> None:
        """Stop all nodes and leave nothing behind."""
        for node in list(self._processes):
            self.kill(node)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def wait_ready(self) -> None:
        """Wait until every node answers and counts all of them in. Raises `CannotResolveError`.

        Each is asked itself: the others count a node that was killed until its session ends.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(READY_SECONDS):
                while all(self.running(node) for node in range(self.count)):
                    if all([await _members(address) == self.count for address in self._plain]):
                        return
                    await asyncio.sleep(0.2)
        said = {node: self.log_tail(node)[-1000:] for node in range(self.count)}
        raise CannotResolveError(f"not all of {self.count} Kafka nodes are up: {said}")

    async def wait_in_sync(self, topics: Sequence[str]) -> None:
        """Wait until every replica of these topics is in sync. Raises `TimeoutError`."""
        async with asyncio.timeout(READY_SECONDS):
            while not await self._in_sync(topics):
                await asyncio.sleep(0.3)

    async def leader(self, topic: str, partition: int) -> int:
        """Return the node that leads a partition, -1 if there is none."""
        for described in await self._describe([topic]):
            for part in described["partitions"]:
                if part["partition"] == partition:
                    return int(part["leader"]) - 1
        return -1

    async def _in_sync(self, topics: Sequence[str]) -> bool:
        try:
            described = await self._describe(topics)
        except (KafkaError, OSError):
            return False
        partitions = [part for topic in described for part in topic["partitions"]]
        return bool(partitions) and all(
            part["leader"] >= 0 and len(part["isr"]) == len(part["replicas"]) for part in partitions
        )

    async def _describe(self, topics: Sequence[str]) -> list[dict[str, Any]]:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        try:
            described: list[dict[str, Any]] = await admin.describe_topics(list(topics))
            return described
        finally:
            await admin.close()

    def _log(self, node: int) -> Path:
        return self._folder / f"node-{node}.log"

    def _properties(self, node: int) -> Path:
        return self._folder / f"node-{node}.properties"

    def _write_properties(self, node: int) -> Path:
        copies, least = min(3, self.count), min(2, self.count)
        listeners = {"PLAINTEXT": self._plain[node], "PROXIED": self.proxied_targets[node]}
        advertised = {**listeners, "PROXIED": (self._proxied or self.proxied_targets)[node]}
        properties = {
            **PROPERTIES,
            **QUICK,
            "node.id": node + 1,
            "controller.quorum.voters": ",".join(
                f"{number + 1}@{address}" for number, address in enumerate(self._controllers)
            ),
            "listeners": ",".join(
                f"{name}://{address}" for name, address in {**listeners, "CONTROLLER": self._controllers[node]}.items()
            ),
            "advertised.listeners": ",".join(f"{name}://{address}" for name, address in advertised.items()),
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "default.replication.factor": copies,
            "min.insync.replicas": least,
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": least,
            "log.dirs": self._folder / f"data-{node}",
        }
        file = self._properties(node)
        file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        return file


def free_ports(count: int) -> list[int]:
    """Return so many ports of the loopback interface that are free now."""
    found: list[int] = []
    with ExitStack() as held:
        while len(found) < count:
            listener = held.enter_context(socket.socket())
            with suppress(OSError):
                listener.bind(("127.0.0.1", secrets.choice(PORTS)))
                found.append(listener.getsockname()[1])
    return found


async def _members(address: str) -> int:
    """Return how many nodes the one at this address counts in; 0 while it does not answer."""
    client = AIOKafkaClient(bootstrap_servers=address, request_timeout_ms=ANSWER_MS)
    try:
        await client.bootstrap()
        return len(client.cluster.brokers())
    except (KafkaError, OSError):
        return 0
    finally:
        await client.close()
