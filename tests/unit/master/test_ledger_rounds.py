"""Laws of a job's rounds in the ledger: their order, their one owner, and that repeating what was done changes nothing."""

from collections.abc import Callable
from typing import Any

import pytest

from master.ledger import Ledger
from master.ledger_pen import Pen
from master.ledger_rounds import JobLedger
from tests.support.ledgers import digest, memory_ledger, owned_job, play_to
from trunkline.clock import ManualClock
from trunkline.errors import Conflict, Fenced, NotFound, Reason, TrunklineError
from trunkline.messages import DeltaRef


@pytest.fixture
def ledger() -> Ledger:
    return memory_ledger()


@pytest.fixture
def job(ledger: Ledger) -> JobLedger:
    return owned_job(ledger)


def state(job: JobLedger, number: int = 1) -> str:
    round_ = job.round(number)
    assert round_ is not None
    return round_.state


# -- a whole round ---------------------------------------------------------------------------------------------------------


def test_a_round_from_beginning_to_end(ledger: Ledger, job: JobLedger) -> None:
    assert job.round(1) is None and job.last_round() is None
    opened = job.open_round(1, digest("0"), now=7.0)
    assert (opened.state, opened.opened, opened.base, opened.open) == ("instructing", 7.0, digest("0"), True)
    job.record_confirmation(1, "b", {"tasks": [{"task": "t", "samples": 5}]}, True)
    job.record_confirmation(1, "a", {}, True)
    job.record_confirmation(1, "c", {}, True)
    job.record_confirmation(1, "d", {}, False, Reason.POLICY, "not at night")
    assert job.fix_members(1, ["b", "a"]).state == "training"
    found = {member.child: member for member in job.members(1)}
    assert {name: member.state for name, member in found.items()} == {"a": "member", "b": "member", "c": "left_out", "d": "refused"}
    assert list(found) == sorted(found)
    assert found["b"].confirmation == {"tasks": [{"task": "t", "samples": 5}]}
    assert (found["d"].reason, found["d"].detail) == ("policy", "not at night")
    job.record_update(1, "b", {"samples": {"t": 5}}, digest("b"), 11)
    job.refuse_update(1, "a", Reason.NOT_FINITE, "'w' has NaN", {"digest": digest("bad")})
    job.refuse_update(1, "a", Reason.SIZE, "too large")
    job.record_update(1, "a", {"samples": {}}, digest("a"), 10)
    assert [update.child for update in job.updates(1)] == ["a", "b"], "in the order of names, not of arrival"
    assert [refusal.reason for refusal in job.refusals(1)] == ["not_finite", "size"]
    assert job.close_updates(1).state == "fusing"
    delta = DeltaRef(held=digest("0"), digest=digest("d"), size=5, codec="bf16")
    version = job.publish(1, digest("1"), 100, digest("0"), {"a": 0.25, "b": 0.75}, delta, {"note": "x"})
    assert (version.number, version.kind, version.parent_number, version.job, version.round) == (2, "round", 1, job.job_id, 1)
    assert version.weights == {"a": 0.25, "b": 0.75} and version.delta == delta and version.data == {"note": "x"}
    assert ledger.version("text") == version == job.current_version() == job.version(digest("1"))
    job.record_report(1, "a", {"scores": [0.5]})
    closed = job.close_round(1, "all reported")
    assert (closed.state, closed.target, closed.version, closed.reason, closed.open) == (
        "closed",
        digest("1"),
        2,
        "all reported",
        False,
    )
    assert [report.report for report in job.reports(1)] == [{"scores": [0.5]}]
    assert job.rounds() == [closed]
    assert job.finish("finished", "rounds").state == "finished"
    assert [event.kind for event in ledger.events(job=job.job_id)] == [
        "job.started",
        "job.owned",
        "job.running",
        "round.opened",
        *["confirmation"] * 4,
        "round.members",
        "update.accepted",
        "update.refused",
        "update.refused",
        "update.accepted",
        "round.fusing",
        "round.published",
        "report",
        "round.closed",
        "job.finished",
    ]


def test_anybody_may_read_while_one_writes(ledger: Ledger, job: JobLedger) -> None:
    play_to(job, "reporting")
    reader = ledger.reader(job.job_id)
    assert reader.rounds() == job.rounds() and reader.members(1) == job.members(1) and reader.updates(1) == job.updates(1)
    assert not hasattr(reader, "publish")


