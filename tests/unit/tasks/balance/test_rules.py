"""The rules against their papers' algorithms on whole gradients, and against two-task cases by hand."""

from collections.abc import Mapping
from itertools import pairwise
from math import exp, sqrt
from typing import Any

import numpy as np
import pytest
import torch

from tasks import balance
from tests.support import plain_balance, plain_conflict

Floats = np.ndarray[Any, np.dtype[np.float64]]


def rows(seed: int, tasks: int, width: int = 12) -> Floats:
    """Gradients, the first of which is against the second; float32 values, so that tensors hold them exactly."""
    found = np.random.default_rng(seed).standard_normal((tasks, width))
    found[0] -= 1.2 * found[1]
    return found.astype(np.float32).astype(np.float64)


def named(gradients: Floats) -> dict[str, dict[str, torch.Tensor]]:
    """Each row as a gradient of two tensors."""
    half = gradients.shape[1] // 2
    return {
        f"t{k}": {"a": torch.tensor(row[:half], dtype=torch.float32), "b": torch.tensor(row[half:], dtype=torch.float32)}
        for k, row in enumerate(gradients)
    }


def step(
    rule: str, gradients: Floats, losses: Floats | None = None, state: Mapping[str, float] | None = None, seed: int = 0
) -> balance.Combined:
    told = {f"t{k}": float(loss) for k, loss in enumerate(np.ones(len(gradients)) if losses is None else losses)}
    return balance.find(rule).combine(named(gradients), told, dict.fromkeys(told, 8), state or {}, seed)


def direction(found: balance.Combined) -> Floats:
    return np.concatenate([found.gradient["a"].numpy(), found.gradient["b"].numpy()]).astype(np.float64)


def played(rule: str, batches: list[Floats], losses: Floats) -> Floats:
    """The weights of every step (steps, K), as the paper has them."""
    state: Mapping[str, float] = {}
    found = []
    for gradients, row in zip(batches, losses, strict=True):
        now = step(f"{rule}{',' if ':' in rule else ':'}norm=own", gradients, row, state)
        found.append(list(now.weights.values()))
        state = now.state
    return np.array(found)


seeds = pytest.mark.parametrize("seed", range(4))
tasks_ = pytest.mark.parametrize("tasks", [2, 3, 5])


# -- directions --------------------------------------------------------------------------------------------------------


@seeds
@tasks_
@pytest.mark.parametrize("rule", ["upgrad", "dualproj", "mgda", "aligned_mtl"])
def test_directions_are_those_of_the_papers(rule: str, tasks: int, seed: int) -> None:
    gradients = rows(seed, tasks)
    plain = {"upgrad": plain_conflict.upgrad}.get(rule) or getattr(plain_balance, rule)
    np.testing.assert_allclose(direction(step(f"{rule}:norm=own", gradients)), plain(gradients), atol=2e-6)


@seeds
@tasks_
@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0, 4.0])
def test_fairgrad_and_nash(alpha: float, tasks: int, seed: int) -> None:
    gradients = rows(seed, tasks)
    wanted = plain_balance.fairgrad(gradients, alpha)
    np.testing.assert_allclose(direction(step(f"fairgrad:alpha={alpha},norm=own", gradients)), wanted, atol=5e-6)
    if alpha == 1:
        np.testing.assert_allclose(direction(step("nash:norm=own", gradients)), wanted, atol=5e-6)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0, 10.0])
@seeds
def test_alpha_fair_weights_solve_their_equation_however_long_the_gradients_are(alpha: float, seed: int) -> None:
    gradients = rows(seed, 4) * 10.0 ** np.random.default_rng(seed).integers(-5, 6, (4, 1))
    found = step(f"fairgrad:alpha={alpha},norm=own", gradients)
    w, exact = np.array(list(found.weights.values())), gradients.astype(np.float32).astype(np.float64)
    np.testing.assert_allclose(exact @ exact.T @ w, w ** (-1 / alpha), rtol=2e-3)  # ten decades leave few digits


