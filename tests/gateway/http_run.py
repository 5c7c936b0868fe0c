"""A run whose executor has HTTP only: what `streamguard.executor.Run` does, through gateways."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import httpx
import msgspec
from msgspec import UNSET

from streamguard.errors import RunAbortedError
from streamguard.verdicts import Verdict

PATIENCE_SECONDS = 60.0
"""How long gateways may be away."""

AGAIN_SECONDS = 0.2


class HttpDecision(NamedTuple):
    """What a gateway said about a call."""

    call_id: str
    action: str
    message: str | None
    decided_by: str

    @property
    def blocked(self) -> bool:
        """Whether the call must not run."""
        return self.action == "block"


class HttpRun:
    """One run; each request goes to the next of the gateways, and to another one if it is not there.

    An event that was not acknowledged is sent again, under the same `event_id`.
    """

    def __init__(self, gateways: Sequence[httpx.AsyncClient], run_id: str, agent_id: str | None = None) -> None:
        self.run_id = run_id
        self._gateways = gateways
        self._agent_id = agent_id
        self._requests = 0
        self._calls = 0
        self.decided_by: list[str] = []
        self.retries = 0

    async def __aenter__(self) -> Self:
        """Begin: there is nothing to do."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Say that the run is over."""
        await self._publish({"type": "run_ended"})

    async def before_tool(self, tool: str, args: Any) -> HttpDecision:
        """Ask. Raises `RunAbortedError`."""
        self._calls += 1
        call_id = f"c{self._calls}"
        event = self._event({"type": "tool_call", "call_id": call_id, "tool": tool, "args": args})
        answer = (await self._post("/v1/gate", event)).json()
        self.decided_by.append(answer["decided_by"])
        if answer["action"] == "abort":
            raise RunAbortedError(msgspec.convert(answer["verdict"], Verdict))
        if answer["action"] == "block":
            await self._publish({"type": "tool_result", "call_id": call_id, "status": "blocked"})
        return HttpDecision(call_id, answer["action"], answer["message"], answer["decided_by"])

    async def after_tool(self, call: HttpDecision, *, result: Any = UNSET, error: Any = None) -> None:
        """Tell what came of a call."""
        outcome = {"error": error} if result is UNSET else {"result": result}
        await self._publish({"type": "tool_result", "call_id": call.call_id, **outcome})

    async def compacted(self) -> None:
        """Tell of a compaction."""
        await self._publish({"type": "compaction"})

    async def _publish(self, fields: dict[str, Any]) -> None:
        await self._post("/v1/events", self._event({**fields, "event_id": uuid.uuid4().hex}))

    async def _post(self, path: str, event: dict[str, Any]) -> httpx.Response:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                self._requests += 1
                gateway = self._gateways[self._requests % len(self._gateways)]
                try:
                    response = await gateway.post(path, json=event)
                except httpx.ConnectError:
                    pass  # it was not sent
                except httpx.TransportError:
                    if path == "/v1/gate":
                        event = {**event, "event_id": event.get("event_id") or uuid.uuid4().hex}
                else:
                    if response.status_code != 503:
                        return response.raise_for_status()
                self.retries += 1
                await asyncio.sleep(AGAIN_SECONDS)

    def _event(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {"run_id": self.run_id, "agent_id": self._agent_id, **fields}
