"""The demo from beginning to end: broker, topics, the real worker, the fleet, the summary.

A signal may come at any moment, also while the group joins: it sets an event that every step is raced against, as a
cancellation alone can be lost in a client's call.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
import uuid
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from aiokafka.errors import KafkaError

from streamguard.demo.agents import AGENT_POLICIES, POLICY
from streamguard.demo.broker import EmbeddedBroker
from streamguard.demo.fleet import Fleet
from streamguard.demo.view import View
from streamguard.errors import BrokerUnavailableError, StreamguardError
from streamguard.policy import PolicySet
from streamguard.settings import Settings
from streamguard.stream.kafka import client_options, make_admin, started
from streamguard.stream.topics import check_topics, create_topics
from streamguard.stream.worker import Worker

__all__ = ["Plan", "run_demo"]

T = TypeVar("T")

CANCEL_AGAIN_SECONDS: Final = 3.0
"""A task that was cancelled and still runs has lost the cancellation: it is cancelled again after this time."""

DELETE_SECONDS: Final = 3.0
"""Longest wait for the broker before the demo leaves its topics behind."""


class Plan(NamedTuple):
    """What was asked for. `bootstrap` None: the embedded broker; `fleet_only`: others run the workers."""

    settings: Settings
    bootstrap: str | None
    agents: int
    seconds: float
    seed: int
    fleet_only: bool
    ui_port: int | None = None  # of the live page, 0: a free one; None: it is not served


class _InterruptedError(Exception):
    """A signal came before the fleet was at work."""


async def run_demo(plan: Plan, view: View) -> None:
    """Run it; ends after `plan.seconds` of the fleet's work, or with SIGINT or SIGTERM. A second SIGINT forces.

    Raises subclasses of `StreamguardError` if it cannot start or go on.
    """
    stop = asyncio.Event()
    with _signals(stop, view):
        try:
            await _demo(plan, view, stop)
        except _InterruptedError:
            view.say("the fleet had not begun")
        except KafkaError as error:
            raise BrokerUnavailableError(f"the demo lost its Kafka: {type(error).__name__}: {error}") from error


async def _demo(plan: Plan, view: View, stop: asyncio.Event) -> None:
    settings = plan.settings
    async with contextlib.AsyncExitStack() as stack:
        if plan.fleet_only:
            await _unless_stopped(stop, check_topics(settings))
            await _fleet(settings, plan, view, stop, None)
            return
        if plan.bootstrap is None:
            view.say("starting the embedded broker ...")
            broker = await _unless_stopped(stop, stack.enter_async_context(EmbeddedBroker()))
            settings = _own_topics(settings, broker.bootstrap, idempotence=False)
        else:
            settings = _own_topics(settings, plan.bootstrap, idempotence=True)
            stack.push_async_callback(_delete_topics, settings)  # before they are made: a signal may come in between
            view.say(
                f"asking the Kafka at {plan.bootstrap} (for {settings.kafka.connect_timeout_seconds:g} s at most) ..."
            )
        await _unless_stopped(stop, create_topics(settings))
        view.say(f"topics {settings.topics.events}, {settings.topics.verdicts} at {settings.kafka.bootstrap}")
        worker = await stack.enter_async_context(_worker(settings, view, stop))
        if plan.ui_port is not None:
            await stack.enter_async_context(_live_page(settings, plan.ui_port, view))
        await _fleet(settings, plan, view, stop, worker)


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
async def _worker(settings: Settings, view: View, stop: asyncio.Event) -> AsyncIterator[asyncio.Task[None]]:
    """Run the real worker while the block runs; its task ends before only if it fails."""
    worker = Worker(settings, PolicySet(POLICY, AGENT_POLICIES))
    view.say("the worker joins its group (a few seconds) ...")
    task = asyncio.create_task(worker.run(), name="worker")
    try:
        await _unless_stopped(stop, _ready(worker, task))
        yield task
    finally:
        worker.stop()
        await task


@contextlib.asynccontextmanager
async def _live_page(settings: Settings, port: int, view: View) -> AsyncIterator[None]:
    """Serve the live page while the block runs."""
    from streamguard.web.server import LivePage  # noqa: PLC0415 - an extra

    ui = msgspec.structs.replace(settings.ui, port=port)
    page = LivePage(msgspec.structs.replace(settings, ui=ui), PolicySet(POLICY, AGENT_POLICIES))
    serving = asyncio.create_task(page.run(), name="live page")
    listening = asyncio.create_task(page.listening())
    try:
        await asyncio.wait({serving, listening}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
        view.say("live page: http://{}:{}/".format(*listening.result()))
        yield
    finally:
        page.stop()
        await asyncio.gather(serving, return_exceptions=True)
        listening.cancel()


async def _ready(worker: Worker, task: asyncio.Task[None]) -> None:
    ready = asyncio.create_task(worker.ready())
    try:
        await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        ready.cancel()


async def _fleet(
    settings: Settings, plan: Plan, view: View, stop: asyncio.Event, worker: asyncio.Task[None] | None
) -> None:
    """Let the fleet work until its time is over, a signal comes, or the worker ends; then sum up."""
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
    work = asyncio.create_task(fleet.run(plan.seconds), name="fleet")
    clock = asyncio.create_task(_count_down(view, plan.seconds))
    stopping = asyncio.create_task(stop.wait())
    ends: set[asyncio.Future[Any]] = {work, stopping}
    if worker is not None:
        ends.add(worker)
    try:
        with view.live():
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _ended(work, clock, stopping)
    if not work.cancelled():
        work.result()
    view.summary(fleet)


async def _count_down(view: View, seconds: float) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        view.left = left
        await asyncio.sleep(0.2)


@contextlib.contextmanager
def _signals(stop: asyncio.Event, view: View) -> Iterator[None]:
    """Set `stop` with the first signal; leave the second to Python's own handlers."""
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)

    def on_signal() -> None:
        for number in numbers:
            loop.remove_signal_handler(number)
        view.say("interrupted, stopping ...")
        stop.set()

    for number in numbers:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


async def _unless_stopped(stop: asyncio.Event, step: Coroutine[Any, Any, T]) -> T:
    """Await a step of the start. Raises `_InterruptedError` as soon as a signal comes; the step is abandoned."""
    task = asyncio.create_task(step)
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            raise _InterruptedError
        return task.result()
    finally:
        await _ended(task, stopping)


async def _ended(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait for their end."""
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=CANCEL_AGAIN_SECONDS)


async def _delete_topics(settings: Settings) -> None:
    """Leave a Kafka that is not ours as it was."""
    topics = settings.topics
    kafka = msgspec.structs.replace(settings.kafka, connect_timeout_seconds=DELETE_SECONDS)
    admin = make_admin(kafka)
    with contextlib.suppress(KafkaError, StreamguardError, TimeoutError):
        await started(admin, kafka)
        names = (topics.events, topics.verdicts, topics.dead_letters, settings.state_topic, settings.policies_topic)
        await admin.delete_topics(list(names))
    await admin.close()
