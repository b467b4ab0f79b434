"""A head of one's own: one label a sample, with smoothed labels, for classes that people do not agree on."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

from tasks.batches import Batch, Encoded
from tasks.heads import Head
from tasks.specs import TaskSpec


class Smoothed(Head):
    """A tenth of each label's weight goes to the others."""

    def __init__(self, spec: TaskSpec, labels: tuple[str, ...], hidden: int) -> None:
        super().__init__(spec, labels)
        self.linear = nn.Linear(hidden, len(labels))

    def forward(self, sides: Sequence[Encoded]) -> Tensor:
        return self.linear(sides[0].pooled)  # (B, C)

    def loss(self, sides: Sequence[Encoded], batch: Batch) -> Tensor:
        return functional.cross_entropy(self(sides), batch.labels, label_smoothing=0.1)

    def predict(self, sides: Sequence[Encoded]) -> Tensor:
        return self(sides).argmax(-1)  # (B,)
