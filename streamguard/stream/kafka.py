"""How Kafka clients are made: security, tuning, deadlines. Nothing else in streamguard constructs one."""

from __future__ import annotations

import asyncio
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaConnectionError, KafkaError

from streamguard.errors import BrokerUnavailableError, ClusterSettingsError

if TYPE_CHECKING:
    from streamguard.settings import KafkaSettings, WorkerSettings

__all__ = ["DEAD_LETTER_BYTES", "client_options", "make_admin", "make_consumer", "make_producer", "started"]

log = structlog.get_logger("streamguard.kafka")

DEAD_LETTER_BYTES: Final = 16 * 1024 * 1024
"""Largest dead letter, in bytes: records that are too large for the guard still have to fit."""

FETCH_BYTES: Final = 4 * 1024 * 1024
"""Bytes fetched of one partition at a time."""

BATCH_BYTES: Final = 512 * 1024
"""Largest batch of verdicts, in bytes: half of what a broker takes by default."""


def client_options(kafka: KafkaSettings) -> dict[str, Any]:
    """Return the arguments that every client has in common.

    Raises `ClusterSettingsError` if a certificate, key or password file cannot be used.
    """
    options: dict[str, Any] = {
        "bootstrap_servers": [server.strip() for server in kafka.bootstrap.split(",") if server.strip()],
        "client_id": kafka.client_id,
        "request_timeout_ms": kafka.request_timeout_ms,
        "security_protocol": kafka.security_protocol,
    }
    if kafka.security_protocol.endswith("SSL"):
        options["ssl_context"] = _ssl_context(kafka)
    if kafka.security_protocol.startswith("SASL"):
        options["sasl_mechanism"] = kafka.sasl_mechanism
        options["sasl_plain_username"] = kafka.sasl_username
        options["sasl_plain_password"] = _secret(
            kafka.sasl_password, kafka.sasl_password_file, "kafka.sasl_password_file"
        )
    return options


def make_consumer(kafka: KafkaSettings, worker: WorkerSettings) -> AIOKafkaConsumer:
    """Make a group consumer that takes bytes, commits only when told, and never jumps by itself."""
    return AIOKafkaConsumer(
        **client_options(kafka),
        group_id=worker.group,
        group_instance_id=worker.instance_id,
        enable_auto_commit=False,
        auto_offset_reset="none",
        isolation_level="read_committed",  # what a producer took back was never said
        session_timeout_ms=worker.session_timeout_ms,
        heartbeat_interval_ms=worker.heartbeat_interval_ms,
        fetch_max_wait_ms=worker.fetch_max_wait_ms,
        max_partition_fetch_bytes=FETCH_BYTES,
    )


def make_producer(kafka: KafkaSettings, *, idempotence: bool) -> AIOKafkaProducer:
    """Make a producer that waits for all replicas; with `idempotence` it does not write twice when it retries.

    An idempotent producer is of no use any more once the broker has refused one of its records for good (aiokafka
    #1017): what may be refused, dead letters, needs one without.
    """
    return AIOKafkaProducer(
        **client_options(kafka),
        acks="all",
        enable_idempotence=idempotence,
        max_batch_size=BATCH_BYTES,
        max_request_size=DEAD_LETTER_BYTES,
    )


def make_admin(kafka: KafkaSettings) -> AIOKafkaAdminClient:
    """Make a client that creates and describes topics."""
    return AIOKafkaAdminClient(**client_options(kafka))


async def started(client: AIOKafkaConsumer | AIOKafkaProducer | AIOKafkaAdminClient, kafka: KafkaSettings) -> None:
    """Start a client; while no broker answers, say so and try again.

    Raises `BrokerUnavailableError` after `kafka.connect_timeout_seconds`.
    """
    give_up = time.monotonic() + kafka.connect_timeout_seconds
    while True:
        left = give_up - time.monotonic()
        try:
            async with asyncio.timeout(max(left, 1.0)):
                await client.start()
        except (KafkaConnectionError, TimeoutError, OSError) as error:
            if time.monotonic() + 1.0 >= give_up:
                await _abandon(client)
                raise BrokerUnavailableError(
                    f"no Kafka broker answered at {kafka.bootstrap} within {kafka.connect_timeout_seconds:g} s "
                    f"({type(error).__name__}). Is it running, and is kafka.bootstrap right?"
                ) from error
            log.warning("no broker answers yet", bootstrap=kafka.bootstrap, seconds_left=round(left))
            await asyncio.sleep(1.0)
        except KafkaError as error:
            await _abandon(client)
            raise BrokerUnavailableError(f"the Kafka at {kafka.bootstrap} refused: {error}") from error
        else:
            return


async def _abandon(client: AIOKafkaConsumer | AIOKafkaProducer | AIOKafkaAdminClient) -> None:
    """Close what a failed start left open."""
    close = client.close if isinstance(client, AIOKafkaAdminClient) else client.stop
    try:
        async with asyncio.timeout(5):
            await close()
    except (KafkaError, TimeoutError, OSError) as error:
        log.debug("client not closed cleanly", error=type(error).__name__)


def _ssl_context(kafka: KafkaSettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=kafka.ssl_cafile)
        if not kafka.ssl_check_hostname:
            context.check_hostname = False
        if kafka.ssl_certfile:
            password = _secret(kafka.ssl_key_password, kafka.ssl_key_password_file, "kafka.ssl_key_password_file")
            context.load_cert_chain(kafka.ssl_certfile, kafka.ssl_keyfile, password)
    except (OSError, ssl.SSLError) as error:
        raise ClusterSettingsError(f"kafka.ssl_*: a certificate or key cannot be used: {error}") from error
    return context


def _secret(value: str | None, file: str | None, key: str) -> str | None:
    """Return a secret given as it is or by a file; the line end of a file does not count."""
    if not file:
        return value
    try:
        return Path(file).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ClusterSettingsError(f"{key}: {file} cannot be read: {error}") from error
