"""What is shared by who publishes and listens: several listeners to a run, where each begins, and what was missed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from cluster import Cluster

from streamguard.events import Source
from streamguard.executor import ExecutorOptions
from streamguard.executor.channel import Channel, Heard
from streamguard.executor.missed import read_missed
from streamguard.verdicts import Verdict, encode_verdict


@pytest.fixture
async def cluster(broker: Any, topic_prefix: str) -> AsyncIterator[Cluster]:
    """Give a test topics of its own, of one partition."""
    async with Cluster(broker, topic_prefix, partitions=1) as cluster:
        yield cluster


@asynccontextmanager
async def connected(cluster: Cluster) -> AsyncIterator[Channel]:
    """Give a channel that has reached Kafka."""
    channel = Channel(ExecutorOptions(kafka=cluster.settings.kafka, topics=cluster.settings.topics), Counter())
    channel.start()
    try:
        async with asyncio.timeout(60):
            await channel.connected.wait()
        yield channel
    finally:
        await channel.close()


async def say(cluster: Cluster, run_id: str, *ids: str) -> None:
    """Write verdicts about a run."""
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap) as producer:
        for number in ids:
            source = Source(cluster.settings.topics.events, 0, 0, 0)
            verdict = Verdict(verdict_id=number, run_id=run_id, action="warn", policy="p", source=source)
            topic = cluster.settings.topics.verdicts
            await producer.send_and_wait(topic, encode_verdict(verdict), key=run_id.encode(), partition=0)


class Notes:
    """A listener; `heard` are the ids of what it was told."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.offsets: list[int] = []
        self._more = asyncio.Event()

    def __call__(self, heard: Heard) -> None:
        """Take what is said."""
        self.heard.append(heard.verdict.verdict_id)
        self.offsets.append(heard.record.offset)
        self._more.set()

    async def has(self, number: str) -> None:
        """Wait until it was told."""
        async with asyncio.timeout(60):
            while number not in self.heard:
                self._more.clear()
                await self._more.wait()


async def test_all_who_listen_to_a_run_are_told(cluster: Cluster) -> None:
    """Each listener hears the run from when it came until it goes, the others go on."""
    one, two, three = Notes(), Notes(), Notes()
    async with connected(cluster) as channel:
        first = await channel.follow("r", one)
        second = await channel.follow("r", two)
        await channel.follow("other", three)
        await say(cluster, "r", "a")
        await two.has("a")
        channel.unfollow(first)
        channel.unfollow(first)
        await say(cluster, "r", "b")
        await two.has("b")
        channel.unfollow(second)

    assert (["a"], ["a", "b"], []) == (one.heard, two.heard, three.heard)


async def test_where_a_listener_begins_is_told(cluster: Cluster) -> None:
    """From `since` on nothing is missed; what stands before can be read, and only that is."""
    notes = Notes()
    await say(cluster, "r", "a", "b", "c")
    async with connected(cluster) as channel:
        following = await channel.follow("r", notes)
        await say(cluster, "r", "d")
        await notes.has("d")
    place = TopicPartition(cluster.settings.topics.verdicts, 0)
    missed = [record.offset async for record in read_missed(cluster.settings.kafka, {place: range(1, following.since)})]

    assert [1, 2] == [offset for offset in missed if offset < notes.offsets[0]]
    assert following.since <= notes.offsets[0] == 3


async def test_following_and_leaving_at_once_leaves_it_followed_right(cluster: Cluster) -> None:
    """Listeners that come and go while others begin, or are cancelled, take nothing from who stays."""
    notes = Notes()
    async with connected(cluster) as channel:
        begun = [asyncio.create_task(channel.follow("r", Notes())) for _ in range(5)]
        await asyncio.sleep(0)
        for task in begun[:2]:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)
        await channel.follow("r", notes)
        for task in begun[2:]:
            channel.unfollow(task.result())
        await say(cluster, "r", "a")
        await notes.has("a")

    assert ["a"] == notes.heard


async def test_it_is_not_reachable_before_it_was_reached() -> None:
    """Without any Kafka that is told at once."""
    nowhere = msgspec.structs.replace(ExecutorOptions().kafka, bootstrap="127.0.0.1:1")
    channel = Channel(ExecutorOptions(kafka=nowhere), Counter())

    assert not await channel.reachable(60.0)
