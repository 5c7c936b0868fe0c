"""Verdicts as they are published: from what was found in a run to the words and numbers of the contract."""

from __future__ import annotations

from streamguard.events import Source, ToolCall
from streamguard.guard.detectors import Finding
from streamguard.guard.messages import abort_message, finding_message
from streamguard.guard.run import Abort, Run
from streamguard.guard.signature import public_signature, tool_named
from streamguard.guard.window import Call
from streamguard.verdicts import Verdict

__all__ = ["abort_verdict", "allow_verdict", "finding_verdict"]


def finding_verdict(
    run: Run,
    call: Call,
    finding: Finding,
    event: ToolCall,
    source: Source,
    *,
    number: int = 0,
    shadow: bool = False,
    override: str | None = None,
) -> Verdict:
    """Warn of a call, or block it; in shadow: say that we would."""
    return Verdict(
        verdict_id=_verdict_id(source, number),
        run_id=run.run_id,
        agent_id=run.agent_id,
        call_id=event.call_id,
        tool=call.tool,
        action=finding.action,
        detector=finding.detector,
        count=finding.count,
        threshold=finding.threshold,
        message=finding_message(finding.action, finding.detector, call.tool, finding.count, finding.paired_tool),
        signature=public_signature(call.tool, call.signature),
        paired_tool=finding.paired_tool,
        evidence=finding.evidence(),
        shadow=shadow,
        override=override,
        policy=run.fingerprint,
        source=source,
    )


def abort_verdict(
    run: Run, abort: Abort, call_id: str | None, source: Source, *, shadow: bool = False, override: str | None = None
) -> Verdict:
    """End a run, or say again that it was ended; in shadow: say that we would."""
    return Verdict(
        verdict_id=_verdict_id(source, 0),
        run_id=run.run_id,
        agent_id=run.agent_id,
        call_id=call_id,
        tool=abort.tool,
        action="abort",
        detector=abort.detector,
        count=abort.count,
        threshold=abort.threshold,
        message=abort_message(abort.tool, abort.count),
        signature=public_signature(abort.tool, abort.signature),
        evidence=abort.evidence,
        shadow=shadow,
        override=override,
        policy=run.fingerprint,
        source=source,
    )


def allow_verdict(run: Run, event: ToolCall, source: Source, number: int = 0) -> Verdict:
    """Answer a call whose executor waits: nothing is wrong, or nothing that was not said already."""
    return Verdict(
        verdict_id=_verdict_id(source, number),
        run_id=run.run_id,
        agent_id=run.agent_id,
        call_id=event.call_id,
        tool=tool_named(event.tool).name,
        action="allow",
        policy=run.fingerprint,
        source=source,
    )


def _verdict_id(source: Source, number: int) -> str:
    """Name the verdict after its event. All but the first about an event come behind one in shadow."""
    return f"{source.partition}-{source.offset}-{number}"
