"""What stream tests need of a broker: topics of their own, settings that point at them, records in and out."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Self

import msgspec
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from brokers.jars import java, resolve
from brokers.nodes import KafkaNodes

from streamguard.policy import PolicySet
from streamguard.settings import Settings
from streamguard.stream.journal import Journal, read_journal
from streamguard.stream.kafka import close
from streamguard.stream.restore import LogReader
from streamguard.stream.ruleset import Ruleset
from streamguard.stream.topics import create_topics
from streamguard.stream.worker import Worker
from streamguard.verdicts import Verdict, decode_verdict

PARTITIONS = 6
WAIT_SECONDS = 60


class Cluster:
    """A test's own topics on the broker."""

    def __init__(self, broker: Any, prefix: str, partitions: int = PARTITIONS) -> None:
        self.prefix = prefix
        self.partitions = partitions
        self.bootstrap: str = broker.bootstrap
        base = Settings()
        self.settings = msgspec.structs.replace(
            base,
            kafka=_with(base.kafka, bootstrap=broker.bootstrap, idempotence=broker.is_apache),
            topics=_with(
                base.topics,
                events=f"{prefix}.events",
                verdicts=f"{prefix}.verdicts",
                dead_letters=f"{prefix}.dlq",
                partitions=partitions,
            ),
            worker=_with(
                base.worker,
                group=f"{prefix}.group",
                checkpoint_interval_seconds=0.2,
                session_timeout_ms=6_000,  # the embedded broker lets members join after half of it
                heartbeat_interval_ms=500,
            ),
        )

    def change(self, **sections: dict[str, Any]) -> None:
        """Change some settings."""
        replaced = {name: _with(getattr(self.settings, name), **fields) for name, fields in sections.items()}
        self.settings = msgspec.structs.replace(self.settings, **replaced)

    def variables(self) -> dict[str, str]:
        """Return the settings as environment variables, for a worker that runs as a program."""
        kafka, topics, worker = self.settings.kafka, self.settings.topics, self.settings.worker
        return {
            "STREAMGUARD_KAFKA_BOOTSTRAP": kafka.bootstrap,
            "STREAMGUARD_KAFKA_IDEMPOTENCE": str(kafka.idempotence).lower(),
            "STREAMGUARD_TOPICS_EVENTS": topics.events,
            "STREAMGUARD_TOPICS_VERDICTS": topics.verdicts,
            "STREAMGUARD_TOPICS_DEAD_LETTERS": topics.dead_letters,
            "STREAMGUARD_WORKER_GROUP": worker.group,
            "STREAMGUARD_WORKER_SESSION_TIMEOUT_MS": str(worker.session_timeout_ms),
            "STREAMGUARD_WORKER_HEARTBEAT_INTERVAL_MS": str(worker.heartbeat_interval_ms),
        }

    async def __aenter__(self) -> Self:
        await create_topics(self.settings)
        self._producer = AIOKafkaProducer(bootstrap_servers=self.bootstrap, max_request_size=1 << 24)
        await self._producer.start()
        self._consumers: dict[str, AIOKafkaConsumer] = {}
        self._read: dict[str, list[ConsumerRecord]] = {}
        self.published = 0
        self._folder = tempfile.TemporaryDirectory()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._folder.cleanup()
        for client in (self._producer, *self._consumers.values()):
            await close(client)

    # in

    async def publish(
        self,
        run: str,
        values: Sequence[bytes | None],
        *,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        """Append records of one run, in order; returns when all are acknowledged."""
        acknowledged = [
            await self._producer.send(
                self.settings.topics.events, value, key=run.encode(), partition=partition, headers=list(headers)
            )
            for value in values
        ]
        await asyncio.gather(*acknowledged)
        self.published += len(acknowledged)

    async def publish_all(self, records: Iterable[tuple[str, bytes]]) -> int:
        """Append many records, each with its run as key; return how many, when all are acknowledged."""
        count = 0
        for run, value in records:
            await self._producer.send(self.settings.topics.events, value, key=run.encode())
            count += 1
        await self._producer.flush()
        self.published += count
        return count

    async def publish_everywhere(self, values: Callable[[str], Sequence[bytes]]) -> None:
        """Append records of one run to each partition."""
        for partition in range(self.partitions):
            await self.publish(f"run-{partition}", values(f"run-{partition}"), partition=partition)

    # out

    async def event_records(self, count: int) -> list[ConsumerRecord]:
        """Wait until the events topic has `count` records; return all it has by then."""
        return await self._records(self.settings.topics.events, count)

    async def verdict_records(self, count: int) -> list[ConsumerRecord]:
        """Wait until the verdict topic has `count` records; return all it has by then."""
        return await self._records(self.settings.topics.verdicts, count)

    async def verdicts(self, count: int) -> list[Verdict]:
        """Wait until the verdict topic has `count` records; return all it has by then, decoded."""
        return [decode_verdict(record.value) for record in await self.verdict_records(count)]

    async def dead_letters(self, count: int) -> list[ConsumerRecord]:
        """Wait until the dead-letter topic has `count` records; return all it has by then."""
        return await self._records(self.settings.topics.dead_letters, count)

    async def _records(self, topic: str, count: int) -> list[ConsumerRecord]:
        if topic not in self._consumers:
            consumer = self._consumers[topic] = AIOKafkaConsumer(bootstrap_servers=self.bootstrap, fetch_max_wait_ms=50)
            await consumer.start()
            partitions = [TopicPartition(topic, number) for number in range(self.partitions)]
            consumer.assign(partitions)
            await consumer.seek_to_beginning(*partitions)
            self._read[topic] = []
        read = self._read[topic]
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while len(read) < count or await self._more(topic):
                    for records in (await self._consumers[topic].getmany(timeout_ms=100)).values():
                        read.extend(records)
        except TimeoutError:
            raise AssertionError(
                f"{topic} has {len(read)} records after {WAIT_SECONDS} s, {count} were expected"
            ) from None
        return read

    async def _more(self, topic: str) -> bool:
        """Tell whether the topic has records that were not read yet."""
        consumer = self._consumers[topic]
        ends = await consumer.end_offsets(list(consumer.assignment()))
        return any([await consumer.position(partition) < end for partition, end in ends.items()])

    # positions

    async def committed(self) -> int:
        """Return the sum of the group's committed positions."""
        async with self._group_reader() as (consumer, partitions):
            return sum([await consumer.committed(partition) or 0 for partition in partitions])

    async def caught_up(self, seconds: float = WAIT_SECONDS) -> None:
        """Wait until the group has committed everything that was published."""
        async with asyncio.timeout(seconds):
            while await self.committed() < self.published:
                await asyncio.sleep(0.1)

    @asynccontextmanager
    async def _group_reader(self) -> AsyncIterator[tuple[AIOKafkaConsumer, list[TopicPartition]]]:
        """Give a client that may ask for the group's positions, without being a member."""
        partitions = [TopicPartition(self.settings.topics.events, number) for number in range(self.partitions)]
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap, group_id=self.settings.worker.group, enable_auto_commit=False
        )
        await consumer.start()
        try:
            consumer.assign(partitions)
            yield consumer, partitions
        finally:
            await consumer.stop()

    async def members(self) -> list[str]:
        """Return the ids of the group's members."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.settings.kafka.bootstrap)
        try:
            await admin.start()
            [described] = await admin.describe_consumer_groups([self.settings.worker.group])
            return [member[0] for member in described.groups[0][5]]
        finally:
            await admin.close()

    async def journal(self, partition: int) -> Journal:
        """Return what a partition's journal says is in force, and since when."""
        place = TopicPartition(self.settings.policies_topic, partition)
        async with LogReader(self.settings.kafka, place) as reader:
            return await read_journal(reader, place)

    async def in_force(self, policies: PolicySet) -> None:
        """Wait until every partition goes by these policies."""
        wanted = Ruleset(policies, self.settings.limits).fingerprint
        async with asyncio.timeout(WAIT_SECONDS):
            for partition in range(self.partitions):
                while [change.ruleset for change in (await self.journal(partition)).changes][-1:] != [wanted]:
                    await asyncio.sleep(0.05)

    async def state(self, partition: int) -> dict[bytes, bytes]:
        """Return the newest value of each key of a state partition."""
        place = TopicPartition(self.settings.state_topic, partition)
        values: dict[bytes, bytes] = {}
        async with LogReader(self.settings.kafka, place) as reader:
            async for records in reader.read(place):
                values |= {record.key: record.value for record in records}
        return values

    # topics

    @property
    def folder(self) -> Path:
        """A folder of the test's own."""
        return Path(self._folder.name)

    def policy_file(self, block: dict[str, Any]) -> Path:
        """Write a policy for workers that run as programs."""
        file = self.folder / "policy.toml"
        file.write_text("[policy]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in block.items()))
        return file

    async def create_topic(self, name: str, partitions: int, **configs: str) -> None:
        """Make one more topic."""
        named = {key.replace("_", "."): value for key, value in configs.items()}
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        await admin.create_topics([NewTopic(name, partitions, 1, topic_configs=named)])
        async with asyncio.timeout(WAIT_SECONDS):
            while name not in await admin.list_topics():
                await asyncio.sleep(0.05)
        await admin.close()

    async def alter_topic(self, name: str, configs: dict[str, str]) -> None:
        """Change settings of a topic."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        resource = ConfigResource(ConfigResourceType.TOPIC, name, configs)
        await admin.alter_configs([resource])
        await admin.close()

    async def delete_topic(self, name: str) -> None:
        """Delete a topic; returns when the broker no longer knows it."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        await admin.delete_topics([name])
        async with asyncio.timeout(WAIT_SECONDS):
            while name in await admin.list_topics():
                await asyncio.sleep(0.05)
        await admin.close()

    async def delete_records(self) -> None:
        """Let retention pass: delete all records of the events topic."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        await admin.delete_records(
            {
                TopicPartition(self.settings.topics.events, number): RecordsToDelete(-1)
                for number in range(self.partitions)
            }
        )
        await admin.close()


@contextmanager
def own_nodes(broker: Any, count: int) -> Iterator[KafkaNodes]:
    """Start nodes that tests may stop, kill and start; skip where none can be started."""
    if broker.kind != "apache-kafka":
        pytest.skip("needs Java and Maven: brokers that can be stopped are started by the test")
    nodes = KafkaNodes(java(), resolve(), count)
    nodes.start()
    try:
        asyncio.run(nodes.wait_ready())
        yield nodes
    finally:
        nodes.stop()


@asynccontextmanager
async def running(worker: Worker) -> AsyncIterator[Worker]:
    """Run a worker while the block runs; a failure of the worker fails the test."""
    task = asyncio.create_task(worker.run())
    ready = asyncio.create_task(worker.ready())
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        yield worker
    finally:
        worker.stop()
        ready.cancel()
        async with asyncio.timeout(WAIT_SECONDS):
            await task


def _with(section: Any, **fields: Any) -> Any:
    return msgspec.structs.replace(section, **fields)
