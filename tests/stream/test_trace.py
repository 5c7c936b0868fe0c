"""Traces go through: an event's traceparent is its verdicts'."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from cluster import Cluster, running
from events import call, loop
from opentelemetry.sdk.trace import TracerProvider

from streamguard.executor import ExecutorOptions, GuardClient
from streamguard.policy import PolicySet
from streamguard.settings import SigningSettings
from streamguard.stream.trace import traceparent_of
from streamguard.stream.worker import Worker

ON = PolicySet({"enabled": True})
TRACE = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OTHER = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b8-00"


@pytest.fixture
async def cluster(broker: Any, topic_prefix: str) -> AsyncIterator[Cluster]:
    """Give a test topics of its own."""
    async with Cluster(broker, topic_prefix) as cluster:
        yield cluster


async def test_a_verdict_carries_the_traceparent_of_its_event(cluster: Cluster) -> None:
    """Each verdict has the traceparent of the event that it is about, beside its signature; without one it has none."""
    signing = SigningSettings(key_id="k", key="0123456789abcdef")
    cluster.settings = msgspec.structs.replace(cluster.settings, signing=signing)
    async with running(Worker(cluster.settings, ON)):
        for number, trace in enumerate((TRACE, None, OTHER)):
            headers = [] if trace is None else [("other", b"1"), ("traceparent", trace)]
            await cluster.publish("run-1", [call("run-1", number, tool=f"t{number}", gate=True)], headers=headers)
        records = await cluster.verdict_records(3)

    carried = [dict(record.headers) for record in records]
    assert [TRACE, None, OTHER] == [headers.pop("traceparent", None) for headers in carried]
    assert [{"signature", "signature-key"}] * 3 == [set(headers) for headers in carried]


async def test_a_trace_changes_no_verdict(cluster: Cluster) -> None:
    """The bytes of verdicts are the same with a trace and without; other headers of events are not carried."""
    async with running(Worker(cluster.settings, ON)):
        await cluster.publish("run-1", loop("run-1", 11), partition=0)
        await cluster.publish(
            "run-1", loop("run-1", 11), partition=1, headers=[("traceparent", TRACE), ("tenant", b"x")]
        )
        records = await cluster.verdict_records(2)

    plain, traced = sorted(records, key=lambda record: record.partition)
    renamed = traced.value.replace(b'"1-', b'"0-').replace(b'"partition":1', b'"partition":0')
    assert _without_time(plain.value) == _without_time(renamed)
    assert ((), (("traceparent", TRACE),)) == (plain.headers, traced.headers)


def _without_time(value: bytes) -> bytes:
    return value.rpartition(b'"timestamp":')[0]


async def test_a_span_of_the_executor_goes_on_in_the_verdict(cluster: Cluster) -> None:
    """What an executor publishes within an OpenTelemetry span carries that span; outside of any it carries none."""
    options = ExecutorOptions(kafka=cluster.settings.kafka, topics=cluster.settings.topics, gate_timeout=30)
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("executor")
    async with running(Worker(cluster.settings, ON)), GuardClient(options) as client, client.run() as run:
        await run.before_tool("read")
        with tracer.start_as_current_span("execute_tool read") as span:
            await run.before_tool("write")
        without, within = await cluster.verdict_records(2)

    context = span.get_span_context()
    expected = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}".encode()
    assert ((), (("traceparent", expected),)) == (without.headers, within.headers)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([("traceparent", TRACE)], TRACE),
        ([("TraceParent", TRACE)], TRACE),
        ([("traceparent", b"cc" + TRACE[2:])], b"cc" + TRACE[2:]),
        ([("traceparent", b"ff" + TRACE[2:])], None),
        ([("traceparent", TRACE.upper())], None),
        ([("traceparent", TRACE + b"\n")], None),
        ([("traceparent", b"x" * 100_000)], None),
        ([("traceparent", None)], None),
        ([("tracestate", TRACE)], None),
        ([], None),
    ],
)
def test_only_what_is_well_formed_is_carried(headers: list[tuple[str, bytes | None]], expected: bytes | None) -> None:
    """A traceparent is 55 bytes of a known form; anything else stays behind: verdicts must fit a broker."""
    assert expected == traceparent_of(headers)
