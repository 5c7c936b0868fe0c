"""Verifying a whole topic on all cores: each process takes one partition after the other."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from multiprocessing.sharedctypes import SynchronizedArray
from typing import Final

from streamguard.audit.comparison import Tally, sum_of
from streamguard.audit.verify import Scope, Span, verify_partition
from streamguard.logs import configure_logs
from streamguard.settings import Settings
from streamguard.stream.ruleset import Ruleset

__all__ = ["verify_topic"]

TELL_SECONDS: Final = 0.2
"""How often it is told how many events were judged."""

_done: SynchronizedArray[int]
"""Events judged of each span, in every process the same memory."""


async def verify_topic(
    settings: Settings,
    spans: Sequence[Span],
    scope: Scope,
    fallback: Ruleset | None,
    *,
    processes: int | None = None,
    tell: Callable[[int], None] = lambda _: None,
) -> Tally:
    """Verify spans of events, on `processes` (all cores if None); `tell` hears how many events were judged.

    Raises what `verify_partition` does.
    """
    context = multiprocessing.get_context("spawn")
    done = context.Array("q", len(spans))
    workers = min(processes or os.cpu_count() or 1, len(spans))
    with ProcessPoolExecutor(workers, context, _begin, (done, settings.log.level)) as pool:
        work = [
            pool.submit(_verify, index, settings, span, scope, fallback)
            for index, span in sorted(enumerate(spans), key=lambda item: item[1].first - item[1].end)
        ]
        try:
            await _finished(work, done, tell)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return sum_of(each.result() for each in work)


async def _finished(work: Sequence[Future[Tally]], done: SynchronizedArray[int], tell: Callable[[int], None]) -> None:
    """Wait until all is done, or something has failed."""
    waiting = {asyncio.wrap_future(each) for each in work}
    while waiting:
        over, waiting = await asyncio.wait(waiting, timeout=TELL_SECONDS, return_when=asyncio.FIRST_EXCEPTION)
        tell(sum(done[:]))
        for each in over:
            each.result()


def _begin(done: SynchronizedArray[int], level: str) -> None:
    global _done  # noqa: PLW0603 - a process has no other way to be given shared memory
    _done = done
    configure_logs("error" if level != "debug" else level)


def _verify(index: int, settings: Settings, span: Span, scope: Scope, fallback: Ruleset | None) -> Tally:
    return asyncio.run(verify_partition(settings, span, scope, fallback, partial(_tell, index)))


def _tell(index: int, judged: int) -> None:
    _done[index] = judged
