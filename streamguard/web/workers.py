"""Who works: the members of the group, their partitions, and how far behind each partition is."""

from __future__ import annotations

import asyncio
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


class PartitionState(msgspec.Struct, frozen=True):
    """A partition: whose it is, how far the group has committed, where it ends."""

    partition: int
    worker: str | None
    committed: int | None
    end: int

    @property
    def lag(self) -> int | None:
        """Events that are not judged, or not written down, yet."""
        return None if self.committed is None else max(0, self.end - self.committed)


class Workers:
    """Looks at the group now and then, until cancelled."""

    def __init__(self, settings: Settings) -> None:
        self.state = "unknown"
        self.partitions: list[PartitionState] = []
        self._settings = settings

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
            PartitionState(
                place.partition,
                owners.get(place.partition),
                offsets[place].offset if place in offsets and offsets[place].offset >= 0 else None,
                ends[place],
            )
            for place in places
        ]

    async def _numbers(self, reader: Any) -> set[int]:
        """Ask for a topic that this client has not heard of yet."""
        await reader._client.force_metadata_update()  # noqa: SLF001 - there is no other way to ask at once
        return reader.partitions_for_topic(self._settings.topics.events) or set()
