"""What the guard does beyond detecting: runs, gates, duplicates, limits, and what stands in a verdict."""

from __future__ import annotations

import pytest
from streams import Log, said

from streamguard.errors import MissingRunError
from streamguard.events import Compaction, RunEnded, ToolCall
from streamguard.policy import PolicySet, resolve
from streamguard.verdicts import Verdict


def loop(log: Log, times: int, **fields: object) -> list[Verdict]:
    """Make the same call with the same result again and again; return all verdicts."""
    return [verdict for number in range(times) for verdict in log.pair(number, **fields)]  # type: ignore[arg-type]


def abort(log: Log, run: str = "r") -> list[Verdict]:
    """Compact a run and let it fall back into the same hole."""
    log.add(Compaction(run_id=run))
    return loop(log, 3, run=run)


def test_defaults_warn_at_the_11th_and_block_at_the_21st_call() -> None:
    """With the documented defaults the 11th identical call warns and the 21st is blocked."""
    verdicts = loop(Log(), 22)

    assert [("warn", 20), ("block", 40), ("block", 42)] == [(v.action, v.source.offset) for v in verdicts]


def test_a_verdict_says_all_that_the_contract_lists() -> None:
    """A block carries its id, scope, call, tool, counts, signature, evidence, policy and source."""
    log = Log()
    loop(log, 20)
    [verdict] = log.call("c20", args=None)

    assert (
        verdict.verdict_id, verdict.run_id, verdict.call_id, verdict.tool, verdict.action, verdict.detector,
        verdict.count, verdict.threshold, verdict.evidence, verdict.shadow, verdict.policy,
    ) == (
        "3-40-0", "r", "c20", "read", "block", "generic_repeat",
        20, 20, tuple(range(0, 40, 2)), False, log.guard.policy_of(None).fingerprint,
    )  # fmt: skip
    assert verdict.signature is not None
    assert verdict.signature.startswith("read:")
    assert verdict.message is not None
    assert "20 times" in verdict.message


def test_evidence_is_capped_at_the_newest_32() -> None:
    """A verdict points at no more than 32 calls, the newest last."""
    log = Log(resolve({"enabled": True, "historySize": 60, "criticalThreshold": 50}))
    loop(log, 50)
    [verdict] = log.call("last")

    assert tuple(range(36, 100, 2)) == verdict.evidence


def test_no_payload_in_any_verdict() -> None:
    """Neither arguments nor results appear in what is published."""
    log = Log()
    verdicts = loop(log, 25, args={"secret": "hunter2-args"}, result="hunter2-result")
    verdicts += abort(log, "other")

    assert not [verdict for verdict in verdicts if "hunter2" in repr(verdict)]


def test_a_gated_call_is_always_answered() -> None:
    """A call sent with `gate` gets allow where nothing is wrong, and the finding where something is."""
    log = Log()
    answers = []
    for number in range(22):
        answers += log.call(f"c{number}", gate=True)
        log.result(f"c{number}", result="same")

    assert ["allow"] * 10 + ["warn"] + ["allow"] * 9 + ["block"] * 2 == [answer.action for answer in answers]


def test_a_gated_call_is_answered_when_all_is_off() -> None:
    """Where the policy switches everything off the executor still does not wait in vain."""
    log = Log(resolve({"enabled": False}))

    assert ["allow"] == [verdict.action for verdict in log.call(gate=True)]


def test_off_remembers_nothing() -> None:
    """With `enabled: false` nothing is detected, and nothing is remembered for later."""
    assert not loop(Log(resolve({"enabled": False})), 40)


def test_unset_watches_compactions_only() -> None:
    """With `enabled` unset the rolling detectors are off and the post-compaction guard is on."""
    log = Log(resolve({}))

    assert [] == loop(log, 40)
    assert [("abort", "compaction_loop_persisted", 3)] == said(abort(log))


def test_an_abort_is_said_again_at_the_1st_2nd_4th_8th_call() -> None:
    """If events still come after an abort, it is published again ever more rarely."""
    log = Log()
    abort(log)
    again = [number for number in range(1, 20) if log.call(f"x{number}")]

    assert [1, 2, 4, 8, 16] == again


def test_after_an_abort_every_gated_call_is_answered_with_it() -> None:
    """An executor that waits for an answer is told each time that the run is over."""
    log = Log()
    abort(log)

    assert ["abort"] * 5 == [verdict.action for n in range(5) for verdict in log.call(f"x{n}", gate=True)]


def test_an_abort_names_tool_count_and_calls() -> None:
    """The abort says which tool looped, how often, and which calls were counted."""
    [verdict] = abort(Log())

    assert ("read", 3, 3, (1, 3, 5), "c2") == (
        verdict.tool, verdict.count, verdict.threshold, verdict.evidence, verdict.call_id,
    )  # fmt: skip


def test_run_ended_forgets_the_run() -> None:
    """After run_ended the same run id starts from nothing."""
    log = Log()
    loop(log, 20)
    log.add(RunEnded(run_id="r"))

    assert 0 == len(log.guard)
    assert [] == log.call()


