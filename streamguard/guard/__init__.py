"""The pure core: a function of events and policy. No clock, no randomness, no I/O, no logging, no asyncio."""

from __future__ import annotations

from streamguard.guard.guard import Counters, Guard, Limits

__all__ = ["Counters", "Guard", "Limits"]
