"""The store of a local training; what it comes to is in `tests/flow/test_oracles.py`."""

import pytest
import torch
from torch import nn

from child.optimiser import LocalStore
from tasks.step import Gradient
from trunkline.messages import Plan

PLAN = Plan(steps=1, total_steps=1, optimizer="sgd", learning_rate=1.0, head_learning_rate=1.0, clip_norm=0.0)


def test_a_step_that_failed_half_way_leaves_nothing_for_the_next_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given memory that ran out before the move, When the encoder is trained again, Then that gradient is gone."""
    touched, other, head = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2)), nn.Linear(2, 1)
    shared = {"touched": touched, "other": other}
    ones = torch.ones(2)

    def fail(*_: object) -> None:
        raise MemoryError

    store = LocalStore(PLAN, shared, {"t": head})
    with monkeypatch.context() as patch:
        patch.setattr(store, "_move", fail)
        with pytest.raises(MemoryError):
            store.apply(Gradient("t", 0.0, 1, {"touched": ones, "other": ones}, {}))
    LocalStore(PLAN, shared, {"t": head}).apply(Gradient("t", 0.0, 1, {"touched": ones}, {}))
    assert torch.equal(touched.data, -ones)
    assert torch.equal(other.data, torch.zeros(2)), "the batch did not touch it"


def test_moments_go_to_the_device_that_their_parameters_lie_on() -> None:
    """They come from a file. An optimiser of a GPU's parameters refuses others, so a child with one failed in its second round."""
    plan = PLAN.model_copy(update={"optimizer": "adamw"})
    here, head = nn.Parameter(torch.zeros(2)), nn.Linear(2, 1)
    store = LocalStore(plan, {"w": here}, {"t": head})
    store.apply(Gradient("t", 0.0, 1, {"w": torch.ones(2)}, {name: torch.ones_like(p) for name, p in head.named_parameters()}))
    there = LocalStore(plan, {"w": nn.Parameter(torch.zeros(2, device="meta"))}, {"t": nn.Linear(2, 1, device="meta")})
    there.load_moments(store.moments())
    there.load_head_moments("t", store.head_moments("t"))
    found = {**there.moments(), **there.head_moments("t")}
    assert found.keys() == {**store.moments(), **store.head_moments("t")}.keys()
    assert {value.device.type for value in found.values()} == {"meta"}
