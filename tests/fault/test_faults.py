"""A short run of the fault bench: a few faults of all sorts, and no verdict missing, doubled or different."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench import Options, run

pytestmark = [pytest.mark.apache, pytest.mark.timeout(400)]


def corpus(shared: Callable[[str], Path]) -> Path | None:
    """Return the folder of recorded runs, if there is one; made-up runs do without."""
    try:
        return shared("corpus")
    except pytest.skip.Exception:
        return None


@pytest.mark.parametrize(("nodes", "faults", "seed"), [(1, 8, 11), (3, 8, 12)])
async def test_no_verdict_is_lost_doubled_or_different(
    broker: Any, shared: Callable[[str], Path], nodes: int, faults: int, seed: int
) -> None:
    """Through kills, freezes, cuts and broker failures the verdict topic ends up as if nothing had happened."""
    if broker.kind != "apache-kafka":
        pytest.skip("needs Java and Maven: brokers that can be killed are started by the test")
    seed = int(os.environ.get("STREAMGUARD_TEST_FAULT_SEED", seed))
    report = await run(Options(faults=faults, seed=seed, nodes=nodes, corpus=corpus(shared)))

    done = report.comparison
    assert done is not None
    assert (0, 0, 0, 0) == (done.missing, done.doubled, done.different, done.unexpected)
    assert (0, 0) == (done.badly_signed, done.poison_lost)
    assert done.expected == done.found > 0
    assert min(done.packed, done.poison) > 0
    assert report.faults == faults
