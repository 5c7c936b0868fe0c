"""A partition that this worker holds: its shard, what it writes with, and how it came to be open."""

from __future__ import annotations

import asyncio

from aiokafka import ConsumerRecord, TopicPartition

from streamguard.stream.checkpoint import Marker
from streamguard.stream.delivery import KafkaDelivery
from streamguard.stream.journal import PolicyChange
from streamguard.stream.outbox import Outbox
from streamguard.stream.producer import FencedProducer
from streamguard.stream.ruleset import Ruleset
from streamguard.stream.said import Said
from streamguard.stream.shard import Shard

__all__ = ["Held", "Partitions"]


class Partitions:
    """The four partitions of one number that belong to one shard."""

    __slots__ = ("events", "number", "policies", "state", "verdicts")

    def __init__(self, number: int, *, events: str, verdicts: str, state: str, policies: str) -> None:
        self.number = number
        self.events = TopicPartition(events, number)
        self.verdicts = TopicPartition(verdicts, number)
        self.state = TopicPartition(state, number)
        self.policies = TopicPartition(policies, number)


class Held:
    """An open partition."""

    def __init__(
        self,
        partitions: Partitions,
        shard: Shard,
        *,
        producer: FencedProducer,
        delivery: KafkaDelivery,
        outbox: Outbox,
        said: Said,
        ruleset: Ruleset,
    ) -> None:
        self.events = partitions.events
        self.state = partitions.state
        self.verdicts = partitions.verdicts
        self.policies = partitions.policies
        self.shard = shard
        self.producer = producer
        self.delivery = delivery
        self.outbox = outbox
        self.said = said
        self.ruleset = ruleset  # in force
        self.change: PolicyChange | None = None  # to be written down with the next checkpoint
        self.newest: PolicyChange | None = None  # change that stands on the policies topic
        self.changing = False  # nothing is judged until it is: what is read meanwhile goes to the backlog
        self.backlog: list[ConsumerRecord] = []
        self.marker: Marker | None = None  # of the newest checkpoint
        self.written = (0, 0)  # the runs that it holds, and their bytes
        self.marked_at = 0.0  # when that was, by the event loop's clock
        self.paused = False  # too much is not acknowledged
        self.checkpointing = asyncio.Lock()
