"""What a round's recorded updates come to: read from the ledger and the blobs, fused by the job's rule, written as blobs.

The phase of a round, the replay of a published version and the trial of another rule all come through here, so they cannot differ.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from master.blobs import BlobStore
from master.jobs import JobSpec
from master.ledger_reader import JobReader
from master.publish import Target, publish
from master.records import Memory, Round
from master.rules import Contribution, Parameters, Rule, State
from trunkline.codecs import Decoder
from trunkline.messages import Update
from trunkline.sets import SetFile, write_rows


@dataclass(frozen=True, slots=True)
class Inputs:
    """All that a round's fusion depends on, memory-mapped."""

    round: Round
    base: SetFile
    contributions: tuple[Contribution, ...]  # in the order of the child ids
    state: State | None  # what the rule remembers
    residual: SetFile | None  # what a lossy codec has left out so far


@dataclass(frozen=True, slots=True)
class Outcome:
    """A fused round, its files in a blob store."""

    target: Target
    weights: Mapping[str, float]
    memory: Memory


@contextmanager
def opened(blobs: BlobStore, rounds: JobReader, round_: Round) -> Iterator[Inputs]:
    """Open what a round's fusion depends on.

    :raises NotFound: a file is not kept any more.
    :raises DamagedFile: a base that updates are added to is not what its digest says.
    """
    with ExitStack() as files:
        base = files.enter_context(blobs.open_set(round_.base))
        contributions, verified = [], False
        for row in sorted(rounds.updates(round_.number), key=lambda row: row.child):
            update = Update.of_table(row.update)
            decoder = Decoder(files.enter_context(blobs.open_set(update.digest)), update.codec, base)
            if decoder.adds and not verified:  # a byte that went bad on the disk would be in every later set
                blobs.verify(round_.base)
                verified = True
            contributions.append(Contribution(row.child, update.samples, update.applied, Parameters(base.spec, decoder.read)))
        before = rounds.closed_before(round_.number)
        state = residual = None
        if before is not None and before.rule_state is not None:
            file = files.enter_context(blobs.open_set(before.rule_state))
            state = State(Parameters(file.spec, file.read), (before.notes or {}).get("state", {}))
        if before is not None and before.residual is not None:
            residual = files.enter_context(blobs.open_set(before.residual))
        yield Inputs(round_, base, tuple(contributions), state, residual)


def fuse(blobs: BlobStore, spec: JobSpec, inputs: Inputs, rule: Rule | None = None) -> Outcome:
    """Fuse, and write the target set and what the next round needs.

    :param blobs: where they are written; a replay gives a store of its own.
    :param rule: None: the job's.
    :raises TooFewChildren: nobody counts, or too few for the rule.
    """
    base = Parameters(inputs.base.spec, inputs.base.read)
    rule = rule or spec.fuse_rule
    fused = rule.fuse(base, inputs.contributions, inputs.state, most=spec.children.max_share, buffers=spec.buffers)
    with ExitStack() as files:
        written = digest = None
        if fused.state is not None:
            scratch = blobs.scratch("state")
            write_rows(scratch, fused.state.tensors.spec, fused.state.tensors.read)
            digest, _ = blobs.add_file(scratch, move=True)
            file = files.enter_context(blobs.open_set(digest))
            written = Parameters(file.spec, file.read)
        target = publish(blobs, inputs.round.base, inputs.base, fused.target(written), spec.codec)
    notes = {"rule": dict(fused.notes)} | ({"state": dict(fused.state.notes)} if fused.state else {})
    return Outcome(target, fused.weights, Memory(rule_state=digest, notes=notes))
