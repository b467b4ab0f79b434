"""A published version recomputed from its recorded updates, bit for bit.

Nothing is published and nothing stays on the disk: what is written goes to a store that is thrown away.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from master import fusion
from master.blobs import BlobStore
from master.jobs import JobSpec
from master.ledger_reader import JobReader
from master.records import Round
from trunkline.errors import NotFound
from trunkline.settings import build


@dataclass(frozen=True, slots=True)
class Replayed:
    """A published version, recomputed from the recorded updates."""

    round: int
    version: int
    published: str  # digests
    recomputed: str
    same: bool
    seconds: float

    def table(self) -> dict[str, Any]:
        return asdict(self)


def replay(blobs: BlobStore, rounds: JobReader, number: int) -> Replayed:
    """Fuse a round's recorded updates again, by the same way as the first time.

    :raises NotFound: no such round, it came to no target, or its updates are not kept any more.
    """
    started, round_, spec = time.perf_counter(), fused_round(rounds, number), spec_of(rounds)
    with fusion.opened(blobs, rounds, round_, spec) as inputs, aside(blobs) as store:
        made = fusion.fuse(store, spec, inputs)
    found = str(round_.target)
    seconds = time.perf_counter() - started
    return Replayed(number, round_.version or 0, found, made.target.digest, made.target.digest == found, seconds)


def spec_of(rounds: JobReader) -> JobSpec:
    """The job as it was started."""
    job = rounds.job
    return build(JobSpec, job.spec, f"job {job.id}")


def fused_round(rounds: JobReader, number: int) -> Round:
    """:raises NotFound: no such round, or it came to no target."""
    found = rounds.round(number)
    if found is None or found.target is None:
        raise NotFound(f"round {number} of job {rounds.job_id!r} should have come to a version, found none.")
    return found


@contextmanager
def aside(blobs: BlobStore) -> Iterator[BlobStore]:
    """A store on the same disk that is thrown away."""
    with TemporaryDirectory(dir=blobs.folder / "scratch") as folder:
        yield BlobStore(Path(folder))
