"""The workers of a stream as people look at them; the same for both command lines."""

from collections.abc import Sequence
from typing import Any

from queues.stream.asking import Ask
from trunkline.terminal import Result, table

AWAY = 20.0
"""Seconds after which a worker without a batch should have asked for one: it looks by itself every five."""


def status(ask: Ask) -> Result:
    """Who works: when each last asked for a batch, and what is in its hands."""
    found: list[dict[str, Any]] = ask("GET", "workers")
    return Result(found, table(_rows(found), ("worker", "state", "seen", "task", "attempt", "for"), "none asked within a day"))


def _rows(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for one in found:
        batch = one["batches"][0] if one["batches"] else None
        state = "busy" if batch else "waiting" if one["seen"] < AWAY else "away"
        held = {} if batch is None else {"task": batch["queue"], "attempt": batch["attempt"], "for": f"{batch['seconds']:.0f} s"}
        rows.append({"worker": one["worker"], "state": state, "seen": f"{one['seen']:.0f} s ago", **held})
    return rows
