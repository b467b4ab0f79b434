"""Every way to combine with every filter and every step, and with every kind of number."""

from itertools import product

import numpy as np
import pytest

from master.rules import PARTS, Contribution, find_rule
from master.rules.rule import Combine, Filter, Step
from tests.support.rules import contribution, fuse, parameters, play, sets
from trunkline.tensors import DTYPES, Array, spec_of, to_bf16, widen

SPECIAL = {"fedbuff": "fedbuff:size=3", "flower": "flower:FedMedian", "mean_by_task": ""}
"""Words of parts that cannot stand without an option; the mean by task is the mean with an option."""

COMBINES = [word for name, kind in PARTS.items() if issubclass(kind, Combine) and (word := SPECIAL.get(name, name))]
FILTERS = ["", "clip:norm=0.5+", "zero_outliers:times=1.2+", "clip+zero_outliers+"]
STEPS = ["", *(f"+{name}" for name, kind in PARTS.items() if issubclass(kind, Step))]


def test_all_parts_are_in_it() -> None:
    words = [f"{first}{middle}{last}" for first, middle, last in product(FILTERS, COMBINES, STEPS)]
    assert {part.name for word in words for part in find_rule(word).parts} == set(PARTS) - {"mean_by_task"}
    assert sum(issubclass(kind, Filter) for kind in PARTS.values()) == 2, "a new filter should be in FILTERS"


HEAVY = {"upgrad", "pcgrad", "cagrad", "imtl_g"}
"""They solve a problem for every fusion: one filter and few steps are enough."""


@pytest.mark.parametrize(("combine", "step"), [(c, s) for c in COMBINES for s in STEPS if c not in HEAVY or s in ("", "+momentum")])
def test_every_composition_keeps_the_laws(combine: str, step: str) -> None:
    """Finite, of the same form, the same for any order of arrival, inputs as they were, weights told; two rounds with state."""
    base, *found = sets(12, 8)
    updates = [contribution(f"c{k}", t, {"s": k + 1, "t": 7 - k}) for k, t in enumerate(found)]
    before = [{name: array.tobytes() for name, array in tensors.items()} for tensors in (base, *found)]
    for first in FILTERS[-1:] if combine in HEAVY else FILTERS:
        word = f"{first}{combine}{step}"
        one, fused, _ = play(word, base, updates)
        two, other, _ = play(word, base, updates[::-1])
        assert spec_of(one) == spec_of(base), word
        assert all(np.isfinite(array).all() for array in one.values()), word
        assert all(one[name].tobytes() == two[name].tobytes() for name in one), word
        assert dict(fused.weights) == dict(other.weights), word
        assert sum(fused.weights.values()) == pytest.approx(1.0), word
    word = f"{combine}{step}"
    one, _, state = play(word, base, updates)
    again, repeated = play(word, one, updates, state)[0], play(word, one, updates, state)[0]
    assert all(np.isfinite(array).all() for array in again.values()), word
    assert all(again[name].tobytes() == repeated[name].tobytes() for name in again), word
    assert before == [{name: array.tobytes() for name, array in tensors.items()} for tensors in (base, *found)]


# -- kinds of numbers ----------------------------------------------------------------------------------------------------

TINY_AND_HUGE = {"F64": (1e-10, 1e15), "F32": (1e-10, 1e15), "BF16": (1e-10, 1e15), "F16": (1e-4, 1e4)}


def drawn(seed: int, scale: float) -> dict[str, Array]:
    """A set with a tensor of every float dtype, at a scale that it holds."""
    rng = np.random.default_rng(seed)
    found: dict[str, Array] = {"empty": np.zeros((0, 3), np.float32), "n": np.array(seed, np.int64), "flag": np.array(True)}
    for dtype, (least, most) in TINY_AND_HUGE.items():
        values = np.clip(scale, least, most) * rng.standard_normal((5, 3)) * (scale > 0)
        found[dtype] = to_bf16(values.astype(np.float32)) if dtype == "BF16" else values.astype(DTYPES[dtype])
        found[f"{dtype}.scalar"] = found[dtype].reshape(-1)[0].reshape(())
    return found


SCALES = (0.0, 1e-10, 1.0, 1e15)


@pytest.mark.parametrize("combine", COMBINES)
def test_every_dtype_at_every_scale(combine: str) -> None:
    for first, scale in product(FILTERS[-1:] if combine in HEAVY else FILTERS, SCALES):
        base, *found = (drawn(seed, scale) for seed in range(9))
        fused = fuse(f"{first}{combine}", base, [contribution(f"c{k}", tensors, k + 1) for k, tensors in enumerate(found)])
        assert spec_of(fused) == spec_of(base)
        for name, spec in spec_of(fused).items():
            if name in ("n", "flag", "empty"):
                continue
            values = widen(fused[name], spec.dtype)
            most = max(float(np.abs(widen(t[name], spec.dtype)).max()) for t in (base, *found))
            assert np.abs(values).max() <= 8 * most, (first, name)


