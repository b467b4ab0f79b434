"""Cosines of gradients: exact ones, and those of sketches with their error."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tasks import balance
from tasks.balance.matrix import Sketches, estimated, exact, met, told
from tasks.balance.sketch import SIZE, sketch
from tests.support import plain_balance
from trunkline.errors import RefusedValue

Floats = np.ndarray[Any, np.dtype[np.float64]]

SHAPES = {"table": (3000, 384), "layer": (384, 384), "norm": (384,), "scale": ()}
ERROR = 1 / np.sqrt(SIZE)  # 0.016


def gradient(seed: int) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=random) for name, shape in SHAPES.items()}


def blended(one: dict[str, Tensor], other: dict[str, Tensor], part: float) -> dict[str, Tensor]:
    return {name: part * one[name] + other[name] for name in one}


def flat(tensors: dict[str, Tensor]) -> Floats:
    return np.concatenate([tensors[name].reshape(-1).numpy() for name in sorted(tensors)]).astype(np.float64)


def cosine(one: Floats, other: Floats) -> float:
    return plain_balance.cosine(one, other)


# -- exact -------------------------------------------------------------------------------------------------------------


def test_exact_cosines_are_those_of_whole_gradients() -> None:
    gradients = {"b": gradient(0), "a": blended(gradient(0), gradient(1), -0.5), "c": gradient(2), "still": {}}
    found = exact(gradients, 7)
    assert [(row.step, row.one, row.other) for row in found] == [(7, "a", "b"), (7, "a", "c"), (7, "b", "c")]
    for row in found:
        wanted = cosine(flat(gradients[row.one]), flat(gradients[row.other]))
        assert row.cosine == pytest.approx(wanted, abs=1e-12)
    assert found[0].table() == {"step": 7, "one": "a", "other": "b", "cosine": found[0].cosine}


def test_a_step_of_a_rule_has_the_cosines_too() -> None:
    gradients = {"b": gradient(0), "a": blended(gradient(0), gradient(1), -0.5), "still": {}}
    combined = balance.find("upgrad").combine(gradients, dict.fromkeys(gradients, 1.0), dict.fromkeys(gradients, 8), {}, 0)
    assert told(combined, 7) == exact(gradients, 7)


def test_exact_cosines_of_very_long_and_very_short_gradients() -> None:
    short = {"w": torch.tensor([1e-20, 2e-20])}
    long = {"w": torch.tensor([-1e30, -2e30])}
    assert exact({"a": short, "b": long}, 0)[0].cosine == pytest.approx(-1, abs=1e-6)


def test_float32_sums_would_lose_what_float64_keeps() -> None:
    """Many small elements beside a large one."""
    one = torch.full((1 << 21,), 1e-4)
    one[0] = 1e2
    other = one.clone()
    other[0] = -1e2
    small = float(one[1]) ** 2 * (len(one) - 1)
    found = exact({"a": {"w": one}, "b": {"w": other}}, 0)[0].cosine
    assert 1 + found == pytest.approx(2 * small / (1e4 + small), rel=1e-3)


# -- sketches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [-2.0, -0.5, 0.0, 0.5, 2.0])
def test_the_error_of_an_estimate(part: float) -> None:
    """About one over the root of the size, and none in the mean over the seeds."""
    one = gradient(1)
    other = blended(one, gradient(2), part)
    wanted = cosine(flat(one), flat(other))
    errors = np.array([cosine(sketch(one, seed), sketch(other, seed)) - wanted for seed in range(24)])
    assert float(errors.std()) < 1.4 * ERROR
    assert abs(float(errors.mean())) < ERROR
    assert float(np.abs(errors).max()) < 4 * ERROR


def test_a_larger_sketch_errs_less() -> None:
    one, other = gradient(3), gradient(4)
    wanted = cosine(flat(one), flat(other))

    def deviation(size: int) -> float:
        errors = [cosine(sketch(one, seed, size), sketch(other, seed, size)) - wanted for seed in range(20)]
        return float(np.std(errors))

    assert deviation(256) > 2 * deviation(4096)


STRUCTURED = {
    "low rank": lambda random: torch.randn(3000, 1, generator=random) @ torch.randn(1, 384, generator=random),
    "all alike but for the columns": lambda random: torch.ones(3000, 1) @ torch.randn(1, 384, generator=random),
    "a common direction": lambda random: torch.randn(3000, 384, generator=random) + torch.randn(1, 384, generator=random),
    "few rows": lambda random: torch.randn(3000, 384, generator=random) * (torch.rand(3000, 1, generator=random) < 0.01),
}


@pytest.mark.parametrize("kind", STRUCTURED)
def test_gradients_are_not_random_and_the_error_is_the_same(kind: str) -> None:
    errors = []
    for seed in range(24):
        random = torch.Generator().manual_seed(seed)
        one, other = ({"table": STRUCTURED[kind](random)} for _ in range(2))
        errors.append(cosine(sketch(one, seed), sketch(other, seed)) - cosine(flat(one), flat(other)))
    assert float(np.std(errors)) < 1.6 * ERROR


def test_a_sketch_is_linear_and_keeps_lengths() -> None:
    one, other = gradient(5), gradient(6)
    np.testing.assert_allclose(sketch(blended(one, other, 3.0)), 3 * sketch(one) + sketch(other), rtol=1e-4, atol=1e-2)
    assert float(sketch(one) @ sketch(one)) == pytest.approx(float(flat(one) @ flat(one)), rel=4 * ERROR)


def test_a_tensor_that_is_missing_is_zero() -> None:
    one = gradient(7)
    assert sketch({**one, "norm": torch.zeros(384)}).tobytes() == sketch({k: v for k, v in one.items() if k != "norm"}).tobytes()
    assert not sketch({}).any()
    turned = sketch(dict(reversed(one.items())))
    assert turned.tobytes() == sketch(one).tobytes()


@dataclass(frozen=True)
class SomeRows:
    index: Tensor
    values: Tensor


@pytest.mark.parametrize("size", [64, 4096])
def test_some_rows_are_as_the_whole_tensor(size: int) -> None:
    index = torch.randperm(3000, generator=torch.Generator().manual_seed(0))[:50].sort().values
    values = torch.randn(50, 384, generator=torch.Generator().manual_seed(1))
    whole = torch.zeros(3000, 384).index_copy(0, index, values)
    found = sketch({"table": SomeRows(index, values)}, 3, size)
    np.testing.assert_allclose(found, sketch({"table": whole}, 3, size), atol=1e-4)


# -- over time ---------------------------------------------------------------------------------------------------------


def test_tasks_whose_batches_come_at_different_times_are_compared() -> None:
    one, noise = gradient(8), [gradient(seed) for seed in range(20, 24)]
    state: Sketches = {}
    state, rows = met(state, "b", sketch(one), 1)
    assert rows == []
    state, rows = met(state, "a", sketch(blended(one, noise[0], -1.0)), 2)
    assert [(row.step, row.one, row.other) for row in rows] == [(2, "a", "b")]
    assert rows[0].cosine == pytest.approx(-np.sqrt(0.5), abs=4 * ERROR)
    state, rows = met(state, "c", sketch(one), 3)
    assert [(row.one, row.other) for row in rows] == [("a", "c"), ("b", "c")]
    assert rows[1].cosine == pytest.approx(1, abs=1e-6)
    assert {name: (value.dtype, value.shape) for name, value in state.items()} == dict.fromkeys("bac", (np.float32, (SIZE,)))
    assert [(row.one, row.other) for row in estimated(state, ("a", "b", "c", "unknown"), 3)] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert estimated({}, ("a",), 3) == []


def test_the_noise_of_batches_is_averaged_out() -> None:
    """Two tasks that are against each other, under noise three times as long: a single batch hardly shows it, the mean does."""
    signal = sketch(gradient(9))
    random = np.random.default_rng(0)
    noisy = lambda sign: sign * signal + 3 * np.linalg.norm(signal) / np.sqrt(SIZE) * random.standard_normal(SIZE)  # noqa: E731
    last: Sketches = {}
    mean: Sketches = {}
    of_last, of_mean = [], []
    for step in range(200):
        for task, sign in (("a", 1.0), ("b", -1.0)):
            drawn = noisy(sign)
            last, one = met(last, task, drawn, step, decay=0.0)
            mean, other = met(mean, task, drawn, step, decay=0.95)
        of_last, of_mean = [*of_last, one[-1].cosine], [*of_mean, other[-1].cosine]
    assert np.mean(of_last[50:]) == pytest.approx(-0.1, abs=0.02)
    assert np.mean(of_mean[50:]) < -0.7


def test_a_gradient_of_zeros_changes_nothing_and_one_that_is_not_finite_is_refused() -> None:
    state, _ = met({}, "a", sketch(gradient(1)), 1)
    assert met(state, "b", np.zeros(SIZE), 2) == (state, [])
    with pytest.raises(RefusedValue, match="gradient of b should be finite"):
        met(state, "b", np.full(SIZE, np.nan), 2)
    assert not np.isfinite(sketch({"w": torch.tensor([1.0, float("nan")])})).all()


def test_a_state_that_was_written_and_read_goes_on_the_same() -> None:
    state, _ = met({}, "a", sketch(gradient(1)), 1)
    read = {name: np.frombuffer(value.tobytes(), np.float32) for name, value in state.items()}
    for task, seed in (("b", 2), ("a", 3)):
        state, rows = met(state, task, sketch(gradient(seed)), seed)
        read, again = met(read, task, sketch(gradient(seed)), seed)
        assert rows == again
    assert {name: value.tobytes() for name, value in state.items()} == {name: value.tobytes() for name, value in read.items()}
