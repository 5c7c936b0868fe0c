"""Who works: the members of the group, their partitions, and how far behind each partition is."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.errors import KafkaError

from streamguard.stream.kafka import close, make_admin, make_reader, started

if TYPE_CHECKING:
    from streamguard.settings import Settings

__all__ = ["PartitionState", "Workers"]

log = structlog.get_logger("streamguard.web")

LOOK_SECONDS: Final = 2.0
SLOW: Final = 4
"""Intervals between checkpoints without one: then something is wrong."""


class PartitionState(msgspec.Struct, frozen=True):
    """A partition: whose it is, how far the group has committed, where it ends, and how long that did not move.

    The group commits with a checkpoint: up to one interval of events behind it are judged already.
    """

    partition: int
    worker: str | None
    committed: int | None
    end: int
    still: float = 0.0  # seconds since the committed position moved, or was at the end

    @property
    def lag(self) -> int | None:
        """Events behind the last checkpoint."""
        return None if self.committed is None else max(0, self.end - self.committed)

    def state(self, slow: float) -> str:
        """Say how it is; `slow`: seconds after which a checkpoint should have come."""
        if self.worker is None:
            return "nobody's"
        if self.committed is None:
            return "not begun"
        if not self.lag:
            return "caught up"
        return "working" if self.still < slow else f"no checkpoint for {self.still:.0f} s"


class Workers:
    """Looks at the group now and then, until cancelled."""

    def __init__(self, settings: Settings) -> None:
        self.state = "unknown"
        self.partitions: list[PartitionState] = []
        self.slow = SLOW * max(settings.worker.checkpoint_interval_seconds, LOOK_SECONDS)
        self._settings = settings
        self._moved: dict[int, tuple[int | None, float]] = {}  # by partition: the position, and since when it is there

    async def run(self) -> None:
        """Look again and again; what cannot be asked stays as it was."""
        while True:
            admin = make_admin(self._settings.kafka)
            reader = make_reader(self._settings.kafka)
            try:
                await started(admin, self._settings.kafka)
                await started(reader, self._settings.kafka)
                while True:
                    await self._look(admin, reader)
                    await asyncio.sleep(LOOK_SECONDS)
            except (KafkaError, TimeoutError, OSError) as error:
                self.state = "unknown"
                log.debug("group not seen", error=type(error).__name__)
            finally:
                await close(admin, reader)
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self, admin: AIOKafkaAdminClient, reader: Any) -> None:
        settings = self._settings
        [described] = await admin.describe_consumer_groups([settings.worker.group])
        _, _, state, _, _, members, *_ = described.groups[0]
        owners: dict[int, str] = {}
        for member_id, client_id, host, _, assignment, *_ in members:
            if assignment:
                found = ConsumerProtocolMemberAssignment.decode(assignment).assignment
                name = f"{client_id} {member_id[-6:]} at {host.lstrip('/')}"
                owners |= {
                    number: name for topic, numbers in found if topic == settings.topics.events for number in numbers
                }
        offsets = await admin.list_consumer_group_offsets(settings.worker.group)
        numbers = sorted(reader.partitions_for_topic(settings.topics.events) or await self._numbers(reader))
        places = [TopicPartition(settings.topics.events, number) for number in numbers]
        ends = await reader.end_offsets(places)
        self.state = str(state)
        self.partitions = [
            self._partition(
                place.partition,
                owners.get(place.partition),
                offsets[place].offset if place in offsets and offsets[place].offset >= 0 else None,
                ends[place],
            )
            for place in places
        ]

    def _partition(self, number: int, worker: str | None, committed: int | None, end: int) -> PartitionState:
        now = time.monotonic()
        before, since = self._moved.get(number, (None, now))
        if before != committed or committed is None or committed >= end:
            since = now
        self._moved[number] = committed, since
        return PartitionState(number, worker, committed, end, now - since)

    async def _numbers(self, reader: Any) -> set[int]:
        """Ask for a topic that this client has not heard of yet."""
        await reader._client.force_metadata_update()  # noqa: SLF001 - there is no other way to ask at once
        return reader.partitions_for_topic(self._settings.topics.events) or set()
