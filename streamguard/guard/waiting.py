"""The calls of a run that wait for their results: a result that carries no arguments takes them from here."""

from __future__ import annotations

from streamguard.guard.window import Call

__all__ = ["WaitingCalls"]


class WaitingCalls:
    """The newest calls whose results have not come, recorded or blocked, by call id. Never more than `limit`."""

    __slots__ = ("_calls", "_count")

    def __init__(self) -> None:
        self._calls: dict[str, list[Call]] = {}  # of one call id: oldest first, nearly always one
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, call_id: str, call: Call, limit: int) -> int:
        """Remember a call; return how many older ones had to be forgotten for it (0 or 1)."""
        calls = self._calls.get(call_id)
        if calls is None:
            self._calls[call_id] = [call]
        else:
            calls.append(call)
        self._count += 1
        if self._count <= limit:
            return 0
        self._forget_oldest()
        return 1

    def take(self, call_id: str, signature: bytes | None = None) -> Call | None:
        """Take the newest call of this id, of this signature if one has it; it waits no longer."""
        calls = self._calls.get(call_id)
        if calls is None:
            return None
        self._count -= 1
        if len(calls) == 1:
            return self._calls.pop(call_id)[0]
        matching = [index for index, call in enumerate(calls) if call.signature == signature]
        return calls.pop(matching[-1] if matching else -1)

    def _forget_oldest(self) -> None:
        """Forget the call that came first: offsets tell, where an id was used again while it waited."""
        oldest = next(iter(self._calls))
        if len(self._calls[oldest]) > 1:
            oldest = min(self._calls, key=lambda call_id: self._calls[call_id][0].offset)
        calls = self._calls[oldest]
        del calls[0]
        if calls:
            self._calls[oldest] = self._calls.pop(oldest)
        else:
            del self._calls[oldest]
        self._count -= 1
