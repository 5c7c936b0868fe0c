"""The trace that an agent is in goes on in what the guard says of it."""

from __future__ import annotations

from streamguard.stream.trace import TRACEPARENT

try:
    from opentelemetry.trace import get_current_span
except ImportError:  # whoever has no OpenTelemetry has no trace
    get_current_span = None  # type: ignore[assignment]

__all__ = ["current_trace"]


def current_trace() -> tuple[tuple[str, bytes], ...]:
    """Return the header that carries on the caller's current OpenTelemetry span; nothing if it is in none."""
    context = None if get_current_span is None else get_current_span().get_span_context()
    if context is None or not context.is_valid:
        return ()
    parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    return ((TRACEPARENT, parent.encode()),)
