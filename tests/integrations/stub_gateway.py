"""A gateway for tests: the HTTP of the real one, and the guard's own core behind it, without Kafka."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

import msgspec

from streamguard.events import ToolCall, decode_event, run_of
from streamguard.executor.local import LocalJudge
from streamguard.policy import PolicySet
from streamguard.verdicts import Verdict

LOOPS = PolicySet({"enabled": True, "warningThreshold": 2, "criticalThreshold": 3})


class Request(NamedTuple):
    """What a client sent."""

    path: str
    authorization: str | None
    events: list[dict[str, Any]]


class StubGateway:
    """Serves on a port of its own: `with StubGateway() as gateway: ...`. With `refuses`, that status answers all.

    `chunked` sends answers in chunks, as a proxy may; `tls` serves HTTPS.
    """

    def __init__(
        self,
        policies: PolicySet = LOOPS,
        *,
        refuses: int | None = None,
        chunked: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.requests: list[Request] = []
        self.refuses = refuses
        self.chunked = chunked
        self._judge = LocalJudge(policies)
        self._aborted: dict[str, Verdict] = {}
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        """Serve."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def events(self) -> list[dict[str, Any]]:
        """Return all events, in the order in which they came."""
        return [event for request in self.requests for event in request.events]

    def answer(self, path: str, authorization: str | None, body: bytes) -> tuple[int, dict[str, Any]]:
        """Return the status and the body for a request."""
        said = json.loads(body)
        events = said if isinstance(said, list) else [said]
        with self._lock:
            self.requests.append(Request(path, authorization, events))
            if self.refuses is not None:
                return self.refuses, {"error": f"refused: {body.decode()}"}
            if path == "/v1/gate":
                return 200, self._gate({**said, "gate": True})
            if path.partition("?")[0] == "/v1/events":
                for event in events:
                    self._observe(event)
                return 202, {"accepted": len(events)}
        return 404, {"error": "no such path"}

    def _observe(self, event: Mapping[str, Any]) -> list[Verdict]:
        decoded = decode_event(json.dumps(event).encode())
        assert decoded is not None
        verdicts = list(self._judge.judge(decoded))
        for verdict in verdicts:
            if verdict.action == "abort":
                self._aborted.setdefault(verdict.run_id, verdict)
        return verdicts

    def _gate(self, event: dict[str, Any]) -> dict[str, Any]:
        call = msgspec.convert(event, ToolCall)
        about = [verdict for verdict in self._observe(event) if verdict.call_id == call.call_id]
        verdict = self._aborted.get(run_of(call)) or (about[0] if about else None)
        return {
            "action": verdict.action if verdict else "allow",
            "message": verdict.message if verdict else None,
            "decided_by": "guard" if verdict else "nobody",
            "verdict": msgspec.to_builtins(verdict) if verdict else None,
        }


def _handler(gateway: StubGateway) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, said = gateway.answer(self.path, self.headers["Authorization"], body)
            text = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            if gateway.chunked:
                self.send_header("Transfer-Encoding", "chunked")
                text = b"".join(b"1\r\n%c\r\n" % byte for byte in text) + b"0\r\n\r\n"
            else:
                self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    return Handler
