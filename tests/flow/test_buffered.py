"""Rounds that do not wait for the slowest, over a local link whose children take time on a clock that does not sleep."""

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from master.jobs import JobSpec
from master.link import Link
from master.local import DelayedLink, LocalLink
from master.rounds import play as play_round
from master.rounds import run
from tests.support.jobs import Bench, make_bench
from trunkline.errors import Reason
from trunkline.messages import InitialSet, Message, Update

SIZES = {"a": 10, "b": 20, "c": 30, "slow": 40}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return make_bench(tmp_path, SIZES, url="sqlite://")


def delayed(bench: Bench, slow: float, quick: float = 10.0) -> Link:
    def seconds(child: str, message: Message) -> float:
        if not isinstance(message, InitialSet):
            return 0.1
        return slow if child == "slow" else quick

    return DelayedLink(LocalLink(bench.sites, debug=True), bench.clock, seconds)


def arrivals(bench: Bench, number: int) -> list[tuple[str, int]]:
    """Who was counted in a round, in the order of arrival, and the round whose set each had trained."""
    job = bench.ledger.reader(bench.ledger.jobs()[-1].id)
    return [(row.child, row.origin or 0) for row in sorted(job.updates(number), key=lambda row: row.arrival or 0)]


def test_with_everybody_in_the_buffer_it_is_the_mean(tmp_path: Path) -> None:
    found = []
    for rule in ("mean", "fedbuff:size=4"):
        folder = tmp_path / rule.replace(":", "-")
        folder.mkdir()
        bench = make_bench(folder, SIZES, url="sqlite://")
        bench.run(rounds=3, rule=rule)
        found.append(bench.w())
    np.testing.assert_allclose(*found, rtol=1e-6)


def test_nobody_waits_for_the_slowest_and_its_work_counts(bench: Bench) -> None:
    """Given three quick children and one that takes as long as three rounds, When three updates fill a buffer, Then a round takes
    as long as a quick one, the slow update counts in the fourth, and its child is not asked meanwhile."""
    begun = bench.clock.seconds
    bench.run(delayed(bench, slow=35.0), rounds=5, rule="fedbuff:size=3", children={"least": 3})
    assert bench.clock.seconds - begun < 5 * 12
    counted = [arrivals(bench, number) for number in range(1, 6)]
    assert [child for child, _ in counted[0]] == ["a", "b", "c"]
    slow = [(number, origin) for number, rows in enumerate(counted, 1) for child, origin in rows if child == "slow"]
    assert slow == [(4, 1)], counted
    assert bench.sites["slow"].trained == 2, "in round 1, and again after its update was in"
    confirmed = [number for child, what, number in bench.trace if child == "slow" and what == "confirm"]
    assert confirmed == [1, 5]


def test_a_late_update_counts_by_its_movement_and_less(bench: Bench) -> None:
    bench.run(delayed(bench, slow=25.0), rounds=3, rule="fedbuff:size=3,by=equal,power=1", children={"least": 3})
    third = dict(arrivals(bench, 3))
    assert third["slow"] == 1
    reader = bench.ledger.reader(bench.ledger.jobs()[-1].id)
    versions = [bench.ledger.version_by_digest(one.base, "vec") for one in reader.rounds()]
    bases = []
    for version in versions:
        with bench.blobs.open_set(version.digest) as file:
            bases.append(file.read("w").astype(np.float64))
    expected = bases[2].copy()
    for child, origin in third.items():
        start = bases[origin - 1]
        moved = -0.5 * (start - bench.sites[child].points.mean(0))
        expected += moved / 3 / (1 + (3 - origin))
    np.testing.assert_allclose(bench.w(), expected, rtol=1e-5)
    notes = reader.round(3).notes  # type: ignore[union-attr]
    assert notes["rule"]["fedbuff"]["slow"] == {"staleness": 2, "worth": pytest.approx(1 / 3)}  # type: ignore[index]


