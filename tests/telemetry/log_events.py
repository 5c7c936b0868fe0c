"""Finds every line that streamguard logs, in its source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LEVELS = {"debug", "info", "warning", "error", "exception"}
TELLERS = {"_tell": 0, "_refuse": 1}
"""Methods that warn of what they are given, and which of their arguments that is."""


class LogEvent(NamedTuple):
    """A line that may be logged: its event, level, and the fields beside."""

    event: str
    level: str
    fields: tuple[str, ...]


def log_events(folder: Path) -> set[LogEvent]:
    """Return what is logged by any module of a folder."""
    return {
        event
        for file in folder.rglob("*.py")
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Call)
        for event in _of_call(call)
    }


def _of_call(call: ast.Call) -> Iterator[LogEvent]:
    if not isinstance(call.func, ast.Attribute) or not call.args:
        return
    name, holder = call.func.attr, ast.unparse(call.func.value)
    if name in LEVELS and holder in {"log", "self._log"}:
        level = "error" if name == "exception" else name
    elif name in TELLERS and holder == "self" and len(call.args) > TELLERS[name]:
        level = "warning"
    else:
        return
    fields = tuple(sorted(keyword.arg for keyword in call.keywords if keyword.arg is not None))
    for text in _texts(call.args[TELLERS.get(name, 0)]):
        yield LogEvent(text, level, fields)


def _texts(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from _texts(node.body)
        yield from _texts(node.orelse)
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "N" for part in node.values)
