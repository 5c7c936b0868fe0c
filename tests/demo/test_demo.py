"""The demo as a newcomer runs it."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import pytest
from commands import STREAMGUARD, environment, streamguard

DETECTORS = (
    "block by generic_repeat", "block by known_poll_no_progress", "block by ping_pong", "block by unknown_tool_repeat",
    "block by global_circuit_breaker", "abort by compaction_loop_persisted", "warn by generic_repeat",
)  # fmt: skip


@pytest.mark.timeout(120)
async def test_the_first_verdict_comes_soon_and_every_way_of_looping_is_stopped() -> None:
    """On the embedded broker: a verdict within 15 s, every detector at work, no healthy agent stopped, a summary."""
    start = time.monotonic()
    command = [*STREAMGUARD, "demo", "--seconds", "14", "--agents", "10"]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment()
    )
    assert process.stdout is not None
    lines, first = [], 0.0
    async for line in process.stdout:
        lines.append(line.decode())
        if not first and re.match(r"(warn|block|abort) ", lines[-1]):
            first = time.monotonic() - start
    _, errors = await process.communicate()
    output = "".join(lines)

    assert (0, b"") == (process.returncode, errors)
    assert 0 < first < 15
    assert [] == [detector for detector in DETECTORS if detector not in output]
    assert [] == [line for line in lines if re.match(r"(block|abort) +(coder|searcher|deployer|builder)", line)]
    saved = re.search(r"calls saved by blocking +(\d+)", output)
    assert saved is not None
    assert int(saved[1]) > 10
    assert re.search(r"runs aborted +[1-9]", output)
    assert re.search(r"median time from event to verdict +[\d.]+ ms", output)


@pytest.mark.apache
@pytest.mark.timeout(120)
def test_the_same_on_a_real_kafka(broker: Any) -> None:
    """With --bootstrap the fleet and the worker run on that Kafka."""
    done = streamguard("demo", "--seconds", "8", "--agents", "8", "--bootstrap", broker.bootstrap)

    assert (0, "") == (done.returncode, done.stderr)
    assert re.search(r"calls saved by blocking +[1-9]", done.stdout)


def test_a_fleet_that_would_not_show_every_way_is_refused() -> None:
    """With fewer agents than ways of looping the command says what is allowed."""
    done = streamguard("demo", "--agents", "3")

    assert 2 == done.returncode
    assert "6<=x<=200" in done.stderr
