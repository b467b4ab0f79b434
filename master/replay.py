"""Recorded rounds once more: a published version recomputed bit for bit, and another rule tried on what the children sent.

Nothing is published and nothing stays on the disk: what is written goes to a store that is thrown away.
"""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from master import fusion
from master.blobs import BlobStore
from master.jobs import JobSpec
from master.ledger_reader import JobReader
from master.records import Round
from master.rules import Contribution, Fused, Parameters, State
from master.rules.deltas import floats, rows_of
from trunkline.errors import NotFound, TooFewChildren, TrunklineError
from trunkline.settings import build
from trunkline.tensors import row_slices


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


@dataclass(frozen=True, slots=True)
class Trial:
    """What another rule would have made of one round, beside what was published."""

    round: int
    weights: Mapping[str, float]  # share of each child
    published_weights: Mapping[str, float]
    step: float  # L2 norm of the movement from the base
    published_step: float
    cosine: float | None  # between both movements; None where one is zero
    distance: float  # L2 norm between both targets
    notes: Mapping[str, Any]
    error: str | None = None  # why the rule could not be played

    def table(self) -> dict[str, Any]:
        return asdict(self)


def spec_of(rounds: JobReader) -> JobSpec:
    """The job as it was started."""
    job = rounds.job
    return build(JobSpec, job.spec, f"job {job.id}")


def replay(blobs: BlobStore, rounds: JobReader, number: int) -> Replayed:
    """Fuse a round's recorded updates again, by the same way as the first time.

    :raises NotFound: no such round, it came to no target, or its updates are not kept any more.
    """
    started, round_, spec = time.perf_counter(), _fused(rounds, number), spec_of(rounds)
    with fusion.opened(blobs, rounds, round_, spec) as inputs, _aside(blobs) as store:
        made = fusion.fuse(store, spec, inputs)
    found = str(round_.target)
    seconds = time.perf_counter() - started
    return Replayed(number, round_.version or 0, found, made.target.digest, made.target.digest == found, seconds)


def recorded(rounds: JobReader) -> list[int]:
    """Rounds whose updates are kept still, oldest first."""
    return [one.number for one in rounds.rounds() if one.target and not any(row.forgotten for row in rounds.updates(one.number))]


def trials(blobs: BlobStore, rounds: JobReader, rule: str, number: int | None = None) -> list[Trial]:
    """Play another rule on the recorded rounds of a job, each from the base that it had.

    A rule that remembers begins with nothing in the first of them, and goes on from one to the next.

    :param number: only this round; None: all that are kept.
    :raises NotFound: nothing is kept.
    :raises UsageError: the rule is none, or none for this job.
    """
    spec = build(JobSpec, spec_of(rounds).table() | {"rule": rule}, "the job with this rule")
    numbers = recorded(rounds) if number is None else [_fused(rounds, number).number]
    if not numbers:
        raise NotFound(
            "a round with recorded updates should be kept, found none.", hint="`keep_rounds` of a job says for how long."
        )
    found: list[Trial] = []
    with _aside(blobs) as store, ExitStack() as files:
        state: State | None = None
        for each in numbers:
            trial, state = _try(blobs, store, files, rounds, spec, _fused(rounds, each), state)
            found.append(trial)
    return found


def _try(
    blobs: BlobStore,
    store: BlobStore,
    files: ExitStack,
    rounds: JobReader,
    spec: JobSpec,
    round_: Round,
    state: State | None,
) -> tuple[Trial, State | None]:
    weights = rounds.version(str(round_.target)).weights
    with fusion.opened(blobs, rounds, round_, spec) as inputs, blobs.open_set(str(round_.target)) as published:
        base, contributions = Parameters(inputs.base.spec, inputs.base.read), inputs.contributions
        try:
            target, told, after = _played(store, files, spec, base, contributions, state)
        except TooFewChildren as error:
            return _failed(round_, weights, error), state
        moved, theirs, product, apart = _compare(base, Parameters(published.spec, published.read), target)
        cosine = product / (moved * theirs) if moved and theirs else None
        return Trial(round_.number, told.weights, weights, moved, theirs, cosine, apart, told.notes), after


def _played(
    store: BlobStore,
    files: ExitStack,
    spec: JobSpec,
    base: Parameters,
    contributions: tuple[Contribution, ...],
    state: State | None,
) -> tuple[Parameters, Fused, State | None]:
    """The target as a recipe, what the rule told, and its state as a file of the store."""
    fused = spec.fuse_rule.fuse(base, contributions, state, most=spec.children.max_share, buffers=spec.buffers)
    _, kept = files.enter_context(fusion.written(store, fused))
    if kept is None or fused.state is None:
        return fused.target(None), fused, None
    return fused.target(kept), fused, State(kept, fused.state.notes)


def _compare(base: Parameters, published: Parameters, target: Parameters) -> tuple[float, float, float, float]:
    """Norm of the movement tried and of that published, their inner product, and the distance of both targets."""
    sums = np.zeros(4)
    for name in floats(base):
        for rows in row_slices(base.spec[name]):
            start = rows_of(base, name, rows)
            moved, theirs = rows_of(target, name, rows) - start, rows_of(published, name, rows) - start
            apart = moved - theirs
            sums += [float((one * two).sum()) for one, two in ((moved, moved), (theirs, theirs), (moved, theirs), (apart, apart))]
    return math.sqrt(sums[0]), math.sqrt(sums[1]), float(sums[2]), math.sqrt(sums[3])


def _failed(round_: Round, weights: Mapping[str, float], error: TrunklineError) -> Trial:
    return Trial(round_.number, {}, weights, 0.0, 0.0, None, 0.0, {}, error.message)


def _fused(rounds: JobReader, number: int) -> Round:
    """:raises NotFound: no such round, or it came to no target."""
    found = rounds.round(number)
    if found is None or found.target is None:
        raise NotFound(f"round {number} of job {rounds.job_id!r} should have come to a version, found none.")
    return found


@contextmanager
def _aside(blobs: BlobStore) -> Iterator[BlobStore]:
    """A store on the same disk that is thrown away."""
    with TemporaryDirectory(dir=blobs.folder / "scratch") as folder:
        yield BlobStore(Path(folder))
