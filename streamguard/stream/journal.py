"""Which ruleset is in force from which event on: the compacted topic that recovery and audit go by.

A partition of it belongs to one shard. It holds each ruleset under its fingerprint, and each change under its offset,
written in one transaction with the checkpoint at that offset: so whoever judges an event again, after a crash or years
later, judges it by what was in force then.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec
import structlog
from aiokafka import TopicPartition

from streamguard.stream.producer import Record
from streamguard.stream.ruleset import Ruleset, decode_ruleset, encode_ruleset

if TYPE_CHECKING:
    from streamguard.stream.restore import LogReader

__all__ = ["Journal", "PolicyChange", "change_records", "read_journal"]

log = structlog.get_logger("streamguard.journal")

CHANGE: Final = b" from "
"""What a change's key begins with: no fingerprint does."""


class PolicyChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """From the event at `offset` on, `ruleset` (its fingerprint) is in force.

    `anew`: nothing is remembered there, as at the beginning. `carried`: runs of an unknown past are. `skipped_from`:
    events from there up to `offset` were skipped. `time` (ms since 1970) is when it was written: for people.
    """

    offset: int
    ruleset: str
    anew: bool = False
    carried: bool = False
    skipped_from: int | None = None
    time: int = 0


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(PolicyChange).decode


class Journal:
    """The changes of a partition, by offset, and the rulesets they name."""

    def __init__(self) -> None:
        self.changes: list[PolicyChange] = []
        self.rulesets: dict[str, Ruleset] = {}

    def add(self, change: PolicyChange) -> None:
        """Add a change as it was written; one that goes back (the topic was made anew) takes all behind it away."""
        self.changes = [before for before in self.changes if before.offset < change.offset]
        self.changes.append(change)

    def at(self, offset: int) -> Ruleset | None:
        """Return what is in force at an event; None if the journal does not say."""
        named = [change.ruleset for change in self.changes if change.offset <= offset]
        return self.rulesets.get(named[-1]) if named else None


def change_records(change: PolicyChange, ruleset: Ruleset) -> Iterable[Record]:
    """Return what stands on the topic of a change."""
    yield Record(change.ruleset.encode(), encode_ruleset(ruleset))
    yield Record(CHANGE + b"%020d" % change.offset, _encode(change))


async def read_journal(reader: LogReader, partition: TopicPartition, active_runs: int | None = None) -> Journal:
    """Read the journal of a partition. What is none of ours is named in the log, and left out."""
    journal = Journal()
    async for records in reader.read(partition):
        for record in records:
            if record.key is None or record.value is None:
                continue
            try:
                if record.key.startswith(CHANGE):
                    journal.add(_decode(record.value))
                else:
                    journal.rulesets[record.key.decode()] = decode_ruleset(record.value, active_runs)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                log.warning("no ruleset on the policies topic", partition=partition.partition, offset=record.offset)
    return journal
