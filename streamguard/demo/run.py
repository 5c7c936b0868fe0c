"""The demo from beginning to end: broker, topics, the real worker, the fleet, the summary."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

import msgspec
from aiokafka.errors import KafkaError

from streamguard.demo.agents import AGENT_POLICIES, POLICY
from streamguard.demo.broker import EmbeddedBroker
from streamguard.demo.fleet import Fleet
from streamguard.demo.view import View
from streamguard.policy import PolicySet
from streamguard.settings import Settings
from streamguard.stream.kafka import client_options, make_admin, started
from streamguard.stream.topics import create_topics
from streamguard.stream.worker import Worker

__all__ = ["Plan", "run_demo"]


class Plan(NamedTuple):
    """What was asked for. `bootstrap` None: the embedded broker; `fleet_only`: others run the workers."""

    settings: Settings
    bootstrap: str | None
    agents: int
    seconds: float
    seed: int
    fleet_only: bool


async def run_demo(plan: Plan, view: View) -> None:
    """Run it; ends after `plan.seconds` of the fleet's work, or with SIGINT or SIGTERM, always with the summary.

    Raises subclasses of `StreamguardError` if it cannot start.
    """
    async with contextlib.AsyncExitStack() as stack:
        settings = plan.settings
        if plan.bootstrap is None and not plan.fleet_only:
            view.say("starting the embedded broker ...")
            broker = await stack.enter_async_context(EmbeddedBroker())
            settings = _own_topics(settings, broker.bootstrap, idempotence=False)
        elif not plan.fleet_only:
            settings = _own_topics(settings, plan.bootstrap or settings.kafka.bootstrap, idempotence=True)
        if not plan.fleet_only:
            await create_topics(settings)
            if plan.bootstrap is not None:
                stack.push_async_callback(_delete_topics, settings)
            view.say(f"topics {settings.topics.events}, {settings.topics.verdicts} at {settings.kafka.bootstrap}")
            await stack.enter_async_context(_worker(settings, view))
        await _fleet(settings, plan, view)


def _own_topics(settings: Settings, bootstrap: str, *, idempotence: bool) -> Settings:
    """Keep out of the way of everything else on this Kafka; and join quickly."""
    prefix = f"demo.{uuid.uuid4().hex[:6]}"
    return msgspec.structs.replace(
        settings,
        kafka=msgspec.structs.replace(settings.kafka, bootstrap=bootstrap, idempotence=idempotence),
        topics=msgspec.structs.replace(
            settings.topics, events=f"{prefix}.events", verdicts=f"{prefix}.verdicts", dead_letters=f"{prefix}.dlq"
        ),
        worker=msgspec.structs.replace(
            settings.worker,
            group=prefix,
            session_timeout_ms=6_000,  # the embedded broker lets members join after half of it
            heartbeat_interval_ms=1_000,
            fetch_max_wait_ms=50,
        ),
    )


@contextlib.asynccontextmanager
async def _worker(settings: Settings, view: View) -> AsyncIterator[None]:
    """Run the real worker while the block runs."""
    worker = Worker(settings, PolicySet(POLICY, AGENT_POLICIES))
    view.say("the worker joins its group (a few seconds) ...")
    task = asyncio.create_task(worker.run())
    ready = asyncio.create_task(worker.ready())
    await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
    ready.cancel()
    try:
        if task.done():
            task.result()
        yield
    finally:
        worker.stop()
        await task


async def _fleet(settings: Settings, plan: Plan, view: View) -> None:
    fleet = Fleet(
        client_options(settings.kafka),
        settings.topics.events,
        settings.topics.verdicts,
        agents=plan.agents,
        seed=plan.seed,
        on_verdict=view.verdict,
    )
    view.agents = fleet.agents
    view.say(f"{plan.agents} agents at work for {plan.seconds:g} s")
    work = asyncio.create_task(fleet.run(plan.seconds))
    clock = asyncio.create_task(_count_down(view, plan.seconds))
    with _interruptible(work), view.live():
        try:
            await work
        except asyncio.CancelledError:
            view.say("interrupted")
        finally:
            clock.cancel()
    view.summary(fleet)


async def _count_down(view: View, seconds: float) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        view.left = left
        await asyncio.sleep(0.2)


@contextlib.contextmanager
def _interruptible(work: asyncio.Task[None]) -> Iterator[None]:
    """End the fleet's work with a signal; the rest of the demo then ends as if the time were over."""
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, work.cancel)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


async def _delete_topics(settings: Settings) -> None:
    """Leave a Kafka that is not ours as it was."""
    topics = settings.topics
    admin = make_admin(settings.kafka)
    with contextlib.suppress(KafkaError, TimeoutError):
        await started(admin, settings.kafka)
        await admin.delete_topics([topics.events, topics.verdicts, topics.dead_letters])
    await admin.close()
