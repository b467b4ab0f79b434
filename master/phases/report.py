"""Report: each member tests the target set on its own samples; the scores decide whether another round follows."""

from collections.abc import Iterable
from typing import Any

from master import checks
from master.phases.play import Play, confirmation_of, expect
from master.records import Member, Round
from master.stopping import RoundScores, reason_to_stop, score_round
from trunkline.clock import Deadline
from trunkline.errors import RefusedValue
from trunkline.messages import Message, Report, ReportRequest, Score


def report(job: Play, round_: Round) -> Round:
    """Collect the reports and close the round; its reason says why the job stops after it, if it does.

    After the last round the splits that only the finished encoder is tested on are asked for as well.
    """
    _collect(job, round_, job.spec.report)
    reason = _why_stop(job, round_)
    if reason is not None:
        _collect(job, round_, job.spec.final_report)
    job.pen.close_round(round_.number, reason or "")
    return job.again(round_)


def scores_of(job: Play, number: int) -> RoundScores:
    """Validation scores of one round."""
    return score_round([Report.of_table(row.report) for row in job.pen.reports(number)])


def _why_stop(job: Play, round_: Round) -> str | None:
    rounds = job.pen.rounds()
    fused = [other.number for other in rounds if other.state == "closed"] + [round_.number]
    elapsed = job.clock.now() - rounds[0].opened
    return reason_to_stop(job.spec.stop, job.spec.rounds, [scores_of(job, number) for number in fused], elapsed)


def _collect(job: Play, round_: Round, splits: Iterable[str]) -> None:
    """Ask the members for scores on splits they have not reported yet, and record what comes in time."""
    known = {row.child: Report.of_table(row.report).scores for row in job.pen.reports(round_.number)}
    seconds = job.spec.children.report_seconds
    asked: dict[str, Message] = {}
    for child, member in job.members(round_).items():
        missing = [split for split in splits if split not in {score.split for score in known.get(child, ())}]
        if missing:
            asked[child] = _request(job, round_, member, missing, seconds)
    deadline = Deadline(job.clock, seconds, f"the reports of round {round_.number}")
    for child, answer, _ in job.exchange(round_, Report, asked, deadline):
        try:
            _record(job, round_, child, expect(Report, answer), known.get(child, ()))
        except RefusedValue as error:
            data = {"reason": error.reason, "detail": error.message}
            job.pen.event("report.refused", round=round_.number, child=child, data=data)


def _request(job: Play, round_: Round, member: Member, splits: list[str], seconds: float) -> ReportRequest:
    assert round_.target is not None, f"round {round_.number} is reporting on a target"
    version = job.version(round_.target)
    delta, token = job.opening(member.child, round_, version, {*confirmation_of(member).holds, round_.base}, seconds)
    target = job.set_ref(version)
    asked: dict[str, Any] = {"child": member.child, "target": target, "splits": tuple(splits), "delta": delta, "token": token}
    return ReportRequest(**job.terms(round_), **asked)


def _record(job: Play, round_: Round, child: str, report: Report, known: Iterable[Score]) -> None:
    """Check a report and keep it together with what the child has reported before."""
    checks.check_report(report, child=child, job=job.id, number=round_.number, target=round_.target or "")
    asked = {(score.task, score.split) for score in report.scores}
    merged = [score for score in known if (score.task, score.split) not in asked] + list(report.scores)
    job.pen.record_report(round_.number, child, report.model_copy(update={"scores": tuple(merged)}).table())
