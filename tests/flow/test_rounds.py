"""Whole rounds over a local link, with children whose mathematics can be done by hand."""

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from master.link import Outgoing, Reply
from master.local import LocalLink
from master.rounds import run
from tests.support.jobs import Bench, make_bench
from tests.support.sites import union_mean
from trunkline.clock import Deadline
from trunkline.errors import DamagedFile, DeadlineExceeded, Reason
from trunkline.messages import InitialSet, Instruction, Update

SIZES = {"a": 40, "b": 25, "c": 7}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return make_bench(tmp_path, SIZES)


def test_one_full_batch_step_per_child_equals_one_step_on_the_union(bench: Bench) -> None:
    bench.run(rounds=1, rule="mean")
    expected = 0.5 * union_mean(bench.sites)  # from w = 0: w - rate * (w - mean)
    np.testing.assert_allclose(bench.w(), expected, rtol=1e-6)


def test_each_task_counts_the_same_by_task(bench: Bench) -> None:
    bench.sites["c"].task = "other"
    bench.run(rounds=1, rule="mean_by_task")
    point = np.concatenate([bench.sites["a"].points, bench.sites["b"].points]).mean(0)
    np.testing.assert_allclose(bench.w(), 0.5 * (0.5 * point + 0.5 * bench.sites["c"].points.mean(0)), rtol=1e-6)


def test_rounds_converge_and_say_why_they_stop(bench: Bench) -> None:
    assert bench.run(rounds=30) == "all 30 rounds done"
    np.testing.assert_allclose(bench.w(), union_mean(bench.sites), rtol=1e-5)
    assert bench.ledger.version("vec").number == 31


@pytest.mark.parametrize("codec", ["float32", "bf16"])
@pytest.mark.parametrize("transfer", ["blob", "inline"])
def test_codecs_and_transfers(bench: Bench, codec: str, transfer: str) -> None:
    bench.run(rounds=20, codec=codec, transfer=transfer)
    np.testing.assert_allclose(bench.w(), union_mean(bench.sites), rtol=2e-3 if codec == "bf16" else 1e-4)


@pytest.mark.parametrize(("codec", "harm"), [("float32", False), ("bf16", True)])
def test_a_base_that_went_bad_on_the_disk_is_never_built_upon(bench: Bench, codec: str, harm: bool) -> None:
    """Given a base with a wrong byte, When updates are added to it, Then the job ends and says so; whole sets do not read it."""
    bench.run(rounds=1)
    digest = bench.digest()
    path = bench.blobs.path(digest)
    data = bytearray(path.read_bytes())
    data[-1] ^= 0x01
    path.chmod(0o600)
    path.write_bytes(data)
    if harm:
        with pytest.raises(DamagedFile, match=digest):
            bench.run(rounds=1, codec=codec)
        assert bench.digest() == digest
    else:
        bench.run(rounds=1, codec=codec)


class Shuffled:
    """A link that delays, drops, repeats and reorders: answers of one exchange may come in the next one."""

    def __init__(self, link: LocalLink, seed: int, drop: float = 0.1) -> None:
        self.link, self.random, self.drop = link, random.Random(seed), drop
        self.delayed: list[tuple[str, Reply, bytes | None]] = []

    def children(self) -> Sequence[str]:
        return self.link.children()

    def exchange(self, messages: Mapping[str, Outgoing], deadline: Deadline) -> Iterator[tuple[str, Reply, bytes | None]]:
        answers = self.delayed + list(self.link.exchange(messages, deadline))
        self.delayed = []
        self.random.shuffle(answers)
        for answer in answers:
            chance = self.random.random()
            if chance < self.drop:
                continue
            if chance < 2 * self.drop:
                self.delayed.append(answer)
                continue
            yield answer
            if chance > 1 - self.drop:
                yield answer


@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.slow) for block in range(1, 20))])
def test_no_byte_goes_out_before_the_confirmation_in_1000_schedules(tmp_path: Path, block: int) -> None:
    bench = make_bench(tmp_path, {"a": 3, "b": 2}, url="sqlite://")
    for seed in range(block * 50, block * 50 + 50):
        bench.trace.clear()
        bench.run(Shuffled(LocalLink(bench.sites, debug=True), seed, drop=0.2), rounds=1, children={"least": 1})
        confirmed: set[str] = set()
        for child, what, _ in bench.trace:
            if what == "confirm":
                confirmed.add(child)
            if what == "bytes":
                assert child in confirmed, f"seed {seed}: {child} got bytes unasked"


