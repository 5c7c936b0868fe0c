"""Metrics and health of a worker, over HTTP, for Prometheus and for whoever restarts it (the extra `metrics`)."""

from streamguard.telemetry.metrics import Metrics
from streamguard.telemetry.server import serving

__all__ = ["Metrics", "serving"]
