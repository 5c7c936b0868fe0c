"""What the tests of all adapters share: a policy with low thresholds, and the agents' one tool."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from streamguard.adapters import guarding
from streamguard.executor import LocalGuard, Run
from streamguard.policy import PolicySet

__all__ = ["BLOCKED_AT", "POLICIES", "WARNED_AT", "Shelf", "compacted", "readme"]

WARNED_AT = 3
BLOCKED_AT = 5

POLICIES = PolicySet({"enabled": True, "warningThreshold": WARNED_AT, "criticalThreshold": BLOCKED_AT})


class Shelf:
    """Where agents look things up: the same book, the same page. It counts how often it was asked."""

    def __init__(self) -> None:
        self.looked = 0

    def look(self, book: str) -> str:
        """Return what stands there; raise if there is no such book."""
        self.looked += 1
        if book == "none":
            raise ValueError("no such book")
        return f"page one of {book}"


@asynccontextmanager
async def compacted() -> AsyncIterator[Run]:
    """A guarded run whose context was compacted just now: the third equal outcome ends it."""
    async with LocalGuard(POLICIES) as guard, guarding(guard.run()) as run:
        await run.compacted()
        yield run


def readme(repository: Path, adapter: str, **names: Any) -> dict[str, Any]:
    """Run the README's code for an adapter, in which these names mean these things; return what it defines."""
    blocks = re.findall(r"```python\n(.*?)```", (repository / "README.md").read_text(), re.DOTALL)
    (code,) = [block for block in blocks if f"from streamguard.adapters.{adapter} import" in block]
    namespace = dict(names)
    exec(code, namespace)  # noqa: S102 - that is what is tested
    return namespace
