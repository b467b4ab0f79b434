"""The outer loop: rounds of instruction, confirmation, initial set, update, fusion and report, until the continue rule says stop.

What is done already stands in the ledger, and each phase asks it first. So the loop can be killed anywhere and run again: it goes
on in the phase that was open, with the members, updates and reports that were recorded, and comes to the same parameters.
"""

from collections.abc import Callable, Mapping

from master.phases.confirm import instruct
from master.phases.fuse import fuse
from master.phases.play import Play
from master.phases.report import report
from master.phases.train import train
from master.records import Round
from trunkline.clock import Deadline

PHASES: Mapping[str, Callable[[Play, Round], Round]] = {
    "instructing": instruct,  # ask every child; fix the members
    "training": train,  # send the initial set; record the updates
    "fusing": fuse,  # the rule makes the target set of them; publish it
    "reporting": report,  # each member tests the target set
}
"""A round's state names the phase that is open; each phase returns the round in its next state, at last `closed` or `skipped`."""


def run(job: Play) -> str:
    """Play rounds until the continue rule stops, and return its reason; `paused` where an operator said so between two rounds.

    :raises DeadlineExceeded: no round could be held for longer than the job waits.
    :raises Fenced: another process took the job over, or it was ended from outside.
    """
    patience, pause = _patience(job), 0.5
    while (round_ := job.pen.last_round()) is None or not round_.reason or round_.state != "closed":
        if job.pen.job.state == "paused":
            return "paused"
        round_ = play(job, 1 if round_ is None else round_.number + (not round_.open))
        if round_.state == "closed":
            patience, pause = _patience(job), 0.5
            continue
        patience.check()
        job.clock.sleep(pause)
        pause = min(2 * pause, 15.0)
    return round_.reason


def play(job: Play, number: int) -> Round:
    """Play one round from where the ledger says it stands, to its end."""
    round_ = job.pen.round(number)
    if round_ is None:
        round_ = job.pen.open_round(number, job.start().digest, job.clock.now())
    while round_.open:
        round_ = PHASES[round_.state](job, round_)
    return round_


def _patience(job: Play) -> Deadline:
    return Deadline(job.clock, job.spec.children.wait_seconds, "a round with enough updates")
