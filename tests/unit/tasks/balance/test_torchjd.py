"""Rules of our own against torchjd's, where it has them: the weights of a loss are the gradient of its scalarisation."""

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor
from torchjd import aggregation, scalarization

from tasks import balance

SLOPES = torch.tensor([[3.0, 0.5, 0.0, 1.0], [-1.0, 2.0, 0.5, 0.0], [0.5, -1.0, 1.0, 0.2]])
GRAMIAN = (SLOPES @ SLOPES.T).double()
LOSSES = np.abs(np.random.default_rng(1).standard_normal((12, 3))) + 0.2


def ours(rule: str, losses: np.ndarray, state: Mapping[str, float] | None = None) -> balance.Combined:  # type: ignore[type-arg]
    told = {f"t{k}": float(loss) for k, loss in enumerate(losses)}
    gradients = {f"t{k}": {"w": SLOPES[k]} for k in range(3)}
    return balance.find(f"{rule}{',' if ':' in rule else ':'}norm=own").combine(
        gradients, told, dict.fromkeys(told, 1), state or {}, 0
    )


def theirs(scalarize: scalarization.Scalarizer, losses: Tensor) -> list[float]:
    values = losses.clone().requires_grad_()
    return list(torch.autograd.grad(scalarize(values), values)[0].tolist())


@pytest.mark.parametrize(
    ("rule", "scalarizer"),
    [
        ("geometric", scalarization.GeometricMean()),
        ("stch:mu=0.3", scalarization.STCH(0.3)),
        ("equal", scalarization.Mean()),
        ("sum", scalarization.Sum()),
        ("uncertainty", scalarization.UW(3)),
        ("imtl_l", scalarization.IMTLL(3)),
    ],
    ids=str,
)
def test_first_steps(rule: str, scalarizer: scalarization.Scalarizer) -> None:
    for row in LOSSES:
        found = list(ours(rule, row).weights.values())
        assert found == pytest.approx(theirs(scalarizer.double(), torch.from_numpy(row)), rel=1e-6)


def test_famo_with_the_losses_after_a_step() -> None:
    famo, state = scalarization.FAMO(3, lr=0.1).double(), dict[str, float]()
    for row, after in zip(LOSSES, [*LOSSES[1:], LOSSES[0]], strict=True):
        found = ours("famo:rate=0.1", row, state)
        state = dict(found.state)
        assert list(found.weights.values()) == pytest.approx(theirs(famo, torch.from_numpy(row)), rel=1e-6)
        famo.update(torch.from_numpy(after))


def test_dwa_with_epochs_of_three() -> None:
    dwa, state = scalarization.DWA(), dict[str, float]()
    for number, row in enumerate(LOSSES):
        found = ours("dwa:every=3", row, state)
        state = dict(found.state)
        assert list(found.weights.values()) == pytest.approx(theirs(dwa, torch.from_numpy(row)), rel=1e-6)
        if number % 3 == 2:
            dwa.step()


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0])
def test_fairgrad(alpha: float) -> None:
    found = list(ours(f"fairgrad:alpha={alpha}", LOSSES[0]).weights.values())
    assert found == pytest.approx(aggregation.FairGradWeighting(alpha)(GRAMIAN).tolist(), rel=1e-3)


def test_mgda_is_no_longer_than_theirs() -> None:
    found = torch.tensor(list(ours("mgda", LOSSES[0]).weights.values()), dtype=torch.float64)
    near = aggregation.MGDAWeighting()(GRAMIAN)
    assert float(found.sum()) == pytest.approx(1) and float(found.min()) >= 0
    assert float(found @ GRAMIAN @ found) <= float(near @ GRAMIAN @ near) + 1e-12
    assert found.tolist() == pytest.approx(near.tolist(), abs=0.02)
