"""How long the core takes for a call with its result, from JSON bytes to verdicts.

Run: python tests/benchmarks/core.py [--seconds 2]

Compared, in the same process and on the same records, with bare JSON decoding by the standard library (what any
Python consumer pays before it has judged anything) and by msgspec. Times are per pair (one tool_call and its
tool_result), in microseconds: the best of many short rounds, taken in turn, as other programs on the machine can only
add to it; in brackets the median.
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

LEAST_ROUNDS = 5


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


def measure(records: list[bytes], seconds: float, *steps: Callable[[list[bytes]], object]) -> list[tuple[float, float]]:
    """Return best and median time per pair of each step, in microseconds; the steps take turns, round by round."""
    rounds: list[list[float]] = [[] for _ in steps]
    end = time.perf_counter() + seconds * len(steps)
    while time.perf_counter() < end or len(rounds[0]) < LEAST_ROUNDS:
        for step, times in zip(steps, rounds, strict=True):
            start = time.perf_counter()
            step(records)
            times.append((time.perf_counter() - start) / PAIRS * 1e6)
    return [(min(times), statistics.median(times)) for times in rounds]


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
    print(f"Python {sys.version.split()[0]}, microseconds per call with its result: best (median)")
    print(f"{'payload':<22}{'streamguard':>18}{'target':>8}{'json.loads':>18}{'ratio':>7}{'msgspec':>9}{'ratio':>7}")
    for name, text in {"small": "2 failed", "4 KB": line * (4096 // len(line))}.items():
        for looping in (False, True):
            records = log(text, looping=looping)
            ours, theirs, floor = measure(records, seconds, judge_all, stdlib, bare)
            label = f"{name}, {'one long loop' if looping else 'all different'}"
            print(
                f"{label:<22}{shown(ours):>18}{TARGETS[name]:>8.0f}{shown(theirs):>18}{ours[0] / theirs[0]:>7.2f}"
                f"{floor[0]:>9.2f}{ours[0] / floor[0]:>7.2f}"
            )
    print("In the long loop every second call is blocked: its time includes making that verdict.")
    records = log("2 failed", looping=True)
    sizes = (30, 300, 3000)
    figures = measure(records, seconds, *(partial(judge_all, history=size) for size in sizes))
    table = ", ".join(f"{size}: {best:.2f}" for size, (best, _) in zip(sizes, figures, strict=True))
    print(f"\nby historySize, in the long loop: {table}")


def shown(figure: tuple[float, float]) -> str:
    """Write best and median."""
    return f"{figure[0]:.2f} ({figure[1]:.2f})"


if __name__ == "__main__":
    main()
