"""The conflict-averse rules against the papers' own algorithms on whole movements, and what they promise beyond."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from master.rules import Contribution, find_rule
from tasks import conflict
from tests.support import plain_conflict
from tests.support.rules import contribution, fuse, play
from trunkline.errors import SpecError

Floats = np.ndarray[Any, np.dtype[np.float64]]

RULES = ("upgrad", "pcgrad", "cagrad", "imtl_g")
each = pytest.mark.parametrize("rule", RULES)


def movements(seed: int, tasks: int, scale: float = 1.0, width: int = 12) -> Floats:
    """Movements of tasks, the first of which is against the second; float32 values, so that sets hold them exactly."""
    found = np.random.default_rng(seed).standard_normal((tasks, width))
    found[0] -= 1.2 * found[1]
    return np.asarray((scale * found).astype(np.float32), np.float64)


def updates(rows: Floats, counts: Mapping[int, int] | None = None) -> list[Contribution]:
    """A child for each row, with a task of its own."""
    counts = counts or {}
    return [contribution(f"c{k}", {"w": row.astype(np.float32)}, {f"t{k}": counts.get(k, 10)}) for k, row in enumerate(rows)]


def moved(rule: str, rows: Floats, **changes: Any) -> Floats:
    base = {"w": np.zeros(rows.shape[1], np.float32)}
    return np.asarray(fuse(rule, base, updates(rows, **changes))["w"], np.float64)


def unit(vector: Floats) -> Floats:
    return np.asarray(vector / np.linalg.norm(vector))


# -- as the papers say -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("tasks", [2, 3, 5])
def test_upgrad(seed: int, tasks: int) -> None:
    rows = movements(seed, tasks)
    wanted = plain_conflict.upgrad(rows)
    np.testing.assert_allclose(conflict.upgrad(rows @ rows.T) @ rows, wanted, atol=1e-12)
    np.testing.assert_allclose(unit(moved("upgrad", rows)), unit(wanted), atol=1e-6)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("tasks", [2, 3, 5])
def test_pcgrad(seed: int, tasks: int) -> None:
    rows = movements(seed, tasks)
    torch.manual_seed(seed)
    wanted = plain_conflict.pcgrad(rows, [torch.randperm(tasks).tolist() for _ in range(tasks)])
    np.testing.assert_allclose(conflict.pcgrad(rows @ rows.T, 1, seed) @ rows, wanted, atol=1e-12)
    np.testing.assert_allclose(unit(moved(f"pcgrad:orders=1,seed={seed}", rows)), unit(wanted), atol=1e-6)


def test_pcgrad_of_many_orders_is_what_a_random_order_comes_to() -> None:
    rows = movements(1, 3)
    rng = np.random.default_rng(2)
    drawn = [plain_conflict.pcgrad(rows, [rng.permutation(3).tolist() for _ in range(3)]) for _ in range(2000)]
    np.testing.assert_allclose(conflict.pcgrad(rows @ rows.T, 200, 0) @ rows, np.mean(drawn, axis=0), atol=0.05)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("tasks", "c"), [(2, 0.2), (2, 0.5), (3, 0.5)])
def test_cagrad(seed: int, tasks: int, c: float) -> None:
    rows = movements(seed, tasks)
    wanted = plain_conflict.cagrad(rows, c)
    np.testing.assert_allclose(conflict.cagrad(rows @ rows.T, c) @ rows, wanted, atol=2e-3)
    np.testing.assert_allclose(unit(moved(f"cagrad:c={c}", rows)), unit(wanted), atol=2e-3)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("tasks", [2, 3, 5])
def test_imtl_g(seed: int, tasks: int) -> None:
    rows = movements(seed, tasks)
    wanted, found = plain_conflict.imtl_g(rows), conflict.imtl_g(rows @ rows.T) @ rows
    sign = np.sign(wanted @ found)
    np.testing.assert_allclose(found, sign * wanted, atol=1e-6 * float(np.linalg.norm(wanted)))
    along = [unit(row) @ moved("imtl_g", rows) for row in rows]
    assert min(along) > 0
    np.testing.assert_allclose(along, along[0], rtol=1e-4)


@pytest.mark.parametrize("seed", range(6))
def test_imtl_g_goes_forward_for_every_task_however_long_its_movement(seed: int) -> None:
    """Where lengths differ that much, the paper's weights can sum to less than zero, and lead every task backwards."""
    rows = movements(seed, 4) * 10.0 ** np.random.default_rng(seed).integers(-5, 6, (4, 1))
    step = unit(conflict.imtl_g(rows @ rows.T) @ rows)
    along = [unit(row) @ step for row in rows]
    assert min(along) > 0
    np.testing.assert_allclose(along, along[0], rtol=1e-6)


# -- what they promise -------------------------------------------------------------------------------------------------


