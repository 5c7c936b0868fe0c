"""How a worker is: whether it gets anywhere, what it holds, what it dropped. Written to a file for health checks."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from streamguard.errors import SettingsFileError

if TYPE_CHECKING:
    from aiokafka import AIOKafkaConsumer

    from streamguard.stream.assignment import Assignment
    from streamguard.stream.held import Held
    from streamguard.stream.watchdog import Watchdog
    from streamguard.stream.worker import Worker

__all__ = ["WRITE_SECONDS", "PartitionStatus", "Status", "StatusFile", "in_words", "status_of"]

log = structlog.get_logger("streamguard.status")

WRITE_SECONDS: Final = 1.0
"""How often the file is written."""

DROPPED: Final = ("duplicates", "orphans", "forgotten_calls", "expired_runs", "evicted_runs")
"""Counters of the guard that tell of something left out, by reason."""


class PartitionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One open partition. Ages in seconds, `lag` in records, `time` (stream time) in milliseconds since 1970."""

    partition: int
    position: int
    lag: int | None
    runs: int
    waiting_verdicts: int
    paused: bool
    checkpoint_position: int | None
    checkpoint_age: float
    time: int = 0


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """A worker, at a time (seconds since 1970). `stuck` names what has not moved for half of the time allowed.

    `dropped` counts, by reason, since the worker started; `opening` are partitions that are not restored yet;
    `rebalancing` is for how many seconds the group has not said which partitions are ours, None when it has. `events`
    are those that were judged, by type; `refused` the records that were not, by reason.
    """

    time: float
    pid: int
    ready: bool
    stuck: list[str]
    judged: int
    verdicts: dict[str, int]
    dead_letters: int
    dropped: dict[str, int]
    rebalancing: float | None = None
    opening: list[int]
    partitions: list[PartitionStatus]
    events: dict[str, int] = {}
    refused: dict[str, int] = {}


def status_of(worker: Worker, consumer: AIOKafkaConsumer, assignment: Assignment, watchdog: Watchdog) -> Status:
    """Look at a worker."""
    held = sorted(assignment.held.values(), key=lambda one: one.events.partition)
    opener = assignment.opener
    since = assignment.rebalancing_since
    dropped = {name: getattr(opener.counters, name) for name in DROPPED} | opener.refused
    return Status(
        time=time.time(),
        pid=os.getpid(),
        ready=assignment.ready.is_set(),
        stuck=watchdog.unhealthy,
        judged=worker.judged,
        verdicts=dict(worker.verdicts),
        dead_letters=worker.dead_letters,
        dropped=dropped,
        rebalancing=None if since is None else round(asyncio.get_running_loop().time() - since, 1),
        opening=sorted(one.partition for one in assignment.assigned - assignment.held.keys()),
        partitions=[_partition(one, consumer) for one in held],
        events={str(kind.__struct_config__.tag): count for kind, count in opener.events.items()},
        refused=dict(opener.refused),
    )


def in_words(status: Status) -> str:
    """Say what a worker does at this moment."""
    if status.rebalancing is not None:
        return f"its group has been rebalancing for {status.rebalancing:.0f} s, it judges nothing until that is over"
    lag = sum(partition.lag or 0 for partition in status.partitions)
    judging = f"{len(status.partitions)} partitions, {lag} events behind" if status.partitions else "no partitions"
    return judging + (f"; {len(status.opening)} partitions are being restored" if status.opening else "")


def _partition(held: Held, consumer: AIOKafkaConsumer) -> PartitionStatus:
    end: int | None = consumer.highwater(held.events) if held.events in consumer.assignment() else None
    return PartitionStatus(
        partition=held.events.partition,
        position=held.shard.position,
        lag=None if end is None else max(0, end - held.shard.position),
        runs=len(held.shard.guard),
        waiting_verdicts=len(held.outbox),
        paused=held.paused,
        checkpoint_position=None if held.marker is None else held.marker.position,
        checkpoint_age=round(asyncio.get_running_loop().time() - held.marked_at, 1),
        time=held.shard.guard.time,
    )


class StatusFile:
    """A file that always holds a whole status, of a second ago at the most.

    Raises `SettingsFileError` if there is no folder for it.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        if not self._path.parent.is_dir():
            raise SettingsFileError(f"worker.status_file is {path}: there is no folder {self._path.parent}")
        self._next = self._path.with_name(f"{self._path.name}.{os.getpid()}.tmp")
        self._told = False

    def write(self, status: Status) -> None:
        """Replace the file. What cannot be written is said once; a full disk must not stop the guard."""
        try:
            self._next.write_bytes(msgspec.json.encode(status))
            self._next.replace(self._path)
            self._told = False
        except OSError as error:
            if not self._told:
                log.warning("status file not written", path=str(self._path), error=str(error))
            self._told = True

    def remove(self) -> None:
        """Take the file away: the worker has left."""
        self._path.unlink(missing_ok=True)
