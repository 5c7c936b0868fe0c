"""The topics: making them with the right settings, and refusing to run where their partitions do not match."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import structlog
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, for_code

from streamguard.errors import BrokerUnavailableError, TopicMismatchError, TopicMissingError
from streamguard.stream.brokers import may_be_repeated
from streamguard.stream.kafka import DEAD_LETTER_BYTES, close, make_admin, make_reader, started
from streamguard.stream.patience import UNANSWERED, answer
from streamguard.stream.refusal import as_error

if TYPE_CHECKING:
    from streamguard.settings import Settings

__all__ = [
    "PartitionCounts",
    "audit_partitions",
    "check_events_topic",
    "check_topics",
    "create_topics",
    "executor_partitions",
]

ALREADY_EXISTS: Final = 36
HOUR_MS: Final = 3_600_000
VISIBLE_SECONDS: Final = 10.0
AGAIN_SECONDS: Final = 0.5

Answer = TypeVar("Answer")

log = structlog.get_logger("streamguard.topics")

STATE_CONFIGS: Final[Mapping[str, str]] = {
    "cleanup_policy": "compact",
    "segment_bytes": str(32 * 1024 * 1024),  # the segment that is being written is never compacted: keep it small
    "segment_ms": "600000",
    "min_cleanable_dirty_ratio": "0.1",
    "delete_retention_ms": "600000",  # a tombstone must outlast any restore (worker.restore_timeout_seconds: 300)
    "max_message_bytes": str(DEAD_LETTER_BYTES),  # a snapshot grows with historySize: some 50 bytes a call
}
"""What keeps the state topic at about the size of the live runs."""


class PartitionCounts(NamedTuple):
    """How many partitions the topics have. Events and verdicts have the same number."""

    events: int
    dead_letters: int


async def create_topics(settings: Settings) -> dict[str, str]:
    """Create what is missing; return topic → 'created' or 'exists'.

    Raises `TopicMismatchError` if existing topics have other partition counts than wanted or than each other,
    `BrokerUnavailableError` if Kafka does not answer or refuses.
    """
    topics = settings.topics
    admin = make_admin(settings.kafka)
    try:
        await started(admin, settings.kafka)
        counts = await _partition_counts(admin, settings)
        wanted = topics.partitions
        for name in (topics.events, topics.verdicts, settings.state_topic, settings.policies_topic):
            if name in counts and counts[name] != wanted:
                raise TopicMismatchError(
                    f"topic {name} exists with {counts[name]} partitions, but {wanted} are wanted (topics.partitions). "
                    "Never add partitions under live runs: their keys would move. Set topics.partitions to "
                    f"{counts[name]}, or use other topics."
                )
        missing = [topic for topic in _wanted(settings) if topic.name not in counts]
        if missing:
            _raise_refusals(await admin.create_topics(missing))
            await _visible(admin, settings)
            await _led(missing, settings)
        created = {topic.name for topic in missing}
        return {topic.name: "created" if topic.name in created else "exists" for topic in _wanted(settings)}
    except (KafkaError, TimeoutError) as error:
        raise BrokerUnavailableError(f"the topics could not be created: {error or 'no answer in time'}") from error
    finally:
        await close(admin)


async def check_topics(settings: Settings) -> PartitionCounts:
    """Return the partition counts the worker goes by.

    Raises `TopicMissingError` or `TopicMismatchError`.
    """
    topics = settings.topics
    counts = await _looked_at(settings)
    _raise_if_missing(settings, [name for name in _names(settings) if name not in counts])
    events = counts[topics.events]
    for name in (topics.verdicts, settings.state_topic, settings.policies_topic):
        if counts[name] != events:
            raise TopicMismatchError(
                f"{topics.events} has {events} partitions and {name} has {counts[name]}: "
                "verdicts, state and policies go to the partition number of their events, so they must be equal"
            )
    return PartitionCounts(events, counts[topics.dead_letters])


async def check_events_topic(settings: Settings) -> int:
    """Return the number of partitions that events are written to. Raises `TopicMissingError`."""
    counts = await _looked_at(settings)
    _raise_if_missing(settings, [name for name in (settings.topics.events,) if name not in counts])
    return counts[settings.topics.events]


async def audit_partitions(settings: Settings) -> int:
    """Return the partition count of what an auditor reads: events, verdicts, policies.

    Raises `TopicMissingError`, `TopicMismatchError`, `BrokerUnavailableError`, `NotAuthorizedError`.
    """
    counts = await _looked_at(settings)
    topics = settings.topics
    names = (topics.events, topics.verdicts, settings.policies_topic)
    _raise_if_missing(settings, [name for name in names if name not in counts])
    if len({counts[name] for name in names}) > 1:
        told = ", ".join(f"{name} has {counts[name]}" for name in names)
        raise TopicMismatchError(f"partitions must be equal: {told}")
    return counts[topics.events]


async def executor_partitions(settings: Settings) -> int:
    """Return the partition count of an executor's two topics.

    Raises `TopicMissingError`, `TopicMismatchError`, `BrokerUnavailableError`, `NotAuthorizedError`.
    """
    counts = await _looked_at(settings)
    events, verdicts = settings.topics.events, settings.topics.verdicts
    _raise_if_missing(settings, [name for name in (events, verdicts) if name not in counts])
    if counts[events] != counts[verdicts]:
        raise TopicMismatchError(
            f"{events} has {counts[events]} partitions and {verdicts} has {counts[verdicts]}: verdicts are in the "
            "partition of their run's events, so they must be equal"
        )
    return counts[events]


async def _looked_at(settings: Settings) -> Mapping[str, int]:
    """Return the partition counts of those of our topics that exist and that we may see."""
    admin = make_admin(settings.kafka)
    try:
        await started(admin, settings.kafka)
        return await _patiently(lambda: _partition_counts(admin, settings), settings.kafka.connect_timeout_seconds)
    except (KafkaError, TimeoutError) as error:
        raise as_error(error, "the topics could not be looked at") from error
    finally:
        await close(admin)


def _raise_if_missing(settings: Settings, missing: list[str]) -> None:
    if missing:
        raise TopicMissingError(
            f"no topic {', '.join(missing)} that we may see at {settings.kafka.bootstrap}: "
            "run `streamguard topics create`, or allow this user to describe them (README, ACLs)"
        )


def _names(settings: Settings) -> tuple[str, ...]:
    topics = settings.topics
    return (topics.events, topics.verdicts, topics.dead_letters, settings.state_topic, settings.policies_topic)


def _wanted(settings: Settings) -> list[NewTopic]:
    topics = settings.topics

    def topic(name: str, **configs: str) -> NewTopic:
        named = {key.replace("_", "."): value for key, value in configs.items()}
        return NewTopic(name, topics.partitions, topics.replication_factor, topic_configs=named)

    retention = str(topics.retention_hours * HOUR_MS)
    return [
        topic(topics.events, cleanup_policy="delete"),
        topic(topics.verdicts, cleanup_policy="delete", retention_ms=retention),
        topic(
            topics.dead_letters,
            cleanup_policy="delete",
            retention_ms=retention,
            max_message_bytes=str(DEAD_LETTER_BYTES),
        ),
        topic(settings.state_topic, **STATE_CONFIGS),
        topic(settings.policies_topic, cleanup_policy="compact"),
    ]


async def _partition_counts(admin: AIOKafkaAdminClient, settings: Settings) -> Mapping[str, int]:
    """Return the partition counts of those of our topics that exist.

    All topics are asked for: asking by name lets a broker with auto.create.topics.enable make what is missing.
    """
    ours = set(_names(settings))
    described: list[dict[str, Any]] = await admin.describe_topics()
    return {topic["topic"]: len(topic["partitions"]) for topic in described if topic["topic"] in ours}


async def _patiently(work: Callable[[], Awaitable[Answer]], seconds: float) -> Answer:
    """Do it again while brokers come and go. Raises what came last, or `TimeoutError`."""
    async with asyncio.timeout(seconds):
        while True:
            try:
                return await work()
            except KafkaError as error:
                if not may_be_repeated(error):
                    raise
                log.warning("brokers come and go, asking again", error=type(error).__name__)
            await asyncio.sleep(AGAIN_SECONDS)


async def _visible(admin: AIOKafkaAdminClient, settings: Settings) -> None:
    """Wait until the broker that was asked knows the topics too: it hears of them a moment after the controller."""
    async with asyncio.timeout(VISIBLE_SECONDS):
        while len(await _partition_counts(admin, settings)) < len(_names(settings)):
            await asyncio.sleep(0.05)


async def _led(topics: list[NewTopic], settings: Settings) -> None:
    """Wait until the leader of each new partition answers: it is named before it leads.

    Workers that opened their shards in between were seen waiting for their first transaction for 30 seconds.
    """
    places = [TopicPartition(topic.name, number) for topic in topics for number in range(topic.num_partitions)]
    reader = make_reader(settings.kafka)
    try:
        await started(reader, settings.kafka)
        async with asyncio.timeout(VISIBLE_SECONDS):
            while await answer(reader.end_offsets(places), VISIBLE_SECONDS) is UNANSWERED:
                await asyncio.sleep(0.05)
    finally:
        await close(reader)


def _raise_refusals(response: Any) -> None:
    """Raise if the broker refused a topic; one that somebody else just created is fine."""
    for name, code, *message in response.topic_errors:
        if code not in (0, ALREADY_EXISTS):
            detail = message[0] if message and message[0] else for_code(code).description
            raise BrokerUnavailableError(f"topic {name} could not be created: {detail}")
