"""What all who apply gradients have in common: the schedule, AdamW with decay on matrices only, and its step on bare tensors."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

BETA2, EPSILON = 0.999, 1e-8


def rate(done: int, *, warmup_steps: int, decay: str, total_steps: int) -> float:
    """The learning rate after `done` steps, as a share of the whole.

    Linear warm-up over the first `warmup_steps`, then constant or linear to 0 at `total_steps`.

    >>> [rate(done, warmup_steps=2, decay="linear", total_steps=4) for done in range(5)]
    [0.5, 1.0, 1.0, 0.5, 0.0]
    """
    if done < warmup_steps:
        return (done + 1) / warmup_steps
    if decay == "none":
        return 1.0
    return max(0.0, (total_steps - done) / max(1, total_steps - warmup_steps))


def make_optimiser(
    values: Sequence[nn.Parameter],
    kind: str,
    learning_rate: float,
    *,
    weight_decay: float = 0.0,
    beta1: float = 0.9,
    momentum: float = 0.0,
) -> torch.optim.Optimizer:
    """AdamW with decay on matrices only (biases and normalisation are left out), or SGD without decay."""
    if kind == "sgd":
        return torch.optim.SGD(values or [nn.Parameter(torch.empty(0))], lr=learning_rate, momentum=momentum)
    groups = [
        {"params": [p for p in values if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in values if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=learning_rate, betas=(beta1, BETA2), eps=EPSILON, fused=True
    )


@dataclass(frozen=True, slots=True)
class AdamW:
    """A step of AdamW (Loshchilov and Hutter 2019, algorithm 2) on bare tensors, to the bits of torch's own fused one."""

    lr: float
    beta1: float
    weight_decay: float

    def move(
        self, values: list[Tensor], means: list[Tensor], squares: list[Tensor], grads: list[Tensor], counts: list[Tensor]
    ) -> None:
        """In place, all float32 and contiguous; `counts` have this step counted already."""
        torch._fused_adamw_(
            values,
            grads,
            means,
            squares,
            [],
            counts,
            lr=self.lr,
            beta1=self.beta1,
            beta2=BETA2,
            weight_decay=self.weight_decay,
            eps=EPSILON,
            amsgrad=False,
            maximize=False,
        )
