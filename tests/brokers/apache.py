"""Apache Kafka itself, one node in KRaft mode on free loopback ports."""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from pathlib import Path
from typing import Final

from brokers.jars import CannotResolveError

START_SECONDS: Final = 90
STOP_SECONDS: Final = 20

PROPERTIES: Final = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{broker}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""


class ApacheKafka:
    """A running broker; `bootstrap` is its address."""

    def __init__(self, java: str, jars: Path) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="streamguard-kafka-"))
        broker, controller = free_ports(2)
        self.bootstrap = f"127.0.0.1:{broker}"
        properties = self._folder / "server.properties"
        properties.write_text(PROPERTIES.format(broker=broker, controller=controller, data=self._folder / "data"))
        command = [java, "-Xmx512m", "-cp", f"{jars}{os.sep}*"]
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        subprocess.run(
            [*command, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties)],
            check=True,
            capture_output=True,
            timeout=START_SECONDS,
        )
        self._log = (self._folder / "kafka.log").open("wb")
        self._process = subprocess.Popen(
            [*command, "kafka.Kafka", str(properties)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        try:
            wait_until_open(self.bootstrap, lambda: self._process.poll() is None)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop it and leave nothing behind."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class DockerKafka:
    """Apache Kafka in Docker. Not tried where this was written: no Docker engine ran there."""

    IMAGE: Final = "apache/kafka:4.1.0"

    def __init__(self) -> None:
        docker = shutil.which("docker")
        if docker is None or subprocess.run([docker, "info"], capture_output=True, check=False, timeout=30).returncode:
            raise CannotResolveError("no Docker engine answers")
        [port] = free_ports(1)
        self.bootstrap = f"127.0.0.1:{port}"
        self._docker = docker
        self._name = f"streamguard-tests-{uuid.uuid4().hex[:8]}"
        environment = {
            "KAFKA_NODE_ID": "1",
            "KAFKA_PROCESS_ROLES": "broker,controller",
            "KAFKA_LISTENERS": "PLAINTEXT://:9092,CONTROLLER://:9093",
            "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT://{self.bootstrap}",
            "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
            "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
            "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
            "KAFKA_AUTO_CREATE_TOPICS_ENABLE": "false",
            "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        }
        variables = [part for name, value in environment.items() for part in ("-e", f"{name}={value}")]
        run = [
            docker,
            "run",
            "-d",
            "--rm",
            "--name",
            self._name,
            "-p",
            f"127.0.0.1:{port}:9092",
            *variables,
            self.IMAGE,
        ]
        subprocess.run(run, check=True, capture_output=True, timeout=600)
        wait_until_open(self.bootstrap, lambda: True)

    def stop(self) -> None:
        """Stop the container."""
        subprocess.run([self._docker, "stop", self._name], check=False, capture_output=True, timeout=60)


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that are free now."""
    with contextlib.ExitStack() as open_sockets:
        listeners = [open_sockets.enter_context(socket.socket()) for _ in range(count)]
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in listeners]


def wait_until_open(bootstrap: str, alive: object) -> None:
    """Wait until the broker takes connections; Kafka listens only once it can serve."""
    host, port = bootstrap.split(":")
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and callable(alive) and alive():
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
            return
        time.sleep(0.1)
    raise CannotResolveError(f"Kafka does not answer at {bootstrap} after {START_SECONDS} s")
