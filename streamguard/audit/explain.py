"""Finding a verdict, its run's events, and what was in force: all that an explanation is made of."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from aiokafka import ConsumerRecord, TopicPartition

from streamguard.audit.deriving import Deriver
from streamguard.audit.standing import Standing, standing_verdicts
from streamguard.audit.story import Step, story_of
from streamguard.audit.verify import only
from streamguard.errors import UnreadableRecordError, VerdictNotFoundError
from streamguard.events import Event, Source, decode_event, run_of
from streamguard.guard import Guard
from streamguard.policy import Override, Policy, PolicySet
from streamguard.replay import Replay, lines_of, timestamp_of
from streamguard.settings import LimitSettings, Settings
from streamguard.stream.journal import Journal, PolicyChange, read_journal
from streamguard.stream.restore import LogReader
from streamguard.stream.ruleset import Ruleset
from streamguard.stream.shard import is_msgpack
from streamguard.verdicts import Verdict

__all__ = ["Explanation", "explain_file", "explain_topic", "find_verdict", "telling"]

ID_PARTS: Final = 3


class Explanation(NamedTuple):
    """A verdict, the story of its run up to it, and what was in force.

    `derived` is what follows from the events now: None if it does not follow. `since` is the change that brought the
    policy in force, `override` what let the call go on. `lost`: events are gone that it may depend on.
    """

    verdict: Verdict
    derived: Verdict | None
    steps: Sequence[Step]
    policy: Policy
    since: PolicyChange | None
    override: Override | None
    lost: bool


def telling(verdicts: Iterable[Standing]) -> Standing | None:
    """Choose the verdict that tells most about a run: the first that stopped it, else the newest that is no `allow`."""
    chosen: Standing | None = None
    for standing in verdicts:
        verdict = standing.verdict
        if verdict.action in {"block", "abort"} and not verdict.shadow:
            return standing
        chosen = standing
    return chosen


async def find_verdict(settings: Settings, verdict_id: str, partitions: int) -> Standing:
    """Return a verdict by its id. Raises `VerdictNotFoundError`, `KafkaError`."""
    parts = verdict_id.split("-")
    if len(parts) != ID_PARTS or not all(part.isascii() and part.isdigit() for part in parts):
        raise VerdictNotFoundError(
            f"{verdict_id} is no verdict id: they are <partition>-<offset>-<n>, see `streamguard audit list`"
        )
    partition, offset = int(parts[0]), int(parts[1])
    if partition < partitions:
        async for standing in standing_verdicts(settings, [partition]):
            if standing.verdict.verdict_id == verdict_id:
                return standing
            if standing.verdict.source.offset > offset:
                break
    raise VerdictNotFoundError(
        f"verdict {verdict_id} does not stand on {settings.topics.verdicts}: retention may have taken it, or it is "
        "another topic's (topics.verdicts)"
    )


async def explain_topic(
    settings: Settings, verdict: Verdict, fallback: Ruleset | None, tell: Callable[[int, int], None]
) -> Explanation:
    """Explain a verdict from the events topic; `tell` hears how many of how many events were looked at.

    Raises `NoRulesetError`, `VerdictNotFoundError` if the event itself is gone, `KafkaError`.
    """
    number, end = verdict.source.partition, verdict.source.offset + 1
    events = TopicPartition(settings.topics.events, number)
    policies = TopicPartition(settings.policies_topic, number)
    found: list[tuple[Event, Source]] = []
    async with LogReader(settings.kafka, events, policies) as reader:
        journal = await read_journal(reader, policies)
        if not journal.changes and fallback is not None:
            journal = only(fallback)
        bounds = await reader.bounds(events)
        if bounds.first >= end:
            raise VerdictNotFoundError(
                f"the event of verdict {verdict.verdict_id}, {events.topic}[{number}]@{end - 1}, is no longer on the "
                f"topic, whose first is {bounds.first}: there is nothing to explain it from"
            )
        deriver = Deriver(number, journal, bounds.first)
        lost = deriver.lost
        async for records in reader.read(events, deriver.start, end):
            found += _of_run(records, verdict.run_id, end)
            tell(min(records[-1].offset + 1, end) - deriver.start, end - deriver.start)
    steps = story_of(found, deriver.judge_one, verdict.detector or "", verdict.action)
    return _explanation(verdict, steps, journal, lost=lost)


def explain_file(events: Sequence[str], verdict: Verdict, policies: PolicySet) -> Explanation:
    """Explain a verdict from files of events, as `streamguard replay` reads them. Raises `ReplayInputError`."""
    limits = LimitSettings()
    guard = Guard(policies)
    replay = Replay(guard, record_bytes=limits.record_bytes, json_depth=limits.json_depth)
    found: list[tuple[Event, Source]] = []
    offset, time = -1, 0
    for name in events:
        for line in lines_of(name, replay.record_bytes):
            offset += 1
            event = _readable(line.text)
            if event is None:
                continue
            time = timestamp_of(event) or time
            if _is_of(event, verdict.run_id) and offset <= verdict.source.offset:
                found.append((event, Source("replay", 0, offset, time)))
    steps = story_of(
        found, lambda event, source: (guard, guard.observe(event, source)), verdict.detector or "", verdict.action
    )
    return _explanation(verdict, steps, only(Ruleset(policies)))


def _explanation(verdict: Verdict, steps: Sequence[Step], journal: Journal, *, lost: bool = False) -> Explanation:
    derived = [each for step in steps for each in step.verdicts if each.verdict_id == verdict.verdict_id]
    ruleset = journal.at(verdict.source.offset)
    policies = ruleset.policies if ruleset is not None else PolicySet()
    changes = [change for change in journal.changes if change.offset <= verdict.source.offset]
    return Explanation(
        verdict,
        derived[0] if derived else None,
        steps,
        policies.of(verdict.agent_id),
        changes[-1] if changes else None,
        policies.overrides.get(verdict.override or ""),
        lost,
    )


def _of_run(records: Iterable[ConsumerRecord], run_id: str, end: int) -> Iterator[tuple[Event, Source]]:
    wanted = run_id.encode()
    for record in records:
        # Nearly always the key is the run: what has another one need not be decoded, unless its value names the run.
        if record.offset >= end or (record.key != wanted and wanted not in (record.value or b"")):
            continue
        event = _readable(record.value, msgpack=is_msgpack(record))
        if event is not None and _is_of(event, run_id):
            yield event, Source(record.topic, record.partition, record.offset, record.timestamp or 0)


def _readable(value: bytes | None, *, msgpack: bool = False) -> Event | None:
    with contextlib.suppress(UnreadableRecordError):
        return decode_event(value, msgpack=msgpack)
    return None


def _is_of(event: Event, run_id: str) -> bool:
    with contextlib.suppress(UnreadableRecordError):
        return run_of(event) == run_id
    return False
