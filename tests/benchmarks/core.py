"""How long the core takes for a call with its result, from JSON bytes to verdicts.

Run: python tests/benchmarks/core.py [--seconds 2]

Compared, in the same process and on the same records, with bare JSON decoding by the standard library (what any
Python consumer pays before it has judged anything) and by msgspec. Times are per pair (one tool_call and its
tool_result), the median of many short rounds, in microseconds.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import msgspec

from streamguard.events import Source, decode_event
from streamguard.guard import Guard
from streamguard.policy import resolve

TARGETS = {"small": 5.0, "4 KB": 12.0}
"""Microseconds per pair, on one core of a current server."""

PAIRS = 2_000
"""Pairs in a round: two thousand over fifty runs."""


def log(text: str, *, looping: bool) -> list[bytes]:
    """Make a round of records: fifty interleaved runs, each call followed by its result."""
    records = []
    for number in range(PAIRS):
        run, call = f"run-{number % 50}", f"c{number}"
        command = "make test" if looping else f"make test-{number}"
        records.append(
            {"type": "tool_call", "run_id": run, "agent_id": "safe-runner", "call_id": call, "tool": "read",
             "args": {"command": command}}
        )  # fmt: skip
        result = {"content": [{"type": "text", "text": text}], "details": {"status": "ok", "exitCode": 1}}
        records.append({"type": "tool_result", "run_id": run, "call_id": call, "result": result})
    return [json.dumps(record, separators=(",", ":")).encode() for record in records]


def measure(step: Callable[[list[bytes]], object], records: list[bytes], seconds: float) -> float:
    """Return the median time per pair in microseconds over rounds that fill the given seconds."""
    step(records)
    rounds: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(rounds) < 5:
        start = time.perf_counter()
        step(records)
        rounds.append((time.perf_counter() - start) / PAIRS * 1e6)
    return statistics.median(rounds)


def judge_all(records: list[bytes], history: int = 30) -> int:
    """Decode and judge a round with a fresh guard; return the number of verdicts."""
    guard = Guard(resolve({"enabled": True, "historySize": history}))
    observe = guard.observe
    verdicts = 0
    for offset, record in enumerate(records):
        event = decode_event(record)
        if event is not None:
            verdicts += len(observe(event, Source("agent.events", 0, offset, offset)))
    return verdicts


def stdlib(records: list[bytes]) -> None:
    """Decode a round with the json module, and do nothing."""
    for record in records:
        json.loads(record)


def bare(records: list[bytes]) -> None:
    """Decode a round with msgspec into plain objects, and do nothing."""
    decode = msgspec.json.Decoder().decode
    for record in records:
        decode(record)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each figure is measured")
    seconds = parser.parse_args().seconds
    gc.disable()
    line = "total 48 drwxr-xr-x 5 root root 4096 Dec  1 08:53 src/module\n"
    print(f"Python {sys.version.split()[0]}, microseconds per call with its result, medians")
    print(f"{'payload':<22}{'streamguard':>12}{'target':>8}{'json.loads':>12}{'ratio':>7}{'msgspec':>9}{'ratio':>7}")
    for name, text in {"small": "2 failed", "4 KB": line * (4096 // len(line))}.items():
        for looping in (False, True):
            records = log(text, looping=looping)
            ours, theirs, floor = (measure(step, records, seconds) for step in (judge_all, stdlib, bare))
            label = f"{name}, {'repeated' if looping else 'all different'}"
            print(
                f"{label:<22}{ours:>12.2f}{TARGETS[name]:>8.0f}{theirs:>12.2f}{ours / theirs:>7.2f}"
                f"{floor:>9.2f}{ours / floor:>7.2f}"
            )
    records = log("2 failed", looping=True)
    sizes = {size: measure(partial(judge_all, history=size), records, seconds) for size in (30, 300, 3000)}
    print("\nhistorySize: " + ", ".join(f"{size} → {figure:.2f} µs" for size, figure in sizes.items()))


if __name__ == "__main__":
    main()
