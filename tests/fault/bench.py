"""The fault bench: recorded and random runs at a steady rate, workers and brokers that fail, and the account of it.

    python tests/fault/bench.py --faults 200 --seed 1

Needs Java 17 and Maven. At the end the events topic is replayed through the core, and every verdict on the topic is
compared with what that gives, byte for byte. Exit code 1 unless they are the same.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import shutil
import statistics
import sys
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any, Final

import msgspec

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

from aiokafka import AIOKafkaProducer
from audit import Comparison, compare
from faults import FAULTS
from rich.console import Console
from rich.table import Table
from stage import Stage
from traffic import Probes, Publisher, Watch, interleaved

from streamguard.logs import configure_logs
from streamguard.policy import PolicySet
from streamguard.settings import Settings
from streamguard.stream.topics import create_topics

SESSION_SECONDS: Final = 3.0
PARTITIONS: Final = 6
RECOVERY_SECONDS: Final = 120.0
"""Longest wait for answers after a fault; then the bench fails."""


class Report:
    """What is told at the end."""

    def __init__(self) -> None:
        self.recoveries: dict[str, list[float]] = {}
        self.longest_gap = 0.0
        self.published = 0
        self.seconds = 0.0
        self.ended: Counter[int] = Counter()
        self.comparison: Comparison | None = None

    @property
    def faults(self) -> int:
        """Count all faults."""
        return sum(map(len, self.recoveries.values()))

    def add(self, kind: str, seconds: float) -> None:
        """Note a fault and how long it took from its end until every partition answered."""
        self.recoveries.setdefault(kind, []).append(seconds)


def policies() -> PolicySet:
    """Return the policy of the workers: everything on, with thresholds that recorded runs reach too."""
    return PolicySet({"enabled": True, "warningThreshold": 4, "criticalThreshold": 8})


def make_settings(bootstrap: str, nodes: int) -> Settings:
    """Return the settings of the workers: short times, so that many faults fit into a run."""
    base = Settings()
    prefix = f"f{uuid.uuid4().hex[:8]}"
    replace = msgspec.structs.replace
    return replace(
        base,
        kafka=replace(base.kafka, bootstrap=bootstrap, request_timeout_ms=5_000, connect_timeout_seconds=60.0),
        topics=replace(
            base.topics,
            events=f"{prefix}.events",
            verdicts=f"{prefix}.verdicts",
            dead_letters=f"{prefix}.dlq",
            partitions=PARTITIONS,
            replication_factor=min(3, nodes),
        ),
        worker=replace(
            base.worker,
            group=prefix,
            session_timeout_ms=int(SESSION_SECONDS * 1000),
            heartbeat_interval_ms=300,
            checkpoint_interval_seconds=1.0,
            checkpoint_timeout_seconds=10.0,
            stop_grace_seconds=10.0,
        ),
    )


def variables(settings: Settings, policy: Path) -> dict[str, str]:
    """Return the settings as environment variables, but for where the brokers are."""
    made = {"STREAMGUARD_CONFIG": str(policy)}
    for section in ("kafka", "topics", "worker"):
        defaults = getattr(Settings(), section)
        for name in defaults.__struct_fields__:
            value = getattr(getattr(settings, section), name)
            if value != getattr(defaults, name):
                made[f"STREAMGUARD_{section.upper()}_{name.upper()}"] = str(value)
    return made


async def run(*, faults: int, seed: int, nodes: int, workers: int, rate: int, corpus: Path | None) -> Report:
    """Run the bench; raises `TimeoutError` if the guard does not recover."""
    choice = random.Random(seed)
    stage = Stage(nodes, {})
    report = Report()
    try:
        await stage.start()
        settings = make_settings(stage.nodes.bootstrap, nodes)
        policy = stage.folder / "policy.toml"
        policy.write_text(
            "[policy]\n" + "".join(f"{k} = {str(v).lower()}\n" for k, v in (policies().block or {}).items())
        )
        stage._variables.update(variables(settings, policy))
        stage.verdicts, stage.partitions = settings.topics.verdicts, PARTITIONS
        await create_topics(settings)
        for _ in range(workers):
            await stage.add_worker()
        await _disturb(stage, settings, report, choice, faults, interleaved(corpus, choice), rate)
        report.comparison = await compare(stage.nodes.bootstrap, settings, policies(), PARTITIONS)
        report.ended = Counter(code for worker in stage.workers for code in worker.ended_by_itself)
    finally:
        await stage.stop()
    if report.comparison is not None and report.comparison.clean:
        shutil.rmtree(stage.folder, ignore_errors=True)
    else:
        print("the workers' logs are in", stage.folder)
    return report


async def _disturb(
    stage: Stage, settings: Settings, report: Report, choice: random.Random, faults: int, records: Any, rate: int
) -> None:
    topics = settings.topics
    producer = AIOKafkaProducer(
        bootstrap_servers=stage.nodes.bootstrap, enable_idempotence=True, linger_ms=10, request_timeout_ms=30_000
    )
    await producer.start()
    watch = Watch(stage.nodes.bootstrap, topics.verdicts, PARTITIONS)
    probes = Probes(producer, topics.events, PARTITIONS, watch)
    publisher = Publisher(producer, topics.events, records, rate)
    reading = asyncio.create_task(watch.read())
    await probes.answered(RECOVERY_SECONDS)
    watch.longest_gap = 0
    publishing = asyncio.create_task(publisher.publish())
    begun = time.monotonic()
    kinds, weights = list(FAULTS), [weight for _, weight in FAULTS.values()]
    try:
        for number in range(faults):
            kind = choice.choices(kinds, weights)[0]
            await FAULTS[kind][0](stage, choice, SESSION_SECONDS)
            ended = time.monotonic()
            if choice.random() < 0.2:  # now and then the next one comes at once
                report.add(kind, float("nan"))
                continue
            seconds = await probes.answered(RECOVERY_SECONDS)
            report.add(kind, seconds)
            print(
                f"{number + 1:>4} {time.monotonic() - begun:6.0f} s  {kind:<28} recovered in {seconds:.1f} s",
                flush=True,
            )
            await asyncio.sleep(choice.uniform(0, 1.0) if time.monotonic() - ended < 5 else 0)
            for task in (publishing, reading):
                if task.done():
                    task.result()
    finally:
        publishing.cancel()
        await asyncio.gather(publishing, return_exceptions=True)
    stage.heal()
    await producer.flush()
    await probes.answered(RECOVERY_SECONDS)  # they stand behind everything else: all is judged and said
    report.longest_gap, report.published, report.seconds = (
        watch.longest_gap,
        publisher.published,
        time.monotonic() - begun,
    )
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await producer.stop()


def tell(report: Report, *, seed: int, nodes: int) -> bool:
    """Print the account; tell whether nothing was lost, doubled or different."""
    console = Console(width=100)
    table = Table(title=f"{report.faults} faults, seed {seed}, {nodes} broker(s), {report.seconds:.0f} s")
    for name in ("fault", "times", "recovery median", "recovery worst"):
        table.add_column(name, justify="left" if name == "fault" else "right")
    for kind in FAULTS:
        seconds = [value for value in report.recoveries.get(kind, []) if value == value]  # noqa: PLR0124 - no NaN
        table.add_row(
            kind,
            str(len(report.recoveries.get(kind, []))),
            f"{statistics.median(seconds):.1f} s" if seconds else "-",
            f"{max(seconds):.1f} s" if seconds else "-",
        )
    console.print(table)
    done = report.comparison
    if done is None:
        return False
    console.print(
        f"events published {report.published} (and probes {done.events - report.published}), verdicts expected {done.expected}, found {done.found}: "
        f"[bold]{done.missing} missing, {done.doubled} doubled, {done.different} different, "
        f"{done.unexpected} unexpected[/bold]; longest gap without verdicts {report.longest_gap:.1f} s; "
        f"workers that ended by themselves: {dict(report.ended) or 'none'}"
    )
    return done.clean


def main() -> None:
    """Run the bench from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=3, choices=(1, 3), help="Kafka brokers")
    parser.add_argument("--workers", type=int, default=3, choices=(2, 3, 4), help="workers at the start")
    parser.add_argument("--rate", type=int, default=200, help="events a second")
    parser.add_argument("--corpus", type=Path, help="folder of recorded runs (*.jsonl.gz); without it all are made up")
    options = vars(parser.parse_args())
    configure_logs("error")
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    report = asyncio.run(run(**options))
    sys.exit(0 if tell(report, seed=options["seed"], nodes=options["nodes"]) else 1)


if __name__ == "__main__":
    main()
