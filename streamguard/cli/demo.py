"""`streamguard demo`: see looping agents being stopped."""

from __future__ import annotations

import asyncio
import os
from typing import Final

import click
from rich.console import Console

from streamguard.logs import configure_logs
from streamguard.settings_file import load_service

__all__ = ["command"]

LOOPING: Final = 6
"""Kinds of looping agents; a smaller fleet would not show them all."""


@click.command("demo", short_help="Watch looping agents being stopped.")
@click.option(
    "--seconds", type=click.FloatRange(min=1), default=40, show_default=True, help="How long the fleet works."
)
@click.option("--agents", type=click.IntRange(LOOPING, 200), default=12, show_default=True, help="Agents in the fleet.")
@click.option("--bootstrap", metavar="HOST:PORT", help="A real Kafka instead of the embedded broker.")
@click.option(
    "--ui",
    "ui_port",
    type=click.IntRange(0, 65_535),
    is_flag=False,
    flag_value=8322,
    help="Serve the live page, too, at this port [default: 8322] (extra `ui`).",
)
@click.option("--fleet-only", is_flag=True, help="Only the fleet, on the service's own topics: workers run elsewhere.")
@click.option("--seed", type=int, default=1, show_default=True, help="What the agents do.")
def command(
    *, seconds: float, agents: int, bootstrap: str | None, seed: int, ui_port: int | None, fleet_only: bool
) -> None:
    """Run a fleet of simulated agents, the real worker and an embedded broker; no Docker, no Java.

    Six agents loop, one in each documented way; the others are healthy. Their executor obeys verdicts.
    With --bootstrap the same on a real Kafka, on topics of its own, which are deleted at the end.
    """
    from streamguard.demo.run import Plan, run_demo  # noqa: PLC0415 - Kafka clients load only when they are used
    from streamguard.demo.view import View  # noqa: PLC0415

    if ui_port is not None:
        from streamguard.cli.ui import check_extra  # noqa: PLC0415 - only then

        check_extra()
    overrides = {"kafka.bootstrap": bootstrap} if bootstrap is not None else {}
    settings, _ = load_service(None, os.environ, overrides)
    configure_logs("critical", "console")  # whatever ends the demo is raised, and told in one line
    plan = Plan(settings, bootstrap, agents, seconds, seed, fleet_only, ui_port)
    asyncio.run(run_demo(plan, View(Console())))
