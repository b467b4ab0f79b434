"""Another rule tried on the updates of recorded rounds: what it would have made of them, beside what was published.

Nothing is published and nothing stays on the disk, as in a replay.
"""

import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from master import fusion
from master.blobs import BlobStore
from master.jobs import JobSpec
from master.ledger_reader import JobReader
from master.records import Round
from master.replay import aside, fused_round, spec_of
from master.rules import Parameters, State
from master.rules.deltas import floats, rows_of
from trunkline.errors import NotFound, RefusedValue, TooFewChildren
from trunkline.settings import build
from trunkline.tensors import row_slices


@dataclass(frozen=True, slots=True)
class Trial:
    """What another rule would have made of one round, beside what was published. Lengths are L2 norms over all float tensors."""

    round: int
    published_weights: Mapping[str, float]  # share of each child
    weights: Mapping[str, float] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)  # what the rule saw
    step: float | None = None  # how far the rule moves from the base; None, as all below, where it could not be played
    published_step: float | None = None
    cosine: float | None = None  # between both movements; None where one is zero
    distance: float | None = None  # between both targets
    error: str | None = None  # why the rule could not be played

    def table(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)


def trials(blobs: BlobStore, rounds: JobReader, rule: str, number: int | None = None) -> list[Trial]:
    """Play another rule on the recorded rounds of a job, each from the base that it had.

    A rule that remembers begins with nothing in the first of them, and goes on from one to the next.

    :param number: only this round; None: all that are kept.
    :raises NotFound: nothing is kept.
    :raises UsageError: the rule is none, or none for this job.
    """
    spec = build(JobSpec, spec_of(rounds).table() | {"rule": rule}, "the job with this rule")
    numbers = rounds.recorded() if number is None else [number]
    if not numbers:
        raise NotFound(
            "a round with recorded updates should be kept, found none.", hint="`keep_rounds` of a job says for how long."
        )
    with aside(blobs) as store, ExitStack() as files:
        player = _Player(blobs, rounds, spec, store, files)
        return [player.play(fused_round(rounds, each)) for each in numbers]


@dataclass
class _Player:
    """Plays a rule on one round after the other; what it remembers goes on from round to round."""

    blobs: BlobStore
    rounds: JobReader
    spec: JobSpec
    store: BlobStore  # takes what the rule remembers
    files: ExitStack  # closes it
    state: State | None = None

    def play(self, round_: Round) -> Trial:
        weights = self.rounds.version(str(round_.target)).weights
        with fusion.opened(self.blobs, self.rounds, round_, self.spec) as inputs, self.blobs.open_set(str(round_.target)) as file:
            try:
                fused = fusion.ruled(self.spec, inputs, self.state)
                _, kept = self.files.enter_context(fusion.written(self.store, fused))
                told = _compare(inputs.start, Parameters(file.spec, file.read), fused.target(kept))
            except (TooFewChildren, RefusedValue) as error:
                return Trial(round_.number, weights, error=error.message)
            self.state = State(kept, fused.state.notes) if kept is not None and fused.state is not None else None
        return Trial(round_.number, weights, fused.weights, fused.notes, *told)


def _compare(base: Parameters, published: Parameters, target: Parameters) -> tuple[float, float, float | None, float]:
    """Step, published step, cosine and distance of a `Trial`; one pass over all three, a slice of each in memory."""
    sums = np.zeros(4)
    for name in floats(base):
        for rows in row_slices(base.spec[name]):
            start = rows_of(base, name, rows)
            moved, theirs = rows_of(target, name, rows) - start, rows_of(published, name, rows) - start
            apart = moved - theirs
            sums += [float((one * two).sum()) for one, two in ((moved, moved), (theirs, theirs), (moved, theirs), (apart, apart))]
    step, published_step, distance = math.sqrt(sums[0]), math.sqrt(sums[1]), math.sqrt(sums[3])
    cosine = float(sums[2]) / (step * published_step) if step and published_step else None
    return step, published_step, cosine, distance
