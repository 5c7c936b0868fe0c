"""What the demo shows: a live table on a terminal, a line per verdict elsewhere; at the end a summary."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from streamguard.demo.fleet import Agent, Fleet
from streamguard.verdicts import Verdict

__all__ = ["View"]

COLOURS: Final = {
    "warn": "yellow", "block": "red", "abort": "bold magenta",
    "working": "green", "done": "green", "warned": "yellow", "blocked": "red", "gave up": "red",
    "aborted": "bold magenta",
}  # fmt: skip

COLUMNS: Final = {"agent": 11, "what it does": 19, "tool": 10, "calls": 5, "state": 8, "last verdict": 36}
"""Widths in characters: all in all a terminal of 100 columns."""


EXPLAINED: Final = "what it does"
WIDE: Final = 100
"""Columns of a terminal from which on the table also explains its agents."""


class View:
    """The screen. `agents` is the fleet's list once there is one."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.agents: list[Agent] = []
        self.left = 0.0  # seconds
        self._heard = 0

    def say(self, text: str) -> None:
        """Tell what is going on."""
        self.console.print(text, style="dim", highlight=False, soft_wrap=True)

    @contextmanager
    def live(self) -> Iterator[None]:
        """Show the table while the block runs, if this is a terminal."""
        if not self.console.is_terminal:
            yield
            return
        with Live(get_renderable=self._table, console=self.console, refresh_per_second=5, transient=False):
            yield

    def verdict(self, agent: Agent, verdict: Verdict) -> None:
        """Show a verdict."""
        self._heard += 1
        if not self.console.is_terminal:
            line = Text(f"{verdict.action:<5} ", style=COLOURS[verdict.action])
            line.append(
                f"{agent.name:<14} {verdict.tool or '':<14} {verdict.detector} ({verdict.count} calls)", style=""
            )
            self.console.print(line, soft_wrap=True)

    def summary(self, fleet: Fleet) -> None:
        """Print what happened."""
        calls = sum(agent.calls for agent in fleet.agents)
        saved = sum(agent.saved for agent in fleet.agents)
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_row("calls made", f"{calls:,}")
        table.add_row("calls saved by blocking", f"{saved:,}")
        table.add_row("runs aborted", f"{fleet.aborted:,}")
        for (action, detector), number in sorted(fleet.verdicts.items()):
            table.add_row(Text(f"{action} by {detector}", style=COLOURS[action]), f"{number:,}")
        if fleet.latencies:
            table.add_row("median time from event to verdict", f"{statistics.median(fleet.latencies) * 1000:.1f} ms")
        self.console.print("\n[bold]summary[/bold]", table, sep="\n")

    def _table(self) -> Group:
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
        columns = {name: width for name, width in COLUMNS.items() if name != EXPLAINED or self.console.width >= WIDE}
        for name, width in columns.items():
            table.add_column(name, width=width, no_wrap=True, justify="right" if name == "calls" else "left")
        for agent in self.agents:
            cells: dict[str, str | Text] = {
                "agent": agent.name,
                EXPLAINED: Text(agent.kind.what, style="" if agent.kind.loops else "dim"),
                "tool": agent.tool,
                "calls": str(agent.calls),
                "state": Text(agent.state, style=COLOURS.get(agent.state, "dim")),
                "last verdict": _last(agent.verdict),
            }
            table.add_row(*(cells[name] for name in columns))
        return Group(
            table, Text(f"\n{self._heard} verdicts, {max(0, round(self.left))} s left, Ctrl-C ends it", style="dim")
        )


def _last(verdict: Verdict | None) -> Text:
    if verdict is None:
        return Text("")
    return Text(f"{verdict.action}: {verdict.detector} ({verdict.count})", style=COLOURS[verdict.action])
