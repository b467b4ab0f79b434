"""A real network with batch normalisation: what comes out of a rule is loaded by it as it is."""

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from master.rules import PARTS, Buffers
from tests.support.rules import contribution, fuse, play
from trunkline.tensors import Array

WORDS = {"fedbuff": "fedbuff:size=3", "flower": "flower:FedAvg"}
RULES = [WORDS.get(name, name) for name in PARTS if name not in ("upgrad", "pcgrad", "cagrad", "imtl_g")]


class Block(nn.Module):
    """A residual block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = (nn.BatchNorm2d(width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.relu(self.norm1(self.first(x)))
        return torch.relu(x + self.norm2(self.second(inner)))


class Network(nn.Module):
    """A small residual network with a mask, which is no parameter and yet part of its state."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4))
        self.blocks = nn.Sequential(Block(4), Block(4))
        self.register_buffer("mask", torch.tensor([True, False, True, True]))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(self.stem(x)).mean((2, 3)) * self.mask


def state_of(network: nn.Module) -> dict[str, Array]:
    return {name: tensor.detach().numpy().copy() for name, tensor in network.state_dict().items()}


def trained(seed: int, steps: int) -> dict[str, Array]:
    """A child's network after some batches of its own."""
    torch.manual_seed(0)
    network = Network()
    torch.manual_seed(seed)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.01)
    for _ in range(steps):
        optimiser.zero_grad()
        network(torch.randn(4, 3, 6, 6) + seed).pow(2).mean().backward()
        optimiser.step()
    return state_of(network)


@pytest.fixture(scope="module")
def states() -> list[dict[str, Array]]:
    """The base, then seven children, who have seen 1 to 7 batches."""
    return [trained(0, 0), *(trained(seed, seed) for seed in range(1, 8))]


def load(tensors: Mapping[str, Array]) -> Network:
    network = Network()
    network.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in tensors.items()}, strict=True)
    return network


@pytest.mark.parametrize("rule", RULES)
def test_the_target_is_loaded_strictly_and_runs(states: list[dict[str, Array]], rule: str) -> None:
    base, *found = states
    target, _, _ = play(rule, base, [contribution(f"c{k}", tensors, k + 1) for k, tensors in enumerate(found)])
    for name, array in base.items():
        assert (target[name].dtype, target[name].shape) == (array.dtype, array.shape), name
    count = target["stem.1.num_batches_tracked"]
    assert (count.dtype, count.shape) == (np.int64, ())
    assert 1 <= int(count) <= 7
    assert target["mask"].tolist() == [True, False, True, True]
    network = load(target)
    network.eval()
    assert torch.isfinite(network(torch.randn(2, 3, 6, 6))).all()


def test_running_means_are_averaged_as_floats_and_counters_follow_the_policy(states: list[dict[str, Array]]) -> None:
    base, *found = states
    updates = [contribution(f"c{k}", tensors, 5) for k, tensors in enumerate(found)]
    name = "blocks.0.norm1.running_mean"
    expected = np.mean([tensors[name].astype(np.float64) for tensors in found], axis=0)
    for way, count in (("mean", 4), ("max", 7), ("min", 1), ("keep", 0)):
        target = fuse("mean", base, updates, buffers=Buffers.model_validate({"integers": way}))
        assert int(target["stem.1.num_batches_tracked"]) == count
        np.testing.assert_allclose(target[name], expected, rtol=1e-6)


def test_a_variance_stays_positive_under_rules_that_stay_among_the_updates(states: list[dict[str, Array]]) -> None:
    """An optimiser at the server may step past zero; a mean, a median or a chosen update may not."""
    base, *found = states
    updates = [contribution(f"c{k}", tensors, k + 1) for k, tensors in enumerate(found)]
    for rule in ("mean", "median", "trimmed_mean", "geometric_median", "krum", "multi_krum", "bulyan", "clip+mean"):
        target = fuse(rule, base, updates)
        assert all((array > 0).all() for name, array in target.items() if name.endswith("running_var")), rule
