"""Laws that every fuse rule keeps, times inputs that are hard, and one golden value a rule."""

from collections.abc import Mapping
from typing import get_args

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError

from master.jobs import JobSpec
from master.rules import RULES, Contribution, Parameters, Rule, find_rule, limited
from master.rules.weights import by_samples, by_task, capped
from trunkline.errors import TooFewChildren
from trunkline.tensors import Array, spec_of, to_bf16, widen
from trunkline.values import RuleName

Tensors = Mapping[str, Array]


def parameters(tensors: Tensors) -> Parameters:
    def read(name: str, rows: slice) -> Array:
        array = tensors[name]
        return array[rows].copy() if array.shape else array.copy()

    return Parameters(spec_of(tensors), read)


def contribution(child: str, tensors: Tensors, samples: int | Mapping[str, int] = 10) -> Contribution:
    counts = {"task": samples} if isinstance(samples, int) else samples
    return Contribution(child, counts, counts, parameters(tensors))


def fuse(rule: Rule, base: Tensors, updates: list[Contribution]) -> dict[str, Array]:
    ordered = sorted(updates, key=lambda update: update.child)
    fused = rule(parameters(base), ordered)
    whole = {name: slice(0, spec.rows) for name, spec in fused.parameters.spec.items()}
    return {name: fused.parameters.read(name, rows) for name, rows in whole.items()}


def sets(seed: int, count: int, scale: float = 1.0) -> list[dict[str, Array]]:
    rng = np.random.default_rng(seed)
    return [
        {
            "w": (scale * rng.standard_normal((4, 3))).astype(np.float32),
            "b": (scale * rng.standard_normal(3)).astype(np.float32),
            "empty": np.zeros((0, 3), np.float32),
            "scalar": np.array(scale * rng.standard_normal(), np.float32),
            "count": np.array(int(rng.integers(0, 100)), np.int64),
            "mask": rng.random(5) > 0.5,
        }
        for _ in range(count)
    ]


rules = pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
scales = pytest.mark.parametrize("scale", [0.0, 1e-10, 1.0, 1e15])


@rules
@scales
@pytest.mark.parametrize("count", [1, 2, 7])
def test_shape_dtype_and_finite(rule: Rule, scale: float, count: int) -> None:
    found = sets(0, count, scale)
    fused = fuse(rule, found[0], [contribution(f"c{k}", tensors, k + 1) for k, tensors in enumerate(found)])
    assert spec_of(fused) == spec_of(found[0])
    assert all(np.isfinite(array).all() for array in fused.values())


@rules
@scales
def test_equal_inputs_come_back_as_they_are(rule: Rule, scale: float) -> None:
    tensors = sets(1, 1, scale)[0]
    fused = fuse(rule, tensors, [contribution(f"c{k}", tensors, 3 * k + 1) for k in range(5)])
    for name in tensors:
        assert fused[name].tobytes() == tensors[name].tobytes(), name


@rules
def test_inputs_are_bit_identical_after(rule: Rule) -> None:
    found = sets(2, 3)
    before = [{name: array.copy() for name, array in tensors.items()} for tensors in found]
    fuse(rule, found[0], [contribution(f"c{k}", tensors) for k, tensors in enumerate(found)])
    for tensors, kept in zip(found, before, strict=True):
        assert all(tensors[name].tobytes() == kept[name].tobytes() for name in tensors)


@rules
def test_the_order_of_the_list_does_not_matter(rule: Rule) -> None:
    updates = [contribution(f"c{k}", tensors, k + 1) for k, tensors in enumerate(sets(3, 6))]
    forward, backward = (fuse(rule, sets(3, 1)[0], order) for order in (updates, updates[::-1]))
    assert all(forward[name].tobytes() == backward[name].tobytes() for name in forward)


@rules
def test_weights_that_are_all_zero_are_refused(rule: Rule) -> None:
    with pytest.raises(TooFewChildren, match="positive numbers, found none"):
        fuse(rule, sets(4, 1)[0], [contribution("a", sets(4, 1)[0], 0)])


@rules
def test_a_child_without_samples_has_no_effect_whatever_it_sends(rule: Rule) -> None:
    good, bad = sets(5, 2)
    bad = {name: np.full_like(array, np.nan) if array.dtype.kind == "f" else array for name, array in bad.items()}
    fused = fuse(rule, good, [contribution("a", good, 5), contribution("b", bad, 0)])
    assert all(fused[name].tobytes() == good[name].tobytes() for name in good)


