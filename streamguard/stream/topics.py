"""The topics: making them with the right settings, and refusing to run where their partitions do not match."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, for_code

from streamguard.errors import BrokerUnavailableError, TopicMismatchError, TopicMissingError
from streamguard.stream.kafka import DEAD_LETTER_BYTES, make_admin, started

if TYPE_CHECKING:
    from streamguard.settings import Settings, TopicSettings

__all__ = ["Partitions", "check_topics", "create_topics"]

ALREADY_EXISTS: Final = 36
HOUR_MS: Final = 3_600_000
VISIBLE_SECONDS: Final = 10.0


class Partitions(NamedTuple):
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
    await started(admin, settings.kafka)
    try:
        counts = await _partition_counts(admin, topics)
        wanted = topics.partitions
        for name in (topics.events, topics.verdicts):
            if name in counts and counts[name] != wanted:
                raise TopicMismatchError(
                    f"topic {name} exists with {counts[name]} partitions, but {wanted} are wanted (topics.partitions). "
                    "Never add partitions under live runs: their keys would move. Set topics.partitions to "
                    f"{counts[name]}, or use other topics."
                )
        missing = [topic for topic in _wanted(topics) if topic.name not in counts]
        if missing:
            _raise_refusals(await admin.create_topics(missing))
            await _visible(admin, topics)
        created = {topic.name for topic in missing}
        return {topic.name: "created" if topic.name in created else "exists" for topic in _wanted(topics)}
    except (KafkaError, TimeoutError) as error:
        raise BrokerUnavailableError(f"the topics could not be created: {error or 'no answer in time'}") from error
    finally:
        await admin.close()


async def check_topics(settings: Settings) -> Partitions:
    """Return the partition counts the worker goes by.

    Raises `TopicMissingError` or `TopicMismatchError`.
    """
    topics = settings.topics
    admin = make_admin(settings.kafka)
    await started(admin, settings.kafka)
    try:
        counts = await _partition_counts(admin, topics)
    except KafkaError as error:
        raise BrokerUnavailableError(f"the topics could not be looked at: {error}") from error
    finally:
        await admin.close()
    missing = [name for name in (topics.events, topics.verdicts, topics.dead_letters) if name not in counts]
    if missing:
        raise TopicMissingError(
            f"no topic {', '.join(missing)} at {settings.kafka.bootstrap}: run `streamguard topics create`"
        )
    events, verdicts = counts[topics.events], counts[topics.verdicts]
    if events != verdicts:
        raise TopicMismatchError(
            f"{topics.events} has {events} partitions and {topics.verdicts} has {verdicts}: "
            "a verdict goes to the partition number of its event, so they must be equal"
        )
    return Partitions(events, counts[topics.dead_letters])


def _wanted(topics: TopicSettings) -> list[NewTopic]:
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
    ]


async def _partition_counts(admin: AIOKafkaAdminClient, topics: TopicSettings) -> Mapping[str, int]:
    """Return the partition counts of those of our topics that exist.

    All topics are asked for: asking by name lets a broker with auto.create.topics.enable make what is missing.
    """
    ours = {topics.events, topics.verdicts, topics.dead_letters}
    described: list[dict[str, Any]] = await admin.describe_topics()
    return {topic["topic"]: len(topic["partitions"]) for topic in described if topic["topic"] in ours}


async def _visible(admin: AIOKafkaAdminClient, topics: TopicSettings) -> None:
    """Wait until the broker that was asked knows the topics too: it hears of them a moment after the controller."""
    async with asyncio.timeout(VISIBLE_SECONDS):
        while len(await _partition_counts(admin, topics)) < len(_wanted(topics)):
            await asyncio.sleep(0.05)


def _raise_refusals(response: Any) -> None:
    """Raise if the broker refused a topic; one that somebody else just created is fine."""
    for name, code, *message in response.topic_errors:
        if code not in (0, ALREADY_EXISTS):
            detail = message[0] if message and message[0] else for_code(code).description
            raise BrokerUnavailableError(f"topic {name} could not be created: {detail}")
