"""Fusion: the rule makes the target set of the recorded updates, and the ledger publishes it."""

from master import fusion
from master.phases.play import Play
from master.records import Round
from trunkline.errors import RefusedValue, TooFewChildren


def fuse(job: Play, round_: Round) -> Round:
    """Publish the target set. With too few updates, none that counts, or some that come to no numbers, the round is skipped:
    parameters stay as they are.
    """
    updates, fewest = job.pen.updates(round_.number), job.spec.children.fewest
    if len(updates) < fewest:
        job.pen.skip_round(round_.number, f"{len(updates)} of at least {fewest} updates")
        return job.again(round_)
    with fusion.opened(job.blobs, job.pen, round_, job.spec) as inputs:
        try:
            made = fusion.fuse(job.blobs, job.spec, inputs)
        except (TooFewChildren, RefusedValue) as error:
            job.pen.skip_round(round_.number, error.message)
            return job.again(round_)
    target = made.target
    job.pen.publish(round_.number, target.digest, target.size, round_.base, made.weights, target.delta, memory=made.memory)
    if job.stream is not None:
        job.stream.after_round()
    _forget(job, round_)
    return job.again(round_)


def _forget(job: Play, round_: Round) -> None:
    """Delete recorded updates that are older than the job keeps them."""
    for digest in job.pen.forget_updates(round_.number - job.spec.keep_rounds + 1):
        job.blobs.delete(digest)
