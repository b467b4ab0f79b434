"""Laws of the ledger: encoders, versions, jobs, events. Rounds are in test_ledger_rounds.py, nodes in test_ledger_nodes.py."""

import pytest

from master.ledger import Ledger
from tests.support.ledgers import add_encoder, digest, memory_ledger, owned_job, play_to
from trunkline.clock import ManualClock
from trunkline.errors import Conflict, Fenced, NotFound, SpecError


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def ledger(clock: ManualClock) -> Ledger:
    return memory_ledger(clock)


# -- encoders and versions -----------------------------------------------------------------------------------------------


def test_an_encoder_starts_with_its_initial_set_as_version_1(ledger: Ledger, clock: ManualClock) -> None:
    add_encoder(ledger)
    first = ledger.version("text")
    assert (first.number, first.kind, first.digest, first.size) == (1, "initial", digest("0"), 100)
    assert (first.parent, first.parent_number, first.job, first.delta) == (None, None, None, None)
    assert first.created == clock.now()
    assert ledger.encoder("text").shared == {"w": [[2], "F32"]}


def test_creating_an_encoder_again_changes_nothing_and_with_other_content_is_refused(ledger: Ledger) -> None:
    shared = {"w": ((2,), "F32")}  # tuples are what JSON makes of them, also when compared
    once = ledger.create_encoder("text", "text", {"layers": 2}, digest("e"), shared, digest("0"), 100)
    assert ledger.create_encoder("text", "text", {"layers": 2}, digest("e"), shared, digest("0"), 100) == once
    assert len(ledger.versions("text")) == 1
    others = [
        ("user", {"layers": 2}, digest("e"), shared, digest("0"), 100),
        ("text", {"layers": 3}, digest("e"), shared, digest("0"), 100),
        ("text", {"layers": 2}, digest("d"), shared, digest("0"), 100),
        ("text", {"layers": 2}, digest("e"), {"v": ((2,), "F32")}, digest("0"), 100),
        ("text", {"layers": 2}, digest("e"), shared, digest("1"), 100),
        ("text", {"layers": 2}, digest("e"), shared, digest("0"), 101),
    ]
    for other in others:
        with pytest.raises(Conflict, match="'text'"):
            ledger.create_encoder("text", *other)


def test_encoders_are_found_by_name_and_type(ledger: Ledger) -> None:
    for name, kind in (("b", "text"), ("a", "text"), ("c", "user")):
        add_encoder(ledger, name, kind)
    assert [encoder.name for encoder in ledger.encoders()] == ["a", "b", "c"]
    assert [encoder.name for encoder in ledger.encoders_of_type("text")] == ["a", "b"]
    assert ledger.encoders_of_type("image") == []
    for ask in (ledger.encoder, ledger.versions, ledger.version):
        with pytest.raises(NotFound, match="'d'"):
            ask("d")
    with pytest.raises(NotFound, match="1 to 1, found 7"):
        ledger.version("a", 7)
    with pytest.raises(NotFound):
        ledger.version_by_digest(digest("9"))


def test_a_rollback_appends_to_the_lineage(ledger: Ledger) -> None:
    job = owned_job(ledger)
    play_to(job, "closed")
    back = ledger.rollback("text", 1)
    assert (back.number, back.kind, back.digest) == (3, "rollback", digest("0"))
    assert (back.parent_number, back.parent) == (2, digest("f1"))
    assert ledger.version("text") == back
    assert ledger.version_by_digest(digest("0")) == back, "of equal digests the newest counts"
    play_to(job, "closed", number=2)
    assert [(v.number, v.parent_number) for v in ledger.versions("text")] == [(1, None), (2, 1), (3, 2), (4, 3)]


@pytest.mark.parametrize("state", ["instructing", "training", "fusing", "reporting"])
def test_no_rollback_under_an_open_round(ledger: Ledger, state: str) -> None:
    job = owned_job(ledger)
    play_to(job, state)
    with pytest.raises(Conflict, match=f"round 1 of job '{job.job_id}'"):
        ledger.rollback("text", 1)


