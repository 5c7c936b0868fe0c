"""What SIGTERM and SIGINT do to a service: the first drains, the second ends it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any, Final

__all__ = ["obey_signals"]

FORCED: Final = 5
"""Exit code after a second signal: nothing was drained."""


def obey_signals(stop: Callable[[], None], log: Any) -> None:
    """First signal: drain and stop. Second: out at once."""
    loop = asyncio.get_running_loop()
    asked = False

    def on_signal(name: str) -> None:
        nonlocal asked
        if asked:
            log.warning("second signal, ending at once", signal=name)
            os._exit(FORCED)
        asked = True
        log.info("stopping", signal=name)
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number.name)
