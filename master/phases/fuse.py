"""Fusion: the rule makes the target set of the recorded updates, and the ledger publishes it."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from master.phases.play import Play
from master.publish import publish
from master.records import Round
from master.rules import Contribution, Parameters, find_rule, limited
from trunkline.codec import Decoder
from trunkline.errors import TooFewChildren
from trunkline.messages import Update
from trunkline.sets import SetFile


def fuse(job: Play, round_: Round) -> Round:
    """Publish the target set. With too few updates, or none that counts, parameters stay as they are: the round is skipped."""
    wanted = job.spec.children
    updates, least = job.pen.updates(round_.number), wanted.least_updates or wanted.least
    if len(updates) < least:
        job.pen.skip_round(round_.number, f"{len(updates)} of at least {least} updates")
        return job.again(round_)
    rule = limited(find_rule(job.spec.rule), wanted.max_share)
    with _contributions(job, round_) as (base, contributions):
        try:
            fused = rule(Parameters(base.spec, base.read), contributions)
        except TooFewChildren as error:
            job.pen.skip_round(round_.number, error.message)
            return job.again(round_)
        target = publish(job.blobs, round_.base, base, fused.parameters, job.spec.codec)
    job.pen.publish(round_.number, target.digest, target.size, round_.base, fused.weights, target.delta)
    _forget(job, round_)
    return job.again(round_)


@contextmanager
def _contributions(job: Play, round_: Round) -> Iterator[tuple[SetFile, list[Contribution]]]:
    """The base set and the recorded updates, memory-mapped, in the order of the child ids."""
    with ExitStack() as files:
        base = files.enter_context(job.blobs.open_set(round_.base))
        contributions, verified = [], False
        for row in sorted(job.pen.updates(round_.number), key=lambda row: row.child):
            update = Update.of_table(row.update)
            decoder = Decoder(files.enter_context(job.blobs.open_set(update.digest)), update.codec, base)
            if decoder.adds and not verified:  # a byte that went bad on the disk would be in every later set
                job.blobs.verify(round_.base)
                verified = True
            contributions.append(Contribution(row.child, update.samples, update.applied, Parameters(base.spec, decoder.read)))
        yield base, contributions


def _forget(job: Play, round_: Round) -> None:
    """Delete recorded updates that are older than the job keeps them."""
    for digest in job.pen.forget_updates(round_.number - job.spec.keep_rounds + 1):
        job.blobs.delete(digest)
