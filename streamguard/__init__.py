"""streamguard stops looping agents from outside: tool calls in from Kafka, warn, block and abort verdicts out.

The pure core is here, to be used without any Kafka: `Guard(policy).observe(event, source)` returns verdicts. What is
named here is imported when it is used: `streamguard.hook` starts anew for every tool call and must be quick.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own costs some milliseconds
if TYPE_CHECKING:
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

_PLACES = {
    "errors": ("StreamguardError",),
    "events": ("Compaction", "Event", "RunEnded", "Source", "ToolCall", "ToolResult", "decode_event"),
    "guard": ("Guard", "Limits"),
    "policy": ("Policy", "PolicySet", "resolve"),
    "verdicts": ("Verdict", "decode_verdict", "encode_verdict"),
}


def __getattr__(name: str) -> object:
    """Import what is asked for, and keep it."""
    import importlib  # noqa: PLC0415 - only who asks pays

    for module, names in _PLACES.items():
        if name == module or name in names:
            found = importlib.import_module(f"streamguard.{module}")
            value: object = found if name == module else getattr(found, name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'streamguard' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return what can be asked for."""
    return sorted({*globals(), *__all__, *_PLACES})