@seeds
@tasks_
def test_pcgrad(tasks: int, seed: int) -> None:
    gradients = rows(seed, tasks)
    torch.manual_seed(seed)
    wanted = plain_conflict.pcgrad(gradients, [torch.randperm(tasks).tolist() for _ in range(tasks)])
    np.testing.assert_allclose(direction(step("pcgrad:norm=own", gradients, seed=seed)), wanted, atol=5e-6)


@seeds
def test_imtl_g(seed: int) -> None:
    gradients = rows(seed, 3)
    wanted, found = plain_conflict.imtl_g(gradients), direction(step("imtl_g:norm=own", gradients))
    np.testing.assert_allclose(found, np.sign(wanted @ found) * wanted, atol=1e-5 * float(np.linalg.norm(wanted)))


@pytest.mark.parametrize("c", [0.0, 0.2, 0.4, 0.8])
def test_cagrad(c: float) -> None:
    gradients = rows(1, 3)
    wanted = plain_conflict.cagrad(gradients, c)
    np.testing.assert_allclose(direction(step(f"cagrad:c={c},norm=own", gradients)), wanted, atol=3e-3)


def test_gradvac_over_steps() -> None:
    batches, state = [rows(seed, 3) for seed in range(6)], dict[str, float]()
    orders = []
    for seed in range(6):
        torch.manual_seed(seed)
        others = [[j for j in range(3) if j != i] for i in range(3)]
        orders.append([[others[i][k] for k in torch.randperm(2).tolist()] for i in range(3)])
    wanted = plain_balance.gradvac(batches, orders, 0.3)
    for seed, gradients in enumerate(batches):
        found = step("gradvac:beta=0.3,norm=own", gradients, state=state, seed=seed)
        state = dict(found.state)
        np.testing.assert_allclose(direction(found), wanted[seed], atol=1e-5)
    assert len(state) == 6


# -- weights over steps ------------------------------------------------------------------------------------------------

LOSSES = np.abs(np.random.default_rng(7).standard_normal((40, 3))) * [0.1, 1.0, 10.0] + 0.05
BATCHES = [rows(seed, 3) for seed in range(40)]


def test_uncertainty() -> None:
    np.testing.assert_allclose(played("uncertainty:rate=0.05", BATCHES, LOSSES), plain_balance.uncertainty(LOSSES, 0.05), rtol=1e-9)


def test_imtl_l() -> None:
    np.testing.assert_allclose(played("imtl_l:rate=0.05", BATCHES, LOSSES), plain_balance.imtl_l(LOSSES, 0.05), rtol=1e-9)


def test_famo_with_the_loss_of_the_next_batch_in_place_of_a_second_look() -> None:
    found = played("famo:rate=0.1,decay=0.01", BATCHES, LOSSES)
    np.testing.assert_allclose(found, plain_balance.famo(LOSSES, 0.1, 0.01), rtol=1e-9)


@pytest.mark.parametrize("every", [1, 7])
def test_dwa(every: int) -> None:
    wanted = plain_balance.dwa(LOSSES, 2.0, every)
    np.testing.assert_allclose(played(f"dwa:every={every}", BATCHES, LOSSES), wanted, rtol=1e-9)
    assert np.ptp(wanted) > 0.1, "or it shows nothing"


@pytest.mark.parametrize("alpha", [0.0, 1.5])
def test_gradnorm(alpha: float) -> None:
    exact = [gradients.astype(np.float64) for gradients in BATCHES]
    wanted = plain_balance.gradnorm(exact, LOSSES, alpha, 0.025)
    np.testing.assert_allclose(played(f"gradnorm:alpha={alpha},rate=0.025", BATCHES, LOSSES), wanted, rtol=1e-6)
    assert np.ptp(wanted) > 0.1


def test_gradnorm_makes_gradients_alike() -> None:
    """One gradient is ten times as long, losses stand still: the weighed ones end at one length."""
    gradients = np.vstack([10 * np.eye(2, 4)[0], np.eye(2, 4)[1]])
    found = played("gradnorm:rate=0.05", [gradients] * 400, np.ones((400, 2)))
    np.testing.assert_allclose(found[-50:].mean(axis=0) * [10, 1], [20 / 11, 20 / 11], rtol=0.15)


