"""`streamguard gateway` as an operator meets it."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from cluster import Cluster
from commands import Running, started, streamguard
from gateways import reached, verdicts, with_gateway

from streamguard.errors import NotAuthorizedError
from streamguard.executor import channel
from streamguard.gateway import Gateway
from streamguard.process import free_port
from streamguard.settings import Settings

TOKEN = "swordfish-swordfish"  # noqa: S105 - what must not be shown
CALL = {"type": "tool_call", "run_id": "run-1", "call_id": "c", "tool": "read", "args": "hunter2"}
NOWHERE = ("--bootstrap", "127.0.0.1:1", "--port", "0")


@pytest.fixture
async def cluster(broker: Any, topic_prefix: str) -> AsyncIterator[Cluster]:
    """Give a test topics of its own."""
    async with Cluster(broker, topic_prefix) as cluster:
        yield cluster


async def address(gateway: Running) -> str:
    """Wait until it listens; return its URL."""
    return f"http://127.0.0.1:{json.loads(await gateway.says('listening'))['port']}"


async def test_a_signal_drains(cluster: Cluster) -> None:
    """SIGTERM: an open gate is answered, a stream ends, what was buffered is sent, exit 0; nothing secret is logged."""
    variables = {
        **cluster.variables(),
        "STREAMGUARD_GATEWAY_TOKENS": TOKEN,
        "STREAMGUARD_GATEWAY_GATE_TIMEOUT_SECONDS": "1",
        "STREAMGUARD_LOG_LEVEL": "debug",
    }
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with started("gateway", "--port", "0", **variables) as gateway:
        async with httpx.AsyncClient(base_url=await address(gateway), headers=headers, timeout=60) as client:
            await reached(client)
            async with verdicts(client, "run-1") as stream:
                await stream.begun()
                asking = asyncio.create_task(client.post("/v1/gate", json=CALL))
                await cluster.event_records(1)  # it is asking now
                await client.post("/v1/events?ack=0", json=[CALL] * 50)
                gateway.process.send_signal(signal.SIGTERM)
                rest = await stream.rest()
            answer = (await asking).json()
        code = await gateway.ends()

    assert (0, [], "nobody") == (code, rest, answer["decided_by"])
    assert 51 == len(await cluster.event_records(51))
    assert not [line for line in gateway.lines if "hunter2" in line or "fish" in line or "run-1" in line]
    assert all(json.loads(line)["event"] for line in gateway.lines)


async def test_a_second_signal_ends_it_at_once() -> None:
    """Two signals: no draining, exit code 5."""
    async with started("gateway", *NOWHERE) as gateway:
        await address(gateway)
        gateway.process.send_signal(signal.SIGSTOP)  # so that both wait for it
        gateway.process.send_signal(signal.SIGTERM)
        gateway.process.send_signal(signal.SIGINT)
        code = await gateway.ends(signal.SIGCONT)

    assert 5 == code


async def test_kafka_may_come_later(cluster: Cluster) -> None:
    """Without Kafka it serves, is not healthy, and buffers up to its limit; when Kafka comes all is sent."""
    port = free_port()
    variables = {
        **cluster.variables(),
        "STREAMGUARD_KAFKA_BOOTSTRAP": f"127.0.0.1:{port}",
        "STREAMGUARD_GATEWAY_BUFFER_EVENTS": "3",
        "STREAMGUARD_GATEWAY_PUBLISH_TIMEOUT_SECONDS": "0.1",
    }
    async with (
        started("gateway", "--port", "0", **variables) as gateway,
        httpx.AsyncClient(base_url=await address(gateway), timeout=60) as client,
    ):
        paths = ("/v1/events?ack=0", "/v1/events", "/v1/gate?timeout=0.1", "/v1/events?ack=0")
        early = [(await client.post(path, json=CALL)).status_code for path in paths]
        health, stream = [(await client.get(path)).status_code for path in ("/healthz", "/v1/verdicts?run_id=r")]
        async with forwarded(port, cluster.bootstrap):
            await reached(client)
            records = await cluster.event_records(3)
            code = await gateway.ends(signal.SIGTERM)

    assert ([202, 503, 200, 503], 503, 503) == (early, health, stream)
    assert (3, 0) == (len(records), code)


async def test_a_kafka_that_refuses_us_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong credentials are not waited out: it drains and ends with that error, which is exit code 3."""

    async def refused(*_: Any) -> int:
        raise NotAuthorizedError("wrong password")

    monkeypatch.setattr(channel, "executor_partitions", refused)
    gateway = Gateway(with_gateway(Settings()))

    with pytest.raises(NotAuthorizedError, match="wrong password"):
        async with asyncio.timeout(60):
            await gateway.run()


async def test_a_body_without_end_is_cut_off() -> None:
    """Over a real connection a chunked body is refused in the middle, and the connection is closed."""
    async with started("gateway", *NOWHERE, STREAMGUARD_GATEWAY_BODY_BYTES="1000") as gateway:
        port = int((await address(gateway)).rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/events HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"400\r\n" + b" " * 1024 + b"\r\n")
        async with asyncio.timeout(60):
            said = await reader.read()
        writer.close()
        await writer.wait_closed()

    assert said.startswith(b"HTTP/1.1 413")
    assert b'{"error":' in said


def test_others_are_not_let_in_without_tokens(tmp_path: Path) -> None:
    """A host that others reach needs tokens, and the file must have some: exit 2, nothing is started."""
    empty = tmp_path / "tokens"
    empty.write_text("")
    without = streamguard("gateway", "--host", "0.0.0.0", *NOWHERE)  # noqa: S104 - that is what is refused
    of_nobody = streamguard("gateway", *NOWHERE, variables={"STREAMGUARD_GATEWAY_TOKENS_FILE": str(empty)})

    assert (2, 2) == (without.returncode, of_nobody.returncode)
    assert "gateway.tokens or gateway.tokens_file is needed" in without.stderr
    assert "holds no token" in of_nobody.stderr


def test_a_port_that_is_taken_ends_it() -> None:
    """Another program listens there: exit 1, with the address."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = streamguard("gateway", "--port", str(port), "--bootstrap", "127.0.0.1:1")

    assert 1 == done.returncode
    assert f"cannot listen at 127.0.0.1:{port}" in done.stderr


def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    """Without its packages the command names the extra; the others work."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['starlette'] = None\n")
    variables = {"PYTHONPATH": str(tmp_path)}
    done = streamguard("gateway", variables=variables)

    assert (1, 0) == (done.returncode, streamguard("--help", variables=variables).returncode)
    assert "pip install 'streamguard[gateway]'" in done.stderr


@asynccontextmanager
async def forwarded(port: int, bootstrap: str) -> AsyncIterator[None]:
    """Let a Kafka be there."""
    host, kafka = bootstrap.rsplit(":", 1)
    tasks: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while some := await reader.read(65536):
            writer.write(some)
        writer.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, int(kafka))
        tasks.update((asyncio.create_task(pump(reader, back)), asyncio.create_task(pump(there, writer))))

    async with await asyncio.start_server(forward, "127.0.0.1", port):
        yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