@each
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("scale", [1e-10, 1.0, 1e15])
def test_the_step_is_as_long_as_the_mean_of_the_tasks(rule: str, seed: int, scale: float) -> None:
    rows = movements(seed, 4, scale)
    length = np.linalg.norm(moved(rule, rows))
    np.testing.assert_allclose(length, np.linalg.norm(rows.mean(axis=0)), rtol=1e-5)


@each
def test_a_large_round_is_weighed_as_a_small_one(rule: str) -> None:
    notes = []
    for scale in (2.0**-30, 1.0, 2.0**50):
        rows = movements(5, 4) * scale
        notes.append(play(rule, {"w": np.zeros(12, np.float32)}, updates(rows))[1].notes[rule])
    assert notes[0] == notes[1] == notes[2]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("spread", [0, 6])
def test_upgrad_moves_no_task_backwards(seed: int, spread: int) -> None:
    rows = movements(seed, 5) * 10.0 ** np.random.default_rng(seed).integers(-spread, spread + 1, (5, 1))
    rows[0] *= 4 * np.linalg.norm(rows[1:]) / np.linalg.norm(rows[0])
    step = moved("upgrad", rows)
    along = [unit(row) @ unit(step) for row in rows]
    assert min(along) > -1e-5
    assert min(unit(row) @ unit(np.asarray(rows.mean(axis=0))) for row in rows) < -0.1, "the mean does"


@each
def test_tasks_that_agree_get_their_mean(rule: str) -> None:
    """Orthogonal movements of one length: every method says the same."""
    rows = np.eye(4, 12) * 3.0
    np.testing.assert_allclose(moved(rule, rows), rows.mean(axis=0), atol=1e-6)


@each
def test_a_task_without_a_movement_is_left_out(rule: str) -> None:
    """MGDA and CAGrad would answer zero for all."""
    rows = movements(2, 3)
    still = np.vstack([rows, np.zeros(12)])
    assert moved(rule, still).tobytes() == moved(rule, rows).tobytes()
    weights = play(rule, {"w": np.zeros(12, np.float32)}, updates(still))[1].weights
    assert weights["c3"] == 0 and sum(weights.values()) == pytest.approx(1)


@each
def test_when_only_one_task_moved_its_movement_is_taken(rule: str) -> None:
    rows = np.zeros((3, 12))
    rows[1] = movements(3, 2)[0]
    np.testing.assert_allclose(moved(rule, rows), rows[1], rtol=1e-6)


@each
@pytest.mark.parametrize("rows", [np.zeros((3, 12)), np.outer([1.0, -1.0], np.ones(12)), np.outer([1.0, -0.5], np.ones(12))])
def test_where_no_direction_suits_all_nothing_moves(rule: str, rows: Floats) -> None:
    base = np.linspace(-1, 1, 12).astype(np.float32)
    found = fuse(rule, {"w": base}, updates(rows + base))["w"]
    wanted = rows.mean(axis=0) if rule == "cagrad" else 0.0  # which never turns away from the mean altogether
    np.testing.assert_allclose(found, base + wanted, atol=1e-6)


@each
def test_one_task_alone_is_fused_by_the_mean(rule: str) -> None:
    rows = movements(4, 3)
    children = [contribution(f"c{k}", {"w": row.astype(np.float32)}, 10 * k + 1) for k, row in enumerate(rows)]
    base = {"w": np.zeros(12, np.float32)}
    assert fuse(rule, base, children)["w"].tobytes() == fuse("mean", base, children)["w"].tobytes()


@each
def test_within_a_task_children_count_by_their_samples_of_it(rule: str) -> None:
    rows = movements(6, 2)
    base = {"w": np.zeros(12, np.float32)}
    off = np.random.default_rng(1).standard_normal(12).astype(np.float32)
    one, two = rows.astype(np.float32)
    children = [
        contribution("a", {"w": one + 3 * off}, {"t0": 10}),
        contribution("b", {"w": one - off}, {"t0": 30}),
        contribution("c", {"w": two}, {"t1": 7}),
    ]
    np.testing.assert_allclose(fuse(rule, base, children)["w"], moved(rule, rows), atol=1e-5)
    weights = play(rule, base, children)[1].weights
    assert weights["b"] == pytest.approx(3 * weights["a"])


@each
def test_a_round_that_is_computed_again_is_the_same_and_takes_no_random_numbers(rule: str) -> None:
    rows = movements(7, 5)
    first, state = moved(rule, rows), torch.get_rng_state()
    assert moved(rule, rows).tobytes() == first.tobytes()
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    assert moved(rule, rows).tobytes() == first.tobytes()


# -- the extra ---------------------------------------------------------------------------------------------------------


@each
def test_without_the_extra_it_is_told_before_a_round_and_in_it(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torchjd", None)
    with pytest.raises(SpecError, match=r"torchjd should be installed .* pip install 'trunkline\[conflict\]'"):
        find_rule(rule).combine.check_installed()
    with pytest.raises(SpecError, match="torchjd should be installed"):
        moved(rule, movements(0, 2))
    find_rule("mean").combine.check_installed()
