"""How Kafka clients are made: security, tuning, deadlines. Nothing else in streamguard constructs one."""

from __future__ import annotations

import asyncio
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaConnectionError, KafkaError

from streamguard.errors import BrokerUnavailableError, ClusterSettingsError, NotAuthorizedError
from streamguard.stream.brokers import Brokers
from streamguard.stream.refusal import as_error, somebody_listens, why_refused
from streamguard.stream.telling import QUIET, Telling

if TYPE_CHECKING:
    from streamguard.settings import KafkaSettings, WorkerSettings

__all__ = [
    "DEAD_LETTER_BYTES",
    "client_options",
    "close",
    "make_admin",
    "make_brokers",
    "make_consumer",
    "make_dead_letter_producer",
    "make_event_producer",
    "make_follower",
    "make_reader",
    "started",
]

log = structlog.get_logger("streamguard.kafka")

Client: TypeAlias = AIOKafkaConsumer | AIOKafkaProducer | AIOKafkaAdminClient | Brokers

DEAD_LETTER_BYTES: Final = 16 * 1024 * 1024
"""Largest dead letter, in bytes: records that are too large for the guard still have to fit."""

BATCH_BYTES: Final = 256 * 1024
"""Bytes of dead letters, or of recorded events, written at once: poison comes in floods."""

REQUEST_BYTES: Final = 1024 * 1024
"""Largest record of events, in bytes, unless the limits allow more: what a topic takes by default."""

FETCH_BYTES: Final = 4 * 1024 * 1024
"""Bytes fetched of one partition at a time."""

READER_WAIT_MS: Final = 50
"""Longest wait of the broker for records when there are fewer than a fetch takes."""

READER_BACKOFF_MS: Final = 10
"""Wait before a reader asks again; it always does once for a topic that it does not know yet."""

FOLLOWER_WAIT_MS: Final = 100
"""Longest wait of the broker for verdicts: a partition followed anew is asked for after it."""

SAY_SECONDS: Final = 10.0
"""How often it is said that no broker answers."""

CLOSE_SECONDS: Final = 5.0
"""Longest wait for clients to close."""


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


def make_reader(kafka: KafkaSettings) -> AIOKafkaConsumer:
    """Make a consumer of no group that reads what is committed, from where it is told."""
    return AIOKafkaConsumer(
        **client_options(kafka),
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",
        isolation_level="read_committed",
        fetch_max_wait_ms=READER_WAIT_MS,
        retry_backoff_ms=READER_BACKOFF_MS,
        max_partition_fetch_bytes=FETCH_BYTES,
    )


def make_follower(kafka: KafkaSettings) -> AIOKafkaConsumer:
    """Make a consumer of no group for executors: verdicts as soon as they stand on the topic.

    They are in no transaction: who reads what is committed would wait for checkpoints between them.
    """
    return AIOKafkaConsumer(
        **client_options(kafka),
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",
        isolation_level="read_uncommitted",
        fetch_max_wait_ms=FOLLOWER_WAIT_MS,
    )


def make_dead_letter_producer(kafka: KafkaSettings) -> AIOKafkaProducer:
    """Make the producer of dead letters: plain, since a refused record spoils an idempotent one (aiokafka #1017)."""
    return AIOKafkaProducer(
        **client_options(kafka), acks="all", max_request_size=DEAD_LETTER_BYTES, max_batch_size=BATCH_BYTES
    )


def make_event_producer(kafka: KafkaSettings, record_bytes: int) -> AIOKafkaProducer:
    """Make the producer of recorded events; `record_bytes`: the largest that a worker takes."""
    return AIOKafkaProducer(
        **client_options(kafka),
        acks="all",
        enable_idempotence=kafka.idempotence,
        max_request_size=max(record_bytes, REQUEST_BYTES),
        max_batch_size=BATCH_BYTES,
    )


def make_brokers(kafka: KafkaSettings, topics: tuple[str, ...], telling: Telling = QUIET) -> Brokers:
    """Make the client by which shards write to these topics."""
    return Brokers(AIOKafkaClient(**client_options(kafka)), topics, telling)


def make_admin(kafka: KafkaSettings) -> AIOKafkaAdminClient:
    """Make a client that creates and describes topics."""
    return AIOKafkaAdminClient(**client_options(kafka))


