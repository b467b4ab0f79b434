"""One suite for every database: SQLite in memory, SQLite in a file, PostgreSQL where there is one."""

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import IntegrityError

from master import schema
from master.ledger import JobLedger, Ledger
from tests.support.ledgers import add_encoder, digest, owned_job, play_to
from tests.support.postgres import postgres
from trunkline.clock import ManualClock
from trunkline.errors import Conflict, Fenced, NotFound, SettingsError, TrunklineError

pytestmark = pytest.mark.contract

KINDS = ("memory", "file", "postgresql")


@pytest.fixture(scope="module", params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A database, empty at first, used by all tests of the module."""
    if request.param == "memory":
        yield "sqlite://"
    elif request.param == "file":
        yield f"sqlite:///{tmp_path_factory.mktemp('ledger')}/new/ledger.db"
    else:
        with postgres() as address:
            yield address


@pytest.fixture(scope="module")
def opened(url: str) -> Iterator[Ledger]:
    ledger = Ledger.open(url, ManualClock())
    yield ledger
    ledger.close()


@pytest.fixture
def ledger(opened: Ledger) -> Ledger:
    """The module's ledger, emptied."""
    _empty(opened)
    return opened


def _empty(ledger: Ledger) -> None:
    with ledger._db.write() as connection:
        for table in reversed(schema.metadata.sorted_tables):
            if table is not schema.writer:
                connection.execute(sa.delete(table))


def test_a_job_of_three_rounds(ledger: Ledger) -> None:
    job = owned_job(ledger)
    for number in (1, 2, 3):
        play_to(job, "reporting", number=number)
        job.refuse_update(number, "c", "late", "\0 \ud800 …", {"text": "\0"})
        job.record_report(number, "a", {"scores": [{"value": 0.1 + 0.2}]})
        job.close_round(number)
    job.finish("finished")
    assert [version.digest for version in ledger.versions("text")] == [digest("0"), digest("f1"), digest("f2"), digest("f3")]
    assert job.reports(3)[0].report == {"scores": [{"value": 0.1 + 0.2}]}, "numbers come back bit for bit"
    assert job.refusals(3)[0].data == {"text": "\0"}
    assert job.forget_updates(3) == sorted(digest(f"{child}{number}") for child in "ab" for number in (1, 2))
    assert ledger.rollback("text", 2).number == 5
    ids = [event.id for event in ledger.events()]
    assert ids == sorted(set(ids))


def test_nodes_invites_and_requests(ledger: Ledger) -> None:
    ledger.add_invite(digest("1"), "shop", expires=2e6)
    assert ledger.use_invite(digest("1"), 1e6) == "shop"
    ledger.add_node("shop", b"\0\xff key", digest("2"), speaks=(1, 2), labels={"city": "Łódź"})
    node = ledger.set_node("shop", flower_id=2**64 - 1, seen=1.5, boot="b" * 100)
    assert (node.public_key, node.flower_id, node.seen, node.speaks) == (b"\0\xff key", 2**64 - 1, 1.5, (1, 2))
    assert node == ledger.node_by_token_hash(digest("2"))
    asked = ledger.add_request("shop", type="text", tasks=("b", "a"))
    assert ledger.add_request("shop", type="text", tasks=("a", "b")) == asked
    job = owned_job(ledger)
    ledger.attach_request(asked.id, job.job_id)
    assert ledger.open_requests() == []


def test_names_are_in_the_order_of_their_codes_everywhere(ledger: Ledger) -> None:
    """Updates are fused in this order, so it must not depend on the language of a database."""
    names = ("b", "B", "a", "a-b", "aB", "A.b", "a_b", "10", "9")
    for name in names:
        ledger.add_node(name, b"key", digest(f"<{name}>"))
        add_encoder(ledger, name)
    job = owned_job(ledger)
    play_to(job, "reporting", children=names)
    for name in names:
        job.record_report(1, name, {})
    for found in (job.members(1), job.updates(1), job.reports(1)):
        assert [row.child for row in found] == sorted(names)
    assert [node.name for node in ledger.nodes()] == sorted(names)
    assert [encoder.name for encoder in ledger.encoders_of_type("text")] == sorted([*names, "text"])


def test_a_foreign_key_is_held(ledger: Ledger) -> None:
    """A row that names a job which is not there is a mistake of ours; the database refuses it."""
    with pytest.raises(IntegrityError), ledger._db.write() as connection:
        connection.execute(schema.rounds.insert().values(job="none", number=1, state="x", base="x", reason="", opened=0.0))


def test_what_fails_half_way_leaves_nothing(ledger: Ledger) -> None:
    class Stop(Exception):
        pass

    with pytest.raises(Stop), ledger._db.write() as connection:
        connection.execute(schema.invites.insert().values(hash="x", created=0.0, expires=0.0))
        raise Stop
    with ledger._db.read() as connection:
        assert connection.execute(sa.select(schema.invites)).all() == []


def test_opening_again_finds_everything(ledger: Ledger, url: str) -> None:
    if url == "sqlite://":
        pytest.skip("memory forgets")
    job = owned_job(ledger)
    play_to(job, "fusing")
    again = Ledger.open(url, ManualClock())
    assert again.jobs() == ledger.jobs() and again.reader(job.job_id).updates(1) == job.updates(1)
    newer = again.own(job.job_id, "newer")
    with pytest.raises(Fenced):
        job.close_updates(1)
    newer.publish(1, digest("f"), 1, digest("0"), {})
    again.close()


def test_one_of_many_wins(ledger: Ledger, url: str) -> None:
    """Eight threads at once start jobs, use one invitation, publish one target: each happens once."""
    add_encoder(ledger)
    ledger.add_invite(digest("1"), None, expires=2e6)

    def at_once(act: Callable[[Ledger], Any]) -> list[Any]:
        ledgers = [ledger] * 8 if url == "sqlite://" else [Ledger.open(url, ManualClock()) for _ in range(8)]
        start = threading.Barrier(8)

        def one(mine: Ledger) -> Any:
            start.wait(20)
            try:
                return act(mine)
            except TrunklineError as error:
                return type(error).__name__

        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(one, ledgers))
        for mine in ledgers:
            if mine is not ledger:
                mine.close()
        return results

    started = at_once(lambda mine: mine.start_job("text", {}, key="k"))
    assert sorted(new for _, new in started) == [False] * 7 + [True]
    (job_id,) = {job.id for job, _ in started}
    assert sorted(map(str, at_once(lambda mine: mine.use_invite(digest("1"), 1e6)))) == ["None"] + ["NotAuthorized"] * 7
    owners = at_once(lambda mine: mine.own(job_id, "x").epoch)
    assert sorted(owners) == list(range(1, 9))
    job = ledger.own(job_id, "last")
    play_to(job, "fusing")

    def publish(mine: Ledger) -> int:
        return JobLedger(mine._db, mine._clock, job_id, job.epoch).publish(1, digest("f"), 1, digest("0"), {}).number

    assert at_once(publish) == [2] * 8
    assert len(ledger.versions("text")) == 2
    assert [event.kind for event in ledger.events(limit=10_000)].count("round.published") == 1


