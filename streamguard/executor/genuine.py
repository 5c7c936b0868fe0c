"""Which records of the verdict topic are the guard's: signed if they have to be, and about what their place says."""

from __future__ import annotations

from collections import Counter

import msgspec
import structlog
from aiokafka import ConsumerRecord

from streamguard.errors import BadSignatureError, UnsignedVerdictError
from streamguard.settings import SigningSettings
from streamguard.signing import Verifier, signing_keys
from streamguard.verdicts import Verdict, decode_verdict

__all__ = ["Genuine", "run_key"]

log = structlog.get_logger("streamguard.executor")


def run_key(record: ConsumerRecord) -> str:
    """Return the run that a record says it is about, by its key."""
    return (record.key or b"").decode("utf-8", "replace")


class Genuine:
    """Reads verdicts; what is none counts as `refused_verdicts`. Raises `SigningKeyError` if keys cannot be used."""

    def __init__(self, signing: SigningSettings, counters: Counter[str]) -> None:
        keys = signing_keys(signing)
        self._verifier = Verifier(keys) if keys else None
        self._counters = counters

    def verdict(self, record: ConsumerRecord) -> Verdict | None:
        """Return the verdict that a record holds; None if it is no genuine one of its run and partition."""
        if record.value is None:
            return None
        try:
            if self._verifier is not None:
                self._verifier.verify(record.value, record.headers)
            verdict = decode_verdict(record.value)
        except (UnsignedVerdictError, BadSignatureError) as error:
            self._refuse(record, "verdict not obeyed", error=str(error))
            return None
        except (msgspec.MsgspecError, RecursionError):
            self._refuse(record, "record is no verdict")
            return None
        if verdict.run_id != run_key(record) or verdict.source.partition != record.partition:
            self._refuse(record, "verdict is about something else")  # genuine, and copied from elsewhere
            return None
        return verdict

    def _refuse(self, record: ConsumerRecord, what: str, **why: str) -> None:
        self._counters["refused_verdicts"] += 1
        log.warning(what, partition=record.partition, offset=record.offset, **why)
