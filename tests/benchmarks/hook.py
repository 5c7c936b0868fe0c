"""What the hook of Claude Code costs a call of a tool, beside Python's own start, in turns, in the same run.

    python tests/benchmarks/hook.py

The gateway is a thread of this process that answers at once: what the guard takes comes on top.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "integrations")]

from stub_gateway import StubGateway

CALL = {
    "session_id": "s", "hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_use_id": "t",
    "tool_input": {"command": "make test", "description": "Run the tests"},
}  # fmt: skip
RESULT = {**CALL, "hook_event_name": "PostToolUse", "tool_response": {"stdout": "x" * 2000, "stderr": ""}}


def commands(url: str) -> dict[str, tuple[list[str], str]]:
    """Return what is started, and what it is given on stdin, by name."""
    folder = Path(sys.executable).parent
    script = shutil.which("streamguard-hook", path=folder)
    hook = [script] if script else [sys.executable, "-m", "streamguard.hook"]
    return {
        "python -S -c pass": ([sys.executable, "-S", "-c", "pass"], ""),
        "python -c pass": ([sys.executable, "-c", "pass"], ""),
        "hook, call": ([*hook, "--url", url], json.dumps(CALL)),
        "hook, result": ([*hook, "--url", url], json.dumps(RESULT)),
        "hook, no gateway": ([*hook, "--url", "http://127.0.0.1:1"], json.dumps(CALL)),
        "streamguard hook, call": ([sys.executable, "-m", "streamguard", "hook", "--url", url], json.dumps(CALL)),
    }


def main() -> None:
    """Measure in turns, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    with StubGateway() as gateway:
        taken: dict[str, list[float]] = {name: [] for name in commands(gateway.url)}
        for _ in range(rounds):
            for name, (command, stdin) in commands(gateway.url).items():
                begun = time.perf_counter()
                subprocess.run(command, input=stdin, text=True, capture_output=True, check=True)
                taken[name].append((time.perf_counter() - begun) * 1000)
    bare = statistics.median(taken["python -c pass"])
    barest = statistics.median(taken["python -S -c pass"])
    print(f"Python {sys.version.split()[0]}, {rounds} rounds, load {os.getloadavg()[0]:.1f}; milliseconds")
    print(f"{'':<24}{'median':>8}{'minimum':>9}{'over python':>13}{'over python -S':>16}")
    for name, times in taken.items():
        median = statistics.median(times)
        print(f"{name:<24}{median:>8.1f}{min(times):>9.1f}{median - bare:>13.1f}{median - barest:>16.1f}")


if __name__ == "__main__":
    main()