# -- jobs ----------------------------------------------------------------------------------------------------------------


def test_the_same_key_gives_the_same_job_whatever_happened_in_between(ledger: Ledger) -> None:
    add_encoder(ledger)
    job, new = ledger.start_job("text", {"rounds": 3, "tasks": ("a",)}, key="k")
    assert new
    assert ledger.start_job("text", {"rounds": 3, "tasks": ("a",)}, key="k") == (job, False)
    ledger.set_job_state(job.id, "aborted")
    again, new = ledger.start_job("text", {"rounds": 3, "tasks": ("a",)}, key="k")
    assert (again.id, again.state, new) == (job.id, "aborted", False)
    with pytest.raises(Conflict, match="'k'"):
        ledger.start_job("text", {"rounds": 4}, key="k")
    assert len(ledger.jobs()) == 1


@pytest.mark.parametrize("key", ["x" * 201, "a\0b", "a\nb"])
def test_a_key_has_a_form(ledger: Ledger, key: str) -> None:
    add_encoder(ledger)
    with pytest.raises(SpecError, match="`key`"):
        ledger.start_job("text", {}, key=key)


def test_one_open_job_an_encoder(ledger: Ledger) -> None:
    """Given an open job, an operator's second one is refused and a child's request joins it; two encoders do not meet."""
    add_encoder(ledger)
    add_encoder(ledger, "other")
    job, _ = ledger.start_job("text", {}, requested_by="a")
    assert ledger.start_job("text", {"rounds": 9}, requested_by="b") == (job, False)
    with pytest.raises(Conflict, match=job.id):
        ledger.start_job("text", {})
    other, new = ledger.start_job("other", {})
    assert new and other.id != job.id
    ledger.set_job_state(job.id, "finished")
    assert ledger.start_job("text", {})[1]


def test_a_job_of_an_unknown_encoder_is_refused(ledger: Ledger) -> None:
    with pytest.raises(NotFound, match="`encoder`"):
        ledger.start_job("text", {})


def test_a_job_is_found_by_id_and_the_newest_by_name(ledger: Ledger) -> None:
    add_encoder(ledger)
    ids = []
    for _ in range(2):
        job, _ = ledger.start_job("text", {}, name="nightly")
        ledger.set_job_state(job.id, "finished")
        ids.append(job.id)
    assert [ledger.job(id).id for id in ids] == ids
    assert ledger.job("nightly").id == ids[1]
    assert [job.id for job in ledger.jobs()] == ids and ledger.open_jobs() == []
    with pytest.raises(NotFound, match="'weekly'"):
        ledger.job("weekly")


def test_the_longest_names_make_ids_that_are_names(ledger: Ledger) -> None:
    add_encoder(ledger, "n" * 64)
    job, _ = ledger.start_job("n" * 64, {}, name="m" * 64)
    assert len(job.id) <= 64


LEGAL = {
    "waiting": {"running", "paused", "finished", "failed", "aborted"},
    "running": {"waiting", "paused", "finished", "failed", "aborted"},
    "paused": {"waiting", "running", "finished", "failed", "aborted"},
    "finished": set(),
    "failed": set(),
    "aborted": set(),
}


@pytest.mark.parametrize("start", LEGAL)
@pytest.mark.parametrize("end", LEGAL)
def test_states_of_a_job(ledger: Ledger, start: str, end: str) -> None:
    add_encoder(ledger)
    job, _ = ledger.start_job("text", {})
    ledger.set_job_state(job.id, start)  # type: ignore[arg-type]
    if end == start or end in LEGAL[start]:
        after = ledger.set_job_state(job.id, end, "because")  # type: ignore[arg-type]
        assert after.state == end and after.open == (end in ("waiting", "running", "paused"))
        assert (after.ended is None) == after.open
    else:
        with pytest.raises(Conflict, match=start):
            ledger.set_job_state(job.id, end)  # type: ignore[arg-type]
        assert ledger.job(job.id).state == start


