"""What goes out: the verdicts of version 1 of the contract, and their encoders."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from streamguard.events import Source

__all__ = ["Action", "Verdict", "decode_verdict", "encode_verdict"]

Action: TypeAlias = Literal["allow", "warn", "block", "abort"]


class Verdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One answer of the guard. A pure function of the partition's events and the policy: no clock, no randomness.

    `count` is what was counted in calls, `threshold` the limit it reached; `evidence` holds the offsets of the calls
    that were counted, newest last, at most 32. `override` names what lets the call go on all the same: such a verdict
    is `shadow`.
    """

    verdict_id: str
    run_id: str
    agent_id: str | None = None
    call_id: str | None = None
    tool: str | None = None
    action: Action
    detector: str | None = None
    count: int | None = None
    threshold: int | None = None
    message: str | None = None
    signature: str | None = None
    paired_tool: str | None = None
    evidence: tuple[int, ...] = ()
    shadow: bool = False
    override: str | None = None
    policy: str
    source: Source


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Verdict)

encode_verdict: Final = _encoder.encode
"""Encode a verdict as JSON: equal verdicts give equal bytes."""

decode_verdict: Final = _decoder.decode
"""Decode the JSON of a verdict; raises `msgspec.MsgspecError` if it is none."""
