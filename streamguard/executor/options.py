"""How an executor's client behaves: modes, times, and what happens when the guard does not answer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias, cast, get_args, get_origin

import msgspec
from msgspec import Meta

from streamguard.errors import ExecutorOptionsError
from streamguard.settings import KafkaSettings, SigningSettings, TopicSettings
from streamguard.settings_file import load_service

__all__ = ["ExecutorOptions", "Mode", "checked_mode"]

Mode: TypeAlias = Literal["gate", "async", "observe"]
"""`gate`: each call waits for its verdict. `async`: calls go ahead; a block holds from the next call with that
signature. `observe`: nothing is obeyed."""

Seconds: TypeAlias = Annotated[float, Meta(gt=0)]
Positive: TypeAlias = Annotated[int, Meta(ge=1)]


class ExecutorOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that a `GuardClient` can be told; times in seconds.

    `gate_timeout`: longest wait for a verdict. `fail`: what a call does that gets none in that time: `open`, it runs;
    `closed`, `GuardUnavailableError`. `publish_timeout`: longest wait of an agent for room among `buffer_events` (and
    `buffer_bytes`) that wait for a broker; then the event is dropped and counted. `event_bytes`: larger events are
    dropped and counted. `hash_payloads`: arguments and results leave as hashes, keyed if `hash_key` is given;
    `send_tools` must then be the policy's `sendTools`. With keys in `signing`, verdicts that are not signed by one of
    them are not obeyed. Raises `ExecutorOptionsError`.
    """

    kafka: KafkaSettings = KafkaSettings()
    topics: TopicSettings = TopicSettings()
    signing: SigningSettings = SigningSettings()
    mode: Mode = "gate"
    gate_timeout: Seconds = 2.0
    fail: Literal["open", "closed"] = "open"
    publish_timeout: Annotated[float, Meta(ge=0)] = 0.5
    buffer_events: Positive = 10_000
    buffer_bytes: Positive = 64 * 1024 * 1024
    event_bytes: Positive = 900_000
    close_timeout: Seconds = 5.0
    hash_payloads: bool = False
    hash_key: str | None = None
    send_tools: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the values. Raises `ExecutorOptionsError`."""
        for field in msgspec.structs.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, msgspec.Struct):
                continue
            try:
                msgspec.convert(value, field.type)
            except msgspec.ValidationError as error:
                shown = "***" if field.name == "hash_key" else repr(value)
                raise ExecutorOptionsError(f"{field.name} is {shown}: {_allowed(field.type, error)}") from None

    @classmethod
    def load(cls, config: Path | None = None, **options: Any) -> Self:
        """Take Kafka, topics and keys from the service's configuration: a file, and STREAMGUARD_* variables.

        Raises `SettingsFileError`, `PolicyFileError` (the file's policy is read, too).
        """
        settings, _ = load_service(config, os.environ, {})
        return cls(**{"kafka": settings.kafka, "topics": settings.topics, "signing": settings.signing, **options})

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Show everything but secrets; in rich's tracebacks, too."""
        return [(name, getattr(self, name)) for name in self.__struct_fields__ if name != "hash_key"]

    def __repr__(self) -> str:
        """Show everything but secrets."""
        return f"ExecutorOptions({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"


def checked_mode(mode: str) -> Mode:
    """Return a run's mode. Raises `ExecutorOptionsError` if there is no such mode."""
    if mode not in get_args(Mode):
        raise ExecutorOptionsError(f"mode is {mode!r}: allowed: {', '.join(get_args(Mode))}")
    return cast("Mode", mode)


def _allowed(kind: Any, error: msgspec.ValidationError) -> str:
    return f"allowed: {', '.join(get_args(kind))}" if get_origin(kind) is Literal else str(error)
