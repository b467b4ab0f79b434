"""What robust rules promise: how many children may send anything at all, where that holds, and where it does not."""

from collections.abc import Mapping

import numpy as np
import pytest

from master.jobs import JobSpec
from master.rules import Contribution, find_rule
from master.rules.geometric_median import coefficients
from tests.support.rules import contribution, fuse, play
from trunkline.errors import TooFewChildren
from trunkline.tensors import Array

BOUNDS = {
    "median": (9, 4),
    "median:within=round": (9, 4),
    "trimmed_mean:trim=0.34": (9, 3),
    "geometric_median": (9, 4),
    "krum:faulty=3": (9, 3),
    "multi_krum:faulty=3": (9, 3),
    "bulyan:faulty=2": (11, 2),
    "trimmed_mean:trim=0.25+momentum": (9, 2),
}
"""Children, and how many of them may be faulty. All have the same samples."""


def honest(count: int, seed: int = 0) -> list[dict[str, Array]]:
    rng = np.random.default_rng(seed)
    return [{"w": (3 + rng.standard_normal(40)).astype(np.float32), "s": np.array(k, np.float32)} for k in range(count)]


BASE: Mapping[str, Array] = {"w": np.zeros(40, np.float32), "s": np.zeros((), np.float32)}


def round_of(count: int, faulty: int, wild: float, samples: int | Mapping[str, int] = 10) -> tuple[list[Contribution], list[Array]]:
    """Faulty children come first, in between and last, by name; what the honest ones sent."""
    good = honest(count - faulty)
    names = [f"c{k:02}" for k in range(count)]
    bad = set(names[::2][:faulty])
    updates, rest = [], list(good)
    for name in names:
        tensors = {key: np.full_like(array, wild) for key, array in BASE.items()} if name in bad else rest.pop()
        updates.append(contribution(name, tensors, samples))
    return updates, [tensors["w"] for tensors in good]


@pytest.mark.parametrize("wild", [1e9, -1e9, 1e30, 3e38, 0.0])
@pytest.mark.parametrize("word", BOUNDS)
def test_as_many_faulty_children_as_promised_do_not_matter(word: str, wild: float) -> None:
    count, faulty = BOUNDS[word]
    updates, good = round_of(count, faulty, wild)
    found = fuse(word, BASE, updates)["w"]
    center = np.mean(good, axis=0)
    spread = max(float(np.linalg.norm(one - center)) for one in good)
    assert np.linalg.norm(found - center) <= 3 * spread, "as near as the honest ones are to each other"


