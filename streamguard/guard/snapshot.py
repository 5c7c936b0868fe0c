"""A run as bytes: what stands on the state topic, and how runs that are quiet for now are kept in memory.

Only what the rules ask for is kept: counts and streaks follow from the window's records and are made anew. Reading a
snapshot back gives a run that answers every later event as the one that was written would have.

A snapshot is a version, the offset and the stream time of the run's last event (enough to put runs in order without
reading more), then MessagePack. Signatures and outcomes stand in it once each.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from streamguard.errors import SnapshotVersionError
from streamguard.guard.compaction import CompactionWatch
from streamguard.guard.run import Abort, EventIds, Run
from streamguard.guard.waiting import WaitingCalls
from streamguard.guard.window import Call, RunWindow
from streamguard.policy import Policy

__all__ = ["VERSION", "last_event", "pack", "unpack"]

VERSION: Final = 1

DIGEST: Final = 16
"""Bytes of a signature, an outcome or an event id."""

PENDING: Final = -1
"""The outcome's index of a record that has none yet."""

HEADER: Final = struct.Struct(">BQq")


class _Waiting(msgspec.Struct, array_like=True, gc=False):
    """A call that waits for its result and is not in the window (any more)."""

    call_id: str
    row: int
    offset: int


class _Watch(msgspec.Struct, array_like=True, gc=False):
    attempts_left: int
    first: tuple[bytes, bytes] | None
    same: int
    offsets: list[int]


class _Body(msgspec.Struct, array_like=True, gc=False, omit_defaults=True):
    agent_id: str | None
    capacity: int
    tools: list[str]
    signatures: bytes  # one row each: signature, tool, kind
    row_tools: list[int]
    row_kinds: list[int]
    rows: list[int]  # from here on one item a record: its row
    steps: list[int]  # its offset, as the distance from the record before
    outcomes: list[int]  # its outcome's index in `digests`
    digests: bytes
    call_ids: dict[int, str]  # of records that wait for their outcome
    unknown: dict[int, str]  # unknown tool that a record's outcome named
    waiting: list[int | _Waiting]  # an int: a record of the window
    warned: list[tuple[str, bytes, bytes | None, int]] = []
    event_ids: bytes | None = None
    watch: _Watch | None = None
    abort: tuple[str, str, bytes, int, int, tuple[int, ...]] | None = None
    calls_after_abort: int = 0


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Body).decode

PolicyOf = Callable[[str | None], tuple[Policy, str]]
"""From an agent to its effective policy and the policy's fingerprint."""


def last_event(snapshot: bytes) -> tuple[int, int]:
    """Return the offset and the stream time (ms) of the last event that a snapshot holds.

    Raises `SnapshotVersionError` if it was written by a newer streamguard.
    """
    version, offset, seen = HEADER.unpack_from(snapshot)
    if version != VERSION:
        raise SnapshotVersionError("snapshot", version, VERSION)
    return offset, seen


def pack(run: Run) -> bytes:
    """Write a run."""
    table = _Table()
    rows: list[int] = []
    steps: list[int] = []
    outcomes: list[int] = []
    digests: dict[bytes, int] = {}
    call_ids: dict[int, str] = {}
    unknown: dict[int, str] = {}
    before = 0
    for index, call in enumerate(run.window):
        rows.append(table.row(call))
        steps.append(call.offset - before)
        before = call.offset
        if call.outcome is not None:
            outcomes.append(digests.setdefault(call.outcome, len(digests)))
            if call.unknown is not None:
                unknown[index] = call.unknown
        else:
            outcomes.append(PENDING)
            if call.call_id is not None:
                call_ids[index] = call.call_id
    waiting = list(_pack_waiting(run, table, call_ids))
    watch = run.watch
    abort = run.abort
    body = _Body(
        run.agent_id,
        run.window.capacity,
        list(table.tools),
        b"".join(key[0] for key in table.rows),
        table.row_tools,
        [key[2] for key in table.rows],
        rows,
        steps,
        outcomes,
        b"".join(digests),
        call_ids,
        unknown,
        waiting,
        [(*key, count) for key, count in (run.warned or {}).items()],
        b"".join(run.event_ids) if run.event_ids is not None else None,
        _Watch(*watch.state) if watch is not None else None,
        msgspec.structs.astuple(abort) if abort is not None else None,
        run.calls_after_abort,
    )
    return HEADER.pack(VERSION, run.last_offset, run.last_seen) + _encode(body)


