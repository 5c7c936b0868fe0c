"""The Kafka shell around the core: a worker reads events by partition, judges them and publishes verdicts."""

from __future__ import annotations
