"""What a task's file holds, in short: samples by split, and label names. The file is read once for each content."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from tasks import plugins
from tasks.readers import check_there
from tasks.samples import rows, taken
from tasks.specs import TaskSpec
from trunkline.errors import SampleError
from trunkline.files import sha256_file, sha256_remembered, write_atomically
from trunkline.values import SPLITS


@dataclass(frozen=True)
class Survey:
    """What a file holds for a task; cheap to keep, and it stays at its site."""

    counts: dict[str, int] = field(default_factory=dict)  # samples by split; `train` after `rows`
    labels: tuple[str, ...] = ()  # in the order that a head uses


def source_digest(spec: TaskSpec, base: Path) -> str:
    """SHA-256 of a task's file, or of all files in its folder by name.

    :raises SampleError: there is none, or nothing that could be read to its end.
    """
    path = spec.source(base)
    check_there(spec, path)
    try:
        if not path.is_dir():
            return sha256_remembered(path)
        parts = [(str(part.relative_to(path)), sha256_remembered(part)) for part in sorted(path.rglob("*")) if part.is_file()]
    except FileNotFoundError:
        raise SampleError(f"`{path}` should be a file of samples, found none.") from None
    except OSError as error:
        raise SampleError(f"`{path}` should be readable, found: {error.strerror}.") from None
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


_DECIDES = {"head", "format", "encoding", "fields", "label", "labels", "separator", "split", "fractions", "seed", "reader"}
"""The fields of a TaskSpec that decide how its file is read."""


def content_key(spec: TaskSpec, base: Path, modules: Sequence[Path], *more: str) -> str:
    """Digest of all that decides how a file is read: its content, what the task says of it, and the code of a user's own reader."""
    about = spec.model_dump(mode="json", include=_DECIDES)
    reader = plugins.file_of(spec.reader, (base, *modules)) if spec.reader is not None else None
    own = sha256_file(reader) if reader is not None else ""
    return hashlib.sha256(json.dumps([source_digest(spec, base), about, own, *more], sort_keys=True).encode()).hexdigest()


def survey(spec: TaskSpec, base: Path, cache: Path, modules: Sequence[Path] = ()) -> Survey:
    """Counts and labels of a task; no tokenizer is needed.

    :param base: folder that `spec.data` is relative to.
    :param cache: folder in which the answer is kept.
    :param modules: folders with a user's own reader.
    :raises SampleError: something is wrong in the file.
    :raises SpecError: the reader is not there.
    """
    place = cache / f"survey-{spec.name}.json"
    key = content_key(spec, base, modules, str(spec.rows))
    known = _known(place, key)
    if known is not None:
        return known
    counts = dict.fromkeys(SPLITS, 0)
    names: set[str] = set(spec.labels or ())
    for row in rows(spec, base, modules):
        counts[row.split] += 1
        if isinstance(row.label, str):
            names.add(row.label)
        elif isinstance(row.label, tuple):
            names.update(row.label)
    counts["train"] = len(taken(spec, np.arange(counts["train"], dtype=np.int64)))
    found = Survey({str(split): count for split, count in counts.items()}, spec.labels or tuple(sorted(names)))
    write_atomically(place, json.dumps({"key": key, **asdict(found)}).encode(), mode=0o600)
    return found


def _known(place: Path, key: str) -> Survey | None:
    try:
        stored = json.loads(place.read_bytes())
        return Survey(dict(stored["counts"]), tuple(stored["labels"])) if stored["key"] == key else None
    except (OSError, ValueError, KeyError, TypeError):
        return None  # a cache: what cannot be read is made again
