"""Why a call was stopped or warned of, and why not the one before: in words, from what was counted.

Source of every rule: the section "Detectors" of the detection rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from streamguard.audit.story import Step
from streamguard.policy import Policy
from streamguard.verdicts import Verdict

__all__ = ["before", "counted", "rule_of", "thresholds_of"]

RULES: Final[Mapping[tuple[str, str], str]] = {
    ("generic_repeat", "warn"): "the same call (tool and arguments), again, within the last {history} calls of the run",
    ("generic_repeat", "block"): "the same call with the same outcome, time after time, with no other outcome since",
    ("known_poll_no_progress", "warn"): "a poll whose answer is the same each time",
    ("known_poll_no_progress", "block"): "a poll whose answer is the same each time",
    ("ping_pong", "warn"): "two calls that take turns and nothing else in between",
    ("ping_pong", "block"): "two calls that take turns, each with the same outcome every time",
    ("unknown_tool_repeat", "block"): "one call after the other of a tool that does not exist, whatever its arguments",
    ("global_circuit_breaker", "block"): "the same call with the same outcome, whatever other detectors are off",
    ("compaction_loop_persisted", "abort"): "the first calls after a compaction: all the same, with the same outcome",
}

FIELDS: Final[Mapping[tuple[str, str], str]] = {
    ("unknown_tool_repeat", "block"): "unknownToolThreshold",
    ("global_circuit_breaker", "block"): "globalCircuitBreakerThreshold",
    ("compaction_loop_persisted", "abort"): "postCompactionGuard.windowSize",
}


def rule_of(verdict: Verdict, policy: Policy) -> str:
    """Return the rule that was applied, in words."""
    rule = RULES.get((verdict.detector or "", verdict.action), "nothing was found: the call may go on")
    return rule.format(history=policy.history_size)


def thresholds_of(verdict: Verdict) -> str:
    """Return the name of the threshold, as a policy spells it."""
    default = "warningThreshold" if verdict.action == "warn" else "criticalThreshold"
    return FIELDS.get((verdict.detector or "", verdict.action), default)


def counted(verdict: Verdict, steps: Sequence[Step]) -> list[Step]:
    """Return the calls that were counted, by the verdict's evidence; at most the newest 32 are named there."""
    evidence = frozenset(verdict.evidence)
    return [step for step in steps if step.source.offset in evidence]


def before(verdict: Verdict, steps: Sequence[Step]) -> str:
    """Say what became of the call of this kind just before, and why."""
    if verdict.detector == "compaction_loop_persisted":
        return _outcomes_before(verdict, steps)
    alike = [step for step in steps if step.kind == "call" and _alike(verdict, step)]
    earlier = [step for step in alike if step.source.offset < verdict.source.offset]
    if not earlier:
        return "there was none in the events that are left"
    last = earlier[-1]
    threshold = verdict.threshold or 0
    said = [each for each in last.verdicts if each.detector == verdict.detector and each.action == verdict.action]
    if said:
        first = next((step for step in earlier if _same(verdict, step)), last)
        return (
            f"call {last.call_id or '-'} at {last.source.offset} counted {last.counted} and was treated likewise; the "
            f"first of the row was call {first.call_id or '-'} at {first.source.offset}, which counted {first.counted}"
        )
    if last.counted is not None and last.counted < threshold:
        return f"call {last.call_id or '-'} at {last.source.offset} counted {last.counted}, below {threshold}"
    if verdict.action == "warn":
        return (
            f"call {last.call_id or '-'} at {last.source.offset} counted {last.counted}; a warning is not said again "
            "until its count has grown by 10"
        )
    return (
        f"call {last.call_id or '-'} at {last.source.offset} counted {last.counted}, but the rule did not hold for it: "
        "another detector decided, or the other side made progress"
    )


def _outcomes_before(verdict: Verdict, steps: Sequence[Step]) -> str:
    results = [step for step in steps if step.kind == "result" and step.outcome is not None]
    compactions = [step.source.offset for step in steps if step.kind == "compaction"]
    since = compactions[-1] if compactions else -1
    seen = sum(since < step.source.offset < verdict.source.offset for step in results)
    return (
        f"the outcome before was number {seen} since the compaction at {since}; {verdict.threshold} decide "
        "(postCompactionGuard.windowSize)"
    )


def _alike(verdict: Verdict, step: Step) -> bool:
    if verdict.detector == "unknown_tool_repeat":
        return step.tool == verdict.tool
    if verdict.detector == "ping_pong":
        return step.tool in {verdict.tool, verdict.paired_tool}
    return step.signature == verdict.signature


def _same(verdict: Verdict, step: Step) -> bool:
    return any(each.detector == verdict.detector and each.action == verdict.action for each in step.verdicts)
