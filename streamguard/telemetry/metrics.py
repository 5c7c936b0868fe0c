"""What a worker tells, as Prometheus metrics. Labels are few, and never a run, an agent, a tool or a payload.

Told are moments (an acknowledgement, a checkpoint, a failure); what a worker holds and has counted is read from its
status when somebody scrapes: see `state`.
"""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Sequence
from importlib.metadata import version
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics

from streamguard.guard.compaction import COMPACTION_LOOP_PERSISTED
from streamguard.guard.detectors import (
    GENERIC_REPEAT,
    GLOBAL_CIRCUIT_BREAKER,
    KNOWN_POLL_NO_PROGRESS,
    PING_PONG,
    UNKNOWN_TOOL_REPEAT,
)
from streamguard.stream.telling import PolicyResult
from streamguard.telemetry.times import Times
from streamguard.verdicts import Verdict

__all__ = ["Metrics"]

VERDICT_SECONDS: Final = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
CHECKPOINT_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
RESTORE_SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
LOOP_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

REPEATS: Final = (GENERIC_REPEAT, KNOWN_POLL_NO_PROGRESS, PING_PONG)
VERDICTS: Final = (
    ("allow", "none"),
    *(("warn", detector) for detector in REPEATS),
    *(("block", detector) for detector in (*REPEATS, UNKNOWN_TOOL_REPEAT, GLOBAL_CIRCUIT_BREAKER)),
    ("abort", COMPACTION_LOOP_PERSISTED),
)
"""They are shown from the start, as 0: of a counter that appears with its first count, Prometheus sees no increase."""

# Else each counter has a second line, which nobody asks for.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """The metrics of one worker, in a registry of their own. Implements `streamguard.stream.telling.Telling`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._verdicts = self._counter("verdicts", "Verdicts on the verdict topic", "action", "detector", "shadow")
        self._verdict_seconds = Times(
            "streamguard_event_to_verdict_seconds",
            "From an event's record timestamp to its verdict's acknowledgement",
            VERDICT_SECONDS,
        )
        self.registry.register(self._verdict_seconds)
        self._checkpoint_seconds = self._histogram(
            "checkpoint_seconds", "Time that checkpoints took", CHECKPOINT_SECONDS
        )
        self._checkpoint_runs = self._counter("checkpoint_runs", "Runs written by checkpoints")
        self._checkpoint_bytes = self._counter("checkpoint_bytes", "Bytes of the runs written by checkpoints")
        self._given_up = self._counter("checkpoints_given_up", "Checkpoints that failed or took too long")
        self._restore_seconds = self._histogram(
            "restore_seconds", "Time that restoring a partition took", RESTORE_SECONDS
        )
        self._broker_errors = self._counter("broker_errors", "Requests that a broker did not serve", "kind")
        self._policy = self._gauge("policy_info", "The policy in force, by its fingerprint", "policy")
        self._policy_changes = self._counter(
            "policy_changes", "Changes of the policy file, by what became of them", "result"
        )
        self._loop_seconds = self._histogram(
            "loop_lag_seconds", "How late the event loop was for a timer", LOOP_SECONDS
        )
        self._gauge("build_info", "The streamguard that runs", "version").labels(version("streamguard")).set(1)
        for action, detector in VERDICTS:
            self._verdicts.labels(action, detector, "false")
        for result in ("taken", "refused"):
            self._policy_changes.labels(result)

    # what the worker tells

    def acknowledged(self, verdicts: Sequence[Verdict]) -> None:
        """Count verdicts, and how long they took from their event on."""
        now = time.time() * 1000
        self._verdict_seconds.observe_all(max(0.0, now - verdict.source.timestamp) / 1000 for verdict in verdicts)
        kinds = Tally((verdict.action, verdict.detector, verdict.shadow) for verdict in verdicts)
        for (action, detector, shadow), count in kinds.items():
            self._verdicts.labels(action, detector or "none", "true" if shadow else "false").inc(count)

    def restored(self, seconds: float) -> None:
        """Note how long restoring a partition took."""
        self._restore_seconds.observe(seconds)

    def checkpoint_written(self, seconds: float, runs: int, size: int) -> None:
        """Note how long a checkpoint took, the runs in it, and their bytes."""
        self._checkpoint_seconds.observe(seconds)
        self._checkpoint_runs.inc(runs)
        self._checkpoint_bytes.inc(size)

    def checkpoint_given_up(self) -> None:
        """Count a checkpoint that failed."""
        self._given_up.inc()

    def broker_failed(self, error: BaseException) -> None:
        """Count a request that was not served, by the class of its error."""
        self._broker_errors.labels(type(error).__name__).inc()

    def policy_in_force(self, policy: str) -> None:
        """Show the fingerprint of the policy that judges now."""
        self._policy.clear()
        self._policy.labels(policy).set(1)

    def policy_changed(self, result: PolicyResult) -> None:
        """Count a change of the policy file."""
        self._policy_changes.labels(result).inc()

    # what is seen beside it

    def loop_was_late(self, seconds: float) -> None:
        """Note how late the event loop was."""
        self._loop_seconds.observe(seconds)

    # how they are made

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, namespace="streamguard", registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, namespace="streamguard", registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(name, text, namespace="streamguard", registry=self.registry, buckets=buckets)