@pytest.mark.parametrize("word", BOUNDS)
def test_more_than_half_faulty_children_break_every_rule(word: str) -> None:
    """So the test before it can fail."""
    count, _ = BOUNDS[word]
    updates, _ = round_of(count, count // 2 + 1, 1e9)
    assert np.abs(fuse(word, BASE, updates)["w"]).max() > 1e6


def test_the_mean_breaks_with_one_faulty_child() -> None:
    updates, _ = round_of(9, 1, 1e9)
    assert np.abs(fuse("mean", BASE, updates)["w"]).max() > 1e6


@pytest.mark.parametrize("word", ["median", "trimmed_mean:trim=0.4", "geometric_median"])
def test_the_bound_is_one_of_weight_not_of_heads(word: str) -> None:
    """One child with more than half of the samples is the median; `max_share` is what keeps that from happening."""
    good = honest(8)
    updates = [contribution(f"c{k}", tensors, 10) for k, tensors in enumerate(good)]
    heavy = contribution("z", {"w": np.full(40, 1e9, np.float32), "s": np.array(1e9, np.float32)}, 1000)
    assert play(word, BASE, [*updates, heavy])[0]["w"].max() > 1e6
    assert np.abs(play(word, BASE, [*updates, heavy], most=0.2)[0]["w"]).max() < 100


@pytest.mark.parametrize("word", ["krum:faulty=2", "multi_krum:faulty=2", "bulyan:faulty=2"])
def test_children_in_the_same_position_are_taken_in_the_order_of_their_ids(word: str) -> None:
    same = [{"w": np.eye(12, dtype=np.float32)[k]} for k in range(12)]  # all as far from each other
    _, fused, _ = play(word, {"w": np.zeros(12, np.float32)}, [contribution(f"c{k:02}", t) for k, t in enumerate(same)])
    chosen = fused.notes[find_rule(word).combine.name]["task"]["chosen"]
    assert chosen == [f"c{k:02}" for k in range(len(chosen))]


@pytest.mark.parametrize("shift", [0.0, 1e4, 1e7])
def test_krum_finds_the_inner_one_also_where_all_moved_far_together(shift: float) -> None:
    """Distances come from inner products, which lose digits where movements are long; float64 has enough of them."""
    rng = np.random.default_rng(3)
    sets_ = [{"w": (shift + rng.standard_normal(50) * scale).astype(np.float32)} for scale in (4, 4, 1, 4, 4, 4, 4)]
    _, fused, _ = play("krum", {"w": np.zeros(50, np.float32)}, [contribution(f"c{k}", t) for k, t in enumerate(sets_)])
    assert fused.notes["krum"]["task"]["chosen"] == ["c2"]


# -- tasks ---------------------------------------------------------------------------------------------------------------


def two_tasks() -> list[Contribution]:
    """Seven children of task s around 3, three of task t around -50: far away for a good reason."""
    near = [contribution(f"s{k}", tensors, {"s": 10}) for k, tensors in enumerate(honest(7))]
    other = [{"w": tensors["w"] - 53, "s": tensors["s"]} for tensors in honest(3, 1)]
    return near + [contribution(f"t{k}", tensors, {"t": 10}) for k, tensors in enumerate(other)]


@pytest.mark.parametrize("word", ["median", "trimmed_mean:trim=0.3", "geometric_median", "krum:faulty=1", "multi_krum", "bulyan"])
def test_a_task_that_is_unlike_the_others_has_its_say(word: str) -> None:
    expected = (7 * 3 - 3 * 50) / 10
    assert fuse(word, BASE, two_tasks())["w"].mean() == pytest.approx(expected, abs=1.0)
    whole = find_rule(word).combine.model_copy(update={"within": "round"})
    assert fuse(str(whole), BASE, two_tasks())["w"].mean() > -15 + 7, "over the round it would be the outlier that is thrown out"


def test_tasks_count_alike_where_asked() -> None:
    assert fuse("median:across=equal", BASE, two_tasks())["w"].mean() == pytest.approx((3 - 50) / 2, abs=1.0)


def test_a_task_with_too_few_children_gets_their_mean_or_no_say() -> None:
    """The hole in a promise that is kept within tasks: where the rule cannot work, a faulty child is averaged in."""
    updates = [*two_tasks()[:9], contribution("t9", {"w": np.full(40, 1e9, np.float32), "s": np.array(0, np.float32)}, {"t": 10})]
    _, fused, _ = play("krum", BASE, updates)
    assert fused.notes["krum"]["t"] == {"few": 3}
    assert fuse("krum", BASE, updates)["w"].mean() > 1e6
    assert np.abs(fuse("krum:few=leave_out", BASE, updates)["w"]).max() < 10
    assert play("krum:few=leave_out", BASE, updates)[1].weights["t9"] == 0


def test_a_round_in_which_no_task_has_enough_children_is_refused_where_asked() -> None:
    updates = [contribution(f"c{k}", tensors, {f"task{k}": 10}) for k, tensors in enumerate(honest(7))]
    with pytest.raises(TooFewChildren, match="at least 5 children for `krum`"):
        fuse("krum:few=leave_out", BASE, updates)


@pytest.mark.parametrize(
    ("word", "least"),
    [
        ("krum:faulty=0", 3),
        ("krum", 5),
        ("krum:faulty=3", 9),
        ("multi_krum:faulty=2", 7),
        ("multi_krum:faulty=1,keep=8", 9),
        ("bulyan", 7),
        ("bulyan:faulty=3", 15),
        ("clip+krum:faulty=2+adam", 7),
        ("median", 1),
        ("trimmed_mean", 1),
    ],
)
def test_a_count_below_a_rules_bound_is_refused_when_the_job_is_configured(word: str, least: int) -> None:
    assert find_rule(word).least == least
    JobSpec.model_validate({"encoder": "a", "rule": word, "children": {"least": least}})
    if least > 1:
        with pytest.raises(ValueError, match=f"`children.least_updates` should be at least {least} for the rule"):
            JobSpec.model_validate({"encoder": "a", "rule": word, "children": {"least": least, "least_updates": least - 1}})
        with pytest.raises(TooFewChildren, match=f"at least {least} updates"):
            fuse(word, BASE, [contribution(f"c{k}", tensors) for k, tensors in enumerate(honest(least - 1))])


# -- the geometric median ------------------------------------------------------------------------------------------------


def test_where_half_of_the_weight_lies_in_one_point_that_is_it_to_the_last_bit() -> None:
    same, others = honest(1)[0], honest(3, 5)
    updates = [contribution(f"c{k}", same, 5) for k in range(3)] + [contribution(f"d{k}", t, 5) for k, t in enumerate(others)]
    _, fused, _ = play("geometric_median", BASE, updates)
    assert fuse("geometric_median", BASE, updates)["w"].tobytes() == same["w"].tobytes()
    assert [fused.weights[f"c{k}"] for k in range(3)] == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("scale", [1e-10, 1.0, 1e15])
def test_no_point_near_the_geometric_median_is_closer_to_all(scale: float) -> None:
    rng = np.random.default_rng(0)
    points, shares = scale * rng.standard_normal((6, 5)), rng.dirichlet(np.ones(6))
    found, _ = coefficients(points @ points.T, shares, 1e-6, 1000)

    def cost(at: Array) -> float:
        return float(sum(share * np.linalg.norm(point - at) for share, point in zip(shares, points, strict=True)))

    at = found @ points
    for _ in range(100):
        assert cost(at) <= cost(at + 1e-3 * scale * rng.standard_normal(5)) * (1 + 1e-9)


def test_it_gives_up_turning_where_asked_and_says_how_many_it_took() -> None:
    updates, _ = round_of(9, 4, 1e9)
    _, fused, _ = play("geometric_median:turns=3", BASE, updates)
    assert fused.notes["geometric_median"]["task"]["turns"] == 3
    _, fused, _ = play("geometric_median", BASE, updates)
    assert 3 < fused.notes["geometric_median"]["task"]["turns"] < 1000
