"""Dead letters: records that are no events, value and key untouched, with headers that say why and where from."""

from __future__ import annotations

from typing import Final, NamedTuple

from aiokafka import ConsumerRecord

from streamguard.errors import UnreadableRecordError

__all__ = ["DeadLetter", "dead_letter", "without_value"]

ERROR_CHARACTERS: Final = 500


class DeadLetter(NamedTuple):
    """A record for the dead-letter topic."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


def dead_letter(record: ConsumerRecord, error: UnreadableRecordError) -> DeadLetter:
    """Make the dead letter of a record; its own headers come first and stay as they are."""
    why = f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS]
    return DeadLetter(
        record.offset,
        record.key,
        record.value,
        (
            *record.headers,
            ("error", why.encode("utf-8", "replace")),
            ("source.topic", record.topic.encode()),
            ("source.partition", str(record.partition).encode()),
            ("source.offset", str(record.offset).encode()),
        ),
    )


def without_value(letter: DeadLetter) -> DeadLetter:
    """Leave out a value that the broker does not take: the headers still say where it stands."""
    size = str(len(letter.value or b"")).encode()
    return letter._replace(value=b"", headers=(*letter.headers, ("value.omitted.bytes", size)))
