"""Claude Code as far as its hooks see it, and gateways that hang."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from commands import environment

HOOK = [found] if (found := shutil.which("streamguard-hook", path=Path(sys.executable).parent)) else [
    sys.executable, "-m", "streamguard.hook"
]  # fmt: skip
PAYLOAD = "the-payload"
BEARER = "the-token"
CALL = {"tool_name": "Read", "tool_input": {"file_path": PAYLOAD}}


def hook(
    url: str, told: Any, *arguments: str, token: str | None = None, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run the hook with an event; `more` variables can be given."""
    text = told if isinstance(told, str) else json.dumps({"session_id": "s1", **told})
    variables = {"STREAMGUARD_GATEWAY_URL": url, **more} | ({"STREAMGUARD_GATEWAY_TOKEN": token} if token else {})
    done = subprocess.run(
        [*HOOK, *arguments], input=text, capture_output=True, text=True, check=False, env=environment(**variables),
        timeout=60,
    )  # fmt: skip
    assert PAYLOAD not in done.stdout + done.stderr
    assert BEARER not in done.stdout + done.stderr
    return done


class Session:
    """A session of Claude Code, as far as its hooks see it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._number = 0

    def call(self, path: str) -> dict[str, Any]:
        """Call a tool, obeying; return what the hook answered, {} if nothing."""
        self._number += 1
        call = {
            "tool_use_id": f"toolu_{self._number}",
            "tool_name": "Read",
            "tool_input": {"file_path": path + PAYLOAD},
        }
        answer = self._say({"hook_event_name": "PreToolUse", **call})
        if "permissionDecision" not in answer.get("hookSpecificOutput", {}):
            self._say({"hook_event_name": "PostToolUse", **call, "tool_response": {"content": PAYLOAD}})
        return answer

    def compact(self) -> None:
        """Compact the context."""
        self._say({"hook_event_name": "PreCompact", "trigger": "auto", "custom_instructions": None})

    def _say(self, told: dict[str, Any]) -> dict[str, Any]:
        done = hook(self._url, told)
        assert (0, "") == (done.returncode, done.stderr)
        answer: dict[str, Any] = json.loads(done.stdout or "{}")
        return answer


@contextmanager
def hanging(trickle: bytes) -> Iterator[str]:
    """Accept connections and answer none of them; send a byte now and then, if there is one."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                while not over.wait(0.05):
                    try:
                        connection.sendall(trickle)
                    except OSError:
                        return

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            over.set()
            thread.join()
