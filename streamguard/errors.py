"""Every error that a user can meet. Each class says when; each message says what, where and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from streamguard.verdicts import Verdict

__all__ = [
    "BadSignatureError",
    "BrokerUnavailableError",
    "CallTakenError",
    "CannotListenError",
    "CaseFileError",
    "CheckpointFailedError",
    "ClusterSettingsError",
    "ConfigurationError",
    "DeliveryFailedError",
    "EmbeddedBrokerError",
    "ExecutorError",
    "ExecutorOptionsError",
    "GuardUnavailableError",
    "ImportInputError",
    "MissingExtraError",
    "MissingRunError",
    "MisuseError",
    "NoRulesetError",
    "NotAuthorizedError",
    "NotPublishableError",
    "NotStartedError",
    "PolicyFileError",
    "PositionLostError",
    "RecordTooLargeError",
    "ReplayInputError",
    "RestoreFailedError",
    "RunAbortedError",
    "RunOverError",
    "RunTakenError",
    "SettingsFileError",
    "SigningKeyError",
    "SnapshotVersionError",
    "StreamguardError",
    "StuckError",
    "TooDeepError",
    "TopicMismatchError",
    "TopicMissingError",
    "UnknownCallError",
    "UnreadableRecordError",
    "UnsignedVerdictError",
    "VerdictNotFoundError",
    "WrongShapeError",
]


class StreamguardError(Exception):
    """The base of all errors raised on purpose by streamguard."""


class UnreadableRecordError(StreamguardError):
    """A record of the events topic is no event: not UTF-8, not JSON, not MessagePack, or empty.

    The worker sends such a record to the dead-letter topic and goes on; `reason` is what it is counted under.
    """

    reason: ClassVar[str] = "unreadable"


class WrongShapeError(UnreadableRecordError):
    """A record is well-formed, but a field has the wrong type or a required field is missing."""

    reason = "wrong_shape"


class MissingRunError(UnreadableRecordError):
    """An event names neither a `run_id` nor a `session_id`, or both are blank."""

    reason = "no_run"


class TooDeepError(UnreadableRecordError):
    """The arrays and objects of a record are nested deeper than `limits.json_depth`."""

    reason = "too_deep"


class RecordTooLargeError(UnreadableRecordError):
    """A record's value is larger than `limits.record_bytes`."""

    reason = "too_large"


class ConfigurationError(StreamguardError):
    """The base of errors in what the user configured; nothing was started."""


class PolicyFileError(ConfigurationError):
    """A policy file cannot be read, has an unknown key, or a value that is not allowed."""


class SettingsFileError(ConfigurationError):
    """A settings file, a STREAMGUARD_* variable or a flag has an unknown key or a value that is not allowed."""


class ClusterSettingsError(ConfigurationError):
    """The `[kafka]` settings contradict each other, or a certificate or password file cannot be read."""


class SigningKeyError(ConfigurationError):
    """A key that signs or verifies verdicts has a bad id or a short secret, is given by half, or cannot be read."""


class ExecutorOptionsError(ConfigurationError):
    """An option of `streamguard.executor` has a value that is not allowed."""


class CaseFileError(ConfigurationError):
    """A file given to `streamguard policy test` is no case file: the line and what is wrong are named."""


class ReplayInputError(StreamguardError):
    """A file given to `streamguard replay` or `publish` cannot be opened or is damaged (a broken gzip, for example)."""


class ImportInputError(StreamguardError):
    """A recording of another tool has something in it that is no part of its format: file, line and what are named."""


class MissingExtraError(StreamguardError):
    """A command needs an optional package that is not installed; the message names the extra to install."""


class CannotListenError(StreamguardError):
    """Gateway or metrics cannot listen at host and port: another program has the port, or the host is none of ours."""


class EmbeddedBrokerError(StreamguardError):
    """The embedded broker of the demo did not start, or ended while it was needed."""


class BrokerUnavailableError(StreamguardError):
    """No Kafka broker answered at the bootstrap address within the time allowed."""


class NotAuthorizedError(StreamguardError):
    """Kafka refuses us: wrong credentials, a certificate that is not trusted (by either side), or a missing ACL."""


class TopicMissingError(StreamguardError):
    """A topic that the worker needs does not exist; `streamguard topics create` makes it."""


class TopicMismatchError(StreamguardError):
    """Topics exist with partition counts that do not match; verdicts could not keep to their event's partition."""


class PositionLostError(StreamguardError):
    """The position the group had reached is no longer on the broker: records were deleted unread.

    Not raised if `worker.on_lost_position` says where to go on.
    """


class NoRulesetError(StreamguardError):
    """Verdicts cannot be derived anew: the policies topic does not say by what their events were judged."""


class VerdictNotFoundError(StreamguardError):
    """A verdict that was asked for does not stand, or what it was about is gone."""


class SnapshotVersionError(StreamguardError):
    """The state topic holds a snapshot or a checkpoint of a version that this streamguard does not read."""

    def __init__(self, what: str, version: int, known: int) -> None:
        super().__init__(
            f"a {what} on the state topic has version {version}, this streamguard reads version {known}. Run the "
            "version that wrote it (or a newer one); or, to forget all runs, delete the state topic and create it anew"
        )


class CheckpointFailedError(StreamguardError):
    """The broker does not take a checkpoint: a run's snapshot is larger than the state topic allows, for example."""


class RestoreFailedError(StreamguardError):
    """A partition's state was not read back within `worker.restore_timeout_seconds`."""


class StuckError(StreamguardError):
    """Nothing has moved for `worker.stuck_timeout_seconds`: the process ends, for its supervisor to start a new one."""


class DeliveryFailedError(StreamguardError):
    """A verdict or dead letter was not acknowledged in time; the worker stops without committing past it."""


class UnsignedVerdictError(StreamguardError):
    """A verdict that has to be signed carries no signature. Raised where verdicts are consumed, by a `Verifier`."""


class BadSignatureError(StreamguardError):
    """A verdict's signature does not fit its bytes, or names a key that the `Verifier` does not have."""


class ExecutorError(StreamguardError):
    """The base of errors that an agent's executor meets in `streamguard.executor`."""


class RunAbortedError(ExecutorError):
    """The guard has aborted the run: nothing of it may run any more. `verdict` says why."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(f"{verdict.detector}: {verdict.message}")
        self.verdict = verdict


class GuardUnavailableError(ExecutorError):
    """The guard did not answer in time, and the executor is set to fail closed: the call must not run."""


class MisuseError(ExecutorError):
    """The base of errors of a program that uses `streamguard.executor` in a way that cannot work."""


class NotStartedError(MisuseError):
    """A run was begun on a client that was not started, or is closed."""


class CallTakenError(MisuseError):
    """A call was begun under the id of another call of the same run that still waits for its verdict."""


class NotPublishableError(MisuseError):
    """An event cannot be published: its arguments or result are no JSON, nested too deep, or a name is not allowed."""


class RunTakenError(MisuseError):
    """A run was begun under an id that another run of this client has now."""


class RunOverError(MisuseError):
    """A run was used before it had begun, or after its end."""


class UnknownCallError(MisuseError):
    """A result was given for a call that was never made, or whose result was given already."""
