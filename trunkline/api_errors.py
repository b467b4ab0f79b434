"""The master's HTTPS API below its values: names of headers, and errors as JSON. Without pydantic: every command starts with it.

An error leaves the master as `{"error": {"code", "message", "hint", "retryable", "reason"}}` with a status from `STATUS`, and
arrives at the caller as an object of the same class with the same words (`error_body`, `error_from`).
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from trunkline.errors import (
    AlreadyRunning,
    Conflict,
    ConnectionFailed,
    DamagedFile,
    DeadlineExceeded,
    FailedError,
    Fenced,
    NotAuthorized,
    NotFound,
    QueueFull,
    QueuePaused,
    Reason,
    RefusedValue,
    SampleError,
    SettingsError,
    SpecError,
    StateError,
    StorageFailed,
    TooFewChildren,
    TrainingFailed,
    TrunklineError,
    Unreachable,
    UsageError,
    WireVersionMismatch,
)

GRANT_HEADER = "X-Trunkline-Grant"
"""The transfer grant: this child, this job and round, this digest, this direction, until then."""

OFFSET_HEADER = "X-Trunkline-Offset"
"""On a PUT: at which byte of the blob the body begins (default 0)."""

HAVE_HEADER = "X-Trunkline-Have"
"""On the answer to a HEAD or PUT: how many bytes of the blob the master has."""

ERROR_HEADER = "X-Trunkline-Error"
"""The error again, as one line of JSON: answers to a HEAD have no body."""

STATUS: Mapping[type[TrunklineError], int] = {
    TrunklineError: 500,
    UsageError: 400,
    SettingsError: 400,
    SpecError: 422,
    SampleError: 422,
    FailedError: 500,
    TooFewChildren: 409,
    RefusedValue: 422,
    DamagedFile: 422,
    TrainingFailed: 500,
    StorageFailed: 507,
    DeadlineExceeded: 504,
    ConnectionFailed: 502,
    Unreachable: 503,
    NotAuthorized: 401,
    WireVersionMismatch: 426,
    StateError: 409,
    NotFound: 404,
    Conflict: 409,
    AlreadyRunning: 409,
    QueueFull: 429,
    QueuePaused: 409,
    Fenced: 409,
}
"""The HTTP status of every error. The class itself travels as its `code`; the status is for proxies and people."""

_CLASSES: Mapping[str, type[TrunklineError]] = {kind.code: kind for kind in STATUS}

_FOREIGN: Mapping[int, type[TrunklineError]] = {
    401: NotAuthorized,
    403: NotAuthorized,
    404: NotFound,
    407: NotAuthorized,
    408: Unreachable,
    409: Conflict,
    413: UsageError,
    429: Unreachable,
    502: Unreachable,
    503: Unreachable,
    504: Unreachable,
}
"""What a status means when the body is not ours: a proxy answered, or another program listens there."""


def error_body(error: TrunklineError) -> dict[str, Any]:
    """An error as the JSON that leaves the master."""
    return {"error": error.table()}


def error_from(status: int, body: bytes | str) -> TrunklineError:
    """The error that an answer tells; never raises.

    A code that this side does not know (a newer master) becomes the nearest class that its status allows.
    """
    try:
        told = json.loads(body)["error"]
        code, message, hint = str(told["code"]), str(told["message"]), told.get("hint")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        kind = _FOREIGN.get(status, UsageError if 400 <= status < 500 else FailedError)
        return kind(f"the answer should be one of Trunkline's, found HTTP {status}.", hint="Is another program at this address?")
    kind = _CLASSES.get(code) or _FOREIGN.get(status, UsageError if 400 <= status < 500 else FailedError)
    hint = hint if isinstance(hint, str) else None
    if issubclass(kind, RefusedValue | TrainingFailed):
        return kind(_reason(told.get("reason")), message, hint=hint)
    return kind(message, hint=hint)


def _reason(text: object) -> Reason:
    try:
        return Reason(str(text))
    except ValueError:
        return Reason.INTERNAL


def error_classes(root: type[TrunklineError] = TrunklineError) -> Iterator[type[TrunklineError]]:
    """The whole tree of errors, the root first."""
    yield root
    for kind in root.__subclasses__():
        yield from error_classes(kind)
