"""What a worker tells of its life, while it lives it: to metrics, or to nobody.

Only what happens at a moment is told here. What a worker holds and has counted is looked at when somebody asks: see
`status`. Calls come by batch, checkpoint or failure, never by event.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Protocol

from streamguard.verdicts import Verdict

__all__ = ["QUIET", "PolicyResult", "Quiet", "Telling"]

PolicyResult = Literal["taken", "refused"]
"""What became of a policy file that has changed: it is in force, or it is wrong and the old one stays."""


class Telling(Protocol):
    """Hears of what happens in a worker. Nothing here may raise or wait."""

    def acknowledged(self, verdicts: Sequence[Verdict]) -> None:
        """Hear that verdicts stand on the verdict topic now."""

    def restored(self, seconds: float) -> None:
        """Hear that a partition was restored from the state topic, and how long that took."""

    def checkpoint_written(self, seconds: float, runs: int, size: int) -> None:
        """Hear of a checkpoint: how long it took, the runs that had changed, their snapshots' bytes."""

    def checkpoint_given_up(self) -> None:
        """Hear that a checkpoint failed, or was not done in time."""

    def broker_failed(self, error: BaseException) -> None:
        """Hear of a request that a broker did not serve; most are made again."""

    def policy_in_force(self, policy: str) -> None:
        """Hear which policy judges from now on, by its fingerprint."""

    def policy_changed(self, result: PolicyResult) -> None:
        """Hear that the policy file has changed, and what became of that."""


class Quiet:
    """Tells nobody."""

    def acknowledged(self, verdicts: Sequence[Verdict]) -> None:
        """Do nothing."""

    def restored(self, seconds: float) -> None:
        """Do nothing."""

    def checkpoint_written(self, seconds: float, runs: int, size: int) -> None:
        """Do nothing."""

    def checkpoint_given_up(self) -> None:
        """Do nothing."""

    def broker_failed(self, error: BaseException) -> None:
        """Do nothing."""

    def policy_in_force(self, policy: str) -> None:
        """Do nothing."""

    def policy_changed(self, result: PolicyResult) -> None:
        """Do nothing."""


QUIET: Final[Telling] = Quiet()
