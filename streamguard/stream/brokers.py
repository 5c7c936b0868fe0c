"""One client for all that a worker writes: requests to a partition's leader or to a transaction coordinator.

The right broker is looked up, and looked up again when it has moved. A request is repeated until it is answered or
will never be; deadlines are the caller's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import structlog
from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.errors import (
    ConcurrentTransactions,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    NodeNotReadyError,
    NotCoordinatorError,
    OutOfOrderSequenceNumber,
    RequestTimedOutError,
    StaleMetadata,
    UnknownProducerId,
    for_code,
)
from aiokafka.protocol.group import LeaveGroupRequest

from streamguard.stream.telling import QUIET, Telling

__all__ = ["Brokers", "Fenced", "may_be_repeated"]

log = structlog.get_logger("streamguard.brokers")

Answer = TypeVar("Answer")

BACKOFF_SECONDS: Final = 0.1
SHORT_BACKOFF_SECONDS: Final = 0.02
"""After a transaction its markers are written in the background: the next one may come a moment too early."""

PRODUCER_FENCED: Final = 90  # newer than aiokafka's list of codes

NOT_THERE: Final = (KafkaConnectionError, NodeNotReadyError, RequestTimedOutError, KafkaTimeoutError, StaleMetadata)
"""Errors of the connection: whether the request was served is not known."""

GONE: Final = (
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    OutOfOrderSequenceNumber,
    UnknownProducerId,
)
"""Answers that mean: this producer id, at this epoch, will never write again."""

COORDINATOR_MOVED: Final = (CoordinatorNotAvailableError, NotCoordinatorError)


class Fenced(Exception):  # noqa: N818 - a turn of events, not an error of anybody
    """Another worker has opened this shard, or the coordinator gave the transaction up: nothing more can be written."""


def may_be_repeated(error: KafkaError) -> bool:
    """Tell whether the same request may well succeed a moment later."""
    return bool(error.retriable) or isinstance(error, (*NOT_THERE, *COORDINATOR_MOVED, CoordinatorLoadInProgressError))


class Brokers:
    """Finds the broker that a request is for, and repeats the request while that makes sense."""

    def __init__(self, client: AIOKafkaClient, topics: tuple[str, ...], telling: Telling = QUIET) -> None:
        self.client = client
        self._telling = telling
        self._topics = topics
        self._coordinators: dict[str, int] = {}

    async def start(self) -> None:
        """Connect. Raises `KafkaError` if no broker answers."""
        await self.client.bootstrap()
        await self.client.set_topics(self._topics)

    async def stop(self) -> None:
        """Close all connections."""
        await self.client.close()

    async def ask_leader(
        self, partition: TopicPartition, request: Any, answer: Callable[[Any], tuple[int, Answer]]
    ) -> Answer:
        """Send to the leader of a partition until it answers; `answer` takes error code and answer from a response.

        Raises `Fenced`, or the `KafkaError` that repeating does not mend.
        """

        async def find() -> int:
            leader = self.client.cluster.leader_for_partition(partition)
            if leader is None or leader < 0:
                raise StaleMetadata(f"{partition.topic}[{partition.partition}] has no leader")
            return int(leader)

        async def forget() -> None:
            await self._refresh()

        return await self._until_answered(request, answer, find, forget, ConnectionGroup.DEFAULT)

    async def ask_coordinator(
        self, transactional_id: str, request: Any, answer: Callable[[Any], tuple[int, Answer]]
    ) -> Answer:
        """Send to the coordinator of a transactional id until it answers. Raises as `ask_leader` does."""

        async def find() -> int:
            node = self._coordinators.get(transactional_id)
            if node is None:
                node = await self.client.coordinator_lookup(CoordinationType.TRANSACTION, transactional_id)
                self._coordinators[transactional_id] = node
            return node

        async def forget() -> None:
            self._coordinators.pop(transactional_id, None)
            await self._refresh()

        return await self._until_answered(request, answer, find, forget, ConnectionGroup.COORDINATION)

    async def ask_any(self, request: Any, answer: Callable[[Any], tuple[int, Answer]]) -> Answer:
        """Send to any broker until one answers. Raises as `ask_leader` does."""

        async def find() -> int:
            return int(self.client.get_random_node())

        return await self._until_answered(request, answer, find, self._refresh, ConnectionGroup.DEFAULT)

    async def leave_group(self, group: str, member: str) -> None:
        """Tell the coordinator of a consumer group that a member is gone; once, whatever it answers.

        Raises `KafkaError` if it does not.
        """
        node = await self.client.coordinator_lookup(CoordinationType.GROUP, group)
        await self.client.send(node, LeaveGroupRequest(group, member), group=ConnectionGroup.COORDINATION)

    async def _until_answered(
        self,
        request: Any,
        answer: Callable[[Any], tuple[int, Answer]],
        find: Callable[[], Awaitable[int]],
        forget: Callable[[], Awaitable[None]],
        group: ConnectionGroup,
    ) -> Answer:
        while True:
            try:
                response = await self.client.send(await find(), request, group=group)
                code, answered = answer(response)
            except (*NOT_THERE, *COORDINATOR_MOVED, CoordinatorLoadInProgressError) as error:
                self._telling.broker_failed(error)
                log.debug("no answer, asking again", request=type(request).__name__, error=type(error).__name__)
                await forget()
                await asyncio.sleep(BACKOFF_SECONDS)
                continue
            if code == 0:
                return answered
            await self._bear(code, request, forget)

    async def _bear(self, code: int, request: Any, forget: Callable[[], Awaitable[None]]) -> None:
        """Wait before the request is repeated, or raise if that is of no use."""
        kind = for_code(code)
        if code == PRODUCER_FENCED or kind in GONE:
            raise Fenced(kind.__name__)
        if kind is ConcurrentTransactions:
            await asyncio.sleep(SHORT_BACKOFF_SECONDS)
            return
        self._telling.broker_failed(kind())
        if not may_be_repeated(kind()):
            raise kind
        log.debug("asking again", request=type(request).__name__, error=kind.__name__)
        if kind is not CoordinatorLoadInProgressError:
            await forget()
        await asyncio.sleep(BACKOFF_SECONDS)

    async def _refresh(self) -> None:
        try:
            await asyncio.shield(self.client.force_metadata_update())
        except KafkaError as error:
            log.debug("metadata not refreshed", error=type(error).__name__)