def test_a_reader_of_events_misses_none(ledger: Ledger, url: str) -> None:
    """Ids grow in the order of commits: who asks for more than it has sees every event, however many write."""
    writers, each = 4, 25
    ledgers = [ledger] * writers if url == "sqlite://" else [Ledger.open(url, ManualClock()) for _ in range(writers)]

    def write(mine: Ledger) -> list[int]:
        return [mine.event("x") for _ in range(each)]

    seen: list[int] = []
    with ThreadPoolExecutor(writers) as pool:
        running = [pool.submit(write, mine) for mine in ledgers]
        while not all(future.done() for future in running):
            seen += [event.id for event in ledger.events(after=seen[-1] if seen else 0)]
        written = sorted(itertools.chain.from_iterable(future.result() for future in running))
    seen += [event.id for event in ledger.events(after=seen[-1] if seen else 0)]
    assert seen == written and len(seen) == writers * each
    for mine in ledgers:
        if mine is not ledger:
            mine.close()


def test_a_newer_schema_is_refused(ledger: Ledger, url: str) -> None:
    if url == "sqlite://":
        pytest.skip("memory is always new")
    table = sa.table(schema.VERSION_TABLE, sa.column("version_num"))
    with ledger._db.write() as connection:
        connection.execute(sa.update(table).values(version_num="9999"))
    try:
        with pytest.raises(SettingsError, match=r"9999.*upgrade"):
            Ledger.open(url, ManualClock())
    finally:
        with ledger._db.write() as connection:
            connection.execute(sa.update(table).values(version_num=schema.REVISIONS[-1]))


