"""What every rule promises, by chance and by the traps that each has."""

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks import balance
from tasks.balance import sums
from trunkline.errors import Reason, RefusedValue, SettingsError, SpecError

Floats = np.ndarray[Any, np.dtype[np.float64]]

RULES = tuple(balance.RULES)
AVERSE = ("pcgrad", "gradvac", "cagrad", "upgrad", "dualproj", "mgda", "imtl_g", "aligned_mtl")
BY_GRADIENTS = (*AVERSE, "fairgrad", "nash")  # that look at nothing but gradients
REMEMBERING = ("uncertainty", "imtl_l", "dwa:every=1", "famo", "gradnorm", "gradvac")
each = pytest.mark.parametrize("rule", RULES)

names = st.lists(st.text("abcdxyz", min_size=1, max_size=4), min_size=1, max_size=4, unique=True)
some = settings(max_examples=6, deadline=None)


def gradients_of(tasks: list[str], seed: int, scale: float = 1.0) -> dict[str, dict[str, torch.Tensor]]:
    random = torch.Generator().manual_seed(seed)
    shapes = {"w": (5, 3), "b": (3,), "s": ()}
    return {task: {name: scale * torch.randn(shape, generator=random) for name, shape in shapes.items()} for task in tasks}


def step(
    rule: str,
    gradients: balance.Gradients,
    losses: dict[str, float] | None = None,
    state: balance.State | None = None,
    seed: int = 5,
) -> balance.Combined:
    told = losses or {task: 1.0 + place for place, task in enumerate(sorted(gradients))}
    return balance.find(rule).combine(gradients, told, dict.fromkeys(gradients, 4), state or {}, seed)


def flat(tensors: Any) -> Floats:
    return np.concatenate([tensors[name].reshape(-1).numpy() for name in sorted(tensors)]).astype(np.float64)


def mean(gradients: balance.Gradients) -> Floats:
    return np.asarray(np.mean([flat(tensors) for tensors in gradients.values()], axis=0))


def same(one: balance.Combined, other: balance.Combined) -> None:
    assert {name: t.numpy().tobytes() for name, t in one.gradient.items()} == {
        name: t.numpy().tobytes() for name, t in other.gradient.items()
    }
    assert (dict(one.weights), dict(one.heads), dict(one.state)) == (dict(other.weights), dict(other.heads), dict(other.state))


# -- laws --------------------------------------------------------------------------------------------------------------


@each
@given(tasks=names, seed=st.integers(0, 2**32), order=st.randoms())
@some
def test_the_order_of_the_tasks_does_not_matter(rule: str, tasks: list[str], seed: int, order: Any) -> None:
    gradients = gradients_of(tasks, seed)
    losses = {task: 0.1 + len(task) for task in tasks}
    shuffled = order.sample(tasks, len(tasks))
    turned = {task: dict(order.sample(sorted(gradients[task].items()), 3)) for task in shuffled}
    same(
        step(rule, gradients, losses, seed=seed % 2**31),
        step(rule, turned, {task: losses[task] for task in reversed(shuffled)}, seed=seed % 2**31),
    )


@each
@given(tasks=names, seed=st.integers(0, 2**32), power=st.integers(-40, 40))
@some
def test_gradients_twice_as_long_make_a_step_twice_as_long(rule: str, tasks: list[str], seed: int, power: int) -> None:
    small, large = step(rule, gradients_of(tasks, seed)), step(rule, gradients_of(tasks, seed, 2.0**power))
    if rule == "sum" or small.stretch == 0:
        return
    np.testing.assert_allclose(flat(large.gradient) / 2.0**power, flat(small.gradient), rtol=1e-4, atol=1e-5)


@each
@given(tasks=names, seed=st.integers(0, 2**32), scale=st.sampled_from([1e-10, 1.0, 1e10]))
@some
def test_the_step_is_as_long_as_the_mean(rule: str, tasks: list[str], seed: int, scale: float) -> None:
    gradients = gradients_of(tasks, seed, scale)
    found = step(f"{rule}:norm=mean", gradients)
    assert np.linalg.norm(flat(found.gradient)) == pytest.approx(np.linalg.norm(mean(gradients)) * (found.stretch > 0), rel=1e-4)


@each
@given(tasks=names, seed=st.integers(0, 2**32))
@some
def test_gradients_that_are_the_same_are_the_step(rule: str, tasks: list[str], seed: int) -> None:
    one = gradients_of(["a"], seed)["a"]
    found = step(f"{rule}:norm=mean", dict.fromkeys(tasks, one))
    np.testing.assert_allclose(flat(found.gradient), flat(one), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rule", ["equal", "samples", *BY_GRADIENTS])
@given(count=st.integers(2, 5), long=st.floats(1e-3, 1e3))
@some
def test_orthogonal_gradients_of_one_length_have_their_mean(rule: str, count: int, long: float) -> None:
    gradients = {f"t{k}": {"w": torch.eye(6)[k] * long} for k in range(count)}
    found = step(rule, gradients)
    np.testing.assert_allclose(flat(found.gradient), mean(gradients), rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("rule", [*BY_GRADIENTS, "equal"])
def test_opposite_gradients_move_nothing(rule: str) -> None:
    row = gradients_of(["a"], 3)["a"]
    opposite = {"x": row, "y": {name: -tensor for name, tensor in row.items()}}
    for word in (rule, f"{rule}:norm=own"):
        found = step(word, opposite)
        assert float(np.abs(flat(found.gradient)).max()) < 1e-5
        assert all(np.isfinite(list(found.weights.values())))


@pytest.mark.parametrize("rule", ["upgrad", "dualproj", "mgda", "nash", "fairgrad", "imtl_g"])
@given(seed=st.integers(0, 2**32), count=st.integers(2, 4))
@some
def test_no_task_loses_by_these(rule: str, seed: int, count: int) -> None:
    gradients = gradients_of([f"t{k}" for k in range(count)], seed)
    direction = flat(step(rule, gradients).gradient)
    along = [flat(tensors) @ direction / np.linalg.norm(flat(tensors)) for tensors in gradients.values()]
    assert min(along) >= -1e-4 * float(np.linalg.norm(direction))


@each
def test_all_rules_end_where_no_direction_is_good_for_both(rule: str) -> None:
    """Two quadratic losses, one ten times as steep: that is the line between the two best points."""
    best = {"a": torch.tensor([1.0, 0.0, 0.0]), "b": torch.tensor([0.0, 1.0, 0.0])}
    steep = {"a": 1.0, "b": 10.0}
    at, state = torch.tensor([2.0, 2.0, 1.0]), dict[str, float]()
    for turn in range(200):
        apart = {task: at - best[task] for task in best}
        losses = {task: float(steep[task] * apart[task].square().sum() / 2) + 1e-3 for task in best}
        found = step(rule, {task: {"w": steep[task] * apart[task]} for task in best}, losses, state, turn)
        at, state = at - 0.1 / (1 + turn / 20) * found.gradient["w"], dict(found.state)
    line = best["b"] - best["a"]
    along = float((at - best["a"]) @ line / (line @ line))
    nearest = best["a"] + min(1.0, max(0.0, along)) * line
    assert float((at - nearest).norm()) < 0.1


def test_the_mean_is_left_as_it_is() -> None:
    gradients = gradients_of(["a", "b", "c"], 3)
    found = step("equal", gradients)
    assert found.stretch == 1.0 and set(found.weights.values()) == {1 / 3}
    assert step("cagrad:c=0", gradients).weights == pytest.approx(found.weights)


# -- tasks that are not there ------------------------------------------------------------------------------------------


@each
def test_one_task_alone_is_its_own_gradient_bit_for_bit(rule: str) -> None:
    gradients = gradients_of(["only"], 1)
    found = step(rule, gradients, {"only": 0.7})
    for name, tensor in gradients["only"].items():
        assert found.gradient[name].numpy().tobytes() == tensor.numpy().tobytes()
        assert found.gradient[name].data_ptr() != tensor.data_ptr(), "memory of its own"
    assert found.weights == {"only": 1.0} and found.heads == {"only": 1.0}


@each
def test_a_gradient_of_zeros_is_left_out(rule: str) -> None:
    """MGDA and CAGrad would answer zero for all, and training would stop without a word."""
    gradients = gradients_of(["a", "b", "c"], 2)
    losses = {"a": 0.5, "b": 1.0, "c": 2.0}
    nothing = {name: torch.zeros_like(tensor) for name, tensor in gradients["a"].items()}
    for still in (nothing, {}):
        found = step(rule, gradients | {"quiet": still}, losses | {"quiet": 3.0})
        without = step(rule, gradients, losses)
        assert flat(found.gradient).tobytes() == flat(without.gradient).tobytes()
        assert found.weights == {**without.weights, "quiet": 0.0} and found.heads == {**without.heads, "quiet": 1.0}
        assert found.state == without.state


@each
def test_all_zeros(rule: str) -> None:
    found = step(rule, {"a": {"w": torch.zeros(3)}, "b": {"w": torch.zeros(3)}})
    assert found.gradient["w"].tolist() == [0, 0, 0] and found.stretch == 0 and not found.state
    assert step(rule, {"a": {}}).gradient == {}


@each
def test_a_tensor_that_a_task_has_not_is_zero_there(rule: str) -> None:
    gradients = gradients_of(["a", "b"], 4)
    filled = {"a": gradients["a"], "b": gradients["b"] | {"w": torch.zeros(5, 3)}}
    sparse = {"a": gradients["a"], "b": {"b": gradients["b"]["b"], "s": gradients["b"]["s"]}}
    found, wanted = step(rule, sparse), step(rule, filled)
    np.testing.assert_allclose(flat(found.gradient), flat(wanted.gradient), rtol=1e-6)


@pytest.mark.parametrize("rule", REMEMBERING)
def test_what_is_remembered_of_a_task_waits_for_it(rule: str) -> None:
    """K changes at run time; the state of a task that is absent stays as it is, also its step count."""
    tasks = ["a", "b", "c"]
    state: balance.State = {}
    for seed in range(5):
        state = step(rule, gradients_of(tasks, seed), dict(zip(tasks, (0.3, 1.0, 4.0 + seed), strict=True)), state).state
    of_c = {key: value for key, value in state.items() if "c" in key.split("/")[2:]}
    assert of_c
    for seed in range(5):
        after = step(rule, gradients_of(["a", "b"], seed), {"a": 0.5, "b": 0.2 + seed}, state).state
        assert {key: after[key] for key in of_c} == of_c
        assert after != state
        state = after
    back = step(rule, gradients_of([*tasks, "new"], 9), dict.fromkeys([*tasks, "new"], 1.0), state)
    assert all(np.isfinite(list(back.weights.values()))) and back.state.keys() > state.keys()


@pytest.mark.parametrize("rule", REMEMBERING)
def test_a_state_that_was_written_and_read_gives_the_same_bits(rule: str) -> None:
    """torchjd keeps neither FAMO's moments nor DWA's losses, and cannot load GradVac's cosines into a new object."""
    tasks = ["a", "b", "c"]
    kept: balance.State = {}
    read: balance.State = {}
    for seed in range(12):
        losses = {task: float(np.random.default_rng([seed, k]).random()) * 10**k for k, task in enumerate(tasks)}
        one = step(rule, gradients_of(tasks, seed), losses, kept, seed)
        other = step(rule, gradients_of(tasks, seed), losses, read, seed)
        same(one, other)
        kept, read = one.state, json.loads(json.dumps(dict(other.state), allow_nan=False))
    assert kept and all(type(value) is float for value in kept.values())


@each
def test_a_state_is_not_changed_in_place_nor_is_that_of_another_rule_lost(rule: str) -> None:
    state = {"other/what/a": 3.0}
    assert step(rule, gradients_of(["a", "b"], 0), state=state).state["other/what/a"] == 3.0
    assert state == {"other/what/a": 3.0}


# -- what is refused ---------------------------------------------------------------------------------------------------


@each
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_refused_by_name_before_it_reaches_the_others(rule: str, bad: float) -> None:
    gradients = gradients_of(["good", "spoilt"], 0)
    gradients["spoilt"]["w"][2, 1] = bad
    with pytest.raises(RefusedValue, match=r"gradient of spoilt should be finite.*'w'") as error:
        step(rule, gradients)
    assert error.value.reason == Reason.NOT_FINITE
    with pytest.raises(RefusedValue, match="loss of good should be finite"):
        step(rule, gradients_of(["good", "other"], 0), {"good": bad, "other": 1.0})


def test_the_largest_numbers_are_finite() -> None:
    gradients = {task: {"w": torch.full((1000,), 3e38)} for task in "ab"}
    assert step("equal", gradients).gradient["w"][0] == pytest.approx(3e38)


@pytest.mark.parametrize(
    ("tensor", "reason"), [(torch.zeros(3, dtype=torch.float64), Reason.DTYPE), (torch.zeros(4), Reason.SHAPE)]
)
def test_what_does_not_fit_is_refused_by_name(tensor: torch.Tensor, reason: Reason) -> None:
    with pytest.raises(RefusedValue, match="gradient of b should be") as error:
        step("equal", {"a": {"w": torch.zeros(3)}, "b": {"w": tensor}})
    assert error.value.reason == reason


def test_what_is_told_should_be_of_the_same_tasks() -> None:
    rule, gradients = balance.find("equal"), gradients_of(["a", "b"], 0)
    with pytest.raises(SpecError, match="`losses` should be of a, b, found a"):
        rule.combine(gradients, {"a": 1.0}, {"a": 1, "b": 1}, {}, 0)
    with pytest.raises(SpecError, match="`samples` of b should be at least 1, found 0"):
        rule.combine(gradients, {"a": 1.0, "b": 1.0}, {"a": 1, "b": 0}, {}, 0)
    with pytest.raises(SpecError, match="at least one task, found none"):
        rule.combine({}, {}, {}, {}, 0)


@pytest.mark.parametrize("losses", [{"a": 0.0, "b": 1.0}, {"a": -2.0, "b": 1.0}, {"a": 1e30, "b": 1e-30}])
@each
def test_strange_losses_end_in_finite_weights(rule: str, losses: dict[str, float]) -> None:
    state: balance.State = {}
    for seed in range(8):
        found = step(rule, gradients_of(["a", "b"], seed), losses, state)
        state = found.state
        assert np.isfinite(flat(found.gradient)).all()
        assert np.isfinite([*found.weights.values(), *found.heads.values(), *state.values()]).all()


# -- heads -------------------------------------------------------------------------------------------------------------

WEIGH_LOSSES = {"random", "uncertainty", "imtl_l", "dwa", "famo", "geometric", "stch", "gradnorm"}


@each
def test_heads_have_the_weight_where_it_is_one_of_the_loss(rule: str) -> None:
    assert balance.RULES[rule].moves_heads == (rule in WEIGH_LOSSES)
    gradients = gradients_of(["a", "b", "c"], 6)
    alike, own = step(rule, gradients), step(f"{rule}:norm=own", gradients)
    if rule not in WEIGH_LOSSES:
        assert alike.heads == own.heads == {"a": 1.0, "b": 1.0, "c": 1.0}
        return
    assert np.mean(list(alike.heads.values())) == pytest.approx(1)
    assert own.heads == own.weights, "the gradient of the weighed loss, head and all"
    np.testing.assert_allclose(
        np.array(list(alike.weights.values())) / alike.weights["a"], np.array(list(own.weights.values())) / own.weights["a"]
    )


# -- words -------------------------------------------------------------------------------------------------------------


def test_words() -> None:
    assert str(balance.find("cagrad:c=0.4")) == "cagrad" and str(balance.find(" cagrad : c=0.5")) == "cagrad:c=0.5"
    assert str(balance.find("gradnorm:alpha=0.5,norm=own")) == "gradnorm:norm=own,alpha=0.5"
    assert str(balance.find("sum")) == "sum" and str(balance.find("sum:norm=mean")) == "sum:norm=mean"
    assert balance.find("dwa:temperature=2") == balance.find("dwa")
    for word, told in {
        "cagard": "Did you mean cagrad",
        "cagrad:c=2": "`c` is wrong",
        "upgrad:c=1": "among norm, found 'c'",
        "equal:norm=long": "`norm` is wrong",
    }.items():
        with pytest.raises(SpecError, match=told):
            balance.find(word)


def test_the_catalogue_says_of_each_rule_what_it_is() -> None:
    found = {entry["name"]: entry for entry in balance.catalogue()}
    assert list(found) == list(RULES)
    assert all(entry["about"] and all(option["meaning"] for option in entry["options"]) for entry in found.values())
    assert [entry["name"] for entry in found.values() if entry["heads"]] == [name for name in RULES if name in WEIGH_LOSSES]
    chosen = balance.describe(type(balance.find("dwa")), balance.find("dwa:every=7"))
    assert {option["name"]: option["value"] for option in chosen["options"]} == {"norm": "mean", "temperature": "2.0", "every": "7"}


@pytest.mark.parametrize("rule", AVERSE)
def test_without_the_extra_it_is_told_when_a_stream_is_configured(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchjd", None)
    with pytest.raises(SettingsError, match=rf"`rule` {rule}: .*torchjd should be installed.* pip install 'trunkline\[conflict\]'"):
        balance.find(rule).check_installed()
    with pytest.raises(SettingsError, match="torchjd should be installed"):
        step(rule, gradients_of(["a", "b"], 0))
    for other in set(RULES) - set(AVERSE):
        balance.find(other).check_installed()
        step(other, gradients_of(["a", "b"], 0))


# -- bits --------------------------------------------------------------------------------------------------------------


@each
def test_it_takes_no_random_numbers_of_others_and_is_the_same_again(rule: str) -> None:
    gradients, state = gradients_of(["a", "b", "c", "d"], 8), torch.get_rng_state()
    first = step(rule, gradients, seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    same(step(rule, gradients, seed=3), first)


def test_the_bits_do_not_depend_on_the_number_of_threads() -> None:
    gradients = {task: {"w": torch.randn(300_000, generator=torch.Generator().manual_seed(k))} for k, task in enumerate("abc")}
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(step("upgrad", gradients))
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(threads)
    same(found[0], found[1])
    same(found[0], found[2])


def test_products_of_slices_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    gradients = gradients_of(["a", "b"], 1)
    for tensors in gradients.values():
        tensors["w"] = torch.randn(7, 11).T  # not contiguous
    whole = np.stack([flat(gradients[task]) for task in "ab"])
    for size in (1, 3, 10, 1 << 16):
        monkeypatch.setattr(sums, "SLICE", size)
        found = sums.gramian(gradients, ["a", "b"], sums.check(gradients))
        np.testing.assert_allclose(found, whole @ whole.T, rtol=1e-12)
        mixed = sums.mixed(gradients, {"a": 0.25, "b": -2.0}, sums.check(gradients))
        np.testing.assert_allclose(flat(mixed), np.array([0.25, -2.0]) @ whole, rtol=1e-6, atol=1e-6)


def test_the_words_can_be_read_without_torch() -> None:
    code = "import sys; from tasks import balance; balance.catalogue(); balance.find('cagrad'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
