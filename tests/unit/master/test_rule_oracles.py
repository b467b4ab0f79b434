"""Rules against plain float64 references, and against numbers worked out by hand."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from master.rules import Contribution, State, find_rule
from tests.support import rule_oracles as plain
from tests.support.rules import contribution, play, sets
from trunkline.tensors import Array

Combine = Callable[[plain.Vectors, plain.Weights], plain.Vector]
Filter = Callable[[plain.Vector, plain.Vectors], list[plain.Vector]]

COMBINES: dict[str, Combine] = {
    "mean": plain.mean,
    "median": plain.median,
    "trimmed_mean": lambda values, weights: plain.trimmed_mean(values, weights, 0.1),
    "trimmed_mean:trim=0.33": lambda values, weights: plain.trimmed_mean(values, weights, 0.33),
    "geometric_median": plain.geometric_median,
    "krum": lambda values, weights: plain.krum(values, weights, 1),
    "krum:faulty=2": lambda values, weights: plain.krum(values, weights, 2),
    "multi_krum": lambda values, weights: plain.multi_krum(values, weights, 1, len(values) - 3),
    "multi_krum:faulty=2,keep=4": lambda values, weights: plain.multi_krum(values, weights, 2, 4),
    "bulyan": lambda values, weights: plain.bulyan(values, weights, 1),
    "bulyan:faulty=0": lambda values, weights: plain.bulyan(values, weights, 0),
}

FILTERS: dict[str, Filter] = {
    "clip:norm=4.0": lambda base, values: plain.clip(base, values, 4.0),
    "zero_outliers:times=1.1": lambda base, values: plain.zero_outliers(base, values, 1.1),
}

STEPS: dict[str, Callable[[plain.Server, plain.Vector, plain.Vector], plain.Vector]] = {
    "momentum:rate=0.7,beta=0.8": lambda server, base, to: server.momentum(base, to, 0.7, 0.8),
    "adam:rate=0.1": lambda server, base, to: server.adaptive("adam", base, to, 0.1, 0.9, 0.99, 1e-3),
    "yogi:rate=0.1": lambda server, base, to: server.adaptive("yogi", base, to, 0.1, 0.9, 0.99, 1e-3),
    "adagrad:rate=0.1": lambda server, base, to: server.adaptive("adagrad", base, to, 0.1, 0.0, 0.0, 1e-3),
    "adagrad:rate=0.1,beta1=0.5,tau=0.01": lambda server, base, to: server.adaptive("adagrad", base, to, 0.1, 0.5, 0.0, 0.01),
}

FLOATS = ("b", "empty", "scalar", "w")


def flat(tensors: dict[str, Array]) -> plain.Vector:
    return np.concatenate([tensors[name].astype(np.float64).reshape(-1) for name in FLOATS])


def drawn(base: dict[str, Array], seed: int, count: int) -> tuple[list[Contribution], list[plain.Vector], list[float]]:
    """Updates around a base, their values as vectors, and their sample counts, which differ."""
    found = sets(seed, count)
    moved = [{name: base[name] + t[name] if name in FLOATS else t[name] for name in t} for t in found]
    counts = [3 + 2 * k + k % 2 for k in range(count)]
    updates = [contribution(f"c{k}", tensors, samples) for k, (tensors, samples) in enumerate(zip(moved, counts, strict=True))]
    return updates, [flat(tensors) for tensors in moved], [float(count) for count in counts]


@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("count", [7, 8, 12])
@pytest.mark.parametrize("word", COMBINES)
def test_what_combines_equals_the_plain_reference(word: str, count: int, equal: bool) -> None:
    base = sets(1, 1)[0]
    updates, values, counts = drawn(base, 10 + count, count)
    if equal:
        updates, counts = [contribution(u.child, _tensors(u), 5) for u in updates], [5.0] * count
    found, _, _ = play(word, base, updates)
    np.testing.assert_allclose(flat(found), COMBINES[word](values, counts), rtol=3e-7, atol=1e-7)


def _tensors(update: Contribution) -> dict[str, Array]:
    return {name: update.parameters.read(name, slice(0, spec.rows)) for name, spec in update.parameters.spec.items()}


@pytest.mark.parametrize("filtered", FILTERS)
@pytest.mark.parametrize("word", COMBINES)
def test_filters_equal_the_plain_reference(filtered: str, word: str) -> None:
    base = sets(2, 1)[0]
    updates, values, counts = drawn(base, 3, 9)
    kept = FILTERS[filtered](flat(base), values)
    changed = sum(not np.array_equal(one, other) for one, other in zip(kept, values, strict=True))
    assert 0 < changed < len(values), "some are changed, some are not"
    found, fused, _ = play(f"{filtered}+{word}", base, updates)
    np.testing.assert_allclose(flat(found), COMBINES[word](kept, counts), rtol=3e-7, atol=1e-7)
    told = fused.notes[find_rule(filtered).filters[0].name]
    assert len(told.get("clipped", told.get("zeroed"))) == changed


@pytest.mark.parametrize("stepped", STEPS)
@pytest.mark.parametrize("word", ["mean", "median", "krum"])
def test_five_rounds_with_state_equal_the_plain_reference(word: str, stepped: str) -> None:
    base = sets(4, 1)[0]
    at, server, state = flat(base), plain.Server(), None
    for number in range(5):
        updates, values, counts = drawn(base, 20 + number, 7)
        base, _, state = play(f"{word}+{stepped}", base, updates, state)
        at = STEPS[stepped](server, at, COMBINES[word](values, counts))
        np.testing.assert_allclose(flat(base), at, rtol=2e-6, atol=2e-6, err_msg=f"round {number}")
        at = flat(base)  # rounding does not add up over rounds: each is compared by itself, with the state of all before


@pytest.mark.parametrize("word", COMBINES)
def test_five_rounds_without_state_equal_the_plain_reference(word: str) -> None:
    base, state = sets(5, 1)[0], None
    at = flat(base)
    for number in range(5):
        updates, values, counts = drawn(base, 40 + number, 7)
        base, _, state = play(word, base, updates, state)
        assert state is None
        at = COMBINES[word](values, counts)
        np.testing.assert_allclose(flat(base), at, rtol=3e-7, atol=1e-7)


# -- by hand -------------------------------------------------------------------------------------------------------------

GOLDEN: dict[str, tuple[Sequence[float], float]] = {
    # one number a child, all with as many samples, from the base 0
    "mean": ([1, 2, 3, 4, 100], 22.0),
    "median": ([1, 2, 3, 4, 100], 3.0),
    "median:within=round": ([1, 2, 4, 100], 3.0),
    "trimmed_mean:trim=0.2": ([1, 2, 3, 4, 100], 3.0),
    "trimmed_mean:trim=0.1": ([1, 2, 3, 4, 100], (0.5 * 1 + 2 + 3 + 4 + 0.5 * 100) / 4),
    "geometric_median": ([1, 2, 3, 4, 100], 3.0),
    "krum": ([1, 2, 3, 4, 100], 2.0),  # sums of two: 5, 2, 2, 5, 18625: the first of equal ones
    "multi_krum:keep=3": ([1, 2, 3, 4, 100], 2.0),  # 2, 3, and the first of 1 and 4
    "multi_krum": ([1, 2, 3, 4, 100], 2.5),  # two of five
    "bulyan": ([1, 2, 3, 4, 5, 6, 100], 3.0),  # see below
    "bulyan:faulty=0": ([1, 2, 3, 4, 100], 22.0),
    "clip:norm=10.0+mean": ([1, 2, 3, 4, 100], 4.0),
    "zero_outliers:times=3.0+mean": ([1, 2, 3, 4, 100], 2.0),
    "momentum:rate=0.5": ([1, 2, 3], 1.0),
    "adam": ([1, 2, 3], 0.01 * 0.2 / ((0.99 * 1e-6 + 0.01 * 4) ** 0.5 + 1e-3)),
    "yogi": ([1, 2, 3], 0.01 * 0.2 / ((1e-6 + 0.01 * 4) ** 0.5 + 1e-3)),
    "adagrad": ([1, 2, 3], 0.01 * 2 / ((1e-6 + 4) ** 0.5 + 1e-3)),
}
"""Bulyan: of seven, those with four closest others: 3 (1+1+4+4=10), then of 1 2 4 5 6 100 with three: 4 (1+4+4=9; as 5: 1+1+9=11);
then of 1 2 5 6 100 with two: 1 (1+16=17; 2: 1+9=10; 5: 1+9=10; 6: 1+16=17): 2; then of 1 5 6 100 with one: 5 (1); then of 1 6 100:
1 (25) as 6 (25): 1. Chosen 1 2 3 4 5, median 3, the three closest 2 3 4.
"""


@pytest.mark.parametrize("word", GOLDEN)
def test_a_number_worked_out_by_hand(word: str) -> None:
    values, expected = GOLDEN[word]
    updates = [contribution(f"c{k}", {"w": np.array([value], np.float32)}) for k, value in enumerate(values)]
    found, _, _ = play(word, {"w": np.zeros(1, np.float32)}, updates)
    assert found["w"][0] == pytest.approx(expected, rel=1e-6)


def test_weights_move_the_median_and_the_edges_of_the_trimmed_mean() -> None:
    def fused(word: str, *pairs: tuple[float, int]) -> float:
        updates = [contribution(f"c{k}", {"w": np.array([v], np.float32)}, n) for k, (v, n) in enumerate(pairs)]
        return float(play(word, {"w": np.zeros(1, np.float32)}, updates)[0]["w"][0])

    assert fused("median", (1, 1), (2, 1), (9, 5)) == 9.0
    assert fused("median", (1, 3), (2, 1), (9, 2)) == 1.5  # half of the weight lies between 1 and 2
    assert fused("trimmed_mean:trim=0.25", (1, 1), (5, 2), (9, 1)) == 5.0
    assert fused("trimmed_mean:trim=0.25", (1, 4), (5, 2), (9, 2)) == pytest.approx((2 * 1 + 2 * 5) / 4)
    assert fused("geometric_median", (1, 1), (2, 1), (9, 5)) == pytest.approx(9.0)


def test_the_table_has_every_rule_of_its_own() -> None:
    """The mean of tasks, rules for conflicts and those that need what a round alone does not have are held elsewhere."""
    from master.rules import PARTS

    parts = {part.name for word in GOLDEN for part in find_rule(word).parts}
    elsewhere = {"mean_by_task", "upgrad", "pcgrad", "cagrad", "imtl_g", "fedbuff", "scaffold", "flower"}
    assert set(PARTS) - elsewhere == parts


@pytest.mark.parametrize("state", [None, "kept"])
def test_the_state_is_what_makes_the_second_round_differ(state: str | None) -> None:
    """Breaks if a step forgets: the same updates twice, with and without what the first round left."""
    base = sets(6, 1)[0]
    updates, _, _ = drawn(base, 7, 5)
    for step in STEPS:
        first, _, left = play(f"mean+{step}", base, updates)
        again, _, _ = play(f"mean+{step}", base, updates, left if state else None)
        assert np.array_equal(flat(first), flat(again)) == (state is None)
        assert isinstance(left, State)