def test_the_result_does_not_depend_on_the_order_of_arrival(tmp_path: Path) -> None:
    digests = set()
    for seed in range(12):
        folder = tmp_path / str(seed)
        folder.mkdir()
        bench = make_bench(folder, SIZES)
        bench.run(Shuffled(LocalLink(bench.sites, debug=True), seed, drop=0.0), rounds=3)
        digests.add(bench.digest())
    assert len(digests) == 1


def test_a_child_of_another_type_refuses_and_gets_nothing(bench: Bench) -> None:
    bench.sites["b"].encoder_type = "text"
    play = bench.play(rounds=1)
    run(play)
    assert [event for event in bench.trace if event[0] == "b"] == [("b", "refuse", 1)]
    members = {member.child: member.reason for member in play.pen.members(1)}
    assert members == {"a": None, "b": Reason.NO_SAMPLES, "c": None}
    assert set(bench.ledger.version("vec").weights) == {"a", "c"}


class Silent:
    """A link on which some children do not answer some kinds of message."""

    def __init__(self, link: LocalLink, silent: set[str], kind: type, bench: Bench) -> None:
        self.link, self.silent, self.kind, self.bench = link, silent, kind, bench

    def children(self) -> Sequence[str]:
        return self.link.children()

    def exchange(self, messages: Mapping[str, Outgoing], deadline: Deadline) -> Iterator[tuple[str, Reply, bytes | None]]:
        heard = {name: out for name, out in messages.items() if not (name in self.silent and isinstance(out.message, self.kind))}
        yield from self.link.exchange(heard, deadline)
        if len(heard) < len(messages):
            self.bench.clock.sleep(deadline.left())


def test_silent_at_the_confirmation_is_left_out(bench: Bench) -> None:
    bench.run(Silent(LocalLink(bench.sites, debug=True), {"b"}, Instruction, bench), rounds=1)
    assert "b" not in {child for child, what, _ in bench.trace if what == "bytes"}
    assert set(bench.ledger.version("vec").weights) == {"a", "c"}


def test_silent_after_the_confirmation_closes_with_the_rest(bench: Bench) -> None:
    play = bench.play(Silent(LocalLink(bench.sites, debug=True), {"b"}, InitialSet, bench), rounds=1)
    run(play)
    assert [(refusal.child, refusal.reason) for refusal in play.pen.refusals(1)] == [("b", Reason.SILENT)]
    assert set(bench.ledger.version("vec").weights) == {"a", "c"}


def test_below_the_quorum_parameters_stay_as_they_are(bench: Bench) -> None:
    before = bench.digest()
    link = Silent(LocalLink(bench.sites, debug=True), {"a", "b"}, InitialSet, bench)
    play = bench.play(link, rounds=1, children={"least": 1, "least_updates": 2, "wait_seconds": 10})
    with pytest.raises(DeadlineExceeded, match="round with enough updates"):
        run(play)
    assert bench.digest() == before
    assert play.pen.rounds()[0].state == "skipped"
    assert "1 of at least 2 updates" in play.pen.rounds()[0].reason


def test_too_few_children_ends_with_a_deadline(bench: Bench) -> None:
    play = bench.play(rounds=1, children={"least": 4, "wait_seconds": 30})
    with pytest.raises(DeadlineExceeded, match="4 confirmations of round 1"):
        run(play)


def test_the_preset_number_of_children_starts_a_round(bench: Bench) -> None:
    bench.run(rounds=1, children={"wanted": 2})
    assert set(bench.ledger.version("vec").weights) == {"a", "b"}


def test_a_round_closes_early_when_enough_updates_are_in(bench: Bench) -> None:
    bench.run(rounds=1, children={"close_at": 2})
    assert len(bench.ledger.version("vec").weights) == 2


