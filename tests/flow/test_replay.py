"""Recorded rounds once more: the same bits by the same rule, and what another rule would have made of them."""

from pathlib import Path

import numpy as np
import pytest

from master import replay
from master.ledger_reader import JobReader
from master.trial import trials
from tests.support.jobs import Bench, make_bench
from trunkline.errors import NotFound, UsageError

SIZES = {"a": 10, "b": 20, "c": 30}

RULES = ["mean", "median", "adam", "median+momentum", "fedbuff:size=3", "clip:norm=0.1+mean"]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return make_bench(tmp_path, SIZES, url="sqlite://")


def reader_of(bench: Bench) -> JobReader:
    return bench.ledger.reader(bench.ledger.jobs()[-1].id)


@pytest.mark.parametrize("codec", ["float32", "topk:share=0.5"])
@pytest.mark.parametrize("rule", RULES)
def test_a_published_version_is_recomputed_bit_for_bit(bench: Bench, rule: str, codec: str) -> None:
    bench.run(rounds=4, rule=rule, codec=codec, keep_rounds=4)
    before = set(bench.blobs.digests())
    for number in range(1, 5):
        found = replay.replay(bench.blobs, reader_of(bench), number)
        assert found.same, number
        assert found.version == number + 1
    assert set(bench.blobs.digests()) == before, "nothing stays on the disk"
    assert not list((bench.blobs.folder / "scratch").iterdir())


def test_a_byte_that_was_changed_is_noticed(bench: Bench) -> None:
    bench.run(rounds=1, keep_rounds=4)
    (update, *_) = reader_of(bench).updates(1)
    path = bench.blobs.path(update.digest)
    data = bytearray(path.read_bytes())
    data[-2] ^= 0x40
    path.chmod(0o600)
    path.write_bytes(data)
    assert not replay.replay(bench.blobs, reader_of(bench), 1).same


def test_updates_that_are_not_kept_any_more(bench: Bench) -> None:
    bench.run(rounds=4, rule="adam", keep_rounds=2)
    assert reader_of(bench).recorded() == [3, 4]
    assert replay.replay(bench.blobs, reader_of(bench), 3).same, "what round 2 left to it is kept too"
    with pytest.raises(NotFound, match="updates of round 2 should be kept, found that those of a, b, c are not"):
        replay.replay(bench.blobs, reader_of(bench), 2)
    with pytest.raises(NotFound, match="round 9"):
        replay.replay(bench.blobs, reader_of(bench), 9)


def test_another_rule_is_tried_and_nothing_is_published(bench: Bench) -> None:
    bench.run(rounds=3, keep_rounds=3)
    before, version = set(bench.blobs.digests()), bench.ledger.version("vec").number
    same, other = (trials(bench.blobs, reader_of(bench), rule) for rule in ("mean", "mean:by=equal"))
    assert [one.round for one in same] == [one.round for one in other] == [1, 2, 3]
    for one in same:
        assert one.distance == 0.0
        assert one.cosine == pytest.approx(1.0)
        assert one.step == one.published_step
    assert all(one.distance for one in other)
    assert other[0].weights == pytest.approx({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3})
    assert other[0].published_weights == pytest.approx({"a": 1 / 6, "b": 1 / 3, "c": 1 / 2})
    with bench.blobs.open_set(str(reader_of(bench).round(1).target)) as file:  # type: ignore[union-attr]
        published = file.read("w")
    means = 0.5 * np.mean([site.points.mean(0) for site in bench.sites.values()], axis=0)
    assert other[0].distance == pytest.approx(float(np.linalg.norm(means - published)), rel=1e-5)
    assert set(bench.blobs.digests()) == before
    assert bench.ledger.version("vec").number == version


def test_a_rule_that_remembers_goes_on_from_round_to_round(bench: Bench) -> None:
    bench.run(rounds=3, rule="momentum:beta=0.5", keep_rounds=3)
    assert all(one.distance == 0.0 for one in trials(bench.blobs, reader_of(bench), "momentum:beta=0.5"))
    alone = trials(bench.blobs, reader_of(bench), "momentum:beta=0.5", number=3)
    assert alone[0].distance, "by itself it begins with nothing"


def test_rules_that_cannot_be_tried(bench: Bench) -> None:
    bench.run(rounds=1, keep_rounds=0)
    with pytest.raises(NotFound, match="recorded updates should be kept"):
        trials(bench.blobs, reader_of(bench), "median")
    with pytest.raises(UsageError, match="`rule` in the job with this rule should be one of"):
        trials(bench.blobs, reader_of(bench), "best")
    with pytest.raises(UsageError, match="least_updates"):
        trials(bench.blobs, reader_of(bench), "krum:faulty=2")


def test_a_rule_that_could_not_be_played_is_told_with_its_reason_and_no_figures(bench: Bench) -> None:
    """Given a task that one child has alone, When a robust rule leaves small tasks out, Then nobody is left."""
    for name, site in bench.sites.items():
        site.task = f"task-{name}"
    bench.run(rounds=1, children={"least": 3})
    (found,) = trials(bench.blobs, reader_of(bench), "krum:faulty=0,few=leave_out")
    told = found.table()
    assert "a task should have at least 3 children for `krum`" in told.pop("error")
    assert told.pop("published_weights") == pytest.approx({"a": 1 / 6, "b": 1 / 3, "c": 1 / 2})
    assert told == {"round": 1, "weights": {}, "notes": {}} | dict.fromkeys(("step", "published_step", "cosine", "distance"))