def test_owning_runs_a_waiting_job_but_not_a_paused_or_ended_one(ledger: Ledger) -> None:
    add_encoder(ledger)
    job, _ = ledger.start_job("text", {})
    ledger.own(job.id, "one")
    assert ledger.job(job.id).state == "running" and ledger.job(job.id).owner == "one"
    ledger.set_job_state(job.id, "paused")
    ledger.own(job.id, "two")
    assert ledger.job(job.id).state == "paused"
    ledger.set_job_state(job.id, "failed")
    with pytest.raises(Conflict, match="failed"):
        ledger.own(job.id, "three")


# -- a job never runs without an owner (T-43) ------------------------------------------------------------------------------


def test_a_job_whose_owner_falls_silent_waits_again_and_the_owner_is_fenced_off(ledger: Ledger, clock: ManualClock) -> None:
    job = owned_job(ledger)
    clock.sleep(29)
    assert ledger.reap(older_than=30) == []
    job.heartbeat()
    clock.sleep(29)
    assert ledger.reap(older_than=30) == []
    job.open_round(1, digest("0"))  # every write counts as a sign of life
    clock.sleep(31)
    reaped = ledger.reap(older_than=30)
    assert [(old.id, old.state, old.owner) for old in reaped] == [(job.job_id, "waiting", None)]
    with pytest.raises(Fenced):
        job.heartbeat()
    assert ledger.reap(older_than=30) == [], "only running jobs need an owner"
    assert ledger.own(job.job_id, "next").last_round().number == 1  # type: ignore[union-attr]


def test_the_run_of_the_transport_is_noted(ledger: Ledger) -> None:
    job = owned_job(ledger)
    ledger.set_run(job.job_id, str(2**64 - 1), 4711)
    assert (ledger.job(job.job_id).run_id, ledger.job(job.job_id).pid) == (str(2**64 - 1), 4711)
    ledger.set_run(job.job_id, None)
    assert (ledger.job(job.job_id).run_id, ledger.job(job.job_id).pid) == (None, None)


# -- ended from outside ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "ends"), [("instructing", "skipped"), ("training", "skipped"), ("fusing", "skipped"), ("reporting", "closed")]
)
def test_aborting_a_job_ends_its_round_and_stops_its_owner(ledger: Ledger, state: str, ends: str) -> None:
    job = owned_job(ledger)
    play_to(job, state)
    ledger.set_job_state(job.job_id, "aborted", "an operator")
    round_ = job.round(1)
    assert round_ is not None and (round_.state, round_.reason) == (ends, "an operator")
    with pytest.raises(Fenced, match="ended"):
        job.event("more")
    ledger.rollback("text", 1)  # nothing is in the way any more


# -- events ----------------------------------------------------------------------------------------------------------------


def test_events_are_read_from_where_one_stopped(ledger: Ledger) -> None:
    job = owned_job(ledger)
    ids = [ledger.event("x", data={"n": n}) for n in range(5)] + [job.event("y", round=1, child="a")]
    assert ids == sorted(set(ids))
    first = ledger.events(after=ids[0], limit=2)
    assert [event.data for event in first] == [{"n": 1}, {"n": 2}]
    assert [event.id for event in ledger.events(after=first[-1].id)] == ids[3:]
    assert {event.job for event in ledger.events(job=job.job_id)} == {job.job_id}
    last = ledger.events(after=ids[4])[0]
    assert (last.kind, last.job, last.round, last.child) == ("y", job.job_id, 1, "a")


def test_reading_a_job_that_is_not_there(ledger: Ledger) -> None:
    with pytest.raises(NotFound):
        ledger.reader("nothing")