# -- by hand -----------------------------------------------------------------------------------------------------------

TWO = np.array([[4.0, 0.0], [-1.0, 1.0]])
"""g1 g2 = -4: they are 135 degrees apart; G = [[16, -4], [-4, 2]]."""

ROOT2, ROOT5, ROOT65 = sqrt(2), sqrt(5), sqrt(65)
ALONG = (4 * ROOT2 + 4) / (6 + 5 * ROOT2)  # of g2 in IMTL-G, from (4 - 5 b) = (6 b - 4) / sqrt(2)
ALIGNED = sqrt(9 - ROOT65) * sqrt(26) / 104  # least singular value, times 1 / |.| of the root of G
BARGAIN = 1 / sqrt(16 - 8 * ROOT2)  # a of (a, sqrt(8) a): 16 a^2 - 4 sqrt(8) a^2 = 1

GOLDEN: dict[str, tuple[float, float]] = {
    "equal": (0.5, 0.5),
    "sum": (1, 1),
    "samples": (0.5, 0.5),  # eight each
    "pcgrad": (1 + 1 / 4, 1 + 2),  # g1 + 2 g2 and g2 + g1 / 4
    "gradvac": (1 + 1 / 4, 1 + 2),  # as PCGrad, while nothing is remembered
    "upgrad": (5 / 8, 3 / 2),
    "dualproj": (0.5, 1),  # mean (1.5, 0.5), g2 of it -1, |g2|^2 2
    "cagrad:c=0.4": (0.5, 0.5 + 0.4 * sqrt(2.5) / ROOT2),  # all of the radius along g2, which gains least even then
    "mgda": (3 / 13, 10 / 13),  # (g2 - g1) g2 / |g1 - g2|^2
    "imtl_g": (1 - ALONG, ALONG),
    "aligned_mtl": (5 * ALIGNED, 12 * ALIGNED),  # G ** -0.5 is sqrt(26) / 104 [[6, 4], [4, 20]]
    "nash": (BARGAIN, sqrt(8) * BARGAIN),
    "fairgrad:alpha=1": (BARGAIN, sqrt(8) * BARGAIN),
    "uncertainty": (0.5, 0.5),
    "imtl_l": (1, 1),
    "dwa": (1, 1),
    "gradnorm": (1, 1),
    "famo": (0.75, 0.25),  # losses 1 and 3
    "geometric": (sqrt(3) / 2, sqrt(3) / 6),
    "stch:mu=0.5": (0.5 * exp(1) / (exp(1) + exp(3)), 0.5 * exp(3) / (exp(1) + exp(3))),
}


@pytest.mark.parametrize("rule", GOLDEN)
def test_two_tasks_by_hand(rule: str) -> None:
    own = step(f"{rule}{',' if ':' in rule else ':'}norm=own", TWO, np.array([1.0, 3.0]))
    np.testing.assert_allclose(list(own.weights.values()), GOLDEN[rule], rtol=1e-6)
    np.testing.assert_allclose(direction(own), np.array(GOLDEN[rule]) @ TWO, rtol=1e-5, atol=1e-6)
    wanted = np.array(GOLDEN[rule]) @ TWO
    same = step(f"{rule}{',' if ':' in rule else ':'}norm=mean", TWO, np.array([1.0, 3.0]))
    np.testing.assert_allclose(direction(same), wanted * sqrt(2.5) / np.linalg.norm(wanted), rtol=1e-5, atol=1e-6)


def test_every_rule_has_a_case_by_hand() -> None:
    assert {rule.partition(":")[0] for rule in GOLDEN} | {"random"} == set(balance.RULES)


def test_random_weights_are_positive_sum_to_one_and_differ_by_step() -> None:
    found = [list(step("random:norm=own", TWO, seed=seed).weights.values()) for seed in range(200)]
    assert all(min(pair) > 0 and sum(pair) == pytest.approx(1) for pair in found)
    assert np.mean(found, axis=0) == pytest.approx([0.5, 0.5], abs=0.05)
    assert all(one != other for one, other in pairwise(found))
