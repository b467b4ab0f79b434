"""Instruction and confirmation: every child that can be reached is asked; who has samples and is willing becomes a member."""

from collections.abc import Collection

from master import checks
from master.phases.play import Play, expect
from master.phases.training import busy
from master.records import Round
from trunkline.clock import Deadline
from trunkline.errors import DeadlineExceeded, Reason, RefusedValue
from trunkline.messages import Confirmation, Instruction, Message


def instruct(job: Play, round_: Round) -> Round:
    """Ask until enough children have confirmed; then the members are fixed.

    :raises DeadlineExceeded: too few confirmed for as long as the job waits.
    """
    wanted = job.spec.children
    waiting = Deadline(
        job.clock, wanted.wait_seconds, f"{wanted.least} confirmation{'s' * (wanted.least > 1)} of round {round_.number}"
    )
    pause = 0.5
    while True:
        still = busy(job, round_)  # their updates count in this round or a later one
        accepted = _ask(job, round_, still)
        if len(accepted) + len(still) >= wanted.least:
            job.pen.fix_members(round_.number, sorted(accepted), none=bool(still))
            return job.again(round_)
        if waiting.over():
            raise _too_few(job, round_, waiting)
        job.clock.sleep(min(pause, waiting.left()))
        pause = min(pause * 2, 15.0)


def _too_few(job: Play, round_: Round, waiting: Deadline) -> DeadlineExceeded:
    refused = [f"{member.child} ({member.reason})" for member in job.pen.members(round_.number) if member.state == "refused"]
    return DeadlineExceeded(
        f"waited {waiting.seconds:g} s for {waiting.what}; refused: {', '.join(refused) or 'nobody'}.",
        hint=f"`trunkline round show {round_.number}` says why.",
    )


def _ask(job: Play, round_: Round, still: Collection[str]) -> set[str]:
    """Ask once those who have not confirmed yet and are not training; return who has by now, at most the preset number."""
    most = job.spec.children.wanted
    wanted = None if most is None else max(0, most - len(still))
    accepted = {member.child for member in job.pen.members(round_.number) if member.state == "confirmed"}
    if wanted is not None and len(accepted) >= wanted:
        return set(sorted(accepted)[:wanted])
    instruction = Instruction(**job.training_terms(round_, job.version(round_.base)))
    free = [child for child in job.link.children() if child not in accepted and child not in still]
    asked: dict[str, Message] = dict.fromkeys(free, instruction)
    deadline = Deadline(job.clock, job.spec.children.confirm_seconds, f"the confirmations of round {round_.number}")
    silent = set(asked)
    for child, answer, _ in job.exchange(round_, Confirmation, asked, deadline):
        if child not in silent:
            continue  # it has answered before
        silent.discard(child)
        if _accept(job, round_, child, answer):
            accepted.add(child)
            if wanted is not None and len(accepted) >= wanted:
                return accepted
    for child in sorted(silent):
        detail = f"no answer in {deadline.seconds:g} s"
        job.pen.record_confirmation(round_.number, child, {}, accepted=False, reason=Reason.SILENT, detail=detail)
    return accepted


def _accept(job: Play, round_: Round, child: str, answer: Message) -> bool:
    """Check one answer and write it down, as a confirmation or as a refusal."""
    body = answer.table() if isinstance(answer, Confirmation) else {}
    try:
        confirmation = expect(Confirmation, answer)
        checks.check_confirmation(confirmation, child=child, job=job.id, number=round_.number)
        checks.check_speaks(confirmation, job.least_wire)
    except RefusedValue as error:
        job.pen.record_confirmation(round_.number, child, body, accepted=False, reason=error.reason, detail=error.message)
        return False
    job.pen.record_confirmation(round_.number, child, body, accepted=True)
    return True
