"""What goes to a server of queues and comes back, in the form that its scripts take: checked at the border, cut into pieces."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from queues.settings import QueueSettings, StreamSettings
from trunkline.errors import SettingsError
from trunkline.values import Name

STAMP = 8
"""Bytes of arrival before each sample."""

CHUNK = 1000
"""Samples of one call at most: what one script pushes at once."""

CHUNK_BYTES = 16 << 20
"""Bytes of one call, unless one sample has more: a server closes a connection that sends 1 GiB at once."""

SAMPLE_LIMIT = 64 << 20
"""Bytes of one sample at most."""

_POLICIES = {"arrival": ("arrival", 0.0), "equal": ("fair", 0.0), "proportional": ("fair", 1.0), "priority": ("priority", 0.0)}
"""What the server knows them as: whose turn it is, and the power of a queue's samples that its share goes with."""


def meta(settings: StreamSettings) -> list[Any]:
    """Settings that all queues share, as a script takes them: name by name."""
    policy, exponent = _POLICIES.get(settings.policy, ("fair", 1.0 / settings.temperature))
    return [
        *("lease", round(1000 * settings.lease_seconds), "attempts", settings.attempts, "budget", settings.budget),
        *("policy", policy, "exponent", repr(exponent), "aging", round(1000 * settings.aging_seconds)),
    ]


def bare(samples: Sequence[bytes]) -> tuple[bytes, ...]:
    """Samples as they lie in a queue, without their arrival."""
    return tuple(sample[STAMP:] for sample in samples)


def fields(settings: QueueSettings) -> dict[str, Any]:
    """One queue's settings, as a script takes them."""
    return {
        "batch": settings.batch_size,
        "most": settings.most,
        "weight": repr(settings.weight),
        "priority": settings.priority,
        "flush": math.ceil(1000 * settings.flush_seconds),  # 0 would be never
        "least": settings.flush_least,
        "out": settings.out,
    }


def queue_settings(table: Mapping[str, str]) -> QueueSettings:
    """One queue's settings, from what a script answered."""
    return QueueSettings(
        batch_size=int(table["batch"]),
        most=int(table["most"]),
        weight=float(table["weight"]),
        priority=int(table["priority"]),
        flush_seconds=int(table["flush"]) / 1000,
        flush_least=int(table["least"]),
        out=int(table.get("out", "0")),
    )


_NAME: TypeAdapter[str] = TypeAdapter(Name)


def named(name: str, what: str) -> str:
    """A name that is safe as a part of a key.

    :raises SettingsError: it is none.
    """
    try:
        return _NAME.validate_python(name)
    except ValidationError:
        rule = "1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-', and begin with a letter or a digit"
        raise SettingsError(f"the name of {what} should be {rule}, found {name!r}.") from None


def pieces(samples: Sequence[bytes]) -> Iterator[tuple[int, Sequence[bytes]]]:
    """Samples in calls of a size that a server takes, each with the place of its first; one without any where there are none."""
    start = size = 0
    for place, sample in enumerate(samples):
        if place > start and (place - start == CHUNK or size + len(sample) > CHUNK_BYTES):
            yield start, samples[start:place]
            start, size = place, 0
        size += len(sample)
    yield start, samples[start:]
