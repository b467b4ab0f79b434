"""Initial set and update: only members get the set, and what they answer is checked and written down as it arrives."""

from typing import Any

from master import checks
from master.phases.play import GRACE, Play, confirmation_of, expect
from master.records import Member, Round, Version
from trunkline.clock import Deadline
from trunkline.errors import Reason, RefusedValue
from trunkline.messages import InitialSet, Message, Update

UPLOAD_MARGIN = 1 << 16
"""Bytes that an update's header may take beyond its tensors."""


def train(job: Play, round_: Round) -> Round:
    """Send the initial set to the members; take updates until all, or enough, are in, or the deadline is over."""
    members = job.members(round_)
    recorded = {update.child for update in job.pen.updates(round_.number)}
    failed: set[str] = set()
    enough = min(job.spec.children.close_at or len(members), len(members))
    seconds = job.spec.children.update_seconds
    deadline = Deadline(job.clock, seconds, f"the updates of round {round_.number}")
    version = job.version(round_.base)
    terms = job.training_terms(round_, version)
    asked: dict[str, Message] = {
        child: _initial_set(job, round_, member, version, terms, seconds)
        for child, member in members.items()
        if child not in recorded
    }
    expected = _expected(job, round_, members, recorded)
    if len(recorded) < enough:
        for child, answer, attachment in job.exchange(round_, Update, asked, deadline):
            if _record(job, round_, expected, child, answer, attachment):
                recorded.add(child)
            elif child in asked and child not in recorded:
                failed.add(child)
            if len(recorded) >= enough or len(recorded | failed) >= len(members):
                break
    for child in sorted(set(members) - recorded - failed):
        job.pen.refuse_update(round_.number, child, Reason.SILENT, "no update before the round closed")
    job.pen.close_updates(round_.number)
    return job.again(round_)


def _initial_set(job: Play, round_: Round, member: Member, version: Version, terms: dict[str, Any], seconds: float) -> InitialSet:
    delta, token = job.opening(member.child, round_, version, set(confirmation_of(member).holds), seconds)
    limit = 2 * version.size + UPLOAD_MARGIN
    upload = job.gate.issue(member.child, job.id, round_.number, version.digest, "up", limit, seconds + GRACE)
    return InitialSet(**terms, child=member.child, delta=delta, token=token, upload_token=upload)


def _expected(job: Play, round_: Round, members: dict[str, Member], recorded: set[str]) -> checks.Expected:
    """What every answer of the round is held against; `recorded` grows while they come in."""
    return checks.Expected(
        job=job.id,
        round=round_.number,
        base=round_.base,
        codec=job.spec.codec,
        confirmed={name: {task.task: task.samples for task in confirmation_of(member).tasks} for name, member in members.items()},
        recorded=recorded,
    )


def _record(job: Play, round_: Round, expected: checks.Expected, child: str, answer: Message, attachment: bytes | None) -> bool:
    """Check one answer and write it down, as an update or as a refusal."""
    try:
        update = expect(Update, answer)
        checks.check_update(update, child=child, expected=expected)
        if attachment is not None and job.blobs.add_bytes(attachment) != update.digest:
            raise RefusedValue(Reason.DIGEST, "the attachment should have the digest that the update names, found another.")
        if not job.blobs.has(update.digest):
            raise RefusedValue(Reason.TRANSFER, f"the bytes of {update.digest[:12]} should have arrived before the update.")
        with job.blobs.open_set(round_.base) as base:
            checks.check_file(update, job.blobs.path(update.digest), base)
    except RefusedValue as error:
        job.pen.refuse_update(round_.number, child, error.reason, error.message)
        return False
    job.pen.record_update(round_.number, child, update.table(), update.digest, update.size)
    return True
