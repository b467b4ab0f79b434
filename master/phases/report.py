"""Report: each member tests the target set on its own samples; the scores decide whether another round follows."""

from collections.abc import Iterable

from master import checks
from master.phases.play import Play, confirmation_of, expect
from master.records import Member, Round
from master.sharing.history import hurt_in
from master.stopping import RoundScores, reason_to_stop, score_round
from trunkline.clock import Deadline
from trunkline.errors import RefusedValue
from trunkline.messages import Message, Plan, Report, ReportRequest, Score
from trunkline.values import Split


def report(job: Play, round_: Round) -> Round:
    """Collect the reports and close the round; its reason says why the job stops after it, if it does.

    After the last round the splits that only the finished encoder is tested on are asked for as well, once the heads have settled.
    """
    _collect(job, round_, job.spec.report)
    reason = _why_stop(job, round_)
    if reason is not None:
        _collect(job, round_, job.spec.final_report, job.spec.settling())
    losses = hurt_in(job.pen, round_, job.spec.rounds, last=reason is not None)
    job.pen.close_round(round_.number, reason or "", [loss.event() for loss in losses])
    return job.again(round_)


def scores_of(job: Play, number: int) -> RoundScores:
    """Validation scores of one round."""
    return score_round([Report.of_table(row.report) for row in job.pen.reports(number)])


def _why_stop(job: Play, round_: Round) -> str | None:
    scores = [scores_of(job, number) for number in job.pen.fused(round_.number + 1)]
    first = job.pen.round(1)
    assert first is not None, "rounds are counted from 1"
    return reason_to_stop(job.spec.stop, job.spec.rounds, scores, job.clock.now() - first.opened)


def _collect(job: Play, round_: Round, splits: Iterable[Split], settle: Plan | None = None) -> None:
    """Ask the members for scores on splits they have not reported yet, and record what comes in time.

    :param settle: how heads are fitted to the target before; then they are asked for all of these splits.
    """
    known = {row.child: Report.of_table(row.report) for row in job.pen.reports(round_.number)}
    seconds = job.spec.children.report_seconds
    asked: dict[str, Message] = {}
    for child, member in _reporters(job, round_).items():
        told = {score.split for score in known[child].scores} if child in known else set()
        missing = [split for split in splits if settle or split not in told]
        if missing or settle:
            asked[child] = _request(job, round_, member, missing, seconds, settle)
    deadline = Deadline(job.clock, seconds, f"the reports of round {round_.number}")
    for child, answer, _ in job.exchange(round_, Report, asked, deadline):
        try:
            _record(job, round_, child, expect(Report, answer), known.get(child))
        except RefusedValue as error:
            data = {"reason": error.reason, "detail": error.message}
            job.pen.event("report.refused", round=round_.number, child=child, data=data)


def _reporters(job: Play, round_: Round) -> dict[str, Member]:
    """Who tests the target set: the members; in a buffered round those who are free, because their update is in."""
    if job.spec.fuse_rule.buffered is None:
        return job.members(round_)
    origins = {row.child: row.origin or round_.number for row in job.pen.updates(round_.number)}
    members = {(number, member.child): member for number in set(origins.values()) for member in job.pen.members(number)}
    return {child: members[number, child] for child, number in origins.items()}


def _request(job: Play, round_: Round, member: Member, splits: list[Split], seconds: float, settle: Plan | None) -> ReportRequest:
    assert round_.target is not None, f"round {round_.number} is reporting on a target"
    version = job.version(round_.target)
    delta, token = job.opening(member.child, round_, version, {*confirmation_of(member).holds, round_.base}, seconds)
    return ReportRequest(
        **job.terms(round_),
        child=member.child,
        target=job.set_ref(version),
        splits=tuple(splits),
        delta=delta,
        token=token,
        settle=settle,
    )


def _record(job: Play, round_: Round, child: str, report: Report, known: Report | None) -> None:
    """Check a report and keep it together with what the child has reported before."""
    checks.check_report(report, child=child, job=job.id, number=round_.number, target=round_.target or "")
    if known is not None:
        scores, alone = _merged(known.scores, report.scores), _merged(known.alone, report.alone)
        report = report.model_copy(update={"scores": scores, "alone": alone})
    job.pen.record_report(round_.number, child, report.table())


def _merged(known: Iterable[Score], scores: Iterable[Score]) -> tuple[Score, ...]:
    """What was told before, and what is told now in its place or beside it."""
    newest = tuple(scores)
    asked = {(score.task, score.split) for score in newest}
    return (*(score for score in known if (score.task, score.split) not in asked), *newest)
