"""A cluster of Apache Kafka nodes whose processes can be killed and started again, on free loopback ports."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from brokers.apache import PROPERTIES, format_storage
from brokers.jars import CannotResolveError
from streamguard.demo.process import ServerProcess, free_port

READY_SECONDS: Final = 120

JVM: Final = (
    "-Xmx320m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
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
    """`count` nodes, each broker and controller. With `proxied`, node i tells clients of its second listener that it is
    at the i-th of these addresses: whoever starts there keeps to the proxies. See `proxied_targets`.
    """  # noqa: D205 - one thought

    def __init__(self, java: str, jars: Path, count: int = 3, proxied: Sequence[str] = ()) -> None:
        self.count = count
        self._command = [java, *JVM, "-cp", f"{jars}/*"]
        self._proxied = list(proxied)
        self._folder = Path(tempfile.mkdtemp(prefix="streamguard-nodes-"))
        self._cluster = uuid.uuid4().hex
        self._plain = [f"127.0.0.1:{free_port()}" for _ in range(count)]
        self._controllers = [f"127.0.0.1:{free_port()}" for _ in range(count)]
        self.proxied_targets = [f"127.0.0.1:{free_port()}" for _ in range(count)]
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
        self._processes[node] = ServerProcess([*self._command, "kafka.Kafka", self._properties(node)])

    def kill(self, node: int) -> None:
        """End a node at once (SIGKILL)."""
        os.killpg(self._processes[node].pid, signal.SIGKILL)
        self._processes.pop(node).stop()

    def terminate(self, node: int, grace_seconds: float = 30) -> None:
        """Stop a node: it hands its leaderships over first. Blocks until it is gone."""
        self._processes.pop(node).stop(grace_seconds)

    def running(self, node: int) -> bool:
        """Tell whether a node's process runs."""
        return node in self._processes and self._processes[node].running

    def stop(self) -> None:
        """Stop all nodes and leave nothing behind."""
        for node in list(self._processes):
            self.kill(node)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def wait_ready(self) -> None:
        """Wait until all nodes are part of the cluster. Raises `CannotResolveError`."""
        try:
            async with asyncio.timeout(READY_SECONDS):
                while len(await self._members()) < self.count:
                    await asyncio.sleep(0.3)
        except TimeoutError:
            said = {node: process.output()[-1000:] for node, process in self._processes.items()}
            raise CannotResolveError(f"not all of {self.count} Kafka nodes are up: {said}") from None

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

    async def _describe(self, topics: Sequence[str]) -> list[dict[str, object]]:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        try:
            described: list[dict[str, object]] = await admin.describe_topics(list(topics))
            return described
        finally:
            await admin.close()

    async def _members(self) -> list[object]:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        try:
            await admin.start()
            members: list[object] = (await admin.describe_cluster())["brokers"]
        except (KafkaError, OSError):
            return []
        finally:
            await admin.close()
        return members

    def _properties(self, node: int) -> Path:
        return self._folder / f"node-{node}.properties"

    def _write_properties(self, node: int) -> Path:
        copies, least = min(3, self.count), 2 if self.count > 2 else 1
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