# -- any order of any calls ------------------------------------------------------------------------------------------------

CALLS = st.sampled_from(
    ["open_next", "confirm", "refuse", "fix", "update", "close_updates", "publish", "republish", "report", "close", "skip", "open"]
    + ["own", "pause", "resume", "rollback", "forget", "reap"]
    + ["step"] * 12  # what comes next in a round's life, so that rounds come to an end
)
STEPS = {"instructing": "confirm fix", "training": "update update publish", "fusing": "publish", "reporting": "report close"}


@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(calls=st.lists(st.tuples(CALLS, st.sampled_from("abc")), min_size=30, max_size=60))
def test_whatever_is_called_the_record_makes_sense(opened: Ledger, calls: list[tuple[str, str]]) -> None:
    _empty(opened)
    job = owned_job(opened)
    for count, (call, child) in enumerate(calls):
        with suppress(Conflict, NotFound):  # refused, with a reason; anything else fails the test
            job = _call(opened, job, call, child, count)
        if count % 5 == 0:
            _makes_sense(opened, job)
    _makes_sense(opened, job)


def _call(ledger: Ledger, job: JobLedger, call: str, child: str, count: int) -> JobLedger:
    last = job.last_round()
    number, current = (last.number if last else 0), job.current_version().digest
    if call == "step":
        names = STEPS.get(last.state, "open_next").split() if last else ["open_next"]
        call = names[count % len(names)]
    if call == "own":
        return ledger.own(job.job_id, f"owner {count}")
    acts: dict[str, Callable[[], Any]] = {
        "open": lambda: job.open_round(number, current),
        "open_next": lambda: job.open_round(number + 1, current),
        "confirm": lambda: job.record_confirmation(number, child, {"n": count % 2}, True),
        "refuse": lambda: job.record_confirmation(number, child, {}, False, "policy"),
        "fix": lambda: job.fix_members(number, [m.child for m in job.members(number) if m.state == "confirmed"]),
        "update": lambda: job.record_update(number, child, {}, digest(f"{count:02x}"), 1),
        "close_updates": lambda: job.close_updates(number),
        "publish": lambda: job.publish(number, digest(f"{count:02x}"), 1, current, {}),
        "republish": lambda: last and last.target and job.publish(number, last.target, 1, last.base, {}),
        "report": lambda: job.record_report(number, child, {"n": count}),
        "close": lambda: job.close_round(number),
        "skip": lambda: job.skip_round(number, "x"),
        "pause": lambda: ledger.set_job_state(job.job_id, "paused"),
        "resume": lambda: ledger.set_job_state(job.job_id, "running"),
        "rollback": lambda: ledger.rollback("text", 1 + count % ledger.version("text").number),
        "forget": lambda: job.forget_updates(number),
        "reap": lambda: ledger.reap(30),
    }
    acts[call]()
    return job


def _makes_sense(ledger: Ledger, job: JobLedger) -> None:
    rounds, versions = job.rounds(), ledger.versions("text")
    assert [round_.number for round_ in rounds] == list(range(1, len(rounds) + 1))
    assert all(not round_.open for round_ in rounds[:-1]), "one open round at most, and it is the last"
    assert [version.number for version in versions] == list(range(1, len(versions) + 1))
    for before, version in itertools.pairwise(versions):
        assert (version.parent_number, version.parent) == (before.number, before.digest), "the lineage is one chain"
    made = {version.round: version for version in versions if version.kind == "round"}
    for round_ in rounds:
        states = {member.child: member.state for member in job.members(round_.number)}
        members = {child for child, value in states.items() if value == "member"}
        assert {update.child for update in job.updates(round_.number)} <= members
        assert not members or "confirmed" not in states.values(), "a list that is fixed is fixed for all"
        assert (round_.target is not None) == (round_.state in ("reporting", "closed")) == (round_.number in made)
        if round_.target is not None:
            assert (made[round_.number].digest, made[round_.number].parent) == (round_.target, round_.base)
    ids = [event.id for event in ledger.events(limit=10_000)]
    assert ids == sorted(set(ids))
