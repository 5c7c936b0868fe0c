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
import sys
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

from account import Report, tell
from aiokafka import AIOKafkaProducer
from audit import compare
from faults import FAULTS, choose
from stage import Stage
from traffic import Probes, Publisher, Watch, interleaved

from streamguard.logs import configure_logs
from streamguard.policy import PolicySet
from streamguard.settings import Settings, TopicSettings
from streamguard.stream.topics import create_topics

SESSION_SECONDS: Final = 3.0
PARTITIONS: Final = 6
RECOVERY_SECONDS: Final = 120.0
"""Longest wait for answers after a fault; then the bench fails."""

AT_ONCE: Final = 0.2
"""How often the next fault comes before the guard has recovered from this one."""


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
            stuck_timeout_seconds=15.0,
        ),
        signing=replace(base.signing, key_id="bench", key="a secret of the bench"),
    )


def policy_file(folder: Path) -> Path:
    """Write the policy down, for the workers."""
    lines = [f"{key} = {str(value).lower()}\n" for key, value in (policies().block or {}).items()]
    file = folder / "policy.toml"
    file.write_text("[policy]\n" + "".join(lines))
    return file


def variables(settings: Settings, policy: Path) -> dict[str, str]:
    """Return the settings as environment variables, but for where the brokers are."""
    made = {"STREAMGUARD_CONFIG": str(policy)}
    for section in ("kafka", "topics", "worker", "signing"):
        defaults = getattr(Settings(), section)
        for name in defaults.__struct_fields__:
            value = getattr(getattr(settings, section), name)
            if value != getattr(defaults, name):
                made[f"STREAMGUARD_{section.upper()}_{name.upper()}"] = str(value)
    return made


class Options(NamedTuple):
    """What is asked of a run. `rate`: events a second; `corpus`: a folder of recorded runs."""

    faults: int
    seed: int = 1
    nodes: int = 3
    workers: int = 3
    rate: int = 200
    corpus: Path | None = None


async def run(options: Options) -> Report:
    """Run the bench; raises `TimeoutError` if the guard does not recover."""
    stage = Stage(options.nodes)
    report = Report()
    try:
        await stage.start()
        settings = make_settings(stage.nodes.bootstrap, options.nodes)
        stage.worker_variables = variables(settings, policy_file(stage.folder))
        stage.verdicts, stage.partitions = settings.topics.verdicts, PARTITIONS
        await create_topics(settings)
        for _ in range(options.workers):
            await stage.add_worker()
        await Disturbance(stage, settings.topics, report, options).happen()
        report.comparison = await compare(stage.nodes.bootstrap, settings, policies(), PARTITIONS)
        report.ended = Counter(code for worker in stage.workers for code in worker.ended_by_itself)
        report.errors = [line for worker in stage.workers for line in worker.last_words()]
    finally:
        await stage.stop()
    if report.comparison is not None and report.comparison.clean and not report.ended:
        shutil.rmtree(stage.folder, ignore_errors=True)
    else:
        print("the workers' logs are in", stage.folder)
    return report


class Disturbance:
    """Traffic, and faults meanwhile."""

    def __init__(self, stage: Stage, topics: TopicSettings, report: Report, options: Options) -> None:
        self._stage = stage
        self._topics = topics
        self._report = report
        self._options = options
        # Two of them: how long faults take must not change what is published.
        self._choice = random.Random(f"{options.seed} faults")
        self._traffic = random.Random(f"{options.seed} traffic")

    async def happen(self) -> None:
        """Publish, disturb, and at the end wait until everything is judged and said."""
        bootstrap, topics = self._stage.nodes.bootstrap, self._topics
        watch = Watch(bootstrap, topics.verdicts, PARTITIONS)
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap, enable_idempotence=True, linger_ms=10, request_timeout_ms=30_000
        )
        await producer.start()
        records = interleaved(self._options.corpus, self._traffic)
        publisher = Publisher(producer, topics.events, records, self._options.rate)
        probes = Probes(producer, topics.events, PARTITIONS, watch)
        reading = asyncio.create_task(watch.read())
        await probes.answered(RECOVERY_SECONDS)
        watch.longest_gap = 0
        publishing = asyncio.create_task(publisher.publish())
        begun = time.monotonic()
        try:
            await self._disturb(probes, (publishing, reading))
        finally:
            publishing.cancel()
            await asyncio.gather(publishing, return_exceptions=True)
        self._stage.heal()
        await producer.flush()
        await probes.answered(RECOVERY_SECONDS)  # they stand behind everything else: all is judged and said
        self._report.longest_gap, self._report.published = watch.longest_gap, publisher.published
        self._report.seconds = time.monotonic() - begun
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await producer.stop()

    async def _disturb(self, probes: Probes, tasks: tuple[asyncio.Task[None], ...]) -> None:
        begun = time.monotonic()
        for number in range(self._options.faults):
            kind = choose(self._stage, self._choice)
            await FAULTS[kind].happen(self._stage, self._choice, SESSION_SECONDS)
            if self._choice.random() < AT_ONCE:
                self._report.add(kind, None)
                continue
            seconds = await probes.answered(RECOVERY_SECONDS)
            self._report.add(kind, seconds)
            print(
                f"{number + 1:>4} {time.monotonic() - begun:6.0f} s  {kind:<28} recovered in {seconds:.1f} s",
                flush=True,
            )
            await asyncio.sleep(self._choice.uniform(0, 1))
            for task in tasks:
                if task.done():
                    task.result()


def main() -> None:
    """Run the bench from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=3, choices=(1, 3), help="Kafka brokers")
    parser.add_argument("--workers", type=int, default=3, choices=(2, 3, 4), help="workers at the start")
    parser.add_argument("--rate", type=int, default=200, help="events a second")
    parser.add_argument("--corpus", type=Path, help="folder of recorded runs (*.jsonl.gz); without it all are made up")
    options = Options(**vars(parser.parse_args()))
    configure_logs("error")
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    report = asyncio.run(run(options))
    sys.exit(0 if tell(report, seed=options.seed, nodes=options.nodes) else 1)


if __name__ == "__main__":
    main()
