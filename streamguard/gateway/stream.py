"""Verdicts as server-sent events: what was missed first, then what comes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import structlog
from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError
from starlette.types import Receive, Scope, Send

from streamguard.executor.channel import Following, Heard
from streamguard.executor.genuine import run_key
from streamguard.executor.missed import read_missed
from streamguard.gateway.cursor import write_cursor

if TYPE_CHECKING:
    from streamguard.executor.channel import Channel
    from streamguard.settings import Settings

__all__ = ["Streams", "VerdictStream"]

log = structlog.get_logger("streamguard.gateway")

KEEPALIVE_SECONDS: Final = 15.0
WAITING_VERDICTS: Final = 1_000
"""Verdicts kept for a client that does not read them; then its stream ends, for it to come again."""

RETRY_MS: Final = 1_000
"""After which a client should come again."""

CATCHING_UP: Final = 4
"""Streams that read what they missed at the same time."""

HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]

_LINE_END: Final = re.compile("\r\n|\r|\n")


class Streams:
    """What the streams of a gateway share. `stopping` ends them; `open`: how many there are."""

    def __init__(self, channel: Channel, settings: Settings, keepalive: float = KEEPALIVE_SECONDS) -> None:
        self.channel = channel
        self.settings = settings
        self.keepalive = keepalive
        self.stopping = asyncio.Event()
        self.open = 0
        self.catching_up = asyncio.Semaphore(CATCHING_UP)


class VerdictStream:
    """The response to one client: verdicts of its runs, from now on or from the offsets of `cursor` on."""

    def __init__(self, streams: Streams, run_ids: Sequence[str], cursor: Mapping[int, int]) -> None:
        self._streams = streams
        self._runs = frozenset(run_ids)
        self._cursor = cursor
        self._reached: dict[int, int] = {}  # partition → offset of what was said last
        self._queue: asyncio.Queue[Heard | None] = asyncio.Queue(WAITING_VERDICTS + 1)
        self._over = False
        self._followings: list[Following] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - as ASGI has it
        """Serve the stream until the client goes, or we do. It hears its runs before it answers at all."""
        self._streams.open += 1
        ends = [asyncio.ensure_future(self._end_when(what)) for what in (_gone(receive), self._streams.stopping.wait())]
        try:
            for run_id in self._runs:
                self._followings.append(await self._streams.channel.follow(run_id, self._take))
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            async with aclosing(self._events()) as events:
                async for event in events:
                    await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._streams.open -= 1
            for end in ends:
                end.cancel()
            for following in self._followings:
                self._streams.channel.unfollow(following)

    async def _end_when(self, happens: Coroutine[Any, Any, object]) -> None:
        await happens
        self._end()

    def _take(self, heard: Heard) -> None:
        if self._queue.qsize() >= WAITING_VERDICTS:
            self._end()
        else:
            self._queue.put_nowait(heard)

    def _end(self) -> None:
        """End the stream behind what waits already; what comes later is for the next one."""
        self._over = True
        if not self._queue.full():
            self._queue.put_nowait(None)

    async def _events(self) -> AsyncGenerator[bytes, None]:
        """Write the stream; its first block says where it begins, for a client that comes again before any verdict."""
        spans = self._begin()
        yield f"retry: {RETRY_MS}\nid: {write_cursor(self._reached, min(self._reached))}\n\n".encode()
        try:
            async with aclosing(self._missed(spans)) as missed:
                async for heard in missed:
                    yield self._said(heard)
        except (KafkaError, TimeoutError, OSError) as error:
            log.warning("verdicts that were missed are not readable, stream ended", error=type(error).__name__)
            return
        async with aclosing(self._heard()) as some:
            async for chunk in some:
                yield chunk

    def _begin(self) -> dict[TopicPartition, range]:
        """Note where the stream stands in each partition; return what has to be read before what is heard."""
        since: dict[int, int] = {}  # the latest: what one run hears and another has missed is read for both
        for following in self._followings:
            partition = self._streams.channel.partition_of(following.run_id)
            since[partition] = max(following.since, since.get(partition, 0))
        self._reached = {
            partition: min(self._cursor.get(partition, begin), begin - 1) for partition, begin in since.items()
        }
        spans = {partition: range(self._reached[partition] + 1, begin) for partition, begin in since.items()}
        topic = self._streams.settings.topics.verdicts
        return {TopicPartition(topic, partition): span for partition, span in spans.items() if span}

    async def _missed(self, spans: Mapping[TopicPartition, range]) -> AsyncGenerator[Heard, None]:
        if not spans:
            return
        async with self._streams.catching_up, aclosing(read_missed(self._streams.settings.kafka, spans)) as records:
            async for record in records:
                if self._over:
                    return
                heard = self._ours(record)
                if heard is not None:
                    yield heard

    async def _heard(self) -> AsyncGenerator[bytes, None]:
        while True:
            try:
                async with asyncio.timeout(self._streams.keepalive):
                    heard = await self._queue.get()
            except TimeoutError:
                yield b": keepalive\n\n"
                continue
            if heard is None:
                return
            if heard.record.offset > self._reached[heard.record.partition]:
                yield self._said(heard)

    def _ours(self, record: ConsumerRecord) -> Heard | None:
        verdict = self._streams.channel.genuine.verdict(record) if run_key(record) in self._runs else None
        return Heard(verdict, record) if verdict is not None else None

    def _said(self, heard: Heard) -> bytes:
        record = heard.record
        self._reached[record.partition] = record.offset
        lines = _LINE_END.split(record.value.decode())
        data = "".join(f"data: {line}\n" for line in lines)
        cursor = write_cursor(self._reached, record.partition)
        return f"id: {cursor}\nevent: {heard.verdict.action}\n{data}\n".encode()


async def _gone(receive: Receive) -> None:
    """Return when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
