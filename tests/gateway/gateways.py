"""Gateways for tests: in this process, on a free port, with clients to them; and readers of their streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, NamedTuple

import httpx
import msgspec

from streamguard.gateway import Gateway
from streamguard.settings import Settings

WAIT_SECONDS = 60


def with_gateway(settings: Settings, **fields: Any) -> Settings:
    """Return settings with some of the gateway's changed; the port is a free one, and a gate waits long."""
    fields = {"port": 0, "gate_timeout_seconds": 30.0, "publish_timeout_seconds": 30.0, **fields}
    return msgspec.structs.replace(settings, gateway=msgspec.structs.replace(settings.gateway, **fields))


@asynccontextmanager
async def serving(settings: Settings, *, connected: bool = True, **fields: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Run a gateway while the block runs; give a client to it, once Kafka is reached."""
    gateway = Gateway(with_gateway(settings, **fields))
    running = asyncio.create_task(gateway.run())
    try:
        host, port = await gateway.listening()
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=WAIT_SECONDS) as client:
            if connected:
                await reached(client)
            yield client
    finally:
        gateway.stop()
        async with asyncio.timeout(WAIT_SECONDS):
            await running


async def reached(client: httpx.AsyncClient) -> None:
    """Wait until a gateway has reached Kafka."""
    async with asyncio.timeout(WAIT_SECONDS):
        while (await client.get("/healthz")).status_code != 200:
            await asyncio.sleep(0.05)


class Said(NamedTuple):
    """An event of a stream."""

    id: str
    event: str
    data: str

    @property
    def verdict(self) -> dict[str, Any]:
        """The verdict."""
        decoded: dict[str, Any] = msgspec.json.decode(self.data)
        return decoded


class Stream:
    """A stream of verdicts, read as the standard says. `last_id` is what a client would come again with."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.last_id = ""
        self.comments = 0
        self._blocks = self._read()

    async def begun(self) -> None:
        """Wait for the first block, which says where the stream begins."""
        async with asyncio.timeout(WAIT_SECONDS):
            while not self.last_id:
                assert await anext(self._blocks) is None

    async def take(self, count: int) -> list[Said]:
        """Wait for so many verdicts."""
        some: list[Said] = []
        async with asyncio.timeout(WAIT_SECONDS):
            while len(some) < count:
                said = await anext(self._blocks)
                some += [said] if said is not None else []
        return some

    async def rest(self) -> list[Said]:
        """Read to the end of the stream."""
        async with asyncio.timeout(WAIT_SECONDS), aclosing(self._blocks) as blocks:
            return [said async for said in blocks if said is not None]

    async def commented(self) -> None:
        """Wait for a comment."""
        async with asyncio.timeout(WAIT_SECONDS):
            while not self.comments:
                await anext(self._blocks)

    async def _read(self) -> Any:
        event = ""
        data: list[str] = []
        async for line in self.response.aiter_lines():
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if not line:
                yield Said(self.last_id, event, "\n".join(data)) if data else None
                event, data = "", []
            elif not name:
                self.comments += 1
            elif name == "id":
                self.last_id = value
            elif name == "event":
                event = value
            elif name == "data":
                data.append(value)


@asynccontextmanager
async def verdicts(client: httpx.AsyncClient, *run_ids: str, last_id: str = "") -> AsyncIterator[Stream]:
    """Open a stream of the runs' verdicts."""
    headers = {"last-event-id": last_id} if last_id else {}
    async with client.stream("GET", "/v1/verdicts", params={"run_id": run_ids}, headers=headers) as response:
        assert 200 == response.status_code, await response.aread()
        yield Stream(response)
