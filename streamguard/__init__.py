"""streamguard stops looping agents from outside: tool calls in from Kafka, warn, block and abort verdicts out.

The pure core is here, to be used without any Kafka: `Guard(policy).observe(event, source)` returns verdicts.
"""

from __future__ import annotations

from streamguard.errors import StreamguardError
from streamguard.events import Compaction, Event, RunEnded, Source, ToolCall, ToolResult, decode_event
from streamguard.guard import Guard, Limits
from streamguard.policy import Policy, PolicySet, resolve
from streamguard.verdicts import Verdict, decode_verdict, encode_verdict

__all__ = [
    "Compaction",
    "Event",
    "Guard",
    "Limits",
    "Policy",
    "PolicySet",
    "RunEnded",
    "Source",
    "StreamguardError",
    "ToolCall",
    "ToolResult",
    "Verdict",
    "decode_event",
    "decode_verdict",
    "encode_verdict",
    "resolve",
]
