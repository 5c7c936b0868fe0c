"""The two topics as an executor sees them: events go out, verdicts about its runs come in, whatever Kafka does.

Nothing here waits for Kafka longer than it was told to. Until the first connection events are kept; where verdicts are
read from is known before the first event is sent, so that none is missed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec
import structlog
from aiokafka import ConsumerRecord
from aiokafka.errors import KafkaError
from aiokafka.partitioner import murmur2

from streamguard.errors import BadSignatureError, StreamguardError, UnsignedVerdictError
from streamguard.executor.sender import Sender, Sent
from streamguard.executor.silence import Silence
from streamguard.executor.subscriber import Subscriber
from streamguard.settings import Settings
from streamguard.signing import Verifier, signing_keys
from streamguard.stream.kafka import client_options, close, make_brokers
from streamguard.stream.producer import Record
from streamguard.stream.topics import executor_partitions
from streamguard.verdicts import Verdict, decode_verdict

if TYPE_CHECKING:
    from streamguard.executor.options import ExecutorOptions
    from streamguard.stream.brokers import Brokers

__all__ = ["Channel", "partition_of"]

log = structlog.get_logger("streamguard.executor")

AGAIN_SECONDS: Final = 1.0
LONGEST_AGAIN_SECONDS: Final = 10.0

Listener = Callable[[Verdict], None]


@lru_cache(maxsize=16_384)
def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a run by its key, as every Kafka client chooses it."""
    return int(murmur2(key) & 0x7FFFFFFF) % partitions


class Channel:
    """Publishes events by run, and tells listeners of their runs' verdicts. `counters`: what became of both.

    Raises a `ConfigurationError` if certificates, secrets or keys cannot be used.
    """

    def __init__(self, options: ExecutorOptions, counters: Counter[str]) -> None:
        self.counters = counters
        self.connected = asyncio.Event()
        self.silence = Silence()
        client_options(options.kafka)  # what is wrong with it is better said now than never
        keys = signing_keys(options.signing)
        self._verifier = Verifier(keys) if keys else None
        self._options = options
        self._sender = Sender(options, counters)
        self._subscriber = Subscriber(options, self._hear)
        self._listeners: dict[str, Listener] = {}
        self._partitions = 0  # 0: not known yet
        self._brokers: Brokers | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Connect in the background, however long that takes."""
        self._task = asyncio.create_task(self._connect_until_connected(), name="connect")

    async def close(self) -> None:
        """Send what is buffered, within `close_timeout`, and close all connections."""
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._options.close_timeout):
                    await self._sender.flush()
            if self._sender.buffered:
                self.counters["dropped_at_close"] += self._sender.buffered
                log.warning("events not sent before the end", events=self._sender.buffered)
        finally:
            if self._task is not None:
                self._task.cancel()
                await asyncio.gather(self._task, return_exceptions=True)
            await self._sender.close()
            await self._subscriber.close()
            if self._brokers is not None:
                await close(self._brokers)

    def partition_of(self, run_id: str) -> int:
        """Return the partition of a run; -1 while their number is not known."""
        return partition_of(run_id.encode(), self._partitions) if self._partitions else -1

    async def follow(self, run_id: str, listener: Listener) -> None:
        """Tell this listener of all verdicts about a run that come from now on."""
        self._listeners[run_id] = listener
        if self._partitions:
            await self._subscriber.follow(self.partition_of(run_id))

    def unfollow(self, run_id: str) -> None:
        """Tell nobody of them any more."""
        if self._listeners.pop(run_id, None) is not None and self._partitions:
            self._subscriber.unfollow(self.partition_of(run_id))

    async def publish(self, run_id: str, value: bytes) -> Sent | None:
        """Send an event, in order; returns within `publish_timeout` what becomes of it (see `Sender.put`)."""
        return await self._sender.put(Record(run_id.encode(), value))

    # inside

    async def _connect_until_connected(self) -> None:
        wait, told = AGAIN_SECONDS, ""
        while True:
            try:
                await self._connect()
            except (StreamguardError, KafkaError, TimeoutError, OSError) as error:
                if str(error) != told:
                    log.warning("not connected to Kafka, trying again", error=str(error) or type(error).__name__)
                told = str(error)
                await asyncio.sleep(wait)
                wait = min(wait * 2, LONGEST_AGAIN_SECONDS)
            else:
                log.info(
                    "connected to Kafka", bootstrap=self._options.kafka.bootstrap, events_waiting=self._sender.buffered
                )
                return

    async def _connect(self) -> None:
        options = self._options
        partitions = await executor_partitions(Settings(kafka=options.kafka, topics=options.topics))
        brokers = make_brokers(options.kafka, (options.topics.events, options.topics.verdicts))
        try:
            await brokers.start()
            await self._subscriber.start(partitions)
        except BaseException:
            await close(brokers)
            raise
        self._brokers = brokers
        self._partitions = partitions
        for run_id in list(self._listeners):
            await self._subscriber.follow(self.partition_of(run_id))
        self._sender.connect(brokers, lambda key: partition_of(key, partitions))
        self.connected.set()

    def _hear(self, record: ConsumerRecord) -> None:
        """Take a record of the verdict topic; one that is nobody's, or no genuine verdict, tells nobody anything."""
        run_id = (record.key or b"").decode("utf-8", "replace")
        listener = self._listeners.get(run_id)
        if listener is None or record.value is None:
            return
        try:
            if self._verifier is not None:
                self._verifier.verify(record.value, record.headers)
            verdict = decode_verdict(record.value)
        except (UnsignedVerdictError, BadSignatureError) as error:
            self.counters["refused_verdicts"] += 1
            log.warning("verdict not obeyed", error=str(error), partition=record.partition, offset=record.offset)
            return
        except msgspec.MsgspecError:
            self.counters["refused_verdicts"] += 1
            log.warning("record is no verdict", partition=record.partition, offset=record.offset)
            return
        if verdict.run_id != run_id or verdict.source.partition != record.partition:
            self.counters["refused_verdicts"] += 1  # genuine, and copied from elsewhere
            log.warning("verdict is about something else", partition=record.partition, offset=record.offset)
            return
        self.silence.ends(record.partition)
        listener(verdict)
