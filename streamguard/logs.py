"""Logs: structlog on standard error, for people on a terminal, as JSON elsewhere; libraries' own logs look the same."""

from __future__ import annotations

import logging
import sys
import time
from typing import Final, Literal

import structlog

__all__ = ["Seldom", "configure_logs"]

LEAST: Final = {
    "aiokafka": logging.INFO,  # at debug it logs every record that it sends: payloads stay out of logs
    "aiokafka.consumer.group_coordinator": logging.WARNING,  # at info it tells what a worker tells in its own words
    "aiokafka.consumer.subscription_state": logging.WARNING,
    "uvicorn.error": logging.WARNING,  # at info it tells of its own life, which is the gateway's
}
"""The finest level at which libraries are heard, whatever the settings say."""

SELDOM_SECONDS: Final = 10.0
"""How often the Kafka client may say the same thing: while no broker answers it repeats itself all the time."""

SELDOM_MESSAGES: Final = 256
"""Messages that are remembered."""


class Seldom(logging.Filter):
    """Lets each message of the Kafka client through once in `SELDOM_SECONDS`, whatever is filled into it."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether a record is let through."""
        if not record.name.startswith("aiokafka"):
            return True
        said, now = (record.name, str(record.msg)[:100]), time.monotonic()
        if now - self._last.get(said, -SELDOM_SECONDS) < SELDOM_SECONDS:
            return False
        if len(self._last) >= SELDOM_MESSAGES:
            self._last.clear()
        self._last[said] = now
        return True


def configure_logs(
    level: str = "info", style: Literal["auto", "console", "json"] = "auto", *, libraries: bool = True
) -> None:
    """Set up logging for this process. `auto`: console on a terminal, else JSON, one object a line.

    Without `libraries` the Kafka client is not heard: a command that ends with its error need not repeat it before.
    """
    console = style == "console" or (style == "auto" and sys.stderr.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    last: list[structlog.typing.Processor] = (
        [
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(),
                exception_formatter=structlog.dev.plain_traceback,  # rich's would show locals: payloads and secrets
            )
        ]
        if console
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(Seldom())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for name, least in LEAST.items():
        heard = libraries or not name.startswith("aiokafka")
        logging.getLogger(name).setLevel(max(least, root.level) if heard else logging.CRITICAL)
