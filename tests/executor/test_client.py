"""The client on a real broker: with a worker, without one, without Kafka, and when verdicts are not to be trusted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from aiokafka import AIOKafkaProducer
from cluster import Cluster, running
from runs import POLICIES

from streamguard.errors import CallTakenError, GuardUnavailableError, RunAbortedError, SigningKeyError
from streamguard.events import Source, ToolCall
from streamguard.executor import ExecutorOptions, GuardClient, Run, silence
from streamguard.executor.channel import partition_of
from streamguard.executor.payloads import Payloads
from streamguard.policy import PolicySet
from streamguard.settings import SigningSettings
from streamguard.signing import Signer, signing_keys
from streamguard.stream.worker import Worker
from streamguard.verdicts import Verdict, encode_verdict

SOON = PolicySet({"enabled": True, "warningThreshold": 2, "criticalThreshold": 3})
KEY = {"key_id": "one", "key": "a secret of ours that is long enough"}


def ids_of_one_partition(partitions: int) -> tuple[str, str]:
    """Return two runs whose events are in the same partition."""
    first, *others = (f"run-{number}" for number in range(100))
    place = partition_of(first.encode(), partitions)
    return first, next(run for run in others if partition_of(run.encode(), partitions) == place)


@pytest.fixture
async def cluster(broker: Any, topic_prefix: str) -> AsyncIterator[Cluster]:
    """Give a test topics of its own and clients to them."""
    async with Cluster(broker, topic_prefix) as cluster:
        yield cluster


def options(cluster: Cluster, **changes: Any) -> ExecutorOptions:
    """Return options for a test's topics; a gate waits for as long as it takes."""
    changes = {"gate_timeout": 60.0, **changes}
    return ExecutorOptions(kafka=cluster.settings.kafka, topics=cluster.settings.topics, **changes)


async def loop(run: Run, times: int, **args: Any) -> list[str]:
    """Make the same call with the same result; return what was decided, and by whom."""
    decided = []
    for _ in range(times):
        decision = await run.before_tool("read", args)
        decided.append(f"{decision.action} by {decision.decided_by}")
        await run.after_tool(decision, result="same")
    return decided


async def test_a_loop_is_blocked_through_kafka(cluster: Cluster) -> None:
    """The worker's verdicts reach the call that waits for them; a block is reported, and all events are published."""
    async with (
        running(Worker(cluster.settings, SOON)),
        GuardClient(options(cluster)) as client,
        client.run("run-1", agent_id="a") as run,
    ):
        decided = await loop(run, 5)

    assert ["allow by guard"] * 2 + ["warn by guard"] + ["block by guard"] * 2 == decided
    assert {"published": 11, "allow": 2, "warn": 1, "block": 2, "refused": 2} == client.counters


async def test_two_clients_hear_only_their_own(cluster: Cluster) -> None:
    """Runs of the same partition in two processes: each is told of its own verdicts, by its own loop."""
    async with (
        running(Worker(cluster.settings, SOON)),
        GuardClient(options(cluster)) as one,
        GuardClient(options(cluster)) as other,
        one.run("run-1") as first,
        other.run("run-1b") as second,
    ):
        decided = await asyncio.gather(loop(first, 4), loop(second, 2))

    assert (["allow", "allow", "warn", "block"], ["allow", "allow"]) == tuple(
        [one.split()[0] for one in some] for some in decided
    )


async def test_verdicts_of_before_are_not_heard(cluster: Cluster) -> None:
    """A client starts at the end of the topic: an abort of an earlier run with the same id is over."""

    async def aborted(client: GuardClient) -> None:
        async with client.run("run-1") as run:
            await run.compacted()
            await loop(run, 9)

    async with running(Worker(cluster.settings, SOON)), GuardClient(options(cluster)) as client:
        with pytest.raises(RunAbortedError):
            await aborted(client)
        async with client.run("run-1") as run:
            decided = await loop(run, 1)

    assert ["allow by guard"] == decided


