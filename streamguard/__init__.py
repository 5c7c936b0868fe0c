"""streamguard stops looping agents from outside: tool calls in from Kafka, warn, block and abort verdicts out."""

from __future__ import annotations
