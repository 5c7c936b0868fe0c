"""The two topics as an executor sees them: events go out, verdicts about its runs come in, whatever Kafka does.

Nothing here waits for Kafka longer than it was told to. Until the first connection events are kept; where verdicts are
read from is known before the first event is sent, so that none is missed.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog
from aiokafka import ConsumerRecord
from aiokafka.partitioner import murmur2

from streamguard.errors import NotAuthorizedError
from streamguard.executor.genuine import Genuine, run_key
from streamguard.executor.sender import Sender, Sent
from streamguard.executor.silence import Silence
from streamguard.executor.subscriber import Subscriber
from streamguard.executor.trace import current_trace
from streamguard.settings import Settings
from streamguard.stream.kafka import client_options, close, make_brokers
from streamguard.stream.patience import UNANSWERED, answer, is_cancelled
from streamguard.stream.producer import Record
from streamguard.stream.topics import executor_partitions
from streamguard.verdicts import Verdict

if TYPE_CHECKING:
    from streamguard.executor.options import ExecutorOptions
    from streamguard.stream.brokers import Brokers

__all__ = ["Channel", "Following", "Heard", "partition_of"]

log = structlog.get_logger("streamguard.executor")

AGAIN_SECONDS: Final = 1.0
LONGEST_AGAIN_SECONDS: Final = 10.0


class Heard(NamedTuple):
    """A genuine verdict and the record that holds it."""

    verdict: Verdict
    record: ConsumerRecord


Listener = Callable[[Heard], None]


class Following:
    """Somebody who listens to a run. From offset `since` of its partition on nothing is missed; -1: not known yet."""

    __slots__ = ("begun", "listener", "run_id", "since")

    def __init__(self, run_id: str, listener: Listener) -> None:
        self.run_id = run_id
        self.listener = listener
        self.since = -1
        self.begun = False  # the partition is followed for this one, too


@lru_cache(maxsize=16_384)
def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a run by its key, as every Kafka client chooses it."""
    return int(murmur2(key) & 0x7FFFFFFF) % partitions


class Channel:
    """Publishes events by run, and tells listeners of their runs' verdicts. `counters`: what became of both.

    `refused` is set when Kafka refuses us, with `refusal` saying why; it is tried again all the same.
    Raises a `ConfigurationError` if certificates, secrets or keys cannot be used.
    """

    def __init__(self, options: ExecutorOptions, counters: Counter[str]) -> None:
        self.counters = counters
        self.connected = asyncio.Event()
        self.refused = asyncio.Event()
        self.refusal: NotAuthorizedError | None = None
        self.silence = Silence()
        client_options(options.kafka)  # what is wrong with it is better said now than never
        self.genuine = Genuine(options.signing, counters)
        self._options = options
        self._sender = Sender(options, counters)
        self._subscriber = Subscriber(options, self._hear)
        self._followings: dict[str, list[Following]] = {}
        self._partitions = 0  # 0: not known yet
        self._brokers: Brokers | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Connect in the background, however long that takes."""
        self._task = asyncio.create_task(self._connect_until_connected(), name="connect")

    async def close(self, within: float | None = None) -> None:
        """Send what is buffered, within so many seconds (else `close_timeout`), and close all connections."""
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._options.close_timeout if within is None else within):
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

    async def follow(self, run_id: str, listener: Listener) -> Following:
        """Tell this listener of all verdicts about a run that come from now on; others may listen to it, too."""
        following = Following(run_id, listener)
        self._followings.setdefault(run_id, []).append(following)
        if self._partitions:
            await self._begin(following)
        return following

    def unfollow(self, following: Following) -> None:
        """Tell this listener of them no more; nothing happens if that was done before."""
        some = self._followings.get(following.run_id, [])
        if following not in some:
            return
        some.remove(following)
        if not some:
            del self._followings[following.run_id]
        if following.begun:
            self._subscriber.unfollow(self.partition_of(following.run_id))

    async def reachable(self, seconds: float) -> bool:
        """Tell whether a broker answers us now, within so many seconds."""
        if self._brokers is None:
            return False
        return await answer(self._brokers.client.fetch_all_metadata(), seconds) is not UNANSWERED

    async def publish(self, run_id: str, value: bytes, placed: Callable[[int], None] | None = None) -> Sent | None:
        """Send an event, in order; returns within `publish_timeout` what becomes of it (see `Sender.put`)."""
        return await self._sender.put(Record(run_id.encode(), value, current_trace()), placed)

    def drop(self, reason: str) -> None:
        """Count an event that goes to nobody, and say so once, until sending works again."""
        self._sender.drop(reason)

    # inside

    async def _connect_until_connected(self) -> None:
        wait, told = AGAIN_SECONDS, ""
        while True:
            try:
                await self._connect()
            except asyncio.CancelledError:
                if is_cancelled():
                    raise
                await asyncio.sleep(wait)  # the Kafka client has cancelled its own work
            except Exception as error:  # noqa: BLE001 - whatever it is, an executor goes on trying
                if str(error) != told:
                    log.warning("not connected to Kafka, trying again", error=str(error) or type(error).__name__)
                told = str(error)
                if isinstance(error, NotAuthorizedError):
                    self.refusal = error
                    self.refused.set()
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
        for following in [one for some in self._followings.values() for one in some]:
            if not following.begun and following in self._followings.get(following.run_id, ()):
                await self._begin(following)
        self._sender.connect(brokers, lambda key: partition_of(key, partitions))
        self.connected.set()

    async def _begin(self, following: Following) -> None:
        following.begun = True
        try:
            following.since = await self._subscriber.follow(self.partition_of(following.run_id))
        except BaseException:
            following.begun = False
            self.unfollow(following)
            raise

    def _hear(self, record: ConsumerRecord) -> None:
        """Take a record of the verdict topic; one that is nobody's, or no genuine verdict, tells nobody anything."""
        followings = self._followings.get(run_key(record))
        verdict = self.genuine.verdict(record) if followings else None
        if verdict is None:
            return
        if verdict.source.topic != self._options.topics.events:
            return  # of another guard, that judges other events into the same topic
        if time.time() - verdict.source.timestamp / 1000 <= self._options.gate_timeout:
            self.silence.ends(record.partition)
        else:
            self.silence.late(record.partition)
        for following in tuple(followings or ()):
            following.listener(Heard(verdict, record))