async def test_an_earlier_run_of_the_same_id_is_over(cluster: Cluster) -> None:
    """A run begun anew is not ended by what its predecessor did last, though the guard says that only now."""

    async def last_words(client: GuardClient) -> None:
        async with client.run("run-1", mode="async") as run:
            await run.compacted()
            await loop(run, 3)

    async with running(Worker(cluster.settings, SOON)), GuardClient(options(cluster)) as client:
        await client.connected()
        for _ in range(5):
            with suppress(RunAbortedError):
                await last_words(client)
            async with client.run("run-1") as run:
                decided = await loop(run, 1)
    verdicts = await cluster.verdicts(5 + 5)

    assert ["allow by guard"] == decided
    assert 5 == len([verdict for verdict in verdicts if verdict.action == "abort"])


async def test_a_start_that_is_cancelled_leaves_nothing_behind(cluster: Cluster) -> None:
    """Whoever gives up entering a run can enter it again, and hears the guard."""
    async with running(Worker(cluster.settings, SOON)), GuardClient(options(cluster)) as client:
        await client.connected()
        entering = asyncio.create_task(client.run("run-1").__aenter__())
        await asyncio.sleep(0)
        entering.cancel()
        await asyncio.gather(entering, return_exceptions=True)
        async with client.run("run-1") as run:
            decided = await loop(run, 1)

    assert ["allow by guard"] == decided


