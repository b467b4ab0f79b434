"""The loop that anybody would write: forward, backward, clipping, AdamW (fused)."""

from collections.abc import Sequence

import torch
from torch import nn

from queues.stream.model import Learner
from tasks.batches import Batch

Loop = Sequence[Sequence[Batch]]
"""The batches of each step: one, or one of each of several tasks."""


class PlainLoop:
    """Trains a stream's model in this process; the optimiser lives as long as the object."""

    def __init__(self, learner: Learner) -> None:
        self.learner, learning = learner, learner.spec.learning
        self._parameters = list(learner.parameters().values())
        shared, private = list(learner.shared.values()), [p for head in learner.private.values() for p in head.values()]
        groups = [
            {"params": chosen, "lr": rate, "weight_decay": learning.weight_decay if wide else 0.0}
            for part, rate in ((shared, learning.learning_rate), (private, learning.head_learning_rate))
            for wide in (True, False)
            if (chosen := [p for p in part if (p.ndim > 1) == wide])
        ]
        self._optimiser = torch.optim.AdamW(groups, betas=(learning.beta1, 0.999), fused=True)
        self._rates = [group["lr"] for group in self._optimiser.param_groups]

    def step(self, batches: Sequence[Batch], share: float = 1.0) -> float:
        """One step on the mean over all samples; tell the loss.

        :param share: of the learning rates.
        """
        learner, samples = self.learner, sum(batch.size for batch in batches)
        learner.encoder.train()
        loss = torch.zeros(())
        for batch in batches:
            head = learner.heads[batch.task]
            head.train()
            loss = loss + head.loss([learner.encoder(side) for side in batch.inputs], batch) * (batch.size / samples)
        loss.backward()
        if learner.spec.learning.clip_norm:
            nn.utils.clip_grad_norm_(self._parameters, learner.spec.learning.clip_norm)
        for group, rate in zip(self._optimiser.param_groups, self._rates, strict=True):
            group["lr"] = rate * share
        self._optimiser.step()
        self._optimiser.zero_grad()
        return loss.item()

    def run(self, steps: Loop) -> None:
        """All steps."""
        for batches in steps:
            self.step(batches)