def test_rounds_that_came_to_a_target_are_told_from_those_that_were_skipped(job: JobLedger) -> None:
    assert job.fused(1) == [] and job.last_fused(1) is None
    play_to(job, "closed", number=1)
    play_to(job, "training", number=2)
    job.skip_round(2, "too few")
    play_to(job, "closed", number=3, target="e")
    play_to(job, "reporting", number=4, target="d")
    assert [job.fused(before) for before in range(1, 6)] == [[], [1], [1], [1, 3], [1, 3, 4]]
    found = [job.last_fused(before) for before in range(2, 6)]
    assert found == [job.round(number) for number in (1, 1, 3, 4)]


# -- repeating what was done -----------------------------------------------------------------------------------------------

REPEATABLE: dict[str, tuple[str, Callable[[JobLedger], Any]]] = {
    "open_round": ("instructing", lambda job: job.open_round(1, digest("0"))),
    "record_confirmation": ("instructing", lambda job: job.record_confirmation(1, "a", {"tasks": (1, 2)}, True)),
    "fix_members": ("training", lambda job: job.fix_members(1, ["b", "a"])),
    "close_updates": ("fusing", lambda job: job.close_updates(1)),
    "publish": ("reporting", lambda job: job.publish(1, digest("f1"), 100, digest("0"), {"a": 0.5, "b": 0.5})),
    "close_round": ("closed", lambda job: job.close_round(1)),
    "skip_round": ("instructing", lambda job: job.skip_round(1, "too few")),
    "finish": ("closed", lambda job: job.finish("finished")),
    "forget_updates": ("closed", lambda job: (job.forget_updates(2) and None) or []),
}


@pytest.mark.parametrize("what", REPEATABLE)
def test_repeating_changes_nothing(ledger: Ledger, job: JobLedger, what: str) -> None:
    """A crash between the commit and the answer makes the owner do it again: no second row, no second event, the same value."""
    before, act = REPEATABLE[what]
    play_to(job, before)
    first = act(job)
    seen = _picture(ledger, job)
    assert act(job) == first
    assert _picture(ledger, job) == seen


def test_a_confirmation_may_be_repeated_after_the_members_were_fixed_but_not_changed(job: JobLedger) -> None:
    play_to(job, "training")
    job.record_confirmation(1, "a", {"samples": 1}, True)
    for confirmation, accepted in (({"samples": 2}, True), ({"samples": 1}, False)):
        with pytest.raises(Conflict, match="training"):
            job.record_confirmation(1, "a", confirmation, accepted)
    with pytest.raises(Conflict):
        job.record_confirmation(1, "late", {}, True)


def test_the_last_confirmation_counts_until_then(job: JobLedger) -> None:
    job.open_round(1, digest("0"))
    job.record_confirmation(1, "a", {}, False, Reason.SILENT, "no answer")
    job.record_confirmation(1, "a", {"samples": 3}, True)
    (member,) = job.members(1)
    assert (member.state, member.confirmation, member.reason, member.detail) == ("confirmed", {"samples": 3}, None, "")


def test_a_digest_that_was_published_is_published_for_ever(ledger: Ledger, job: JobLedger) -> None:
    play_to(job, "closed")
    first = job.publish(1, digest("f1"), 100, digest("0"), {"a": 1.0})
    assert first.weights == {"a": 0.5, "b": 0.5}, "the first call counts"
    play_to(job, "closed", number=2)
    assert job.publish(1, digest("f1"), 100, digest("0"), {}) == first, "also when the encoder has moved on"
    with pytest.raises(Conflict, match="once"):
        job.publish(1, digest("9"), 100, digest("0"), {})


def test_a_target_that_equals_its_base_is_a_version_of_its_own(job: JobLedger) -> None:
    play_to(job, "fusing")
    version = job.publish(1, digest("0"), 100, digest("0"), {"a": 1.0})
    assert (version.number, version.digest, version.parent) == (2, digest("0"), digest("0"))


# -- what is out of order is refused, and leaves nothing behind --------------------------------------------------------------

STATES = ("instructing", "training", "fusing", "reporting", "closed", "skipped")

