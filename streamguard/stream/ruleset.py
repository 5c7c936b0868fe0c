"""All that decides a partition's verdicts beside its events: policies and limits, under one name."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Final

import msgspec

from streamguard.guard import Limits
from streamguard.policy import PolicySet
from streamguard.settings import LimitSettings

__all__ = ["Ruleset", "decode_ruleset", "encode_ruleset"]


class Ruleset(msgspec.Struct, frozen=True, dict=True):
    """Policies, and the limits that events are judged within. Equal rulesets give equal verdicts."""

    policies: PolicySet
    limits: LimitSettings = LimitSettings()

    @cached_property
    def fingerprint(self) -> str:
        """Twelve hex digits that name this ruleset, on any machine."""
        return hashlib.sha256(encode_ruleset(self)).hexdigest()[:12]

    @property
    def guard_limits(self) -> Limits:
        """What bounds a guard that judges by this ruleset."""
        limits = self.limits
        return Limits(
            runs=limits.runs,
            active_runs=limits.active_runs,
            idle_ms=limits.idle_seconds * 1000,
            waiting_calls=limits.waiting_calls,
        )


_encoder: Final = msgspec.json.Encoder(order="sorted")
_decode: Final = msgspec.json.Decoder(Ruleset).decode
_OF_THIS_MACHINE: Final = {"active_runs": LimitSettings().active_runs}
"""What changes memory and speed, but no verdict."""


def encode_ruleset(ruleset: Ruleset) -> bytes:
    """Write a ruleset; equal ones give equal bytes."""
    limits = msgspec.structs.replace(ruleset.limits, **_OF_THIS_MACHINE)
    return _encoder.encode(msgspec.structs.replace(ruleset, limits=limits))


def decode_ruleset(value: bytes, active_runs: int | None = None) -> Ruleset:
    """Read a ruleset, for a machine that keeps so many runs active. Raises `msgspec.MsgspecError` if it is none."""
    ruleset = _decode(value)
    if active_runs is None:
        return ruleset
    return msgspec.structs.replace(ruleset, limits=msgspec.structs.replace(ruleset.limits, active_runs=active_runs))
