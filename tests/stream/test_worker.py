"""The worker on a real broker: events in, verdicts out, nothing lost on the way."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest
from aiokafka import AIOKafkaProducer
from cluster import Cluster, running
from events import call, loop, said

from streamguard.errors import TopicMismatchError, TopicMissingError
from streamguard.events import MSGPACK
from streamguard.policy import PolicySet
from streamguard.stream.delivery import KafkaDelivery
from streamguard.stream.topics import check_topics, create_topics
from streamguard.stream.worker import Worker
from streamguard.verdicts import Verdict

ON = PolicySet({"enabled": True})


@pytest.fixture
async def cluster(broker: Any, topic_prefix: str) -> AsyncIterator[Cluster]:
    """Give a test topics of its own and clients to them."""
    async with Cluster(broker, topic_prefix) as cluster:
        yield cluster


async def test_a_looping_run_is_warned_and_blocked(cluster: Cluster) -> None:
    """A loop on the events topic gives its verdicts, on the same partition number, with the run as key."""
    async with running(Worker(cluster.settings, ON)):
        await cluster.publish("run-1", loop("run-1", 21))
        records = await cluster.verdict_records(2)

    verdicts = [msgspec.json.decode(record.value, type=Verdict) for record in records]
    assert [("warn", "generic_repeat", 10), ("block", "generic_repeat", 20)] == said(verdicts)
    assert {(verdict.source.partition, b"run-1") for verdict in verdicts} == {(r.partition, r.key) for r in records}


async def test_messagepack_is_read_where_the_header_says_so(cluster: Cluster) -> None:
    """Records with the MessagePack content type are judged like JSON ones, in one run with them."""
    packed = [msgspec.msgpack.encode(msgspec.json.decode(record)) for record in loop("run-1", 6)]
    async with running(Worker(cluster.settings, ON)):
        await cluster.publish("run-1", packed, headers=[("content-type", MSGPACK.encode())])
        await cluster.publish("run-1", loop("run-1", 6))
        verdicts = await cluster.verdicts(1)

    assert [("warn", "generic_repeat", 10)] == said(verdicts)


async def test_poison_goes_to_the_dead_letters_and_the_worker_goes_on(cluster: Cluster) -> None:
    """Each kind of unreadable record is a dead letter, untouched, with headers; records after it are judged."""
    poison = {
        b"\xff\xfe": "UnreadableRecordError",
        b"{": "UnreadableRecordError",
        b"[]": "WrongShapeError",
        b'{"type":"tool_call","run_id":"r"}': "WrongShapeError",
        call(" ", 1): "MissingRunError",
        b'{"type":"tool_call","run_id":"r","tool":"t","args":' + b"[" * 500 + b"]" * 500 + b"}": "TooDeepError",
        call("r", 1, args="x" * 300_000): "RecordTooLargeError",
        call("r", 1, tool="x" * 100_000): "WrongShapeError",  # it would make a verdict that no broker takes
    }
    cluster.change(limits={"record_bytes": 200_000})
    async with running(Worker(cluster.settings, ON)):
        for value in poison:
            await cluster.publish("run-1", [value], headers=[("trace", b"7")])
        await cluster.publish("run-1", loop("run-1", 11))
        letters = await cluster.dead_letters(len(poison))
        verdicts = await cluster.verdicts(1)

    assert poison == {letter.value: dict(letter.headers)["error"].decode().split(":")[0] for letter in letters}
    assert {"trace", "error", "source.topic", "source.partition", "source.offset"} == set(dict(letters[0].headers))
    assert {b"run-1"} == {letter.key for letter in letters}
    assert [str(n).encode() for n in range(8)] == [dict(letter.headers)["source.offset"] for letter in letters]
    assert ["warn"] == [verdict.action for verdict in verdicts]


@pytest.mark.apache
@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_compressed_events_are_read(cluster: Cluster, codec: str) -> None:
    """Whatever producers compress with, a worker as it is installed reads it."""
    async with running(Worker(cluster.settings, ON)):
        producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, compression_type=codec)
        async with producer:
            await producer.send_and_wait(cluster.settings.topics.events, call("run-1", 1, gate=True), key=b"run-1")
        [verdict] = await cluster.verdicts(1)

    assert "allow" == verdict.action


@pytest.mark.apache
async def test_what_a_producer_took_back_was_never_said(cluster: Cluster) -> None:
    """Events of an aborted transaction are not judged; those of a committed one are."""
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, transactional_id=cluster.prefix)
    async with running(Worker(cluster.settings, ON)), producer:
        for number, keep in enumerate((False, True)):
            await producer.begin_transaction()
            record = call("run-1", number, gate=True)
            await producer.send_and_wait(cluster.settings.topics.events, record, key=b"run-1")
            await (producer.commit_transaction() if keep else producer.abort_transaction())
        [verdict] = await cluster.verdicts(1)

    assert "c1" == verdict.call_id


async def test_a_worker_that_waits_for_a_broker_can_be_stopped(
    cluster: Cluster, log_lines: list[dict[str, Any]]
) -> None:
    """A stop while no broker answers ends the worker at once, and is no error."""
    cluster.change(kafka={"bootstrap": "127.0.0.1:1", "connect_timeout_seconds": 50.0})
    worker = Worker(cluster.settings, ON)
    task = asyncio.create_task(worker.run())
    await asyncio.sleep(0)
    worker.stop()
    async with asyncio.timeout(10):
        await task

    assert "stopped before it had started" in [line["event"] for line in log_lines]


@pytest.mark.apache
async def test_a_dead_letter_that_the_broker_refuses_goes_without_its_value(cluster: Cluster) -> None:
    """A record larger than the dead-letter topic takes is not lost: its place and size are kept, and all goes on."""
    names = {"events": f"{cluster.prefix}.wide", "dead_letters": f"{cluster.prefix}.narrow"}
    cluster.change(topics=names)
    await cluster.create_topic(names["events"], cluster.partitions, max_message_bytes="8000000")
    await cluster.create_topic(names["dead_letters"], cluster.partitions, max_message_bytes="1000000")
    async with running(Worker(cluster.settings, ON)):
        await cluster.publish("run-1", [b"x" * 3_000_000, b"short", *loop("run-1", 11)])
        letters = await cluster.dead_letters(2)
        verdicts = await cluster.verdicts(1)

    [omitted, short] = sorted(letters, key=lambda letter: letter.value)
    assert (b"", b"short") == (omitted.value, short.value)
    assert b"3000000" == dict(omitted.headers)["value.omitted.bytes"]
    assert ["warn"] == [verdict.action for verdict in verdicts]


@pytest.mark.apache
async def test_a_flood_of_poison_is_written_and_bounded(cluster: Cluster, log_lines: list[dict[str, Any]]) -> None:
    """Thousands of records that are no events: each is a dead letter, and reading waits while too many bytes do."""
    cluster.change(worker={"max_inflight_bytes": 200_000})
    await cluster.publish("run-1", [b"\xff" * 4_000] * 2_500, partition=0)
    await cluster.publish("run-1", [call("run-1", 0, gate=True)], partition=0)
    async with running(Worker(cluster.settings, ON)) as worker:
        [verdict] = await cluster.verdicts(1)
        letters = await cluster.dead_letters(2_500)
        assert worker.assignment is not None
        refused = worker.assignment.opener.refused

    assert (2_500, "allow", 2_500) == (len(letters), verdict.action, refused["unreadable"])
    assert any("reading paused" in line["event"] for line in log_lines)


async def test_an_empty_record_is_a_dead_letter(cluster: Cluster) -> None:
    """A record without a value (a tombstone somebody sent) is no event, and stops nothing."""
    async with running(Worker(cluster.settings, ON)):
        await cluster.publish("run-1", [None])
        [letter] = await cluster.dead_letters(1)

    assert b"run-1" == letter.key
    assert b"the record is empty" in dict(letter.headers)["error"]


async def test_what_was_judged_is_committed_and_nothing_more(cluster: Cluster) -> None:
    """After a clean stop the group stands behind the last event, and a new worker does not judge it again."""
    async with running(Worker(cluster.settings, ON)):
        await cluster.publish("run-1", loop("run-1", 21))
        await cluster.verdicts(2)
    committed = await cluster.committed()
    async with running(Worker(cluster.settings, ON)):
        await cluster.publish("run-2", loop("run-2", 11))
        verdicts = await cluster.verdicts(3)

    assert 42 == committed
    assert ["run-1", "run-1", "run-2"] == sorted(verdict.run_id for verdict in verdicts)


async def test_memory_is_kept_when_a_partition_comes_back(cluster: Cluster, log_lines: list[dict[str, Any]]) -> None:
    """A rebalance gives every partition anew; a worker that gets one back goes on from memory, and restores nothing."""
    async with running(Worker(cluster.settings, ON)) as first:
        await cluster.publish_everywhere(lambda run: loop(run, 10))
        await cluster.caught_up()
        async with running(Worker(cluster.settings, ON)):
            await first.ready()
        await first.ready()
        await cluster.publish_everywhere(lambda run: [call(run, 10)])
        verdicts = await cluster.verdicts(cluster.partitions // 2)

    assert len(verdicts) >= cluster.partitions // 2
    assert {("warn", "generic_repeat", 10)} == set(said(verdicts))
    restored = Counter(line["partition"] for line in log_lines if line["event"] == "partition restored")
    assert cluster.partitions // 2 <= list(restored.values()).count(1)


async def test_a_gate_is_answered(cluster: Cluster) -> None:
    """A call sent with `gate` is answered though nothing is wrong."""
    async with running(Worker(cluster.settings, ON)):
        await cluster.publish("run-1", [call("run-1", 1, gate=True)])
        [verdict] = await cluster.verdicts(1)

    assert ("allow", "c1") == (verdict.action, verdict.call_id)


async def test_arming_is_logged_in_the_documented_words(cluster: Cluster, log_lines: list[dict[str, Any]]) -> None:
    """A compaction that arms the guard is logged as documented, with the run and no payload."""
    async with running(Worker(cluster.settings, ON)):
        await cluster.publish("run-1", [b'{"type":"compaction","run_id":"run-1"}', *loop("run-1", 3)])
        [verdict] = await cluster.verdicts(1)

    assert "abort" == verdict.action
    assert ["run-1"] == [
        line["run_id"] for line in log_lines if line["event"] == "post-compaction guard armed for 3 attempts"
    ]


async def test_missing_topics_are_named(cluster: Cluster) -> None:
    """A worker without its topics says which are missing and which command makes them, and makes none itself."""
    cluster.change(topics={"events": f"{cluster.prefix}.nowhere"})

    for _ in range(2):
        with pytest.raises(TopicMissingError, match=r"nowhere.*streamguard topics create"):
            await Worker(cluster.settings, ON).run()


async def test_mismatched_partition_counts_are_refused(cluster: Cluster) -> None:
    """Topics whose partition counts differ are refused, when they are made and when a worker starts."""
    cluster.change(topics={"verdicts": f"{cluster.prefix}.more"})
    await cluster.create_topic(f"{cluster.prefix}.more", cluster.partitions + 1)

    with pytest.raises(TopicMismatchError, match=f"{cluster.partitions + 1} partitions"):
        await create_topics(cluster.settings)
    with pytest.raises(TopicMismatchError):
        await check_topics(cluster.settings)


async def test_topics_are_made_once(cluster: Cluster) -> None:
    """Creating topics again changes nothing and says so."""
    assert {"exists"} == set((await create_topics(cluster.settings)).values())


async def test_a_slow_control_topic_pauses_reading(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, log_lines: list[dict[str, Any]]
) -> None:
    """While verdicts are not acknowledged, events wait in Kafka and not in memory; then all are answered."""
    open_again = asyncio.Event()
    deliver = KafkaDelivery.verdicts

    async def slowly(self: KafkaDelivery, verdicts: Sequence[Verdict]) -> None:
        await open_again.wait()
        await deliver(self, verdicts)

    monkeypatch.setattr(KafkaDelivery, "verdicts", slowly)
    cluster.change(worker={"max_inflight": 50, "slice_records": 20})
    async with running(worker := Worker(cluster.settings, ON)):
        await cluster.publish("run-1", [call("run-1", number, gate=True) for number in range(600)])
        async with asyncio.timeout(30):
            while not any("reading paused" in line["event"] for line in log_lines):
                await asyncio.sleep(0.01)
        judged = worker.judged
        open_again.set()
        verdicts = await cluster.verdicts(600)

    assert 50 < judged <= 50 + 20
    assert list(range(600)) == sorted(verdict.source.offset for verdict in verdicts)
