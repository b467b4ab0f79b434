"""Who is training which round's set: the members of the round, and in a buffered one those of earlier rounds too.

A buffered round closes before everybody is done. Who is not goes on, is not asked to begin another training meanwhile, and is sent
the same initial set again in each round: a child answers a set that it has trained already with the update that it made then, so
neither a lost answer nor a restart of the master loses its work.
"""

from dataclasses import dataclass

from master.phases.play import Play
from master.records import Member, Round
from trunkline.errors import Reason


@dataclass(frozen=True, slots=True)
class Seat:
    """A child that is training, or about to."""

    round: Round  # whose initial set it has
    member: Member


def seats(job: Play, round_: Round) -> dict[str, Seat]:
    """Everybody who may send an update in this round, by child."""
    found = {child: Seat(round_, member) for child, member in job.members(round_).items()}
    return busy(job, round_) | found


def busy(job: Play, round_: Round) -> dict[str, Seat]:
    """Children who are still training from an earlier round; none where rounds wait for everybody.

    Those who take too long, or whose set is too old by now, are written off first.
    """
    buffered = job.spec.fuse_rule.buffered
    if buffered is None:
        return {}
    rounds, fused = {one.number: one for one in job.pen.rounds()}, job.pen.fused(round_.number)
    found: dict[str, Seat] = {}
    for number, member in job.pen.training():
        if number == round_.number:
            continue
        age = sum(other >= number for other in fused)
        if age > buffered.most_stale:
            detail = f"its set is {age} rounds old, more than {buffered.most_stale}"
            job.pen.refuse_update(number, member.child, Reason.STALE, detail)
        elif (seconds := job.clock.now() - member.at) > job.spec.children.update_seconds:
            job.pen.refuse_update(number, member.child, Reason.SILENT, f"no update in {seconds:.0f} s")
        else:
            found[member.child] = Seat(rounds[number], member)
    return found
