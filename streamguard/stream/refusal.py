"""Finding out why Kafka will have nothing to do with us, and saying so in one line.

A client only says that it could not connect: whether the address is wrong, the certificate is not trusted or the
password is false is seen by trying once more, step by step.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from aiokafka.conn import AIOKafkaConnection, create_conn
from aiokafka.errors import (
    AuthenticationFailedError,
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    IllegalSaslStateError,
    KafkaError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
    UnsupportedSaslMechanismError,
)

from streamguard.errors import BrokerUnavailableError, NotAuthorizedError, StreamguardError

if TYPE_CHECKING:
    from streamguard.settings import KafkaSettings

__all__ = ["as_error", "somebody_listens", "why_refused"]

TRY_SECONDS: Final = 3.0

ALERT_SECONDS: Final = 0.5
"""A broker that refuses our certificate says so after the handshake (TLS 1.3); one that takes it says nothing."""

API_VERSIONS: Final = bytes.fromhex("0000000a 0012 0000 00000001 ffff")
"""The request by which every client begins: its length, kind, version, number, and no client id."""

TLS_ALERT: Final = b"\x15\x03"

ACLS: Final[dict[type[KafkaError], str]] = {
    TopicAuthorizationFailedError: "a topic. The worker reads events, reads and writes verdicts and state, and writes "
    "dead letters",
    GroupAuthorizationFailedError: "the consumer group (Read)",
    TransactionalIdAuthorizationFailed: "the transactional ids of the group (Write and Describe, prefixed "
    "`streamguard.<group>.`)",
    ClusterAuthorizationFailedError: "the cluster (IdempotentWrite)",
}


def as_error(error: BaseException, doing: str = "Kafka refused") -> StreamguardError:
    """Return the error that a user is told for one of aiokafka's."""
    for kind, what in ACLS.items():
        if isinstance(error, kind):
            named = f" ({', '.join(map(_name, error.args))})" if error.args else ""
            return NotAuthorizedError(f"Kafka does not allow this user {what}{named}: an ACL is missing (README, ACLs)")
    if isinstance(error, AuthenticationFailedError | SaslAuthenticationFailed):
        return NotAuthorizedError(f"Kafka does not accept the user or the password (kafka.sasl_*): {error}")
    return BrokerUnavailableError(f"{doing}: {type(error).__name__}: {error}")


async def why_refused(kafka: KafkaSettings, context: ssl.SSLContext | None, password: str | None) -> str | None:
    """Connect to each bootstrap server once; return why the first that is there refuses us, None if none does."""
    for server in kafka.bootstrap.split(","):
        host, _, port = server.strip().rpartition(":")
        with suppress(TimeoutError, OSError, ValueError):
            async with asyncio.timeout(TRY_SECONDS):
                reason = await _refusal(kafka, host, int(port), context, password)
            if reason is not None:
                return f"{server.strip()}: {reason}"
    return None


async def somebody_listens(kafka: KafkaSettings) -> str | None:
    """Return the first bootstrap server that takes connections at all."""
    for server in kafka.bootstrap.split(","):
        host, _, port = server.strip().rpartition(":")
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(TRY_SECONDS):
                _, writer = await asyncio.open_connection(host, int(port))
            writer.close()
            return server.strip()
    return None


async def _refusal(
    kafka: KafkaSettings, host: str, port: int, context: ssl.SSLContext | None, password: str | None
) -> str | None:
    reason = await _tls_refusal(host, port, context) if context is not None else await _wants_tls(host, port)
    if reason is not None:
        return reason
    if not kafka.security_protocol.startswith("SASL"):
        return None
    connection: AIOKafkaConnection | None = None
    try:
        connection = await create_conn(
            host,
            port,
            client_id=kafka.client_id,
            ssl_context=context,
            security_protocol=kafka.security_protocol,
            sasl_mechanism=kafka.sasl_mechanism,
            sasl_plain_username=kafka.sasl_username,
            sasl_plain_password=password,
        )
    except (AuthenticationFailedError, SaslAuthenticationFailed):
        return f"the user {kafka.sasl_username!r} or the password is not accepted (kafka.sasl_*)"
    except UnsupportedSaslMechanismError:
        return f"the mechanism {kafka.sasl_mechanism} is not offered (kafka.sasl_mechanism)"
    except IllegalSaslStateError:
        return "it takes no user and password there, another listener may (kafka.security_protocol)"
    except KafkaError:
        return None
    finally:
        if connection is not None:
            connection.close()
    return None


async def _tls_refusal(host: str, port: int, context: ssl.SSLContext) -> str | None:
    writer: asyncio.StreamWriter | None = None
    try:
        reader, writer = await asyncio.open_connection(host, port, ssl=context)
        with suppress(TimeoutError):
            async with asyncio.timeout(ALERT_SECONDS):
                await reader.read(1)
    except ssl.SSLCertVerificationError as error:
        return f"its certificate is not trusted: {error.verify_message} (kafka.ssl_cafile)"
    except ssl.SSLError as error:
        reason = (error.reason or str(error)).lower().replace("_", " ")
        if "alert" in reason:
            return f"it refuses our certificate: {reason} (kafka.ssl_certfile)"
        return f"no TLS can be agreed on: {reason} (kafka.security_protocol)"
    finally:
        if writer is not None:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
    return None


async def _wants_tls(host: str, port: int) -> str | None:
    """Speak as a client without TLS does: a listener with TLS answers by an alert."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(API_VERSIONS)
        answer = await reader.read(len(TLS_ALERT))
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    return "it wants TLS (kafka.security_protocol)" if answer == TLS_ALERT else None


def _name(item: object) -> str:
    return ", ".join(sorted(map(str, item))) if isinstance(item, set | frozenset | list | tuple) else str(item)