def test_what_is_too_stale_is_refused_and_its_child_begins_anew(bench: Bench) -> None:
    bench.run(delayed(bench, slow=45.0), rounds=6, rule="fedbuff:size=3,most_stale=2", children={"least": 3})
    reader = bench.ledger.reader(bench.ledger.jobs()[-1].id)
    refused = [(number, row.child, row.reason) for number in range(1, 7) for row in reader.refusals(number)]
    assert refused == [(1, "slow", Reason.STALE)]
    assert [number for child, what, number in bench.trace if child == "slow" and what == "confirm"][:2] == [1, 4]


def test_a_child_that_fell_silent_is_written_off(bench: Bench) -> None:
    bench.run(
        delayed(bench, slow=1e6), rounds=6, rule="fedbuff:size=3,most_stale=1000", children={"least": 3, "update_seconds": 25.0}
    )
    reader = bench.ledger.reader(bench.ledger.jobs()[-1].id)
    assert [(row.child, row.reason) for row in reader.refusals(1)] == [("slow", Reason.SILENT)]


def test_too_few_in_time_and_the_round_goes_on_with_what_it_has(bench: Bench) -> None:
    """T-45: a buffer that is not full when its time is over is fused with at least `least_updates`."""
    bench.run(
        delayed(bench, slow=1e6),
        rounds=1,
        rule="fedbuff:size=4",
        children={"least": 3, "least_updates": 2, "update_seconds": 15.0},
    )
    assert [child for child, _ in arrivals(bench, 1)] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "phase", ["training", *(pytest.param(phase, marks=pytest.mark.slow) for phase in ("instructing", "fusing", "reporting"))]
)
def test_a_master_that_is_killed_goes_on_to_the_same_parameters(
    tmp_path: Path, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart loses the answers that were under way; asked again, every child sends the update it made."""
    digests = []
    for killed in (False, True):
        folder = tmp_path / str(killed)
        folder.mkdir()
        bench = make_bench(folder, SIZES, url="sqlite://")
        link = delayed(bench, slow=25.0)
        spec = {"rounds": 5, "rule": "fedbuff:size=3", "children": {"least": 3}}
        play = bench.play(link, **spec)
        if killed:
            kill_in(play, phase, number=3, monkeypatch=monkeypatch)
            play = bench.play(link, **spec)
        play.pen.finish("finished", run(play))
        digests.append([arrivals(bench, number) for number in range(1, 6)])
        trained = sum(site.trained for site in bench.sites.values())
        digests[-1].append([("trained", trained)])
    assert digests[0] == digests[1]


class Killed(Exception):
    pass


def kill_in(play: object, phase: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from master import rounds

    real = dict(rounds.PHASES)

    def die(job: object, round_: object) -> object:
        if round_.number == number:  # type: ignore[attr-defined]
            raise Killed
        return real[phase](job, round_)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(rounds, "PHASES", real | {phase: die})
        with pytest.raises(Killed):
            run(play)  # type: ignore[arg-type]


def test_an_update_of_a_round_that_was_not_its_own_is_refused(bench: Bench) -> None:
    """A buffered job takes updates of the round whose set the child was sent, and of no other."""
    link = delayed(bench, slow=25.0)
    play = bench.play(link, rounds=2, rule="fedbuff:size=3", children={"least": 3})
    play_round(play, 1)
    real = bench.sites["slow"].answer

    def lie(message: Message, attachment: bytes | None = None) -> tuple[Message, bytes | None]:
        answer, more = real(message, attachment)
        if isinstance(answer, Update):
            return answer.model_copy(update={"round": 2}), more
        return answer, more

    bench.sites["slow"].answer = lie  # type: ignore[method-assign]
    bench.clock.sleep(30.0)
    play_round(play, 2)
    assert [(row.child, row.reason) for row in play.pen.refusals(1)] == [("slow", Reason.ROUND)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rule": "fedbuff"}, "`size`"),
        ({"rule": "fedbuff:size=2", "children": {"least": 3}}, "`fedbuff:size` should be at least"),
        ({"rule": "fedbuff:size=2", "children": {"close_at": 2}}, "`children.close_at` should be left out"),
        ({"rule": "fedbuff:size=0"}, "found '0'"),
        ({"rule": "fedbuff:size=2,discount=steep"}, "`discount`"),
    ],
)
def test_jobs_that_cannot_be(change: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        JobSpec.model_validate({"encoder": "a"} | change)
