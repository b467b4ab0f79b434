"""Initial set and update: only members get the set, and what they answer is checked and written down as it arrives."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from master import checks
from master.phases.play import Play, confirmation_of, expect
from master.phases.training import Seat, seats
from master.records import Round, Version
from trunkline.clock import Deadline
from trunkline.codecs import Reach
from trunkline.errors import Reason, RefusedValue
from trunkline.messages import InitialSet, Message, SetRef, Update

UPLOAD_MARGIN = 1 << 16
"""Bytes that an update's header may take beyond its tensors."""


def train(job: Play, round_: Round) -> Round:
    """Send the initial set to whoever trains; take updates until all, or enough, are in, or the deadline is over."""
    training = seats(job, round_)
    recorded = {update.child for update in job.pen.updates(round_.number)}
    failed: set[str] = set()
    enough = _enough(job, len(training | dict.fromkeys(recorded)))
    seconds = job.spec.children.update_seconds
    deadline = Deadline(job.clock, seconds, f"the updates of round {round_.number}")
    waited = {child: seat for child, seat in training.items() if child not in recorded}
    asked = _initial_sets(job, waited, seconds)
    incoming = _Incoming(job, round_, training, recorded)
    if len(recorded) < enough:
        origins = {seat.round.number for seat in training.values()} - {round_.number}
        for child, answer, attachment in job.exchange(round_, Update, asked, deadline, origins):
            if incoming.record(child, answer, attachment):
                recorded.add(child)
            elif child in asked and child not in recorded:
                failed.add(child)
            if len(recorded) >= enough or not set(waited) - recorded - failed:
                break
    if job.spec.fuse_rule.buffered is None:  # else they train on
        for child in sorted(set(training) - recorded - failed):
            job.pen.refuse_update(round_.number, child, Reason.SILENT, "no update before the round closed")
    job.pen.close_updates(round_.number)
    return job.again(round_)


def _enough(job: Play, most: int) -> int:
    """Updates that close the round, of at most so many."""
    buffered = job.spec.fuse_rule.buffered
    return min((buffered.size if buffered else job.spec.children.close_at) or most, most)


@dataclass(frozen=True, slots=True)
class _Start:
    """What every child is told that trains the set of one round."""

    round: Round
    version: Version
    terms: Mapping[str, Any]
    control: SetRef | None  # the server's control variate, where the rule has one


def _start(job: Play, round_: Round) -> _Start:
    version = job.version(round_.base)
    return _Start(round_, version, job.training_terms(round_, version), job.control(round_))


def _initial_sets(job: Play, waited: Mapping[str, Seat], seconds: float) -> dict[str, Message]:
    """The set for each child; what is alike in a round is looked up once."""
    rounds = {seat.round.number: seat.round for seat in waited.values()}
    starts = {number: _start(job, round_) for number, round_ in rounds.items()}
    return {child: _initial_set(job, child, seat, starts[seat.round.number], seconds) for child, seat in waited.items()}


def _initial_set(job: Play, child: str, seat: Seat, start: _Start, seconds: float) -> InitialSet:
    version, control = start.version, start.control
    delta, token = job.opening(child, start.round, version, set(confirmation_of(seat.member).holds), seconds)
    most = 2 * version.size + UPLOAD_MARGIN
    return InitialSet(
        **start.terms,
        child=child,
        delta=delta,
        token=token,
        upload_token=job.grant(child, start.round, version.digest, most, seconds, "up"),
        control=control,
        control_token="" if control is None else job.grant(child, start.round, control.digest, control.size, seconds),
    )


@dataclass
class _Incoming:
    """Checks answers and writes them down; `recorded` grows while they come in."""

    job: Play
    round: Round
    training: Mapping[str, Seat]
    recorded: set[str]
    _expected: dict[int, checks.Expected] = field(default_factory=dict)  # by the round whose set was trained
    _reach: dict[str, Reach] = field(default_factory=dict)  # of the sets that were trained, by digest

    def record(self, child: str, answer: Message, attachment: bytes | None) -> bool:
        """Write one answer down, as an update or as a refusal; tell which."""
        job = self.job
        seat = self.training.get(child)
        origin = seat.round if seat is not None else self.round
        try:
            update = expect(Update, answer)
            checks.check_update(update, child=child, expected=self._expect(origin))
            if attachment is not None and job.blobs.add_bytes(attachment) != update.digest:
                raise RefusedValue(Reason.DIGEST, "the attachment should have the digest that the update names, found another.")
            if not job.blobs.known(update.digest):
                raise RefusedValue(Reason.TRANSFER, f"the bytes of {update.digest[:12]} should have arrived before the update.")
            with job.blobs.open_set(origin.base) as base:
                checks.check_file(update, job.blobs.path(update.digest), base, self._reach.setdefault(origin.base, Reach()))
        except RefusedValue as error:
            job.pen.refuse_update(origin.number, child, error.reason, error.message)
            return False
        job.pen.record_update(self.round.number, child, update.table(), update.digest, update.size, origin.number)
        return True

    def _expect(self, origin: Round) -> checks.Expected:
        if origin.number not in self._expected:
            seats = {child: seat for child, seat in self.training.items() if seat.round.number == origin.number}
            self._expected[origin.number] = checks.Expected(
                job=self.job.id,
                round=origin.number,
                base=origin.base,
                codec=self.job.spec.codec,
                confirmed={
                    child: {task.task: task.samples for task in confirmation_of(seat.member).tasks} for child, seat in seats.items()
                },
                recorded=self.recorded,
            )
        return self._expected[origin.number]
