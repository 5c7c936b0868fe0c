"""The service's settings: what they are, their units, defaults and ranges.

Where they come from (file, then environment, then flags) is `settings_file`'s business.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

__all__ = [
    "SECRETS",
    "GatewaySettings",
    "KafkaSettings",
    "LimitSettings",
    "LogSettings",
    "MetricsSettings",
    "Settings",
    "SigningSettings",
    "TopicSettings",
    "UiSettings",
    "WorkerSettings",
    "masked",
]

Name: TypeAlias = Annotated[str, Meta(min_length=1)]
KeyId: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
TopicName: TypeAlias = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9._-]{1,249}$")]
Positive: TypeAlias = Annotated[int, Meta(ge=1)]
Seconds: TypeAlias = Annotated[float, Meta(gt=0)]

SECRETS = frozenset(
    (
        "kafka.ssl_key_password",
        "kafka.sasl_password",
        "signing.key",
        "signing.previous_key",
        "gateway.tokens",
        "ui.tokens",
    )
)
"""Settings whose values are never shown."""


def masked(key: str, value: Any) -> Any:
    """Return the value of a setting as it may be shown: `***` for a secret that is set."""
    return "***" if key in SECRETS and value else value


def _shown(section: str, settings: msgspec.Struct) -> list[tuple[str, Any]]:
    return [(name, masked(f"{section}.{name}", getattr(settings, name))) for name in settings.__struct_fields__]


def _text(section: str, settings: msgspec.Struct) -> str:
    fields = ", ".join(f"{name}={value!r}" for name, value in _shown(section, settings))
    return f"{type(settings).__name__}({fields})"


class KafkaSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to reach the brokers. Times with `_ms` are milliseconds, with `_seconds` seconds."""

    bootstrap: Name = "localhost:9092"
    client_id: Name = "streamguard"
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    ssl_cafile: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_key_password: str | None = None
    ssl_key_password_file: str | None = None
    ssl_check_hostname: bool = True
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN"
    sasl_username: str | None = None
    sasl_password: str | None = None
    sasl_password_file: str | None = None
    idempotence: bool = True
    request_timeout_ms: Annotated[int, Meta(ge=1000)] = 30_000
    connect_timeout_seconds: Seconds = 30.0

    def __repr__(self) -> str:
        """Show everything but secrets."""
        return _text("kafka", self)

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Show the same in rich's tracebacks, which do not ask for the repr."""
        return _shown("kafka", self)

    __str__ = __repr__


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The topics. `partitions`, `replication_factor` and `retention_hours` count when they are created.

    Without a name the state topic is `streamguard.<group>.state`, see `Settings.state_topic`; and the policies topic
    `streamguard.<group>.policies`.
    """

    events: TopicName = "agent.events"
    verdicts: TopicName = "agent.verdicts"
    dead_letters: TopicName = "agent.events.dlq"
    state: TopicName | None = None
    policies: TopicName | None = None
    partitions: Positive = 6
    replication_factor: Positive = 1
    retention_hours: Positive = 720


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a worker lives."""

    group: Name = "streamguard"
    instance_id: Name | None = None
    offset_reset: Literal["earliest", "latest"] = "earliest"
    session_timeout_ms: Annotated[int, Meta(ge=1000)] = 10_000
    heartbeat_interval_ms: Annotated[int, Meta(ge=100)] = 3_000
    fetch_max_wait_ms: Positive = 100
    slice_records: Positive = 500
    slice_ms: Positive = 10
    max_inflight: Positive = 10_000
    max_inflight_bytes: Positive = 16 * 1024 * 1024
    checkpoint_interval_seconds: Seconds = 5.0
    checkpoint_events: Positive = 100_000
    checkpoint_timeout_seconds: Annotated[float, Meta(gt=0, le=600)] = 30.0
    restore_timeout_seconds: Seconds = 300.0
    on_lost_position: Literal["fail", "earliest", "latest"] = "fail"
    stop_grace_seconds: Seconds = 20.0
    delivery_timeout_seconds: Seconds = 60.0
    stuck_timeout_seconds: Annotated[float, Meta(ge=1)] = 120.0
    status_file: Name | None = None
    policy_check_seconds: Seconds = 1.0


class LimitSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What bounds memory and work. `runs` and `active_runs` are per partition; `waiting_calls` per run."""

    runs: Positive = 100_000
    active_runs: Positive = 2_000
    idle_seconds: Positive = 86_400
    waiting_calls: Positive = 256
    record_bytes: Positive = 1_048_576
    json_depth: Annotated[int, Meta(ge=1, le=500)] = 128


class SigningSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of verdicts' signatures; without any, nothing is signed. The previous key signs nothing any more.

    A secret is text; `key_file` and `previous_key_file` are read in its place.
    """

    key_id: KeyId | None = None
    key: str | None = None
    key_file: str | None = None
    previous_key_id: KeyId | None = None
    previous_key: str | None = None
    previous_key_file: str | None = None

    def __repr__(self) -> str:
        """Show everything but secrets."""
        return _text("signing", self)

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Show the same in rich's tracebacks, which do not ask for the repr."""
        return _shown("signing", self)

    __str__ = __repr__


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the HTTP gateway serves. `tokens` are separated by blanks; `tokens_file` is read in their place.

    `fail`: what a call is told that gets no verdict in `gate_timeout_seconds`: `open`, allow; `closed`, status 503.
    """

    host: Name = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8321
    tokens: str | None = None
    tokens_file: str | None = None
    fail: Literal["open", "closed"] = "open"
    gate_timeout_seconds: Annotated[float, Meta(gt=0, le=30)] = 2.0
    publish_timeout_seconds: Seconds = 5.0
    buffer_events: Positive = 10_000
    buffer_bytes: Positive = 64 * 1024 * 1024
    body_bytes: Positive = 1_048_576
    requests_per_second: Annotated[float, Meta(gt=0)] = 1000.0
    streams: Positive = 1000
    stop_grace_seconds: Seconds = 20.0

    def __repr__(self) -> str:
        """Show everything but secrets."""
        return _text("gateway", self)

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Show the same in rich's tracebacks, which do not ask for the repr."""
        return _shown("gateway", self)

    __str__ = __repr__


class UiSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the live page is served. `tokens` are separated by blanks; `tokens_file` is read in their place.

    `minutes` of the topics are read at the start; `runs` are the most that are kept, the most recently active ones.
    """

    host: Name = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8322
    tokens: str | None = None
    tokens_file: str | None = None
    minutes: Positive = 30
    runs: Positive = 5_000

    def __repr__(self) -> str:
        """Show everything but secrets."""
        return _text("ui", self)

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Show the same in rich's tracebacks, which do not ask for the repr."""
        return _shown("ui", self)

    __str__ = __repr__


class MetricsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a worker serves its metrics and its health over HTTP, if it does. Port 0: a free one, which is logged.

    With `streamguard run --workers N` each process listens at a port of its own: `port`, `port` + 1, and so on.
    """

    enabled: bool = False
    host: Name = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535)] = 9464


class LogSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is logged, and how it looks."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "console", "json"] = "auto"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of the service."""

    kafka: KafkaSettings = KafkaSettings()
    topics: TopicSettings = TopicSettings()
    worker: WorkerSettings = WorkerSettings()
    limits: LimitSettings = LimitSettings()
    signing: SigningSettings = SigningSettings()
    gateway: GatewaySettings = GatewaySettings()
    ui: UiSettings = UiSettings()
    metrics: MetricsSettings = MetricsSettings()
    log: LogSettings = LogSettings()

    @property
    def state_topic(self) -> str:
        """The topic of this group's checkpoints."""
        return self.topics.state or f"streamguard.{self.worker.group}.state"

    @property
    def policies_topic(self) -> str:
        """The topic of the rulesets by which this group judges, and from which event on each is in force."""
        return self.topics.policies or f"streamguard.{self.worker.group}.policies"

    def transactional_id(self, partition: int) -> str:
        """Return the name by which the writer of one shard is known to the brokers, whichever worker it is."""
        return f"streamguard.{self.worker.group}.{self.topics.events}.{partition}"