ALLOWED: dict[str, tuple[Callable[[JobLedger], Any], set[str]]] = {
    "a next round": (lambda job: job.open_round(2, job.current_version().digest), {"closed", "skipped"}),
    "a new confirmation": (lambda job: job.record_confirmation(1, "new", {}, True), {"instructing"}),
    "members": (lambda job: job.fix_members(1, ["a"]), {"instructing"}),
    "an update": (lambda job: job.record_update(1, "c", {}, digest("c"), 1), {"training"}),
    "no more updates": (lambda job: job.close_updates(1), {"training", "fusing"}),
    "a target": (lambda job: job.publish(1, digest("new"), 1, digest("0"), {}), {"training", "fusing"}),
    "a report": (lambda job: job.record_report(1, "a", {}), {"reporting", "closed"}),
    "closing": (lambda job: job.close_round(1), {"reporting", "closed"}),
    "skipping": (lambda job: job.skip_round(1, "x"), {"instructing", "training", "fusing", "skipped"}),
}


@pytest.mark.parametrize("at", STATES)
def test_the_order_of_a_round(at: str) -> None:
    ledger, job = _round_at(at)
    seen = _picture(ledger, job)
    for act, allowed in ALLOWED.values():
        if at not in allowed:
            with pytest.raises(Conflict):
                act(job)
    assert _picture(ledger, job) == seen, "what is refused changes nothing"
    for act, allowed in ALLOWED.values():
        if at in allowed:
            act(_round_at(at)[1])


def _round_at(at: str) -> tuple[Ledger, JobLedger]:
    """A round with three members of which two sent updates."""
    ledger = memory_ledger()
    job = owned_job(ledger)
    job.open_round(1, digest("0"))
    for child in "abc":
        job.record_confirmation(1, child, {}, True)
    steps: dict[str, Callable[[], Any]] = {
        "instructing": lambda: None,
        "training": lambda: job.fix_members(1, "abc"),
        "fusing": lambda: job.close_updates(1),
        "reporting": lambda: job.publish(1, digest("f"), 100, digest("0"), {}),
        "closed": lambda: job.close_round(1),
    }
    if at == "skipped":
        job.skip_round(1, "for the test")
        return ledger, job
    for state, step in steps.items():
        step()
        if state == at:
            break
    return ledger, job


def test_members_are_children_that_confirmed(job: JobLedger) -> None:
    job.open_round(1, digest("0"))
    job.record_confirmation(1, "a", {}, True)
    job.record_confirmation(1, "b", {}, False, Reason.POLICY)
    for children in (["a", "b"], ["a", "stranger"], []):
        with pytest.raises(Conflict, match="confirmed"):
            job.fix_members(1, children)
    job.fix_members(1, ["a"])
    with pytest.raises(Conflict):
        job.fix_members(1, ["a", "b"])


def test_one_update_a_member(job: JobLedger) -> None:
    play_to(job, "training")
    job.record_update(1, "a", {}, digest("a"), 1)
    for child in ("a", "stranger"):
        with pytest.raises(Conflict, match=child):
            job.record_update(1, child, {}, digest("x"), 1)
    assert [update.digest for update in job.updates(1)] == [digest("a")]


def test_a_round_starts_from_the_current_version(ledger: Ledger, job: JobLedger) -> None:
    with pytest.raises(Conflict, match=digest("0")):
        job.open_round(1, digest("9"))
    with pytest.raises(Conflict, match="should be 1"):
        job.open_round(2, digest("0"))
    job.open_round(1, digest("0"))
    with pytest.raises(Conflict):
        job.open_round(1, digest("9"))
    with pytest.raises(NotFound, match="round 5"):
        job.close_round(5)
    job.skip_round(1, "x")
    ledger.set_job_state(job.job_id, "paused")
    job.open_round(2, digest("0"))


def test_a_target_has_its_rounds_base_as_parent(job: JobLedger) -> None:
    play_to(job, "fusing")
    with pytest.raises(Conflict, match="parent"):
        job.publish(1, digest("1"), 1, digest("9"), {})
    assert job.current_version().number == 1


def test_late_updates_are_refused_on_record_also_after_the_round(job: JobLedger) -> None:
    play_to(job, "closed")
    job.refuse_update(1, "a", Reason.LATE, "x" * 5000)
    job.refuse_update(1, "\0\ud800" * 40, Reason.SENDER, "\0\ud800")
    late, strange = job.refusals(1)
    assert len(late.detail) == 2000 and late.detail.endswith("…")
    assert "\0" not in strange.child + strange.detail and len(strange.child) <= 64


def test_finishing_ends_the_open_round(job: JobLedger) -> None:
    play_to(job, "training")
    job.finish("failed", "no updates")
    assert state(job) == "skipped"
    assert job.event("after") > 0, "its owner may still say what happened"
    with pytest.raises(Conflict, match="failed"):
        job.finish("finished")
    with pytest.raises(Conflict, match="failed job"):
        job.open_round(2, digest("0"))


