"""The demo: an embedded broker, a fleet of simulated agents, the real worker, and a live view."""

from __future__ import annotations
