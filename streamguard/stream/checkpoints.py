"""When checkpoints are written, within what time, and what a failed one means."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError

from streamguard.errors import CheckpointFailedError, NotAuthorizedError
from streamguard.stream.brokers import Fenced, may_be_repeated
from streamguard.stream.checkpoint import write_checkpoint
from streamguard.stream.held import Held
from streamguard.stream.refusal import as_error
from streamguard.stream.ruleset import Ruleset
from streamguard.stream.telling import QUIET, Telling

if TYPE_CHECKING:
    from streamguard.settings import WorkerSettings

__all__ = ["Checkpoints"]

log = structlog.get_logger("streamguard.checkpoints")

COMMIT_SECONDS: Final = 3.0
"""Longest wait for the group's coordinator to take a position."""

MARKER_SECONDS: Final = 3600.0
"""A checkpoint is written at least so often, though nothing changed: brokers forget producers they do not hear of."""


class Checkpoints:
    """Writes checkpoints of shards, and commits. `fail` hears of what no other worker could write down either."""

    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        fail: Callable[[Exception], None],
        worker: WorkerSettings,
        telling: Telling = QUIET,
    ) -> None:
        self._telling = telling
        self._consumer = consumer
        self._fail = fail
        self._worker = worker

    def due(self, held: Held) -> bool:
        """Tell whether a shard has judged enough, or has waited long enough, for its next checkpoint."""
        position = held.marker.position if held.marker is not None else -1
        age = asyncio.get_running_loop().time() - held.marked_at
        moved = held.shard.position - position
        interval = self._worker.checkpoint_interval_seconds if moved else MARKER_SECONDS
        return moved >= self._worker.checkpoint_events or age >= interval

    async def write(self, held: Held, seconds: float, *, always: bool = False, ruleset: Ruleset | None = None) -> bool:
        """Write a checkpoint within a deadline, and commit; without `always`, only if there is something to write.

        With a ruleset: that it is in force from there on.

        Tell whether the shard may go on: False means that it was taken over or that nobody knows what was written.
        """
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            async with asyncio.timeout(seconds), held.checkpointing:
                held.producer.raise_if_given_up()
                if not always and held.marker is not None and held.marker.position == held.shard.position:
                    return True
                held.marker = await write_checkpoint(held, ruleset)
                held.marked_at = loop.time()
        except (Fenced, KafkaError, TimeoutError) as error:
            return self._given_up(held, error, seconds)
        self._telling.checkpoint_written(loop.time() - begun, *held.written)
        log.debug(
            "checkpoint written", partition=held.events.partition, position=held.marker.position,
            runs=held.marker.runs, seconds=round(loop.time() - begun, 3),
        )  # fmt: skip
        await self.commit(held)
        return True

    async def change(self, held: Held, ruleset: Ruleset, seconds: float) -> bool:
        """Write down that a ruleset is in force from here on, and judge by it; until then nothing is judged.

        Tell whether the shard may go on, as `write` does.
        """
        held.changing = True
        try:
            goes_on = await self.write(held, seconds, always=True, ruleset=ruleset)
            if held.marker is not None and held.marker.policy == ruleset.fingerprint:
                held.shard.change(ruleset)
                held.ruleset = ruleset
                log.info(
                    "policy in force", partition=held.events.partition, offset=held.marker.position,
                    ruleset=ruleset.fingerprint,
                )  # fmt: skip
        finally:
            held.changing = False
        return goes_on

    async def commit(self, held: Held) -> None:
        """Commit the position of the newest checkpoint. A refusal means that the group has moved on."""
        if held.marker is None:
            return
        try:
            async with asyncio.timeout(COMMIT_SECONDS):
                await self._consumer.commit({held.events: held.marker.position})
        except (KafkaError, TimeoutError) as error:
            self._telling.broker_failed(error)
            log.info("commit refused", partition=held.events.partition, error=f"{type(error).__name__}: {error}")

    def _given_up(self, held: Held, error: Exception, seconds: float) -> bool:
        self._telling.checkpoint_given_up()
        said = str(error) or f"not done within {seconds:g} s"
        log.warning("checkpoint given up", partition=held.events.partition, error=f"{type(error).__name__}: {said}")
        if isinstance(error, KafkaError) and not may_be_repeated(error):
            refused = as_error(error)
            if not isinstance(refused, NotAuthorizedError):
                refused = CheckpointFailedError(f"partition {held.events.partition} cannot be written down: {said}")
            self._fail(refused)
        return not (isinstance(error, Fenced) or held.producer.in_transaction)