def test_the_mean_is_the_float64_mean_to_one_unit_in_the_last_place() -> None:
    found, counts = sets(6, 9), [3, 1000, 1, 17, 250, 8, 9, 77, 4]
    updates = [contribution(f"c{k}", tensors, n) for k, (tensors, n) in enumerate(zip(found, counts, strict=True))]
    fused = fuse(find_rule("mean"), found[0], updates)
    for name in ("w", "b", "scalar"):
        exact = sum(n * t[name].astype(np.longdouble) for t, n in zip(found, counts, strict=True)) / sum(counts)
        distance = np.abs(fused[name].astype(np.longdouble) - exact)
        assert (distance <= np.spacing(np.abs(fused[name]))).all()


def test_by_task_a_large_task_does_not_drown_a_small_one() -> None:
    one, zero = np.ones(2, np.float32), np.zeros(2, np.float32)
    updates = [contribution("a", {"w": one}, {"small": 10}), contribution("b", {"w": zero}, {"large": 990})]
    np.testing.assert_allclose(fuse(find_rule("mean_by_task"), {"w": zero}, updates)["w"], 0.5)
    np.testing.assert_allclose(fuse(find_rule("mean"), {"w": zero}, updates)["w"], 0.01)


def test_golden_values() -> None:
    values: list[NDArray[np.float32]] = [np.array([x], np.float32) for x in (1.0, 2.0, 4.0)]
    counts = [{"s": 10}, {"s": 30, "t": 10}, {"t": 30}]
    updates = [contribution(name, {"w": w}, n) for name, w, n in zip("abc", values, counts, strict=True)]
    golden: dict[RuleName, float] = {
        "mean": (10 * 1 + 40 * 2 + 30 * 4) / 80,
        "mean_by_task": 0.5 * (0.25 * 1 + 0.75 * 2) + 0.5 * (0.25 * 2 + 0.75 * 4),
    }
    assert set(golden) == set(RULES)
    for name, rule in RULES.items():
        assert fuse(rule, {"w": values[0]}, updates)["w"][0] == pytest.approx(golden[name])


def test_whole_numbers_round_to_even_and_masks_go_with_the_majority() -> None:
    base = {"n": np.array(0, np.int64), "m": np.array([True, False, True])}
    updates = [
        contribution("a", {"n": np.array(7, np.int64), "m": np.array([True, False, True])}, 3),
        contribution("b", {"n": np.array(10, np.int64), "m": np.array([False, True, True])}, 4),
    ]
    fused = fuse(find_rule("mean"), base, updates)
    assert fused["n"].dtype == np.int64
    assert fused["n"].shape == ()
    assert int(fused["n"]) == 9  # 8.714 rounded
    assert fused["m"].tolist() == [False, True, True]


def test_bfloat16_is_summed_in_float64() -> None:
    values = [{"w": to_bf16(np.full(4, 1.0 + k / 128, np.float32))} for k in range(1000 % 128)]
    fused = fuse(find_rule("mean"), values[0], [contribution(f"c{k:03}", tensors) for k, tensors in enumerate(values)])
    exact = np.mean([widen(tensors["w"], "BF16")[0] for tensors in values])
    assert fused["w"].tobytes() == to_bf16(np.full(4, exact, np.float32)).tobytes()


@pytest.mark.parametrize("most", [0.3, 0.4, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("counts", [[1000, 1, 1, 1], [5, 5], [900, 50, 25, 25, 1], [7]])
def test_no_share_above_the_cap(most: float, counts: list[int]) -> None:
    shares = capped({f"c{k}": float(n) for k, n in enumerate(counts)}, most)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert max(shares.values()) <= max(most, 1 / len(counts)) + 1e-12
    ordered = [shares[f"c{k}"] for k in range(len(counts))]
    assert ordered == sorted(ordered, reverse=True)


def test_a_capped_rule_tells_the_capped_weights() -> None:
    one, zero = {"w": np.ones(1, np.float32)}, {"w": np.zeros(1, np.float32)}
    updates = [contribution("a", one, 10**12), contribution("b", zero, 1), contribution("c", zero, 1)]
    rule = limited(find_rule("mean"), 0.5)
    assert rule(parameters(zero), updates).weights == pytest.approx({"a": 0.5, "b": 0.25, "c": 0.25})
    assert fuse(rule, zero, updates)["w"][0] == pytest.approx(0.5)


def test_weights_sum_to_one() -> None:
    updates = [contribution(f"c{k}", sets(7, 1)[0], {"s": k, "t": 3 * k % 5}) for k in range(1, 8)]
    for weigh in (by_samples, by_task):
        assert sum(weigh(updates).values()) == pytest.approx(1.0)


def test_an_unknown_rule_is_named_with_those_there_are() -> None:
    """When a job is read: at its first fusion a round of everybody's training would be lost."""
    assert set(get_args(RuleName)) == set(RULES)
    with pytest.raises(ValidationError, match="'mean' or 'mean_by_task'"):
        JobSpec.model_validate({"encoder": "a", "rule": "median"})
