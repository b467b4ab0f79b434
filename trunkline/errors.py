"""Every error Trunkline raises on purpose.

TrunklineError                 root; catch this one
├── UsageError          (2)    what was asked cannot be done as it is written
│   ├── SettingsError          a settings file, flag or environment variable is wrong; nothing has started
│   ├── SpecError              an encoder, task or job is declared in a way that cannot work
│   └── SampleError            a file of samples, or a row in it, is not what its task says
├── FailedError         (1)    it was tried and did not work
│   ├── TooFewChildren         fewer children confirmed, or updated, than the job asks for
│   ├── RefusedValue           a value that came off a wire was checked and refused; `reason` says why
│   ├── DamagedFile            a file's bytes are not what its checksum or header says
│   ├── TrainingFailed         a child could not finish a step (out of memory, loss not finite, ...)
│   └── StorageFailed          the disk refused (full, read-only, no such folder)
├── DeadlineExceeded    (3)    a wait ran out; the message says what was waited for
├── ConnectionFailed    (4)    the other side could not be reached or would not talk
│   ├── Unreachable            no answer from host and port
│   ├── NotAuthorized          a token or key was missing, wrong, expired or revoked
│   └── WireVersionMismatch    the two sides have no wire version in common
└── StateError          (5)    the thing asked about is not there, or is in the way
    ├── NotFound               no such node, encoder, job, round, blob
    ├── Conflict               it exists already with other content, or is in a state that forbids this
    ├── QueueFull              a queue, or its server, has no room for more samples: push them again later
    ├── QueuePaused            a queue takes no samples for now
    ├── AlreadyRunning         another process holds the lock on this state folder, or the port
    └── Fenced                 a newer owner took over; this one must stop writing

The number is the exit code of both command lines. A message reads "`x` should be …, found …", and `hint` says what to do.
"""

from enum import StrEnum
from typing import Any, ClassVar


class Reason(StrEnum):
    """Why a value or a child was refused. These codes stand in the ledger, on the wire and in `trunkline round show`."""

    NAMES = "names"  # a tensor is missing, or one is there that is not shared
    SHAPE = "shape"
    DTYPE = "dtype"
    NOT_FINITE = "not_finite"
    BASE = "base"  # trained from another version than the one sent
    SENDER = "sender"  # not a member of the round, or speaks for somebody else
    DUPLICATE = "duplicate"
    LATE = "late"
    STALE = "stale"  # trained from a version that is too old by now
    ROUND = "round"  # belongs to another round or job
    COUNT = "count"  # sample counts do not fit the confirmation
    SIZE = "size"
    DIGEST = "digest"
    DAMAGED = "damaged"  # not a safetensors file, or a header that lies
    CODEC = "codec"
    WIRE = "wire"  # no wire version in common
    MALFORMED = "malformed"  # not a message of ours
    NO_SAMPLES = "no_samples"
    POLICY = "policy"  # the site's policy does not accept it
    NO_MODULE = "no_module"  # the encoder's code is not at the child
    TRAINING = "training"
    MEMORY = "memory"
    SILENT = "silent"  # no answer before the deadline
    TRANSFER = "transfer"  # a parameter set could not be fetched or sent
    INTERNAL = "internal"


class TrunklineError(Exception):
    """Root of every error raised on purpose.

    :param message: what should be, and what was found.
    :param hint: what to do about it, one sentence.
    """

    code: ClassVar[str] = "internal"
    exit_code: ClassVar[int] = 70
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}" if self.hint else self.message

    @property
    def public(self) -> str:
        """What may be told to another site: `str(self)`, unless that could hold what has to stay here."""
        return str(self)

    def table(self) -> dict[str, Any]:
        """This error as JSON data: what the API answers, and what `--output json` prints."""
        told = {"code": self.code, "message": self.message, "hint": self.hint, "retryable": self.retryable}
        reason: Reason | None = getattr(self, "reason", None)  # some kinds have one
        return told if reason is None else told | {"reason": str(reason)}


class UsageError(TrunklineError):
    """What was asked cannot be done as it is written."""

    code = "usage"
    exit_code = 2


class SettingsError(UsageError):
    """A settings file, flag or environment variable is wrong; nothing has started."""

    code = "settings"


class SpecError(UsageError):
    """An encoder, task or job is declared in a way that cannot work."""

    code = "spec"


class SampleError(UsageError):
    """A file of samples, or a row in it, is not what its task says. The message may quote samples and label names."""

    code = "sample"

    @property
    def public(self) -> str:
        return "a task's samples should be what it says of them, found that they are not. The child's own log says where."


class FailedError(TrunklineError):
    """It was tried and did not work."""

    code = "failed"
    exit_code = 1


class TooFewChildren(FailedError):
    """Fewer children confirmed, or updated, than the job asks for."""

    code = "too_few_children"
    retryable = True


class RefusedValue(FailedError):
    """A value that came off a wire was checked and refused."""

    code = "refused"

    def __init__(self, reason: Reason, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class DamagedFile(FailedError):
    """A file's bytes are not what its checksum or header says."""

    code = "damaged"


class TrainingFailed(FailedError):
    """A child could not finish a step."""

    code = "training"

    def __init__(self, reason: Reason, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class StorageFailed(FailedError):
    """The disk refused: full, read-only, or no such folder."""

    code = "storage"
    retryable = True

    @property
    def public(self) -> str:  # a path is the site's own
        return "the disk should take what is written, found that it refused. The site's own log says where."


class DeadlineExceeded(TrunklineError):
    """A wait ran out; the message says what was waited for."""

    code = "deadline"
    exit_code = 3
    retryable = True


class ConnectionFailed(TrunklineError):
    """The other side could not be reached or would not talk."""

    code = "connection"
    exit_code = 4


class Unreachable(ConnectionFailed):
    """No answer from host and port."""

    code = "unreachable"
    retryable = True


class NotAuthorized(ConnectionFailed):
    """A token or key was missing, wrong, expired or revoked."""

    code = "not_authorized"


class WireVersionMismatch(ConnectionFailed):
    """The two sides have no wire version in common."""

    code = "wire_version"


class StateError(TrunklineError):
    """The thing asked about is not there, or is in the way."""

    code = "state"
    exit_code = 5


class NotFound(StateError):
    """No such node, encoder, job, round or blob."""

    code = "not_found"


class Conflict(StateError):
    """It exists already with other content, or is in a state that forbids this."""

    code = "conflict"


class AlreadyRunning(StateError):
    """Another process holds the lock on this state folder, or the port."""

    code = "already_running"


class QueueFull(StateError):
    """A queue, or its server, has no room for more samples. Nothing was dropped: push them again later."""

    code = "busy"
    retryable = True


class QueuePaused(StateError):
    """A queue takes no samples for now, or never again."""

    code = "paused"
    retryable = True


class Fenced(StateError):
    """A newer owner took over; this one must stop writing."""

    code = "fenced"