def test_a_repeated_event_id_is_ignored() -> None:
    """A producer's retry does not count twice."""
    log = Log()
    verdicts = []
    for number in range(9):
        verdicts += log.call(f"c{number}", event_id=f"e{number}")
        verdicts += log.call(f"c{number}", event_id=f"e{number}")
        verdicts += log.result(f"c{number}", result="same", event_id=f"f{number}")

    assert ([], 9) == (verdicts, log.guard.counters.duplicates)


def test_an_event_id_is_the_runs_own() -> None:
    """Two runs may use the same event ids."""
    log = Log()
    log.call(run="a", event_id="1")
    log.call(run="b", event_id="1")

    assert 0 == log.guard.counters.duplicates


def test_a_session_is_the_scope_where_there_is_no_run() -> None:
    """Without a run id the session's id is the scope; blanks around either do not count."""
    log = Log()
    verdicts = []
    for number in range(11):
        run, session = (" s ", None) if number % 2 else ("  ", "s")
        verdicts += log.call(f"c{number}", run=run, session_id=session)
        log.result(f"c{number}", run=run, session_id=session, result="same")

    assert [("warn", "generic_repeat", 10)] == said(verdicts)
    assert "s" == verdicts[0].run_id


@pytest.mark.parametrize("fields", [{}, {"run_id": " "}, {"run_id": "", "session_id": "\t"}])
def test_an_event_without_scope_is_refused(fields: dict[str, str]) -> None:
    """An event with neither run nor session is an error, and changes nothing."""
    log = Log()

    with pytest.raises(MissingRunError):
        log.add(ToolCall(tool="read", **fields))  # type: ignore[arg-type]
    assert 0 == len(log.guard)


def test_idle_runs_are_forgotten_by_record_time() -> None:
    """A run without events for longer than the limit starts from nothing; time is that of the records."""
    log = Log(idle_ms=1000)
    loop(log, 10)
    log.time = 1001
    verdicts = log.call()

    assert ([], 1) == (verdicts, log.guard.counters.expired_runs)


def test_a_run_that_goes_on_is_not_forgotten() -> None:
    """Events within the idle time keep a run, however long it lasts."""
    log = Log(idle_ms=1000)
    verdicts = []
    for number in range(11):
        log.time += 900
        verdicts += log.pair(number)

    assert [("warn", "generic_repeat", 10)] == said(verdicts)


def test_time_does_not_run_backwards() -> None:
    """A record with an old timestamp neither expires runs nor makes its own run look idle."""
    log = Log(idle_ms=1000)
    log.time = 5000
    log.pair(0)
    log.time = 10
    log.pair(1)
    log.time = 5900
    log.pair(2)

    assert 0 == log.guard.counters.expired_runs


def test_beyond_the_cap_the_least_recently_active_run_goes() -> None:
    """The cap on runs holds, and hits the run that was silent longest."""
    log = Log(runs=2)
    loop(log, 5, run="a")
    for run in ("b", "a", "c"):  # c takes b's place
        log.pair(run=run)
    loop(log, 4, run="a")

    assert ["warn"] == [verdict.action for verdict in log.call(run="a")]
    assert (2, 1, 3) == (len(log.guard), log.guard.counters.evicted_runs, log.guard.counters.runs)


def test_waiting_calls_are_capped() -> None:
    """Calls whose results never come are bounded; the oldest is forgotten and its result is an orphan."""
    log = Log(waiting_calls=2)
    for number in range(3):
        log.call(f"c{number}", args=number)
    log.result("c0", result="x")

    assert (1, 1) == (log.guard.counters.forgotten_calls, log.guard.counters.orphans)


def test_agents_have_their_own_policies() -> None:
    """An agent's block is laid over the global one; a result without agent id keeps its run's agent."""
    log = Log(PolicySet({"enabled": True}, {"careful": {"warningThreshold": 3}}))
    for number in range(3):
        log.call(f"c{number}", agent_id="careful")
        log.result(f"c{number}", result="same")
    [verdict] = log.call("c3", agent_id="careful")

    assert ("warn", 3, "careful") == (verdict.action, verdict.count, verdict.agent_id)


def test_a_run_that_changes_its_agent_keeps_its_history() -> None:
    """When another agent takes over a run, what was counted stands, under the new agent's thresholds and size."""
    log = Log(
        PolicySet({"enabled": True}, {"short": {"historySize": 4, "warningThreshold": 4, "criticalThreshold": 5}})
    )
    loop(log, 8)
    [verdict] = log.call("x", agent_id="short")

    assert ("warn", 4, (8, 10, 12, 14)) == (verdict.action, verdict.count, verdict.evidence)


def test_compaction_is_counted_when_it_arms() -> None:
    """The shell can tell when the post-compaction guard was armed, and for how many attempts."""
    log = Log()
    compaction = Compaction(run_id="r")
    log.add(compaction)

    assert (1, 3) == (log.guard.counters.armed, log.guard.attempts_left(compaction))
