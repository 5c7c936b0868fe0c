"""Verdicts of a worker that signs: whoever has the key can tell them from others."""

from __future__ import annotations

from typing import Any

import pytest
from cluster import Cluster, running
from events import call, loop

from streamguard.errors import BadSignatureError
from streamguard.policy import PolicySet
from streamguard.signing import SigningKey, Verifier
from streamguard.stream.worker import Worker

KEY = SigningKey("2026-12", b"correct horse battery staple")


async def test_verdicts_are_signed_with_the_current_key(broker: Any, topic_prefix: str) -> None:
    """With `signing.key` every verdict carries a signature that fits it, and the key's id; a flipped byte shows."""
    async with Cluster(broker, topic_prefix) as cluster:
        cluster.change(signing={"key_id": KEY.id, "key": KEY.secret.decode()})
        async with running(Worker(cluster.settings, PolicySet({"enabled": True}))):
            await cluster.publish("run-1", [*loop("run-1", 11), call("run-1", 11, gate=True)])
            records = await cluster.verdict_records(2)

    verifier = Verifier([SigningKey("2027-01", b"another secret of enough bytes"), KEY])
    for record in records:
        verifier.verify(record.value, record.headers)
        assert KEY.id.encode() == dict(record.headers)["signature-key"]
        with pytest.raises(BadSignatureError):
            verifier.verify(record.value.replace(b"run-1", b"run-2"), record.headers)
