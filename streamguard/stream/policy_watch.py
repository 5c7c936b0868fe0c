"""Seeing that the policy file has changed, and refusing what is wrong in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import structlog

from streamguard.errors import PolicyFileError
from streamguard.policy import PolicySet
from streamguard.stream.telling import PolicyResult

__all__ = ["PolicyFile"]

log = structlog.get_logger("streamguard.policy")

Stamp: TypeAlias = tuple[int, int, int] | None
"""What tells one state of a file from another: inode, size, time of change. None: there is no file."""


class PolicyFile:
    """A file that policies come from. `load` reads it, and raises `PolicyFileError` if it is wrong.

    `now` are the policies that were read of it before: it may have changed since.
    """

    def __init__(self, path: Path, load: Callable[[], PolicySet], now: PolicySet) -> None:
        self._path = path
        self._load = load
        self._known: Stamp = (0, 0, 0)
        self._settled: Stamp = self._known
        self._fingerprint = now.fingerprint

    def changed(self, tell: Callable[[PolicyResult], None]) -> PolicySet | None:
        """Return the policies of a file that has changed, None otherwise. To be asked again and again.

        A file counts once it has been the same for two looks: an editor may have written half of it.
        """
        stamp = self._stamp()
        if stamp != self._settled or stamp == self._known:
            self._settled = stamp
            return None
        self._known = stamp
        try:
            policies = self._load()
        except PolicyFileError as error:
            tell("refused")
            log.error("policy refused, the old one stays", path=str(self._path), error=str(error))  # noqa: TRY400
            return None
        if policies.fingerprint == self._fingerprint:
            return None
        self._fingerprint = policies.fingerprint
        tell("taken")
        log.info("policy taken", path=str(self._path), policy=policies.fingerprint)
        return policies

    def _stamp(self) -> Stamp:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns
