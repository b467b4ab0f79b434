"""Laws that fuse rules keep, times inputs that are hard. Each rule says which laws it keeps; all keep those of `every`."""

from itertools import product

import numpy as np
import pytest
from pydantic import ValidationError

from master.jobs import JobSpec
from master.rules import PARTS, find_rule
from master.rules.rule import Combine, Filter, Step
from tests.support.rules import contribution, fuse, parameters, play, sets
from trunkline.errors import SpecError, TooFewChildren
from trunkline.tensors import spec_of, to_bf16, widen

IDENTITY, SCALE, HULL = "identity", "scale", "hull"

LAWS: dict[str, set[str]] = {
    "mean": {IDENTITY, SCALE, HULL},
    "mean:by=sqrt": {IDENTITY, SCALE, HULL},
    "mean:by=equal": {IDENTITY, SCALE, HULL},
    "mean_by_task": {IDENTITY, SCALE, HULL},
    "median": {IDENTITY, SCALE, HULL},
    "median:within=round": {IDENTITY, SCALE, HULL},
    "trimmed_mean": {IDENTITY, SCALE, HULL},
    "trimmed_mean:trim=0.3,within=round": {IDENTITY, SCALE, HULL},
    "geometric_median": {IDENTITY, SCALE, HULL},
    "krum": {IDENTITY, SCALE, HULL},
    "krum:faulty=2,within=round": {IDENTITY, SCALE, HULL},
    "multi_krum": {IDENTITY, SCALE, HULL},
    "multi_krum:faulty=0,keep=2": {IDENTITY, SCALE, HULL},
    "bulyan": {IDENTITY, SCALE, HULL},
    "bulyan:within=round": {IDENTITY, SCALE, HULL},
    "flower:FedAvg": {SCALE, HULL},
    "flower:FedMedian": {SCALE, HULL},
    "flower:Krum,num_malicious_nodes=2": {IDENTITY, SCALE, HULL},
    "clip:norm=2.0+mean": {IDENTITY},
    "zero_outliers:times=1.0+mean": {IDENTITY, SCALE},
    "upgrad": {IDENTITY, SCALE},
    "pcgrad": {IDENTITY, SCALE},
    "pcgrad:orders=1,seed=7": {IDENTITY, SCALE},
    "cagrad": {IDENTITY, SCALE},
    "cagrad:c=0.2": {IDENTITY, SCALE},
    "imtl_g": {IDENTITY, SCALE},
    "fedbuff:size=2": {IDENTITY, SCALE, HULL},
    "fedbuff:size=2,by=tasks,discount=hinge": {IDENTITY, SCALE, HULL},
    "scaffold": {IDENTITY, SCALE, HULL},
    "momentum": {SCALE},
    "adam": set(),
    "yogi": set(),
    "adagrad": set(),
    "clip:norm=2.0+zero_outliers+trimmed_mean+yogi": set(),
    "median+momentum:beta=0.5": {SCALE},
}
"""identity: equal updates come back as they are, bit for bit. scale: updates and base times c give the result times c.
hull: no coordinate lies outside what the children sent.
"""


