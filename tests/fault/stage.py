"""What the faults happen to: Kafka nodes, proxies in front of them, and workers as processes."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from brokers.jars import java, resolve
from brokers.nodes import KafkaNodes
from proxy import Proxy

PROXIED_SLOT: Final = 0
"""The worker whose connections go through the proxies."""

RESTART_SECONDS: Final = 0.5


class WorkerProcess:
    """A place for one worker: started, killed, frozen, started again. One that ends by itself is started again."""

    def __init__(self, name: str, variables: dict[str, str], folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.ended_by_itself: list[int] = []
        self.frozen = False
        self._variables = {
            **{key: value for key, value in os.environ.items() if not key.startswith("STREAMGUARD_")},
            **variables,
        }
        self._process: asyncio.subprocess.Process | None = None
        self._wanted: asyncio.subprocess.Process | None = None  # the one that ought to run here
        self._keeper: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        """Tell whether a process is there (frozen or not)."""
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int | None:
        """The process, if there is one."""
        return self._process.pid if self._process is not None and self.running else None

    def last_words(self) -> list[str]:
        """Return the errors that workers ended with here; of a traceback the last line."""
        words: list[str] = []
        in_traceback = False
        for line in self.log.read_text(errors="replace").splitlines():
            if line.startswith("Traceback"):
                in_traceback = True
            elif line.startswith("error: ") or (in_traceback and line and not line.startswith((" ", "{", "The above"))):
                words.append(line)
                in_traceback = False
        return words

    async def start(self) -> None:
        """Start a worker here."""
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "streamguard", "run"),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._variables,
                cwd="/",
            )
        self._wanted = self._process
        self._keeper = asyncio.create_task(self._keep(self._process), name=f"keep-{self.name}")

    async def end(self, number: signal.Signals) -> None:
        """End the worker by a signal, and wait for that."""
        self._wanted = None
        if self._process is not None and self.running:
            if self.frozen:
                self.signal(signal.SIGCONT)
            self.signal(number)
            await self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        if self._process is not None and self.running:
            self.frozen = number == signal.SIGSTOP
            self._process.send_signal(number)

    async def _keep(self, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        if self._wanted is process:
            self.ended_by_itself.append(code)
            await asyncio.sleep(RESTART_SECONDS)
            if self._wanted is process:  # nobody else has started one here, or stopped, meanwhile
                await self.start()


class Stage:
    """Everything that runs. `worker_variables` are the settings of the workers, but for the bootstrap address."""

    def __init__(self, nodes: int) -> None:
        self.nodes_count = nodes
        self.proxies = [Proxy() for _ in range(nodes)]
        self.workers: list[WorkerProcess] = []
        self.verdicts = ""
        self.partitions = 0
        self.folder = Path(tempfile.mkdtemp(prefix="streamguard-fault-"))
        self.worker_variables: dict[str, str] = {}

    async def start(self) -> None:
        """Start proxies and nodes; workers are added one by one."""
        for proxy in self.proxies:
            await proxy.start()
        addresses = [proxy.address for proxy in self.proxies]
        self.nodes = KafkaNodes(java(), await asyncio.to_thread(resolve), self.nodes_count, addresses)
        await asyncio.to_thread(self.nodes.start)
        for proxy, target in zip(self.proxies, self.nodes.proxied_targets, strict=True):
            host, port = target.split(":")
            proxy.target = (host, int(port))
        await self.nodes.wait_ready()

    async def add_worker(self) -> WorkerProcess:
        """Start a worker in the first place that is free."""
        for worker in self.workers:
            if not worker.running:
                await worker.start()
                return worker
        proxied = len(self.workers) == PROXIED_SLOT
        bootstrap = ",".join(proxy.address for proxy in self.proxies) if proxied else self.nodes.bootstrap
        variables = {**self.worker_variables, "STREAMGUARD_KAFKA_BOOTSTRAP": bootstrap}
        worker = WorkerProcess(f"worker-{len(self.workers)}", variables, self.folder)
        self.workers.append(worker)
        await worker.start()
        return worker

    @property
    def running(self) -> int:
        """Count the workers that are there."""
        return sum(worker.running for worker in self.workers)

    def any_running(self, choice: random.Random) -> WorkerProcess:
        """Choose a worker that is there. Raises `IndexError` if there is none."""
        return choice.choice([worker for worker in self.workers if worker.running])

    def heal(self) -> None:
        """Let every connection through as it is."""
        for proxy in self.proxies:
            proxy.delay_seconds, proxy.bytes_per_second, proxy.refuse = 0.0, None, False

    async def stop(self) -> None:
        """Stop everything."""
        for worker in self.workers:
            await worker.end(signal.SIGKILL)
        for proxy in self.proxies:
            await proxy.stop()
        if hasattr(self, "nodes"):
            await asyncio.to_thread(self.nodes.stop)
