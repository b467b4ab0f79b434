"""A reader of one's own, for files that are none of the known formats: mail-like records, a blank line between two."""

from collections.abc import Iterator
from pathlib import Path

from tasks.specs import TaskSpec


def records(path: Path, spec: TaskSpec) -> Iterator[dict[str, str]]:
    """One mapping a record, from `key: value` lines; nothing more of the file is held in memory."""
    record: dict[str, str] = {}
    with path.open(encoding=spec.encoding) as file:
        for line in file:
            key, colon, value = line.partition(":")
            if colon:
                record[key.strip()] = value.strip()
            elif record:
                yield record
                record = {}
    if record:
        yield record
