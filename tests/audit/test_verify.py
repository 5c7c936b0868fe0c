"""`audit verify` on a real broker: what follows from the events is what stands, whatever happened meanwhile."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import GroupCoordinatorNotAvailableError
from aiokafka.structs import OffsetAndMetadata
from cluster import Cluster, running
from commands import started, streamguard
from events import call, loop

from streamguard.audit.verify import Span, judged_until
from streamguard.errors import BrokerUnavailableError
from streamguard.policy import PolicySet
from streamguard.stream.restore import LogReader
from streamguard.stream.ruleset import Ruleset
from streamguard.stream.worker import Worker

pytestmark = pytest.mark.apache

ON = PolicySet({"enabled": True})
STRICT = PolicySet({"enabled": True, "warningThreshold": 3, "criticalThreshold": 5})


@pytest.fixture
async def cluster(broker: Any, topic_prefix: str) -> AsyncIterator[Cluster]:
    """Give a test topics of its own and clients to them."""
    async with Cluster(broker, topic_prefix, partitions=2) as cluster:
        yield cluster


def verify(cluster: Cluster, *arguments: str, code: int = 0) -> dict[str, Any]:
    """Verify what stands on the topic; return what came out."""
    done = streamguard("audit", "verify", "--json", *arguments, variables=cluster.variables())
    assert code == done.returncode, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def wrong(found: dict[str, Any]) -> tuple[int, ...]:
    """Return how many verdicts are missing, extra, different, unreadable, unverifiable."""
    return tuple(found[name] for name in ("missing", "extra", "different", "unreadable", "unverifiable"))


async def changed_and_killed(cluster: Cluster) -> None:
    """Loop in both partitions under a policy, then under another, while workers are killed and come back."""
    file = cluster.policy_file({"enabled": True})
    variables = {**cluster.variables(), "STREAMGUARD_CONFIG": str(file)}
    variables |= {"STREAMGUARD_WORKER_POLICY_CHECK_SECONDS": "0.05"}
    async with started("run", **variables) as first:
        await first.says("partitions open")
        await cluster.publish_everywhere(lambda run: loop(run, 12))
        await cluster.verdicts(2)
        file.write_text("[policy]\nenabled = true\nwarningThreshold = 3\ncriticalThreshold = 5\n")
        await cluster.in_force(STRICT)
        await cluster.publish_everywhere(lambda run: loop(f"{run}b", 6))
        await cluster.verdicts(2 + 2 * 2)
        await first.ends(signal.SIGKILL)
    async with running(Worker(cluster.settings, ON)):
        await cluster.publish_everywhere(lambda run: loop(f"{run}c", 22))
        await cluster.publish("run-0", [b"no event"], partition=0)
        await cluster.caught_up()


async def test_verdicts_are_verified_through_changes_and_crashes(cluster: Cluster) -> None:
    """Two policies, a kill -9, poison: nothing is missing, extra or different, and every verdict was looked at."""
    await changed_and_killed(cluster)
    records = await cluster.verdict_records(1)

    found = verify(cluster)
    assert ((0,) * 5, len(records)) == (wrong(found), found["verified"])
    assert cluster.published - 1 == found["events"] - 1


async def test_a_flipped_byte_is_found(cluster: Cluster) -> None:
    """Whichever byte of a stored verdict is another one: the exit code is 1, and the place is named."""
    async with running(Worker(cluster.settings, ON)):
        await cluster.publish("run-1", [call("run-1", number, gate=True) for number in range(3)], partition=0)
        await cluster.caught_up()
    [first, second, third] = await cluster.verdict_records(3)
    forged = bytearray(second.value)
    forged[forged.index(b'"allow"') + 1] ^= 1

    await rewritten(cluster, [first.value, bytes(forged), third.value])
    found = verify(cluster, code=1)
    assert (2, 1) == (found["verified"], found["missing"])
    assert 1 == found["unreadable"] + found["different"]
    assert f"{cluster.settings.topics.verdicts}[0]@1" in {each["place"] for each in found["differences"]}


async def test_what_was_taken_away_or_doubled_is_found(cluster: Cluster) -> None:
    """A verdict that is gone is missing; one that stands twice, or follows from nothing, is extra."""
    async with running(Worker(cluster.settings, ON)):
        await cluster.publish("run-1", [call("run-1", number, gate=True) for number in range(4)], partition=0)
        await cluster.caught_up()
    values = [record.value for record in await cluster.verdict_records(4)]
    invented = values[3].replace(b'"0-3-0"', b'"0-3-1"')

    await rewritten(cluster, [values[0], values[0], values[2], values[3], invented])
    assert (1, 2, 0, 0, 0) == wrong(verify(cluster, code=1))


async def test_events_that_are_gone_are_no_proof(cluster: Cluster) -> None:
    """When retention took the events, what depends on them is unverifiable, and not wrong; later runs are verified."""
    async with running(Worker(cluster.settings, ON)):
        await cluster.publish("run-1", loop("run-1", 9), partition=0)
        await cluster.caught_up()
        await cluster.delete_records()
        await cluster.publish("run-1", loop("run-1", 3, start=9), partition=0)
        await cluster.publish("run-2", [call("run-2", 0, gate=True)], partition=0)
        await cluster.caught_up()

    found = verify(cluster)
    assert ((0, 0, 0, 0, 1), 1) == (wrong(found), found["verified"])


async def test_a_run_alone_may_be_verified(cluster: Cluster) -> None:
    """--run compares the verdicts about that run only, --until those of before a time."""
    async with running(Worker(cluster.settings, ON)):
        for run in ("run-1", "run-2"):
            await cluster.publish(run, [call(run, 0, gate=True)], partition=0)
        await cluster.caught_up()

    assert 1 == verify(cluster, "--run", "run-2")["verified"]
    assert 0 == verify(cluster, "--until", "1h")["verified"]


async def test_an_auditor_needs_three_topics(cluster: Cluster) -> None:
    """Events, verdicts and policies are enough: an auditor need not see dead letters and state."""
    async with running(Worker(cluster.settings, ON)):
        await cluster.publish("run-1", [call("run-1", 0, gate=True)], partition=0)
        await cluster.caught_up()
    await cluster.delete_topic(cluster.settings.topics.dead_letters)
    await cluster.delete_topic(cluster.settings.state_topic)

    assert 1 == verify(cluster)["verified"]


async def test_offsets_choose(cluster: Cluster) -> None:
    """--offsets compares the verdicts about those events of each partition, and judges none behind them."""
    async with running(Worker(cluster.settings, ON)):
        for partition in (0, 1):
            events = [call(f"run-{partition}", number, gate=True) for number in range(6)]
            await cluster.publish(f"run-{partition}", events, partition=partition)
        await cluster.caught_up()
    both, one = verify(cluster, "--offsets", "2:4"), verify(cluster, "--offsets", "5:99", "--partition", "1")

    assert (((0,) * 5, 4, 8), ((0,) * 5, 1, 6)) == tuple(
        (wrong(found), found["verified"], found["events"]) for found in (both, one)
    )


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("--partition", "7"), "has 0 to 1"),
        (("--offsets", "4:4"), "is no range of offsets"),
        (("--offsets", "4"), "is no range of offsets"),
    ],
)
async def test_what_is_not_there_is_a_wrong_usage(cluster: Cluster, arguments: tuple[str, ...], fault: str) -> None:
    """A partition that the topic does not have, and a range that is none, are named."""
    done = streamguard("audit", "verify", *arguments, variables=cluster.variables())

    assert (2, True) == (done.returncode, fault in done.stderr), done.stderr


async def test_without_a_journal_a_policy_must_be_named(cluster: Cluster) -> None:
    """Where nothing says what was in force it is an error that says what to do; --policy does it."""
    async with running(Worker(cluster.settings, ON)):
        await cluster.publish("run-1", [call("run-1", 0, gate=True)], partition=0)
        await cluster.caught_up()
    await cluster.delete_topic(cluster.settings.policies_topic)
    await cluster.create_topic(cluster.settings.policies_topic, 2)
    done = streamguard("audit", "verify", variables=cluster.variables())

    assert 1 == done.returncode
    assert "--policy FILE" in done.stderr
    assert 1 == verify(cluster, "--policy", str(cluster.policy_file({"enabled": True})))["verified"]


async def rewritten(cluster: Cluster, values: list[bytes]) -> None:
    """Make the verdict topic anew, with these records in partition 0."""
    topic = cluster.settings.topics.verdicts
    await cluster.delete_topic(topic)
    await cluster.create_topic(topic, cluster.partitions)
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap) as producer:
        for value in values:
            await producer.send_and_wait(topic, value, partition=0)


async def test_a_new_kafka_is_waited_for(broker: Any, topic_prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no group was ever asked for there is no coordinator at first: it is asked again for a while."""
    asked: list[str] = []

    async def none_yet(_: Any, group: str, **__: Any) -> dict[TopicPartition, Any]:
        asked.append(group)
        if len(asked) == 1:
            raise GroupCoordinatorNotAvailableError
        return {TopicPartition(f"{topic_prefix}.events", 1): OffsetAndMetadata(0, "")}

    monkeypatch.setattr(AIOKafkaAdminClient, "list_consumer_group_offsets", none_yet)
    async with Cluster(broker, topic_prefix, partitions=2) as cluster:
        spans = await judged_until(cluster.settings, 2)
        kafka = msgspec.structs.replace(cluster.settings.kafka, connect_timeout_seconds=0.0)
        asked.clear()
        with pytest.raises(BrokerUnavailableError, match=r"the group .* cannot be asked"):
            await judged_until(msgspec.structs.replace(cluster.settings, kafka=kafka), 2)

    assert [Span(0, 0, 0), Span(1, 0, 0)] == spans


async def test_each_ruleset_stands_once_by_its_hash(cluster: Cluster) -> None:
    """The policies topic holds each ruleset under its fingerprint: an auditor finds what a hash means."""
    async with running(Worker(cluster.settings, ON)):
        pass
    place = TopicPartition(cluster.settings.policies_topic, 0)
    async with LogReader(cluster.settings.kafka, place) as reader:
        keys = [record.key async for records in reader.read(place) for record in records]

    assert Ruleset(ON, cluster.settings.limits).fingerprint.encode() in keys