# -- one owner -------------------------------------------------------------------------------------------------------------

WRITES: dict[str, Callable[[JobLedger], Any]] = {
    "open_round": lambda job: job.open_round(2, digest("f1")),
    "record_confirmation": lambda job: job.record_confirmation(1, "c", {}, True),
    "fix_members": lambda job: job.fix_members(1, ["a", "b"]),
    "record_update": lambda job: job.record_update(1, "a", {}, digest("a"), 1),
    "refuse_update": lambda job: job.refuse_update(1, "a", "late", ""),
    "close_updates": lambda job: job.close_updates(1),
    "publish": lambda job: job.publish(1, digest("f1"), 1, digest("0"), {}),
    "record_report": lambda job: job.record_report(1, "a", {}),
    "skip_round": lambda job: job.skip_round(1, ""),
    "close_round": lambda job: job.close_round(1),
    "finish": lambda job: job.finish("finished"),
    "forget_updates": lambda job: job.forget_updates(9),
    "event": lambda job: job.event("x"),
    "heartbeat": lambda job: job.heartbeat(),
}


def test_every_write_is_listed_here() -> None:
    pens = {**vars(Pen), **vars(JobLedger)}
    public = {name for name, value in pens.items() if callable(value) and not name.startswith("_")}
    assert public == set(WRITES)


def test_a_replaced_owner_writes_nothing(ledger: Ledger, job: JobLedger) -> None:
    play_to(job, "reporting")
    newer = ledger.own(job.job_id, "newer")
    seen = _picture(ledger, newer)
    for write in WRITES.values():
        with pytest.raises(Fenced, match="number 2, found number 1"):
            write(job)
    assert _picture(ledger, newer) == seen
    newer.heartbeat()


# -- files that may go -----------------------------------------------------------------------------------------------------


def test_only_files_that_nothing_names_are_forgotten(ledger: Ledger, job: JobLedger) -> None:
    shared, base, manifest, late = digest("5"), digest("0"), digest("e"), digest("late")
    for number in (1, 2):
        job.open_round(number, job.current_version().digest)
        for child in ("a", "b", "c", "d"):
            job.record_confirmation(number, child, {}, True)
        job.fix_members(number, ["a", "b", "c", "d"])
        own = digest(f"{number}a")
        for child, name in zip("abcd", (own, shared, base if number == 1 else late, manifest), strict=True):
            job.record_update(number, child, {"n": 1}, name, 1)
        job.publish(number, digest(f"t{number}"), 1, job.current_version().digest, {})
        job.close_round(number)
    assert job.forget_updates(1) == []
    assert job.forget_updates(2) == [digest("1a")], "not what another update, a version or a manifest is made of"
    assert [update.forgotten for update in job.updates(1)] == [True] * 4
    assert [update.update for update in job.updates(1)] == [{"n": 1}] * 4, "what the updates said stays on record"
    assert job.forget_updates(2) == []
    assert job.forget_updates(3) == sorted([digest("2a"), shared, late])


def _picture(ledger: Ledger, job: JobLedger) -> dict[str, Any]:
    """Everything that can be read of a job, without the heartbeat."""
    numbers = [round_.number for round_ in job.rounds()]
    return {
        "jobs": [(known.id, known.state, known.epoch, known.reason, known.ended) for known in ledger.jobs()],
        "rounds": job.rounds(),
        "versions": ledger.versions("text"),
        "rows": [(job.members(n), job.updates(n), job.refusals(n), job.reports(n)) for n in numbers],
        "events": ledger.events(),
    }


def test_the_clock_of_the_ledger_is_the_one_it_was_given() -> None:
    clock = ManualClock(5.0)
    ledger = memory_ledger(clock)
    job = owned_job(ledger)
    clock.sleep(3.0)
    play_to(job, "closed")
    round_ = job.round(1)
    assert round_ is not None and (round_.opened, round_.closed) == (8.0, 8.0)
    assert {event.at for event in ledger.events()} == {5.0, 8.0}


def test_errors_are_ours(job: JobLedger) -> None:
    for wrong in (lambda: job.close_round(1), lambda: job.fix_members(3, ["a"]), lambda: job.refuse_update(1, "a", "late", "")):
        with pytest.raises(TrunklineError, match="should"):
            wrong()
