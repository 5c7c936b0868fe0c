"""What a worker holds and has counted, read from its status at each scrape: it costs nothing in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from streamguard.errors import UnreadableRecordError
from streamguard.telemetry.behind import Behind

if TYPE_CHECKING:
    from streamguard.stream.status import PartitionStatus, Status

__all__ = ["WorkerState"]

UNREADABLE: Final[tuple[type[UnreadableRecordError], ...]] = (
    UnreadableRecordError,
    *UnreadableRecordError.__subclasses__(),
)
REASONS: Final = tuple(kind.reason for kind in UNREADABLE)
"""They are shown from the start, as 0: of a counter that appears with its first count, Prometheus sees no increase."""


class WorkerState(Collector):
    """Turns `status()` into metrics. It is None until the worker is a member of its group: it is not ready, no more."""

    def __init__(self, status: Callable[[], Status | None]) -> None:
        self._status = status
        self._behind = Behind()

    def look(self) -> None:
        """Look at the lag; to be called every second or so, so that it is known when a partition was caught up."""
        status = self._status()
        for partition in status.partitions if status is not None else ():
            self._behind.seconds(partition, time.time())

    def describe(self) -> Iterable[Metric]:
        """Name nothing: it depends on the worker."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Give the metrics as of now."""
        status = self._status()
        ready = status is not None and status.ready
        yield _gauge("ready", "1 while every partition assigned to the worker is restored", ready)
        if status is not None:
            yield from _counters(status)
            yield from _of_worker(status)
            yield from self._of_partitions(status.partitions)

    def _of_partitions(self, partitions: Iterable[PartitionStatus]) -> Iterator[Metric]:
        now = time.time()
        lag = _per_partition("lag_records", "Events that are not judged yet")
        seconds = _per_partition("lag_seconds", "Age of the last judged event while others wait, 0 when caught up")
        runs = _per_partition("runs", "Runs in memory")
        waiting = _per_partition("unacknowledged", "Verdicts and dead letters that no broker has acknowledged")
        paused = _per_partition("reading_paused", "1 while too much is not acknowledged to read on")
        age = _per_partition("checkpoint_age_seconds", "Age of the newest checkpoint, 0 if nothing was judged since")
        for one in partitions:
            label = [str(one.partition)]
            if one.lag is not None:
                lag.add_metric(label, one.lag)
            if (behind := self._behind.seconds(one, now)) is not None:
                seconds.add_metric(label, behind)
            runs.add_metric(label, one.runs)
            waiting.add_metric(label, one.waiting_verdicts)
            paused.add_metric(label, one.paused)
            age.add_metric(label, 0 if one.checkpoint_position == one.position else one.checkpoint_age)
        yield from (lag, seconds, runs, waiting, paused, age)


def _counters(status: Status) -> Iterator[Metric]:
    refused = dict(status.refused)
    unknown = {"unknown_type": refused.pop("unknown_type", 0)}
    dropped = {reason: count for reason, count in status.dropped.items() if reason not in status.refused} | unknown
    yield _counter("events", "Events judged", "type", status.events)
    yield _counter("dead_letters", "Records that are no events", "reason", dict.fromkeys(REASONS, 0) | refused)
    yield _counter("dropped", "Events, calls and runs left out or forgotten", "reason", dropped)


def _of_worker(status: Status) -> Iterator[Metric]:
    yield _gauge("stuck", "How many things have not moved for half of worker.stuck_timeout_seconds", len(status.stuck))
    yield _gauge("rebalancing_seconds", "For how long the group has been rebalancing", status.rebalancing or 0)
    yield _gauge("partitions", "Partitions that are open", len(status.partitions))
    yield _gauge("partitions_opening", "Partitions that are being restored", len(status.opening))


def _counter(name: str, text: str, label: str, counts: dict[str, int]) -> Metric:
    family = CounterMetricFamily(f"streamguard_{name}", text, labels=[label])
    for value, count in sorted(counts.items()):
        family.add_metric([value], count)
    return family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"streamguard_{name}", text, value=value)


def _per_partition(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"streamguard_{name}", text, labels=["partition"])