def unpack(run_id: str, snapshot: bytes, policy_of: PolicyOf) -> Run:
    """Read a run back, under the policy that holds now."""
    offset, seen = last_event(snapshot)
    body = _decode(memoryview(snapshot)[HEADER.size :])
    run = Run(run_id, body.agent_id, *policy_of(body.agent_id))
    run.last_offset, run.last_seen = offset, seen
    window = _unpack_window(body)
    run.window = window if window.capacity == run.policy.history_size else window.resized(run.policy.history_size)
    _unpack_waiting(run.waiting, body, window)
    if body.warned:
        run.warned = {(detector, first, second): count for detector, first, second, count in body.warned}
    if body.event_ids is not None:
        run.event_ids = EventIds(_digests(body.event_ids))
    if body.watch is not None:
        run.watch = CompactionWatch.of(body.watch.attempts_left, body.watch.first, body.watch.same, body.watch.offsets)
    if body.abort is not None:
        run.abort = Abort(*body.abort)
    run.calls_after_abort = body.calls_after_abort
    return run


class _Table:
    """The distinct calls of a run."""

    def __init__(self) -> None:
        self.tools: dict[str, int] = {}
        self.rows: dict[tuple[bytes, str, int], int] = {}
        self.row_tools: list[int] = []

    def row(self, call: Call) -> int:
        key = (call.signature, call.tool, call.kind)
        row = self.rows.get(key)
        if row is None:
            row = self.rows[key] = len(self.rows)
            self.row_tools.append(self.tools.setdefault(call.tool, len(self.tools)))
        return row


def _pack_waiting(run: Run, table: _Table, call_ids: dict[int, str]) -> Iterator[int | _Waiting]:
    """Write the waiting calls, in their order; most are records of the window that have their call ids there."""
    window = run.window
    for call_id, call in run.waiting:
        index = call.seq - window.first
        within = window.first <= call.seq < window.next  # not so for calls from before the window was resized
        if within and window.record(call.seq) is call and call_ids.get(index) == call_id:
            yield index
        else:
            yield _Waiting(call_id, table.row(call), call.offset)


def _unpack_window(body: _Body) -> RunWindow:
    window = RunWindow(body.capacity)
    calls = _rows(body)
    digests = list(_digests(body.digests))
    offset = 0
    for index, (row, step, outcome) in enumerate(zip(body.rows, body.steps, body.outcomes, strict=True)):
        offset += step
        tool, signature, kind = calls[row]
        if outcome == PENDING:
            window.append(Call(tool, signature, body.call_ids.get(index), kind, offset))
        else:
            window.append(Call(tool, signature, None, kind, offset))
            window.settle(signature, None, digests[outcome], body.unknown.get(index))
    return window


def _unpack_waiting(waiting: WaitingCalls, body: _Body, window: RunWindow) -> None:
    calls = _rows(body)
    limit = len(body.waiting)
    for item in body.waiting:
        if isinstance(item, int):
            call = window.record(item)
            waiting.add(body.call_ids[item], call, limit)
        else:
            tool, signature, kind = calls[item.row]
            waiting.add(item.call_id, Call(tool, signature, item.call_id, kind, item.offset), limit)


def _rows(body: _Body) -> list[tuple[str, bytes, int]]:
    tools = [body.tools[index] for index in body.row_tools]
    return list(zip(tools, _digests(body.signatures), body.row_kinds, strict=True))


def _digests(joined: bytes) -> Iterator[bytes]:
    return (joined[start : start + DIGEST] for start in range(0, len(joined), DIGEST))
