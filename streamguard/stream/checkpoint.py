"""Checkpoints: everything a successor needs to go on from one position of a partition, written as one transaction."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from streamguard.errors import SnapshotVersionError
from streamguard.guard.runs import Change
from streamguard.stream.brokers import Fenced
from streamguard.stream.journal import PolicyChange, change_records
from streamguard.stream.producer import Record
from streamguard.stream.ruleset import Ruleset

if TYPE_CHECKING:
    from streamguard.stream.held import Held

__all__ = ["MARKER_KEY", "Marker", "decode_marker", "write_checkpoint"]

MARKER_KEY: Final = b" checkpoint"
"""The key of a marker: no run can have it, since run ids are stripped of blanks."""

VERSION: Final = 1

WRITE_RUNS: Final = 64
"""Runs written between two turns of the event loop: a few milliseconds."""


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """The last record of a checkpoint: what the runs before it on the state topic are the state of.

    `position` is the next event to judge; `verdicts` an offset of the verdict topic before which everything is about
    earlier events; `time` the stream time in milliseconds; `policy` the fingerprint of the ruleset in force from
    `position` on. The rest is for people who look at the topic.
    """

    version: int = VERSION
    position: int
    verdicts: int
    time: int
    runs: int
    policy: str
    epoch: int


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Marker).decode


class _Version(msgspec.Struct):
    version: int


_version: Final = msgspec.json.Decoder(_Version).decode


def decode_marker(value: bytes) -> Marker:
    """Read a marker. Raises `SnapshotVersionError` if this streamguard does not know its version."""
    version = _version(value).version
    if version != VERSION:
        raise SnapshotVersionError("checkpoint", version, VERSION)
    return _decode(value)


async def write_checkpoint(held: Held, ruleset: Ruleset | None = None) -> Marker:
    """Write what changed since the last checkpoint; with a ruleset, that it is in force from here on.

    1. note the position, and begin to capture the runs as they are there;
    2. wait until every verdict about events before it is acknowledged;
    3. in one transaction: the runs that changed, tombstones of those that are over, the change of what is in force if
       there is one, and the marker.

    Committing the position for the group is left to the caller: the marker is what a restore goes by.
    Raises `Fenced` if the shard was taken over, `TimeoutError` if the caller's deadline passed. After a failure in step
    3 the shard must be opened anew; before, nothing has happened.
    """
    position = held.shard.position
    change = held.change
    if ruleset is not None:
        # One at the same event takes the other's place, and what that says of the past holds on.
        same = held.newest is not None and held.newest.offset == position
        base = held.newest if held.newest is not None and same else PolicyChange(offset=position, ruleset="")
        now = time.time_ns() // 1_000_000
        change = msgspec.structs.replace(base, ruleset=ruleset.fingerprint, time=now)
    in_force = ruleset or held.ruleset
    marker = Marker(
        position=position,
        verdicts=held.said.verdicts_before(held.delivery.end),
        time=held.shard.guard.time,
        runs=len(held.shard.guard),
        policy=in_force.fingerprint,
        epoch=held.producer.epoch,
    )
    capture = held.shard.guard.capture()
    delivered = False
    try:
        delivered = await held.outbox.acknowledged_below(marker.position)
    finally:
        if not delivered:
            held.shard.guard.give_up(capture)
    if not delivered:
        raise Fenced("answers can no longer be delivered")
    runs = size = 0
    journal = () if change is None else (held.policies,)
    async with held.producer.transaction(held.state, held.verdicts, *journal) as transaction:
        if change is not None:
            await transaction.write(change_records(change, in_force), held.policies)
        while changes := capture.write(WRITE_RUNS):
            runs += len(changes)
            size += sum(len(snapshot) for _, snapshot in changes if snapshot is not None)
            await transaction.write(_records(changes))
        await transaction.write([Record(MARKER_KEY, _encode(marker))])
    held.newest = change or held.newest
    held.change = None
    held.written = runs, size
    return marker


def _records(changes: Iterable[Change]) -> Iterable[Record]:
    return (Record(run_id.encode("utf-8", "replace"), snapshot) for run_id, snapshot in changes)
