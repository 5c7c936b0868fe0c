"""The hook of Claude Code: each call of a tool is put before the guard, through the gateway, and the guard is obeyed.

A process is started for every call, so this package imports nothing but the standard library, and little of that. It
fails open: whatever is wrong here, the tool runs. Exit code 2 would block the tool; it is never used.
"""

from __future__ import annotations

import os
import sys

from streamguard.hook.claude_code import NotAHookError, answer, event_of
from streamguard.hook.gateway import Gateway, GatewayAwayError, GatewayRefusesError

TYPE_CHECKING = False  # typing's own costs some milliseconds
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Final

    from streamguard.hook.claude_code import Seen

__all__ = ["DEFAULT_URL", "USAGE", "main", "react"]

DEFAULT_URL: Final = "http://127.0.0.1:8321"

USAGE: Final = """\
Usage: streamguard-hook [--url URL] [--agent ID]

A command hook for Claude Code: reads the hook's JSON on stdin, asks the streamguard gateway, and writes the decision on
stdout. Says nothing, and lets the tool run, if no gateway answers.

  --url URL    the gateway [STREAMGUARD_GATEWAY_URL, else http://127.0.0.1:8321]
  --agent ID   the agent whose policy holds [else the hook's agent_type, else claude-code]

STREAMGUARD_GATEWAY_TOKEN is the gateway's bearer token.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the hook. Exit code 0: done, or no gateway; 1: something is wrong, and said on stderr."""
    words = sys.argv[1:] if arguments is None else arguments
    if "-h" in words or "--help" in words:
        sys.stdout.write(USAGE)
        return 0
    try:
        flags = _flags(words)
        seen = event_of(sys.stdin.buffer.read(), flags.get("--agent"))
        if seen is None:
            return 0
        url = flags.get("--url") or os.environ.get("STREAMGUARD_GATEWAY_URL") or DEFAULT_URL
        said = react(seen, Gateway(url, os.environ.get("STREAMGUARD_GATEWAY_TOKEN")))
    except GatewayAwayError:
        return 0
    except (NotAHookError, GatewayRefusesError) as error:
        sys.stderr.write(f"streamguard-hook: {error}\n")
        return 1
    except Exception as error:  # noqa: BLE001 - an error of ours must not stop an agent; a traceback may hold a payload
        sys.stderr.write(f"streamguard-hook: {type(error).__name__}\n")
        return 1
    sys.stdout.write(said)
    return 0


def react(seen: Seen, gateway: Gateway) -> str:
    """Tell the gateway; return what Claude Code is told. Raises `GatewayAwayError`, `GatewayRefusesError`."""
    with gateway:
        if not seen.asks:
            gateway.tell(seen.event)
            return ""
        verdict: Any = gateway.ask(seen.event)
        if verdict.get("action") == "block":
            try:  # noqa: SIM105 - contextlib would have to be imported
                gateway.tell(seen.blocked())
            except (GatewayAwayError, GatewayRefusesError):
                pass  # the block holds though the guard is not told that it was obeyed
        return answer(verdict)


def _flags(words: Sequence[str]) -> dict[str, str]:
    """Read `--name VALUE` and `--name=VALUE`. Raises `NotAHookError`."""
    flags: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if name not in ("--url", "--agent"):
            raise NotAHookError(f"unknown argument {name}: see --help")
        given = value if equals else next(rest, None)
        if not given:
            raise NotAHookError(f"{name} needs a value: see --help")
        flags[name] = given
    return flags
