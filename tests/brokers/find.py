"""Which broker the tests run on, and why."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from collections.abc import Callable
from typing import Any, Final

from brokers.apache import ApacheKafka, DockerKafka
from brokers.jars import KAFKA, CannotResolveError, java, resolve
from streamguard.demo.broker import EmbeddedBroker
from streamguard.errors import StreamguardError

KINDS: Final = ("apache-kafka", "docker", "embedded")


class BrokerChoiceError(Exception):
    """The kind of broker that was asked for cannot be had, or none at all."""


class Broker:
    """A broker for the tests. `is_apache`: it can do what only the real one can."""

    def __init__(self, kind: str, description: str, bootstrap: str, stop: Callable[[], None]) -> None:
        self.kind = kind
        self.description = description
        self.bootstrap = bootstrap
        self.stop = stop

    @property
    def is_apache(self) -> bool:
        """Tell whether it is Apache Kafka; one that is given is taken for that."""
        return self.kind != "embedded"


def find_broker() -> Broker:
    """Start or find a broker: a given one, else Java and Maven, else Docker, else the embedded one.

    STREAMGUARD_TEST_BROKER names one kind; then it is that or an error.
    """
    if bootstrap := os.environ.get("STREAMGUARD_TEST_BOOTSTRAP"):
        return Broker("given", f"the Kafka at {bootstrap} (STREAMGUARD_TEST_BOOTSTRAP)", bootstrap, lambda: None)
    wanted = os.environ.get("STREAMGUARD_TEST_BROKER")
    if wanted is not None and wanted not in KINDS:
        raise BrokerChoiceError(f"STREAMGUARD_TEST_BROKER is {wanted!r}; allowed: {', '.join(KINDS)}")
    reasons: list[str] = []
    for kind in (wanted,) if wanted else KINDS:
        try:
            return _STARTERS[kind]("; ".join(reasons))
        except (CannotResolveError, StreamguardError, subprocess.SubprocessError, OSError) as error:
            reasons.append(f"{kind}: {error}")
    raise BrokerChoiceError(f"no broker to run the tests on: {'; '.join(reasons)}")


def _apache(_: str) -> Broker:
    path, jars = java(), resolve()
    try:
        kafka = ApacheKafka(path, jars)
    except CannotResolveError as error:  # Kafka that is here and does not start is a fault, not a reason for another
        raise BrokerChoiceError(str(error)) from error
    return Broker(
        "apache-kafka", f"Apache Kafka {KAFKA} (Maven Central, started by the tests)", kafka.bootstrap, kafka.stop
    )


def _docker(reasons: str) -> Broker:
    kafka = DockerKafka()
    return Broker(
        "docker", f"Apache Kafka in Docker ({DockerKafka.IMAGE}), because {reasons}", kafka.bootstrap, kafka.stop
    )


def _embedded(reasons: str) -> Broker:
    """Run the embedded broker on an event loop of its own, for the whole session."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="embedded-broker", daemon=True)
    thread.start()

    def call(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(60)

    broker = EmbeddedBroker()
    call(broker.__aenter__())

    def stop() -> None:
        call(broker.__aexit__())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    why = f", because {reasons}" if reasons else ""
    return Broker("embedded", f"the embedded broker (Tansu), no Apache Kafka{why}", broker.bootstrap, stop)


_STARTERS: Final = {"apache-kafka": _apache, "docker": _docker, "embedded": _embedded}