def kept(law: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("rule", [word for word, laws in LAWS.items() if law in laws])


every = pytest.mark.parametrize("rule", list(LAWS))
SCALES = (0.0, 1e-10, 1.0, 1e15)


def test_every_part_is_held_to_laws() -> None:
    assert {part.name for word in LAWS for part in find_rule(word).parts} == set(PARTS)


@every
def test_shape_dtype_and_finite(rule: str) -> None:
    for scale, count in product(SCALES, (1, 3, 7)):
        if find_rule(rule).least > count:
            continue
        found = sets(0, count, scale)
        fused = fuse(rule, found[0], [contribution(f"c{k}", tensors, k + 1) for k, tensors in enumerate(found)])
        assert spec_of(fused) == spec_of(found[0]), (scale, count)
        assert all(np.isfinite(array).all() for array in fused.values()), (scale, count)


@kept(IDENTITY)
def test_equal_updates_come_back_as_they_are(rule: str) -> None:
    for scale in SCALES:
        tensors = sets(1, 1, scale)[0]
        fused = fuse(rule, tensors, [contribution(f"c{k}", tensors, 3 * k + 1) for k in range(7)])
        for name in tensors:
            assert fused[name].tobytes() == tensors[name].tobytes(), (scale, name)


@kept(SCALE)
def test_a_scaled_round_gives_a_scaled_target(rule: str) -> None:
    """A power of two, so that the law holds to the last bit but for sums that round."""
    base, *updates = sets(8, 8)
    floats = [name for name in base if base[name].dtype == np.float32]
    plain = fuse(rule, base, [contribution(f"c{k}", tensors, k + 1) for k, tensors in enumerate(updates)])
    for factor in (2.0**-20, 0.5, 2.0**20):
        times = [{name: (t[name] * np.float32(factor) if name in floats else t[name]) for name in t} for t in (base, *updates)]
        scaled = fuse(rule, times[0], [contribution(f"c{k}", tensors, k + 1) for k, tensors in enumerate(times[1:])])
        for name in floats:
            np.testing.assert_allclose(scaled[name], plain[name] * np.float32(factor), rtol=1e-6)


@kept(HULL)
def test_no_coordinate_leaves_what_the_children_sent(rule: str) -> None:
    base, *updates = sets(9, 8)
    fused = fuse(rule, base, [contribution(f"c{k}", tensors, {"s": k + 1, "t": 3}) for k, tensors in enumerate(updates)])
    for name in ("w", "b", "scalar"):
        stacked = np.stack([tensors[name] for tensors in updates])
        assert (fused[name] >= stacked.min(0) - 1e-6).all()
        assert (fused[name] <= stacked.max(0) + 1e-6).all()


@every
def test_inputs_are_bit_identical_after(rule: str) -> None:
    found = sets(2, 9)
    before = [{name: array.copy() for name, array in tensors.items()} for tensors in found]
    fuse(rule, found[0], [contribution(f"c{k}", tensors) for k, tensors in enumerate(found)])
    for tensors, kept_ in zip(found, before, strict=True):
        assert all(tensors[name].tobytes() == kept_[name].tobytes() for name in tensors)


@every
def test_the_order_of_the_list_does_not_matter(rule: str) -> None:
    updates = [contribution(f"c{k}", tensors, {"s": k + 1, "t": 9 - k}) for k, tensors in enumerate(sets(3, 9))]
    base = sets(3, 1)[0]
    shuffled = [updates[k] for k in (4, 0, 8, 2, 6, 1, 7, 3, 5)]
    first, second, third = (fuse(rule, base, order) for order in (updates, updates[::-1], shuffled))
    assert all(first[name].tobytes() == second[name].tobytes() == third[name].tobytes() for name in first)


@every
def test_weights_that_are_all_zero_are_refused(rule: str) -> None:
    with pytest.raises(TooFewChildren):
        fuse(rule, sets(4, 1)[0], [contribution(f"c{k}", sets(4, 1)[0], 0) for k in range(9)])


@every
def test_a_child_without_samples_has_no_effect_whatever_it_sends(rule: str) -> None:
    good, bad = sets(5, 2)
    bad = {name: np.full_like(array, np.nan) if array.dtype.kind == "f" else array for name, array in bad.items()}
    honest = [contribution(f"c{k}", good, 5) for k in range(8)]
    with_it, without = fuse(rule, good, [*honest, contribution("z", bad, 0)]), fuse(rule, good, honest)
    assert all(with_it[name].tobytes() == without[name].tobytes() for name in good)


@every
def test_weights_are_told_of_every_child_and_sum_to_one(rule: str) -> None:
    base, *updates = sets(7, 9)
    _, fused, _ = play(rule, base, [contribution(f"c{k}", t, {"s": k + 1, "t": 3 * k % 5}) for k, t in enumerate(updates)])
    assert set(fused.weights) == {f"c{k}" for k in range(8)}
    assert sum(fused.weights.values()) == pytest.approx(1.0)
    assert min(fused.weights.values()) >= 0


# -- the mean ----------------------------------------------------------------------------------------------------------


def test_the_mean_is_the_float64_mean_to_one_unit_in_the_last_place() -> None:
    found, counts = sets(6, 9), [3, 1000, 1, 17, 250, 8, 9, 77, 4]
    updates = [contribution(f"c{k}", tensors, n) for k, (tensors, n) in enumerate(zip(found, counts, strict=True))]
    fused = fuse("mean", found[0], updates)
    for name in ("w", "b", "scalar"):
        exact = sum(n * t[name].astype(np.longdouble) for t, n in zip(found, counts, strict=True)) / sum(counts)
        distance = np.abs(fused[name].astype(np.longdouble) - exact)
        assert (distance <= np.spacing(np.abs(fused[name]))).all()


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_the_mean_adds_in_float64_in_the_order_of_the_ids_and_rounds_once(dtype: type[np.generic]) -> None:
    """To the last bit, also where a tensor is cut into pieces: what was published once is found again by a replay."""
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"long": (70_000,), "rows": (3, 40_000), "one": ()}
    found = [{name: np.asarray(rng.standard_normal(shape)).astype(dtype) for name, shape in shapes.items()} for _ in range(5)]
    counts = [3, 1000, 1, 17, 250]
    updates = [contribution(f"c{k}", tensors, n) for k, (tensors, n) in enumerate(zip(found, counts, strict=True))]
    target, fused, _ = play("mean", found[0], updates[::-1])
    for name in shapes:
        total = found[0][name].astype(np.float64) * fused.weights["c0"]
        for number, tensors in enumerate(found[1:], 1):
            total = total + tensors[name].astype(np.float64) * fused.weights[f"c{number}"]
        assert target[name].tobytes() == np.asarray(total).astype(dtype).tobytes(), name


