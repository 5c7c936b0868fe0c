"""Apache Kafka itself, one node in KRaft mode on free loopback ports."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from brokers.jars import KAFKA, CannotResolveError
from streamguard.demo.broker import answers
from streamguard.process import ServerProcess, free_port

START_SECONDS: Final = 90
STOP_SECONDS: Final = 20
PORT_ATTEMPTS: Final = 3

JVM: Final = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
"""A small heap, the collector that starts quickest, no files in shared folders; warnings go to our log."""

PROPERTIES: Final[Mapping[str, object]] = {
    "process.roles": "broker,controller",
    "node.id": 1,
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": 4,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.num.partitions": 4,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
    "controlled.shutdown.enable": "false",
}


class ApacheKafka:
    """A running broker; `bootstrap` is its address. It starts here, and `stop` or our own end is its end.

    `listeners` are security protocols (`SSL`, `SASL_SSL`, ...) served beside plaintext, each on a port of its own: see
    `addresses`. What they need (keystores, users) goes into `properties`, which also override the node's own.
    It blocks: in a coroutine, make it in a thread.
    """

    def __init__(
        self,
        java: str,
        jars: Path,
        *,
        properties: Mapping[str, object] | None = None,
        listeners: Sequence[str] = (),
    ) -> None:
        self._command = [java, *JVM, "-cp", f"{jars}/*"]
        self._listeners = ("PLAINTEXT", *listeners)
        self._extra = dict(properties or {})
        for attempt in range(1, PORT_ATTEMPTS + 1):
            try:
                self._start()
            except CannotResolveError as error:
                # another program can take a port between our choosing it and Kafka's listening
                if attempt == PORT_ATTEMPTS or "already in use" not in str(error):
                    raise
            else:
                return

    @property
    def bootstrap(self) -> str:
        """The address of the plaintext listener."""
        return self.addresses["PLAINTEXT"]

    def _start(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="streamguard-kafka-"))
        self._process: ServerProcess | None = None
        self.addresses = {name: f"127.0.0.1:{free_port()}" for name in (*self._listeners, "CONTROLLER")}
        cluster = uuid.uuid4().hex
        try:
            properties = self._write_properties()
            format_storage(self._command, properties, cluster)
            self._process = ServerProcess([*self._command, "kafka.Kafka", properties])
            wait_until_it_answers(self._process, self.bootstrap, cluster)
        except BaseException:
            self.stop()
            raise

    def _write_properties(self) -> Path:
        protocols = {name: name for name in self._listeners} | {"CONTROLLER": "PLAINTEXT"}
        properties = {
            **PROPERTIES,
            "controller.quorum.voters": f"1@{self.addresses['CONTROLLER']}",
            "listeners": ",".join(f"{name}://{address}" for name, address in self.addresses.items()),
            "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
            "log.dirs": self._folder / "data",
            **self._extra,
        }
        file = self._folder / "server.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        return file

    def stop(self) -> None:
        """Stop it and leave nothing behind."""
        if self._process is not None:
            self._process.stop(STOP_SECONDS)
        shutil.rmtree(self._folder, ignore_errors=True)


class DockerKafka:
    """Apache Kafka in Docker. Not tried where this was written: no Docker engine ran there.

    `docker run` stays in the foreground and hands signals on, so that the container ends when we do.
    """

    IMAGE: Final = f"apache/kafka:{KAFKA}"

    def __init__(self) -> None:
        docker = shutil.which("docker")
        if docker is None or subprocess.run([docker, "info"], capture_output=True, check=False, timeout=30).returncode:
            raise CannotResolveError("no Docker engine answers")
        self._docker = docker
        self._name = f"streamguard-tests-{uuid.uuid4().hex[:8]}"
        subprocess.run([docker, "pull", "--quiet", self.IMAGE], check=True, capture_output=True, timeout=900)
        port, cluster = free_port(), uuid.uuid4().hex
        self.bootstrap = f"127.0.0.1:{port}"
        self._process = ServerProcess(self._run(port, cluster))
        try:
            wait_until_it_answers(self._process, self.bootstrap, cluster)
        except BaseException:
            self.stop()
            raise

    def _run(self, port: int, cluster: str) -> list[str]:
        """Write the command. The port is the same inside, so that one listener is served and advertised."""
        properties = {
            **PROPERTIES,
            "controller.quorum.voters": "1@127.0.0.1:9099",
            "listeners": f"PLAINTEXT://0.0.0.0:{port},CONTROLLER://127.0.0.1:9099",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        }
        variables = {f"KAFKA_{name.upper().replace('.', '_')}": value for name, value in properties.items()}
        environment = [f"--env={name}={value}" for name, value in {"CLUSTER_ID": cluster, **variables}.items()]
        publish = f"--publish=127.0.0.1:{port}:{port}"
        return [self._docker, "run", "--rm", "--name", self._name, publish, *environment, self.IMAGE]

    def stop(self) -> None:
        """Stop the container."""
        self._process.stop(STOP_SECONDS)
        remove = [self._docker, "rm", "--force", self._name]
        subprocess.run(remove, check=False, capture_output=True, timeout=60)


def format_storage(command: Sequence[str], properties: Path, cluster: str) -> None:
    """Prepare the data folder that the properties name; `command` is Java with the jars. Raises CannotResolveError."""
    arguments = [*command, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=START_SECONDS)
    if done.returncode != 0:
        raise CannotResolveError(f"Kafka's storage cannot be formatted: {(done.stdout + done.stderr)[-2000:]}")


def wait_until_it_answers(process: ServerProcess, bootstrap: str, cluster: str) -> None:
    """Wait for an answer to a request: a port that is open is not enough. Raises CannotResolveError."""

    async def wait() -> bool:
        try:
            async with asyncio.timeout(START_SECONDS):
                return await answers(process, bootstrap, cluster)
        except TimeoutError:
            return False

    if not asyncio.run(wait()):
        state = f"does not answer at {bootstrap} after {START_SECONDS} s" if process.running else "ended at its start"
        raise CannotResolveError(f"Kafka {state}; it said: {process.output()[-2000:] or 'nothing'}")
