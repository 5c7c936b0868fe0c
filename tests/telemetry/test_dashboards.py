"""The alerts and the dashboard name only metrics that exist, and promtool accepts the rules."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamguard.stream.status import PartitionStatus, Status
from streamguard.telemetry import Metrics
from streamguard.telemetry.state import WorkerState

OURS = re.compile(r"\b(streamguard_[a-z_]+)\b")
OF_PROMETHEUS = {"up", "process_resident_memory_bytes", "process_cpu_seconds_total"}


def existing() -> set[str]:
    """Return the names of every sample that a worker gives."""
    metrics = Metrics()
    partition = PartitionStatus(
        partition=0, position=1, lag=0, runs=1, waiting_verdicts=0, paused=False, checkpoint_position=1,
        checkpoint_age=0.0, time=1,
    )  # fmt: skip
    status = Status(
        time=1.0, pid=1, ready=True, stuck=[], judged=1, verdicts={}, dead_letters=0, dropped={"evicted_runs": 0},
        opening=[], partitions=[partition], events={"tool_call": 1}, refused={},
    )  # fmt: skip
    metrics.registry.register(WorkerState(lambda: status))
    metrics.broker_failed(TimeoutError())
    metrics.policy_in_force("-")
    return {sample.name for family in metrics.registry.collect() for sample in family.samples}


def queries(repository: Path) -> Iterator[str]:
    """Yield the queries of the dashboard and of the alerts."""
    dashboard: dict[str, Any] = json.loads((repository / "config/grafana/streamguard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]
    rules = (repository / "config/prometheus/alerts.yml").read_text()
    yield from re.findall(r"expr: \|\n\s+(.+)", rules)
    yield from re.findall(r"expr: (?!\|)(.+)", rules)


def test_queries_name_only_metrics_that_exist(repository: Path) -> None:
    """Each streamguard_* name in a query is a sample of a worker."""
    named = {name for query in queries(repository) for name in OURS.findall(query)}

    assert len(named) > 15
    assert set() == named - existing()


def test_panels_do_not_overlap(repository: Path) -> None:
    """Each panel has its place, in 24 columns, and an id of its own."""
    panels = json.loads((repository / "config/grafana/streamguard.json").read_text())["panels"]
    places = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]

    assert len(places) == len(set(places))
    assert max(x for x, _ in places) < 24
    assert len({panel["id"] for panel in panels}) == len(panels)


@pytest.mark.parametrize(
    "arguments",
    [("check", "rules", "alerts.yml"), ("test", "rules", "alerts.test.yml"), ("check", "config", "--syntax-only",
                                                                             "prometheus.yml")],
    ids=["rules", "tests of rules", "configuration"],
)  # fmt: skip
def test_promtool_accepts_them(repository: Path, arguments: tuple[str, ...]) -> None:
    """Prometheus' own tool finds the alerts right, and they fire when they should."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    done = subprocess.run(
        [promtool, *arguments], cwd=repository / "config/prometheus", capture_output=True, text=True, check=False
    )

    assert 0 == done.returncode, done.stdout + done.stderr
