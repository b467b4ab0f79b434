"""What a round's recorded updates come to: read from the ledger and the blobs, fused by the job's rule, written as blobs.

The phase of a round, the replay of a published version and the trial of another rule all come through here, so they cannot differ.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import numpy as np

from master.blobs import BlobStore
from master.jobs import JobSpec
from master.ledger_reader import JobReader
from master.publish import Target, publish
from master.records import Memory, Round
from master.rules import Contribution, Fused, Parameters, State
from master.sharing.directions import directions
from trunkline.behind import Behind
from trunkline.codecs import Decoder
from trunkline.errors import NotFound, Reason, RefusedValue
from trunkline.messages import Update
from trunkline.sets import SetFile, write_rows
from trunkline.tensors import FLOATS, Array, real


@dataclass(frozen=True, slots=True)
class Inputs:
    """All that a round's fusion depends on, memory-mapped."""

    round: Round
    base: SetFile
    contributions: tuple[Contribution, ...]  # in the order of the child ids
    state: State | None  # what the rule remembers
    residual: SetFile | None  # what a lossy codec has left out so far

    @property
    def start(self) -> Parameters:
        """The base as rules read it."""
        return Parameters(self.base.spec, self.base.read)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A fused round, its files in a blob store."""

    target: Target
    weights: Mapping[str, float]
    memory: Memory


@contextmanager
def opened(blobs: BlobStore, rounds: JobReader, round_: Round, spec: JobSpec) -> Iterator[Inputs]:
    """Open what a round's fusion depends on.

    :raises NotFound: a file is not kept any more.
    :raises DamagedFile: (at the end, for it is read meanwhile) a base that updates are added to is not what its digest says.
    """
    rows = rounds.updates(round_.number)
    if gone := [row.child for row in rows if row.forgotten]:
        raise NotFound(
            f"the updates of round {round_.number} should be kept, found that those of {', '.join(gone)} are not.",
            hint="`keep_rounds` of a job says for how many rounds they are.",
        )
    with ExitStack() as files:
        checks = files.enter_context(Behind())
        bases = {round_.base: files.enter_context(blobs.open_set(round_.base))}
        fused = rounds.fused(round_.number)
        verified: set[str] = set()
        contributions = []
        for row in rows:
            update = Update.of_table(row.update)
            if update.base not in bases:  # a buffered round takes updates of earlier ones
                bases[update.base] = files.enter_context(blobs.open_set(update.base))
            base = bases[update.base]
            decoder = Decoder(files.enter_context(blobs.open_set(update.digest)), update.codec, base)
            if update.base not in verified and (decoder.adds or update.base != round_.base):
                checks.do(blobs.verify, update.base)  # a byte that went bad on the disk would be in every later set
                verified.add(update.base)
            contributions.append(_contribution(round_, fused, row.child, update, base, decoder, spec))
        before = rounds.last_fused(round_.number)
        state = residual = None
        if before is not None and before.rule_state is not None:
            file = files.enter_context(blobs.open_set(before.rule_state))
            state = State(Parameters(file.spec, file.read), (before.notes or {}).get("state", {}))
        if before is not None and before.residual is not None:
            residual = files.enter_context(blobs.open_set(before.residual))
        yield Inputs(round_, bases[round_.base], tuple(contributions), state, residual)


def _contribution(
    round_: Round, fused: Sequence[int], child: str, update: Update, base: SetFile, decoder: Decoder, spec: JobSpec
) -> Contribution:
    """One recorded update as a rule sees it.

    :param fused: rounds before this one that came to a target.
    """
    return Contribution(
        child=child,
        samples=update.samples,
        applied=update.applied,
        parameters=Parameters(base.spec, decoder.read),
        base=None if update.base == round_.base else Parameters(base.spec, base.read),
        staleness=sum(number >= update.round for number in fused),
        distance=update.steps * spec.training.learning_rate or None,
    )


def ruled(spec: JobSpec, inputs: Inputs, state: State | None) -> Fused:
    """What a job's rule makes of a round, as recipes. Reading them raises `RefusedValue` (`not_finite`) where a number has no room
    in its dtype: each update is finite, what a step makes of several need not be.

    :param state: what the rule remembers; a trial has another than the round had.
    :raises TooFewChildren: nobody counts, or too few for the rule.
    """
    fused = spec.fuse_rule.fuse(inputs.start, inputs.contributions, state, most=spec.children.max_share, buffers=spec.buffers)
    after = None if fused.state is None else replace(fused.state, tensors=_finite(fused.state.tensors))
    return replace(fused, state=after, target=lambda written: _finite(fused.target(written)))


def _finite(recipe: Parameters) -> Parameters:
    """The same, looked at as it is read: a set that is not finite would spoil every later one."""

    def read(name: str, rows: slice) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            values = recipe.read(name, rows)
        dtype = recipe.spec[name].dtype
        if dtype in FLOATS and not np.isfinite(real(values, dtype)).all():
            raise RefusedValue(Reason.NOT_FINITE, f"{name!r} should be finite, found NaN or infinity in what the updates come to.")
        return values

    return Parameters(recipe.spec, read)


@contextmanager
def written(blobs: BlobStore, fused: Fused) -> Iterator[tuple[str | None, Parameters | None]]:
    """What the rule remembers, as a file that the target set can be read with the help of. It becomes a blob when the block ends
    without an error: nothing stays of a round that comes to nothing.
    """
    if fused.state is None:
        yield None, None
        return
    with blobs.scratches("state") as (path,):
        digest = write_rows(path, fused.state.tensors.spec, fused.state.tensors.read, durable=False)
        with SetFile(path) as file:
            yield digest, Parameters(file.spec, file.read)
        blobs.add_file(path, move=True, digest=digest)


def fuse(blobs: BlobStore, spec: JobSpec, inputs: Inputs) -> Outcome:
    """Fuse, and write the target set and what the next round needs.

    :param blobs: where they are written; a replay gives a store of its own.
    :raises TooFewChildren: nobody counts, or too few for the rule.
    :raises RefusedValue: `not_finite`: so is what the updates come to.
    """
    fused = ruled(spec, inputs, inputs.state)
    with written(blobs, fused) as (digest, state):
        target = publish(blobs, inputs.round.base, inputs.base, fused.target(state), spec.codec, inputs.residual)
    notes = {"rule": dict(fused.notes)} | ({"state": dict(fused.state.notes)} if fused.state else {})
    with blobs.open_set(target.digest) as made:
        look = directions(inputs.start, inputs.contributions, Parameters(made.spec, made.read))
    notes |= {"tasks": look} if look else {}
    return Outcome(target, fused.weights, Memory(rule_state=digest, residual=target.residual, notes=notes))
