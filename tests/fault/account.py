"""What the fault bench tells at the end: a table of the faults, and what became of the verdicts."""

from __future__ import annotations

import statistics
from collections import Counter

from audit import Comparison
from faults import FAULTS
from rich.console import Console
from rich.table import Table


class Report:
    """What is told at the end."""

    def __init__(self) -> None:
        self.recoveries: dict[str, list[float | None]] = {}
        self.longest_gap = 0.0
        self.published = 0
        self.seconds = 0.0
        self.ended: Counter[int] = Counter()
        self.errors: list[str] = []  # that workers ended with
        self.comparison: Comparison | None = None

    @property
    def faults(self) -> int:
        """Count all faults."""
        return sum(map(len, self.recoveries.values()))

    def add(self, kind: str, seconds: float | None) -> None:
        """Note a fault and how long it took from its end until every partition answered; None: nobody looked."""
        self.recoveries.setdefault(kind, []).append(seconds)


def tell(report: Report, *, seed: int, nodes: int) -> bool:
    """Print the account; tell whether nothing was lost, doubled or different."""
    console = Console(width=100)
    table = Table(title=f"{report.faults} faults, seed {seed}, {nodes} broker(s), {report.seconds:.0f} s")
    for name in ("fault", "times", "recovery median", "recovery worst"):
        table.add_column(name, justify="left" if name == "fault" else "right")
    for kind in FAULTS:
        told = f"{kind}, from SIGCONT" if kind.startswith("SIGSTOP") else kind
        seconds = [value for value in report.recoveries.get(kind, []) if value is not None]
        table.add_row(
            told,
            str(len(report.recoveries.get(kind, []))),
            f"{statistics.median(seconds):.1f} s" if seconds else "-",
            f"{max(seconds):.1f} s" if seconds else "-",
        )
    console.print(table)
    done = report.comparison
    if done is None:
        return False
    probes = done.events - report.published
    console.print(f"{report.published} events published (and {probes} probes); {done.expected} verdicts expected,")
    console.print(
        f"{done.found} found: [bold]{done.missing} missing, {done.doubled} doubled, {done.different} different, "
        f"{done.unexpected} unexpected, {done.badly_signed} badly signed[/bold]"
    )
    console.print(
        f"{done.packed} events in MessagePack; {done.poison} records that are no events: "
        f"{done.poison_lost} missing from the dead letters, "
        f"{done.poison_doubled} there twice"
    )
    console.print(
        f"longest gap without verdicts, all partitions together, {report.longest_gap:.1f} s; "
        f"workers that ended by themselves: {dict(report.ended) or 'none'}"
    )
    for line in report.errors:
        console.print(f"  {line}", markup=False)
    return done.clean
