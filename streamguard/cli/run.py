"""`streamguard run`: one worker of the group, until a signal stops it."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

import click
import structlog

from streamguard.cli.service import load, service_options, worker_options
from streamguard.cli.signals import obey_signals
from streamguard.errors import MissingExtraError
from streamguard.policy_file import load_policy_file

if TYPE_CHECKING:
    from streamguard.settings import MetricsSettings, Settings
    from streamguard.stream.status import Status
    from streamguard.stream.telling import Telling

__all__ = ["command"]

log = structlog.get_logger("streamguard.run")

NEEDED_BY_METRICS: Final = ("prometheus_client", "starlette", "uvicorn")

Serving: TypeAlias = "Callable[[Callable[[], Status | None]], AbstractAsyncContextManager[Any]]"
"""Serves what there is to know of a worker, given its `status`, while a block runs."""


@click.command("run", short_help="Run a worker: events in, verdicts out.")
@service_options
@click.option("--policy", type=click.Path(path_type=Path), help="Policy file, if not part of the configuration.")
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Worker processes on this machine; a crashed one is restarted.",
)
@worker_options
def command(
    *,
    config: Path | None,
    bootstrap: str | None,
    policy: Path | None,
    group: str | None,
    workers: int,
    on_lost_position: str | None,
) -> None:
    """Read events, judge them, publish verdicts, until SIGTERM or SIGINT.

    The policy file is watched: a valid change is taken within seconds, at an offset that each partition records; an
    invalid one is refused, and the old policy stays. Other settings are read once.

    The first signal drains: what was judged is acknowledged and written down. A second one ends the process at once;
    nothing is lost by that either, since whoever goes on starts from the last checkpoint.

    \b
    Exit codes:
      0  stopped by a signal, drained
      1  cannot go on: delivery failed, position lost, topics missing or mismatched, no broker, metrics.port taken
      2  wrong usage or configuration; nothing was started
      3  refused by Kafka: wrong credentials, a certificate that is not trusted, a missing ACL
      4  stuck: nothing has moved for worker.stuck_timeout_seconds
      5  forced by a second signal

    With --workers, a process that ends with 1 or 4 or crashes is started again; 2 and 3 end all of them.
    """  # noqa: D301 - \b is click's mark against rewrapping
    settings, policies = load(
        config,
        policy,
        kafka__bootstrap=bootstrap,
        worker__group=group,
        worker__on_lost_position=on_lost_position,
    )
    if settings.metrics.enabled:
        _check_extra()
    if workers > 1:
        _supervise(workers, settings)
    if policies.of(None).enabled is not True:
        log.warning(
            "rolling detectors are off for agents without a block of their own",
            hint="policy.enabled = true turns them on: --config config/streamguard.toml, or --policy FILE",
        )
    from streamguard.stream.policy_watch import PolicyFile  # noqa: PLC0415 - Kafka clients load only when used
    from streamguard.stream.worker import Worker  # noqa: PLC0415

    file = policy or config or (Path(named) if (named := os.environ.get("STREAMGUARD_CONFIG")) else None)
    watched = PolicyFile(file, lambda: load_policy_file(file).policies, policies) if file is not None else None

    async def serve() -> None:
        structlog.contextvars.bind_contextvars(pid=os.getpid())
        telling, serving = _telemetry(settings.metrics)
        worker = Worker(settings, policies, watched, telling)
        obey_signals(worker.stop, log)
        async with serving(worker.status):
            await worker.run()

    # asyncio's own loop: on uvloop, a connection that is cut can end aiokafka's fetching in silence.
    asyncio.run(serve())


def _telemetry(settings: MetricsSettings) -> tuple[Telling, Serving]:
    """Return whom a worker tells of its life, and what serves that; both are nothing unless metrics are enabled."""
    if not settings.enabled:
        from streamguard.stream.telling import QUIET  # noqa: PLC0415 - needed here only

        return QUIET, lambda _: nullcontext()
    from streamguard.telemetry import Metrics, serving  # noqa: PLC0415 - an extra

    metrics = Metrics()
    return metrics, partial(serving, settings, metrics)


def _check_extra() -> None:
    missing = [name for name in NEEDED_BY_METRICS if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"metrics.enabled needs {' and '.join(missing)}, which is not installed: pip install 'streamguard[metrics]'"
        )


def _supervise(workers: int, settings: Settings) -> NoReturn:
    """Run several workers as processes, each with the flags that we were given."""
    from streamguard.cli.supervisor import Supervisor, own_variables, worker_command  # noqa: PLC0415 - rarely needed

    command = worker_command(click.get_current_context())
    sys.exit(asyncio.run(Supervisor(command, workers, partial(own_variables, settings)).run()))