def test_by_task_a_large_task_does_not_drown_a_small_one() -> None:
    one, zero = np.ones(2, np.float32), np.zeros(2, np.float32)
    updates = [contribution("a", {"w": one}, {"small": 10}), contribution("b", {"w": zero}, {"large": 990})]
    np.testing.assert_allclose(fuse("mean_by_task", {"w": zero}, updates)["w"], 0.5)
    np.testing.assert_allclose(fuse("mean", {"w": zero}, updates)["w"], 0.01)


def test_bfloat16_is_summed_in_float64() -> None:
    values = [{"w": to_bf16(np.full(4, 1.0 + k / 128, np.float32))} for k in range(1000 % 128)]
    fused = fuse("mean", values[0], [contribution(f"c{k:03}", tensors) for k, tensors in enumerate(values)])
    exact = np.mean([widen(tensors["w"], "BF16")[0] for tensors in values])
    assert fused["w"].tobytes() == to_bf16(np.full(4, exact, np.float32)).tobytes()


def test_a_capped_rule_tells_the_capped_weights() -> None:
    one, zero = {"w": np.ones(1, np.float32)}, {"w": np.zeros(1, np.float32)}
    updates = [contribution("a", one, 10**12), contribution("b", zero, 1), contribution("c", zero, 1)]
    target, fused, _ = play("mean", zero, updates, most=0.5)
    assert fused.weights == pytest.approx({"a": 0.5, "b": 0.25, "c": 0.25})
    assert target["w"][0] == pytest.approx(0.5)


# -- words -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "canonical"),
    [
        ("mean", "mean"),
        ("mean+adam", "adam"),
        ("mean:by=sqrt+adam", "mean:by=sqrt+adam"),
        (" median + adam : rate = 1e-2 ", "median+adam"),
        ("momentum:rate=1e+2", "momentum:rate=100.0"),
    ],
)
def test_a_rule_has_one_canonical_word(word: str, canonical: str) -> None:
    assert str(find_rule(word)) == canonical
    assert str(find_rule(canonical)) == canonical


@pytest.mark.parametrize(
    "word", ["", "best", "mean+", "adam+mean", "mean+median", "adam+momentum", "mean:by=age", "mean:trim=1", "+"]
)
def test_what_is_no_rule_is_refused(word: str) -> None:
    with pytest.raises(SpecError, match="`rule`"):
        find_rule(word)


@pytest.mark.parametrize("word", ["clip+clip:norm=2+mean", "+".join(["clip"] * 10_000), "clip+zero_outliers+clip+median"])
def test_a_filter_stands_once(word: str) -> None:
    """Its notes would be lost, and thousands of them are no rule but a way to keep the master busy."""
    with pytest.raises(SpecError, match="filters, each once"):
        find_rule(word)


@pytest.mark.parametrize("number", ["inf", "nan", "1e400", "9" * 400])
def test_no_option_takes_a_number_beyond_all_bounds(number: str) -> None:
    """It would come up in the first fusion, when everybody has trained."""
    for name, part in PARTS.items():
        needed = {"fedbuff": "size=2,"}.get(name, "")
        for key, field in part.model_fields.items():
            if field.annotation in (int, float):
                word = f"{name}:{key}={number}" if key == "size" else f"{name}:{needed}{key}={number}"
                with pytest.raises(SpecError, match=f"`{key}` is wrong"):
                    find_rule(word)


def test_each_part_is_of_one_kind_and_says_what_it_is() -> None:
    for name, part in PARTS.items():
        assert sum(issubclass(part, kind) for kind in (Filter, Combine, Step)) == 1, name
        assert (part.__doc__ and "arXiv" in part.__doc__) or name == "mean_by_task", f"{name} should name its source"
        for key, field in part.model_fields.items():
            assert field.description, f"{name}:{key} should say what it is"


def test_a_job_with_an_unknown_rule_is_refused_when_it_is_read() -> None:
    """At its first fusion a round of everybody's training would be lost."""
    with pytest.raises(ValidationError, match="`rule` should be one of mean"):
        JobSpec.model_validate({"encoder": "a", "rule": "majority"})
    assert JobSpec.model_validate({"encoder": "a", "rule": "mean + adam"}).rule == "adam"


def test_a_rule_reads_slices_as_it_reads_all() -> None:
    base, *updates = sets(11, 8)
    for word in LAWS:
        rule = find_rule(word)
        fused = rule.fuse(parameters(base), [contribution(f"c{k}", tensors) for k, tensors in enumerate(updates)])
        state = fused.state.tensors if fused.state else None
        target = fused.target(state)
        for name in ("w", "b"):
            parts = np.concatenate([target.read(name, slice(k, k + 1)) for k in range(target.spec[name].rows)])
            assert parts.tobytes() == target.read(name, slice(0, target.spec[name].rows)).tobytes(), (word, name)