class Spoiled:
    """A link that changes a child's update before the master sees it."""

    def __init__(self, bench: Bench, child: str, change: dict[str, object]) -> None:
        self.link, self.child, self.change = LocalLink(bench.sites, debug=True), child, change

    def children(self) -> Sequence[str]:
        return self.link.children()

    def exchange(self, messages: Mapping[str, Outgoing], deadline: Deadline) -> Iterator[tuple[str, Reply, bytes | None]]:
        for name, reply, attachment in self.link.exchange(messages, deadline):
            if name == self.child and isinstance(reply, Update):
                reply = reply.model_copy(update=self.change)
            yield name, reply, attachment


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"child": "a"}, Reason.SENDER),
        ({"round": 7}, Reason.ROUND),
        ({"job": "other"}, Reason.ROUND),
        ({"base": "f" * 64}, Reason.BASE),
        ({"codec": "bf16"}, Reason.CODEC),
        ({"samples": {"point": 10**12}, "applied": {"point": 10**12}}, Reason.COUNT),
        ({"samples": {"point": 25}, "applied": {"point": 3}}, Reason.COUNT),
        ({"samples": {"ghost": 1}, "applied": {"ghost": 1}}, Reason.COUNT),
        ({"size": 5}, Reason.SIZE),
        ({"digest": "e" * 64}, Reason.TRANSFER),
    ],
)
def test_a_wrong_update_is_refused_with_its_reason_and_without_effect(
    bench: Bench, change: dict[str, object], reason: Reason
) -> None:
    play = bench.play(Spoiled(bench, "b", change), rounds=1)
    run(play)
    assert [(refusal.child, refusal.reason) for refusal in play.pen.refusals(1)] == [("b", reason)]
    assert set(bench.ledger.version("vec").weights) == {"a", "c"}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_refused(bench: Bench, bad: float) -> None:
    bench.sites["b"].points[:] = bad
    play = bench.play(rounds=1)
    run(play)
    assert [(refusal.child, refusal.reason) for refusal in play.pen.refusals(1)] == [("b", Reason.NOT_FINITE)]
    assert np.isfinite(bench.w()).all()


def test_a_second_update_of_one_child_is_refused(bench: Bench) -> None:
    class Twice(Spoiled):
        def exchange(self, messages: Mapping[str, Outgoing], deadline: Deadline) -> Iterator[tuple[str, Reply, bytes | None]]:
            for answer in super().exchange(messages, deadline):
                yield answer
                if isinstance(answer[1], Update) and answer[0] == "a":
                    yield answer

    play = bench.play(Twice(bench, "", {}), rounds=1)
    run(play)
    assert [(refusal.child, refusal.reason) for refusal in play.pen.refusals(1)] == [("a", Reason.DUPLICATE)]
    np.testing.assert_allclose(bench.w(), 0.5 * union_mean(bench.sites), rtol=1e-6)


def test_no_child_counts_more_than_the_share_cap(bench: Bench) -> None:
    bench.run(rounds=1, children={"max_share": 0.4})
    weights = bench.ledger.version("vec").weights
    assert weights["a"] == pytest.approx(0.4)
    assert sum(weights.values()) == pytest.approx(1.0)


def test_no_sample_applied_by_anybody_skips_the_round(bench: Bench) -> None:
    before = bench.digest()
    for site in bench.sites.values():
        site.points = site.points[:1]
    link = Spoiled(bench, "a", {"samples": {"point": 0}})
    play = bench.play(link, rounds=1, children={"wait_seconds": 20})
    link.link = LocalLink({"a": bench.sites["a"]}, debug=True)
    with pytest.raises(DeadlineExceeded):
        run(play)
    assert bench.digest() == before
    assert play.pen.rounds()[0].state == "skipped"


def test_a_target_stops_the_job_in_the_first_round_that_meets_it(bench: Bench) -> None:
    reason = bench.run(rounds=50, stop={"target": {"point": 2.0}})
    assert reason.startswith("target reached in round")
    play_rounds = bench.ledger.reader(bench.ledger.jobs()[0].id).rounds()
    assert len(play_rounds) < 50
    assert reason.endswith(f"round {len(play_rounds)}")


def test_patience_stops_a_job_that_gets_no_better(bench: Bench) -> None:
    assert bench.run(rounds=50, stop={"patience": 3}) == "no better mean score in 3 rounds"


def test_old_updates_are_forgotten(bench: Bench) -> None:
    bench.run(rounds=5, keep_rounds=2)
    reader = bench.ledger.reader(bench.ledger.jobs()[0].id)
    kept = [number for number in range(1, 6) if all(bench.blobs.has(row.digest) for row in reader.updates(number))]
    assert kept == [4, 5]


class Echoing(LocalLink):
    """Gives each child's last answer once more at the start of the next exchange."""

    def exchange(self, messages: Mapping[str, Outgoing], deadline: Deadline) -> Iterator[tuple[str, Reply, bytes | None]]:
        yield from getattr(self, "said", ())
        self.said = list(super().exchange(messages, deadline))
        yield from self.said


@pytest.mark.parametrize("rule", ["mean", "fedbuff:size=3"])
def test_an_answer_that_comes_again_in_a_later_phase_is_no_failure(bench: Bench, rule: str) -> None:
    bench.run(Echoing(bench.sites, debug=True), rounds=2, rule=rule)
    rounds = bench.ledger.reader(bench.ledger.jobs()[-1].id)
    assert [len(rounds.updates(number)) for number in (1, 2)] == [3, 3]
    assert [refusal.reason for number in (1, 2) for refusal in rounds.refusals(number)] == []