async def test_short_runs_find_out_that_the_guard_is_back(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that end at their first refusal never hear a late answer: now and then one of them waits for its own."""
    monkeypatch.setattr(silence, "PROBE_SECONDS", 0.3)

    async def one(client: GuardClient) -> str:
        async with client.run() as run:
            return (await loop(run, 1))[0]

    async with GuardClient(options(cluster, gate_timeout=0.2, fail="closed")) as client:
        await client.connected()
        for _ in range(20):  # every partition is silent then, or most
            with suppress(GuardUnavailableError):
                await one(client)
        async with running(Worker(cluster.settings, SOON)), asyncio.timeout(60):
            while True:
                with suppress(GuardUnavailableError):
                    answered = await one(client)
                    break
                await asyncio.sleep(0.05)

    assert "allow by guard" == answered


async def test_a_record_that_is_no_verdict_ends_nothing(cluster: Cluster) -> None:
    """Neither what is no JSON nor what is nested too deep to read stops a client from hearing the guard."""
    partition = partition_of(b"run-1", cluster.partitions)
    async with running(Worker(cluster.settings, SOON)), GuardClient(options(cluster)) as client:
        await client.connected()
        async with client.run("run-1") as run:
            async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap) as producer:
                for value in (b"{", b"[" * 50_000):
                    await producer.send_and_wait(
                        cluster.settings.topics.verdicts, value, key=b"run-1", partition=partition
                    )
            decided = await loop(run, 1)
            async with asyncio.timeout(60):
                while client.counters["refused_verdicts"] < 2:
                    await asyncio.sleep(0.02)

    assert ["allow by guard"] == decided


async def test_a_call_whose_event_was_dropped_waits_for_nothing(cluster: Cluster) -> None:
    """There will be no verdict about it: it goes by `fail` at once, and its partition is not silent for that."""
    async with (
        running(Worker(cluster.settings, SOON)),
        GuardClient(options(cluster, event_bytes=2000)) as client,
        client.run("run-1") as run,
    ):
        await client.connected()
        dropped = await run.before_tool("read", "x" * 5000)
        answered = await run.before_tool("read", "x")

    assert ("nobody", "guard") == (dropped.decided_by, answered.decided_by)


async def test_an_abort_cancels_the_runs_task(cluster: Cluster) -> None:
    """In async mode nothing waits for verdicts: an abort comes in the middle of whatever the run does."""

    async def agent(client: GuardClient) -> None:
        async with client.run("run-1", mode="async") as run:
            await run.compacted()
            await loop(run, 3)
            await asyncio.Event().wait()

    async with running(Worker(cluster.settings, SOON)), GuardClient(options(cluster)) as client:
        with pytest.raises(RunAbortedError, match="compaction_loop_persisted"):
            async with asyncio.timeout(60):
                await agent(client)


async def test_hashed_payloads_are_judged_alike(cluster: Cluster) -> None:
    """With `hash_payloads` the same loop is blocked, and neither argument nor result is on the topic."""
    async with (
        running(Worker(cluster.settings, SOON)),
        GuardClient(options(cluster, hash_payloads=True, hash_key="k")) as client,
        client.run("run-1") as run,
    ):
        decided = await loop(run, 4, path="swordfish")
    records = await cluster.event_records(9)

    assert ["allow", "allow", "warn", "block"] == [one.split()[0] for one in decided]
    assert not any(b"swordfish" in record.value or b"same" in record.value for record in records)


async def test_without_a_worker_calls_go_ahead(cluster: Cluster, log_lines: list[dict[str, Any]]) -> None:
    """Fail open: the first call waits for the gate timeout, the others not at all; it is counted, and logged once."""
    async with GuardClient(options(cluster, gate_timeout=0.2)) as client:
        await client.connected()
        async with client.run("run-1") as run:
            decided = await loop(run, 5)

    assert ["allow by nobody"] * 5 == decided
    assert 5 == client.counters["unanswered"]
    assert ["go ahead"] == [line["calls"] for line in log_lines if line["event"] == "the guard does not answer"]


async def test_without_a_worker_calls_are_refused(cluster: Cluster) -> None:
    """Fail closed: a call that gets no answer must not run, which is an error that says what is set how."""
    async with GuardClient(options(cluster, gate_timeout=0.2, fail="closed")) as client:
        await client.connected()
        async with client.run("run-1") as run:
            with pytest.raises(GuardUnavailableError, match=r"within 0\.2 s \(gate_timeout\).*fail closed"):
                await run.before_tool("read")


async def test_a_guard_that_comes_back_is_asked_again(cluster: Cluster, log_lines: list[dict[str, Any]]) -> None:
    """After an outage calls are gated again, and everything that was published meanwhile has been counted."""
    async with GuardClient(options(cluster, gate_timeout=0.2)) as client:
        await client.connected()
        async with client.run("run-1") as run:
            alone = await loop(run, 2)
            async with running(Worker(cluster.settings, SOON)):
                async with asyncio.timeout(60):
                    while client.counters["allow"] < len(alone):  # their verdicts, late as they are
                        await asyncio.sleep(0.05)
                [answered] = await loop(run, 1)

    assert (["allow by nobody"] * 2, "warn by guard") == (alone, answered)
    assert "the guard answers again" in [line["event"] for line in log_lines]


async def test_two_calls_at_once_need_two_ids(cluster: Cluster) -> None:
    """A call under the id of one that still waits is an error: the first gets its answer all the same."""
    async with (
        running(Worker(cluster.settings, SOON)),
        GuardClient(options(cluster)) as client,
        client.run("run-1") as run,
    ):
        first = asyncio.create_task(run.before_tool("read", call_id="c1"))
        await asyncio.sleep(0)
        with pytest.raises(CallTakenError, match="'c1' of run run-1 still waits"):
            await run.before_tool("read", call_id="c1")
        decision = await first

    assert "allow" == decision.action


async def test_a_fallback_judges_meanwhile(cluster: Cluster) -> None:
    """With a policy as fallback an agent that loops is blocked though no worker is up."""
    async with GuardClient(options(cluster, gate_timeout=0.2), fallback=SOON) as client:
        await client.connected()
        async with client.run("run-1") as run:
            decided = await loop(run, 5)

    assert ["allow", "allow", "warn", "block", "block"] == [one.split()[0] for one in decided]


async def test_a_standing_block_holds_while_the_guard_is_away(cluster: Cluster) -> None:
    """What was blocked stays blocked, though nobody answers."""
    async with GuardClient(options(cluster, gate_timeout=2.0)) as client, client.run("run-1") as run:
        async with running(Worker(cluster.settings, SOON)):
            await client.connected()
            blocked = (await loop(run, 4))[-1]
        alone = await loop(run, 1)

    assert ("block by guard", ["block by standing block"]) == (blocked, alone)


async def test_nothing_waits_for_a_kafka_that_is_not_there() -> None:
    """Without any broker an agent begins, works and ends; its events are dropped at the end, and counted."""
    nowhere = ExecutorOptions(
        kafka=msgspec.structs.replace(ExecutorOptions().kafka, bootstrap="127.0.0.1:1"), gate_timeout=0.1
    )
    async with asyncio.timeout(20), GuardClient(nowhere) as client, client.run("run-1") as run:
        decided = await loop(run, 20)

    assert ["allow by nobody"] * 20 == decided
    assert 41 == client.counters["dropped_at_close"]


async def test_a_full_buffer_drops_and_says_so(log_lines: list[dict[str, Any]]) -> None:
    """Beyond `buffer_events` events are dropped and counted; the agent goes on."""
    nowhere = ExecutorOptions(
        kafka=msgspec.structs.replace(ExecutorOptions().kafka, bootstrap="127.0.0.1:1"),
        gate_timeout=0.1,
        buffer_events=5,
        publish_timeout=0.01,
    )
    async with GuardClient(nowhere) as client, client.run("run-1") as run:
        await loop(run, 5)

    assert 11 - 5 == client.counters["dropped_buffer_full"]
    assert "events dropped, the guard does not see them" in [line["event"] for line in log_lines]


async def test_an_event_that_is_too_large_is_dropped(cluster: Cluster) -> None:
    """A result beyond `event_bytes` is not sent, and counted; what comes after it is."""
    async with (
        running(Worker(cluster.settings, POLICIES)),
        GuardClient(options(cluster, event_bytes=2000)) as client,
        client.run("run-1") as run,
    ):
        decision = await run.before_tool("read")
        await run.after_tool(decision, result="x" * 5000)
        again = await loop(run, 1)

    assert (1, ["allow by guard"]) == (client.counters["dropped_too_large"], again)


async def test_an_event_that_the_broker_does_not_take_holds_up_nobody(cluster: Cluster) -> None:
    """A topic whose limit is lower than ours: the event is dropped alone, its neighbours are published."""
    await cluster.alter_topic(cluster.settings.topics.events, {"max.message.bytes": "3000"})
    async with GuardClient(options(cluster)) as client, client.run("run-1", mode="async") as run:
        decisions = [await run.before_tool("read", number) for number in range(3)]
        for decision, result in zip(decisions, ("a", "x" * 5000, "b"), strict=True):
            await run.after_tool(decision, result=result)
    records = await cluster.event_records(3 + 2 + 1)

    assert (6, 1) == (len(records), client.counters["dropped_too_large"])


@pytest.mark.parametrize("how", ["unsigned", "another key", "copied"])
async def test_a_verdict_that_is_not_the_guards_is_not_obeyed(cluster: Cluster, how: str) -> None:
    """With keys set, a block without signature, with another key's, or of another partition blocks nothing."""
    client_options = options(cluster, signing=SigningSettings(**KEY), gate_timeout=0.5)
    forged = {"unsigned": {}, "another key": {**KEY, "key": "somebody else's secret, as long"}, "copied": KEY}[how]
    async with GuardClient(client_options) as client:
        await client.connected()
        async with client.run("run-1", mode="async") as run:
            await loop(run, 1)
            await forge(cluster, SigningSettings(**forged), elsewhere=how == "copied")
            async with asyncio.timeout(60):
                while not client.counters["refused_verdicts"]:
                    await asyncio.sleep(0.02)
            decided = await loop(run, 1)

    assert ["allow by nobody"] == decided


async def test_signed_verdicts_are_obeyed(cluster: Cluster) -> None:
    """With the same key on both sides everything is as without."""
    cluster.change(signing=KEY)
    async with (
        running(Worker(cluster.settings, SOON)),
        GuardClient(options(cluster, signing=SigningSettings(**KEY))) as client,
        client.run("run-1") as run,
    ):
        decided = await loop(run, 4)

    assert "block by guard" == decided[-1]


async def test_keys_that_cannot_be_used_are_told_at_the_start(cluster: Cluster) -> None:
    """A secret that is too short is an error before anything is published."""
    with pytest.raises(SigningKeyError):
        await GuardClient(options(cluster, signing=SigningSettings(key_id="one", key="short"))).start()


async def forge(cluster: Cluster, signing: SigningSettings, *, elsewhere: bool) -> None:
    """Write a block of what run-1 does to its partition; `elsewhere`: one that is about another partition."""
    partition = partition_of(b"run-1", cluster.partitions)
    call = ToolCall(run_id="run-1", tool="read", args={})
    source = Source(cluster.settings.topics.events, partition + elsewhere, 7, 0)
    block = Verdict(
        verdict_id="forged",
        run_id="run-1",
        action="block",
        signature=Payloads().signature(call),
        policy="p",
        source=source,
    )
    value = encode_verdict(block)
    keys = signing_keys(signing)
    headers = Signer(keys[0]).headers(value) if keys else []
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap) as producer:
        await producer.send_and_wait(
            cluster.settings.topics.verdicts, value, key=b"run-1", partition=partition, headers=headers
        )
