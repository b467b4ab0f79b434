"""Where the parameters of an encoder came from, as one list: versions that rounds made, and steps that batches made."""

from collections.abc import Mapping, Sequence
from typing import Any

from trunkline.terminal import moment


def merged(versions: Sequence[Mapping[str, Any]], streams: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Rows for people, newest first.

    :param versions: of the encoder, as the ledger has them.
    :param streams: what was applied in each stream that trains it.
    """
    rows = [_version(one) for one in versions]
    rows += [_step(name, one) for name, found in streams.items() for one in found]
    return [row | {"at": moment(row["at"])} for row in sorted(rows, key=lambda row: row["at"], reverse=True)]


def maker(one: Mapping[str, Any]) -> str | None:
    """What made a version, for people: a job, or a stream whose snapshot it is."""
    return f"stream {one['data']['stream']}" if one.get("kind") == "snapshot" else one["job"]


def _version(one: Mapping[str, Any]) -> dict[str, Any]:
    of = None if one["job"] is None else f"job {one['job']}, round {one['round']}"
    if one["kind"] == "snapshot":
        of = f"{maker(one)}, step {one['data']['step']}"
    base = None if one["parent_number"] is None else f"version {one['parent_number']}"
    by = ", ".join(sorted(one["weights"])) or one["kind"]
    return {"at": one["created"], "what": f"version {one['number']}", "of": of, "by": by, "samples": None, "base": base}


def _step(stream: str, one: Mapping[str, Any]) -> dict[str, Any]:
    of = f"stream {stream}, " + (f"queue {one['task']}, batch {one['batch']}" if one["task"] else f"round {one['batch']}")
    base = f"step {one['base']}" if one["task"] else None
    return {
        "at": one["at"],
        "what": f"step {one['step']}",
        "of": of,
        "by": one["worker"],
        "samples": one["samples"] or None,
        "base": base,
    }