EXACT = ["mean", "median", "trimmed_mean", "geometric_median", "krum", "multi_krum", "bulyan"]


@pytest.mark.parametrize("combine", EXACT)
def test_equal_updates_come_back_whatever_their_dtype(combine: str) -> None:
    """Bit for bit up to float32; a weighted mean of float64 may round in its last digit."""
    for scale in SCALES:
        base, same = drawn(0, scale), drawn(1, scale)
        fused = fuse(combine, base, [contribution(f"c{k}", same, 3 * k + 1) for k in range(7)])
        for name in same:
            if name.startswith("F64"):
                np.testing.assert_allclose(fused[name], same[name], rtol=1e-15, atol=0)
            else:
                assert fused[name].tobytes() == same[name].tobytes(), (scale, name)


@pytest.mark.parametrize("combine", ["mean", "median", "trimmed_mean", "geometric_median", "zero_outliers+median", "clip+mean"])
def test_one_child_alone_is_the_target(combine: str) -> None:
    base, only = sets(3, 2)
    word = combine.replace("clip", "clip:norm=1e6")
    assert all(fuse(word, base, [contribution("c", only, 1)])[name].tobytes() == only[name].tobytes() for name in only)


# -- filters -------------------------------------------------------------------------------------------------------------


def test_an_update_that_did_not_move_is_clipped_to_nothing_else() -> None:
    """Its length is zero, by which a careless clip divides."""
    base = sets(5, 1)[0]
    for word in ("clip:norm=1e-30+mean", "zero_outliers+mean", "clip:norm=1e-30+zero_outliers+krum"):
        updates = [contribution(f"c{k}", base, k + 1) for k in range(5)]
        found, fused, _ = play(word, base, updates)
        assert all(found[name].tobytes() == base[name].tobytes() for name in base)
        assert set(fused.notes[word.partition(":")[0].partition("+")[0]]["norms"].values()) == {0.0}


def test_a_clipped_update_keeps_its_direction_and_others_keep_every_bit() -> None:
    base = {"w": np.array([1.0, 1.0], np.float32), "n": np.array(1, np.int64)}
    far = {"w": np.array([1.0 + 300, 1.0 - 400], np.float32), "n": np.array(9, np.int64)}
    near = {"w": np.array([1.25, 1.0], np.float32), "n": np.array(3, np.int64)}
    only, fused, _ = play("clip:norm=5+mean", base, [contribution("a", far)])
    np.testing.assert_allclose(only["w"], [1 + 3, 1 - 4], rtol=1e-6)
    assert only["n"] == 9, "counters stay as they were sent"
    assert fused.notes["clip"] == {"norms": {"a": 500.0}, "clipped": ["a"]}
    assert fuse("clip:norm=5+mean", base, [contribution("a", near)])["w"].tobytes() == near["w"].tobytes()


def test_a_zeroed_update_draws_back_to_the_base() -> None:
    base = {"w": np.zeros(2, np.float32), "n": np.array(1, np.int64)}
    near, far = ({"w": np.full(2, value, np.float32), "n": np.array(9, np.int64)} for value in (1, 1000))
    updates = [contribution(name, near) for name in "abc"] + [contribution("z", far)]
    found, fused, _ = play("zero_outliers+mean", base, updates)
    assert found["w"].tolist() == [0.75, 0.75]
    assert found["n"] == 7
    assert fused.notes["zero_outliers"]["zeroed"] == ["z"]
    assert fused.weights["z"] == 0.25


def test_the_length_is_over_all_float_tensors_and_no_others() -> None:
    base = {"a": np.zeros(4, np.float32), "b": np.zeros((), np.float64), "h": np.zeros(1, np.float16), "n": np.array(0, np.int64)}
    new = {"a": np.full(4, 2, np.float32), "b": np.array(8.0), "h": np.ones(1, np.float16), "n": np.array(10**6, np.int64)}
    assert play("clip:norm=99+mean", base, [contribution("c", new)])[1].notes["clip"]["norms"] == {"c": 9.0}


# -- what was trained from an older set ------------------------------------------------------------------------------------


@pytest.mark.parametrize("combine", ["median", "trimmed_mean", "clip:norm=100+median", "bulyan:faulty=0"])
def test_an_update_from_an_older_base_counts_by_its_movement(combine: str) -> None:
    base, older, *found = sets(6, 5)
    updates = []
    for number, tensors in enumerate(found):
        stale = {name: older[name] + (tensors[name] - base[name]) if name in ("w", "b") else tensors[name] for name in tensors}
        plain = contribution(f"c{number}", stale)
        updates.append(Contribution(plain.child, plain.samples, plain.applied, plain.parameters, base=parameters(older)))
    moved = fuse(combine, base, updates)
    fresh = fuse(combine, base, [contribution(f"c{k}", tensors) for k, tensors in enumerate(found)])
    for name in ("w", "b"):
        np.testing.assert_allclose(moved[name], fresh[name], rtol=1e-4, atol=1e-6)
