"""Comparing verdicts of interest only: what is of none is neither kept nor counted."""

from __future__ import annotations

from streams import Log

from streamguard.audit.comparison import Comparison
from streamguard.audit.deriving import Deriver
from streamguard.policy import PolicySet, resolve
from streamguard.stream.journal import Journal, PolicyChange
from streamguard.stream.ruleset import Ruleset
from streamguard.verdicts import encode_verdict

ON = PolicySet({"enabled": True})


def test_what_is_of_no_interest_is_not_kept() -> None:
    """Verdicts that stand are read ahead of the events; those of other runs are gone when their events were judged."""
    log = Log(resolve({"enabled": True, "warningThreshold": 2, "criticalThreshold": 3}))
    said = [verdict for number in range(50) for verdict in log.pair(number)]
    comparison = Comparison(lambda _: False, lambda _: False)
    for verdict in said:
        comparison.stands(verdict, encode_verdict(verdict), "")
    for verdict in said:
        comparison.derived(verdict)
    comparison.badly_signed(said[0], "")
    tally = comparison.end(1 << 40)

    assert len(said) > 40
    assert (0, 0, 0) == (tally.verified, tally.extra, tally.badly_signed)
    assert not comparison._standing  # noqa: SLF001 - what it costs is the point


def test_a_past_is_known_where_nothing_was_before() -> None:
    """Judging from the first event that is left: its past is lost, unless that is where all began."""

    def lost(first: int, *, anew: bool) -> bool:
        journal = Journal()
        ruleset = Ruleset(ON)
        journal.rulesets[ruleset.fingerprint] = ruleset
        journal.add(PolicyChange(offset=first, ruleset=ruleset.fingerprint, anew=anew))
        return Deriver(0, journal, first).lost

    assert [False, False, True, False] == [
        lost(0, anew=True), lost(0, anew=False), lost(500, anew=False), lost(500, anew=True),
    ]  # fmt: skip