async def started(client: Client, kafka: KafkaSettings) -> None:
    """Start a client; while no broker answers, say so and try again.

    Raises `NotAuthorizedError` if the brokers refuse us, `BrokerUnavailableError` after
    `kafka.connect_timeout_seconds`.
    """
    give_up = time.monotonic() + kafka.connect_timeout_seconds
    say_again = 0.0
    while True:
        left = give_up - time.monotonic()
        try:
            async with asyncio.timeout(max(left, 1.0)):
                await client.start()
        except (KafkaConnectionError, TimeoutError, OSError) as error:
            await _raise_if_refused(client, kafka)
            if time.monotonic() + 1.0 >= give_up:
                await close(client)
                raise BrokerUnavailableError(
                    f"no Kafka broker answered at {kafka.bootstrap} within {kafka.connect_timeout_seconds:g} s "
                    f"({type(error).__name__}). {await _what_to_look_at(kafka)}"
                ) from error
            if time.monotonic() >= say_again:
                log.warning("no broker answers yet", bootstrap=kafka.bootstrap, seconds_left=round(left))
                say_again = time.monotonic() + SAY_SECONDS
            await asyncio.sleep(1.0)
        except KafkaError as error:
            await close(client)
            raise as_error(error, f"the Kafka at {kafka.bootstrap} refused") from error
        else:
            return


async def _raise_if_refused(client: Client, kafka: KafkaSettings) -> None:
    """Tell brokers that refuse us, which waiting does not mend, from brokers that are not there."""
    options = client_options(kafka)
    reason = await why_refused(kafka, options.get("ssl_context"), options.get("sasl_plain_password"))
    if reason is not None:
        await close(client)
        raise NotAuthorizedError(f"Kafka refuses us at {reason}")


async def _what_to_look_at(kafka: KafkaSettings) -> str:
    server = await somebody_listens(kafka)
    if server is None:
        return "Is it running, and is kafka.bootstrap right?"
    return (
        f"{server} takes connections, but does not speak Kafka over {kafka.security_protocol}: "
        "is kafka.security_protocol that of this listener?"
    )


async def close(*clients: Client) -> None:
    """Close clients, all at once and within `CLOSE_SECONDS`. Raises nothing."""
    await asyncio.gather(*(_close(client) for client in clients))


async def _close(client: Client) -> None:
    """Close a client; of one that does not close properly at least the connections.

    In a task of its own: while brokers are away, aiokafka cancels what it then waits for, and with it whoever waits.
    """
    closing = asyncio.ensure_future(client.close() if isinstance(client, AIOKafkaAdminClient) else client.stop())
    await asyncio.wait({closing}, timeout=CLOSE_SECONDS * 4 / 5)
    if closing.done() and not closing.cancelled() and closing.exception() is None:
        return
    reason = "not in time" if not closing.done() else "cancelled" if closing.cancelled() else str(closing.exception())
    log.warning("client not closed properly", client=type(client).__name__, error=reason)
    closing.cancel()
    connections = asyncio.ensure_future(_connections(client).close())
    await asyncio.wait({closing, connections}, timeout=CLOSE_SECONDS / 5)
    connections.cancel()


def _connections(client: Client) -> AIOKafkaClient:
    return client.client if isinstance(client, AIOKafkaProducer | Brokers) else client._client  # noqa: SLF001 - no other way


def _ssl_context(kafka: KafkaSettings) -> ssl.SSLContext:
    for key in ("ssl_cafile", "ssl_certfile", "ssl_keyfile"):
        _readable(f"kafka.{key}", getattr(kafka, key))
    try:
        context = ssl.create_default_context(cafile=kafka.ssl_cafile)
    except ssl.SSLError as error:
        raise ClusterSettingsError(f"kafka.ssl_cafile: {kafka.ssl_cafile} holds no certificate: {error}") from error
    if not kafka.ssl_check_hostname:
        context.check_hostname = False
    if kafka.ssl_certfile:
        password = _secret(kafka.ssl_key_password, kafka.ssl_key_password_file, "kafka.ssl_key_password_file")
        try:
            # Without a password OpenSSL would ask for one on the terminal, and wait.
            context.load_cert_chain(kafka.ssl_certfile, kafka.ssl_keyfile, password or "")
        except ssl.SSLError as error:
            raise ClusterSettingsError(
                f"kafka.ssl_certfile, kafka.ssl_keyfile, kafka.ssl_key_password: {kafka.ssl_certfile} and "
                f"{kafka.ssl_keyfile or 'the key in it'} cannot be used together: {error}"
            ) from error
    return context


def _readable(key: str, file: str | None) -> None:
    if file is not None:
        try:
            Path(file).read_bytes()
        except OSError as error:
            raise ClusterSettingsError(f"{key}: {file} cannot be read: {error.strerror}") from error


def _secret(value: str | None, file: str | None, key: str) -> str | None:
    """Return a secret given as it is or by a file; the line end of a file does not count."""
    if not file:
        return value
    try:
        return Path(file).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ClusterSettingsError(f"{key}: {file} cannot be read: {error}") from error
