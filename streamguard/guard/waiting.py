"""The calls of a run that wait for their results: a result that carries no arguments takes them from here."""

from __future__ import annotations

from collections.abc import Iterator

from streamguard.guard.window import Call

__all__ = ["WaitingCalls"]


class WaitingCalls:
    """The newest calls whose results have not come, recorded or blocked, by call id. Never more than `limit`."""

    __slots__ = ("_calls", "_count")

    def __init__(self) -> None:
        self._calls: dict[str, Call | list[Call]] = {}  # a list, oldest first, where an id is used again
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[str, Call]]:
        """Yield call ids and calls, in the order in which adding them again gives the same."""
        for call_id, found in self._calls.items():
            for call in found if isinstance(found, list) else (found,):
                yield call_id, call

    def add(self, call_id: str, call: Call, limit: int) -> bool:
        """Remember a call; tell whether the oldest one had to be forgotten for it."""
        known = self._calls.setdefault(call_id, call)
        if known is not call:
            self._calls[call_id] = [*(known if isinstance(known, list) else (known,)), call]
        self._count += 1
        if self._count <= limit:
            return False
        self._forget_oldest()
        return True

    def take(self, call_id: str, signature: bytes | None = None) -> Call | None:
        """Take the newest call of this id, of this signature if one has it; it waits no longer."""
        found = self._calls.pop(call_id, None)
        if found is None:
            return None
        self._count -= 1
        if not isinstance(found, list):
            return found
        matching = [index for index, call in enumerate(found) if call.signature == signature]
        taken = found.pop(matching[-1] if matching else -1)
        self._calls[call_id] = found if len(found) > 1 else found[0]
        return taken

    def _forget_oldest(self) -> None:
        """Forget the call that came first: offsets tell, once an id is used again while it waits."""
        oldest = next(iter(self._calls))
        if len(self._calls) < self._count:
            oldest = min(self._calls, key=lambda call_id: _first(self._calls[call_id]).offset)
        found = self._calls.pop(oldest)
        if isinstance(found, list):
            self._calls[oldest] = found[1:] if len(found) > 2 else found[1]  # noqa: PLR2004 - one stays
        self._count -= 1


def _first(found: Call | list[Call]) -> Call:
    return found[0] if isinstance(found, list) else found
