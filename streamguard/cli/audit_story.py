"""How an explanation is shown: what and why in a few lines, then the run's events as a time line."""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from streamguard.audit.explain import Explanation
from streamguard.audit.reasons import before, counted, rule_of, thresholds_of
from streamguard.audit.story import Step
from streamguard.cli.audit_output import STYLES, action_of, moment, printable
from streamguard.verdicts import encode_verdict

__all__ = ["explained"]

COLOURS: Final = ("cyan", "magenta", "green", "blue", "yellow", "bright_cyan", "bright_magenta", "bright_green")


class Letters:
    """Names things that are equal by the same letter: A, B, ... Z, A2, ..."""

    def __init__(self) -> None:
        self._known: dict[object, str] = {}

    def of(self, value: object) -> Text:
        """Return a thing's letter, in its colour."""
        turn, number = divmod(len(self._known), len(string.ascii_uppercase))
        letter = self._known.setdefault(value, string.ascii_uppercase[number] + (str(turn + 1) if turn else ""))
        place = list(self._known).index(value)
        return Text(letter, COLOURS[place % len(COLOURS)])


def explained(explanation: Explanation, shown: int) -> Iterator[RenderableType]:
    """Yield what is to be printed; of the run's events the newest `shown`."""
    yield _summary(explanation)
    steps = [step for step in explanation.steps if step.source.offset <= explanation.verdict.source.offset]
    yield _timeline(explanation, steps[-shown:])
    if len(steps) > shown:
        yield Text(f"{len(steps) - shown:,} earlier events of the run are not shown (--steps)", "dim")


def _summary(explanation: Explanation) -> Table:
    verdict, policy = explanation.verdict, explanation.policy
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    agent = f"   agent {verdict.agent_id}" if verdict.agent_id else ""
    called = f"{verdict.call_id or '-'}  {verdict.tool or ''}  at {moment(verdict.source.timestamp)}"
    found = f"  {printable(verdict.detector)}"
    table.add_row("verdict", Text.assemble(printable(verdict.verdict_id), "  ", action_of(verdict), found))
    table.add_row("run", Text(printable(verdict.run_id + agent)))
    table.add_row("call", Text(printable(called)))
    if verdict.detector is not None:
        table.add_row("rule", rule_of(verdict, policy))
        table.add_row("counted", f"{verdict.count}, and {thresholds_of(verdict)} is {verdict.threshold}")
        table.add_row("not before", Text(printable(before(verdict, explanation.steps))))
    table.add_row("policy", _policy(explanation))
    if verdict.override is not None:
        table.add_row("override", Text(printable(_override(explanation))))
    table.add_row("right?", _right(explanation))
    return table


def _policy(explanation: Explanation) -> Text:
    verdict, policy, since = explanation.verdict, explanation.policy, explanation.since
    if policy.fingerprint != verdict.policy:
        return Text(f"{verdict.policy}, which is not the one at hand ({policy.fingerprint})", "red")
    thresholds = f"warning {policy.warning_threshold}, critical {policy.critical_threshold}"
    text = f"{verdict.policy}: {thresholds}, history {policy.history_size}"
    if since is not None:
        text += f"; in force since event {since.offset}" + (f", {moment(since.time)}" if since.time else "")
    return Text(text)


def _override(explanation: Explanation) -> str:
    override, name = explanation.override, explanation.verdict.override
    if override is None:
        return f"{name}, which the policy at hand does not have"
    return f"{name}: allowed until {moment(override.until)} by {override.by}: {override.why}"


def _right(explanation: Explanation) -> Text:
    derived = explanation.derived
    same = derived is not None and encode_verdict(derived) == encode_verdict(explanation.verdict)
    if explanation.lost and not same:
        return Text("it cannot be told: earlier events, which it may depend on, are no longer on the topic", "yellow")
    if derived is None:
        return Text("it does not follow from the events at hand", "bold red")
    if not same:
        return Text(f"from the events at hand follows another: {derived.action} {derived.detector}", "bold red")
    return Text("judged again from the events, it comes out the same, byte for byte", "green")


def _timeline(explanation: Explanation, steps: Sequence[Step]) -> Table:
    evidence = {step.source.offset for step in counted(explanation.verdict, steps)}
    calls, outcomes = Letters(), Letters()
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("offset", "time (UTC)", "event", "call", "same", "outcome", "counts", "said"):
        table.add_column(name, justify="right" if name in {"offset", "counts"} else "left", overflow="fold")
    for step in steps:
        table.add_row(
            str(step.source.offset),
            moment(step.source.timestamp)[11:-1],
            "compaction" if step.kind == "compaction" else step.kind,
            Text(printable(f"{step.tool or ''} {step.call_id or ''}".strip())),
            calls.of(step.signature) if step.kind == "call" else Text(),
            outcomes.of(step.outcome) if step.outcome is not None else Text("" if step.ran else "blocked", "dim"),
            _counted(step, evidence),
            _said(step),
        )
    table.caption = "same: equal letters, equal calls; outcome: equal letters, equal results; *: counted by the verdict"
    table.caption_justify = "left"
    return table


def _counted(step: Step, evidence: set[int]) -> str:
    return ("*" if step.source.offset in evidence else "") + ("" if step.counted is None else str(step.counted))


def _said(step: Step) -> Text:
    text = Text()
    for verdict in step.verdicts:
        if verdict.action != "allow":
            style = "dim" if verdict.shadow else STYLES[verdict.action]
            text.append(f"{verdict.action}{' (shadow)' if verdict.shadow else ''} {verdict.detector} ", style)
    return text
