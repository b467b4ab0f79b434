"""What a trained encoder and a head say of the rows of a split, one entry a row, so that variants can be compared row by row.

single       1 where the label is right, else 0
tokens       how many of the row's labelled tokens are right
regression   the number that is predicted, in hundredths
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tasks import metrics
from tasks.batches import IGNORED
from tasks.encoders import Encoder
from tasks.heads import Head
from tasks.specs import TaskSpec
from tasks.table import SampleTable
from trunkline.values import Split

BATCH = 64


@dataclass(frozen=True, slots=True)
class Answers:
    """Of one child's split."""

    score: float  # the task's own metric
    rows: Sequence[int]  # in the order of the file
    sizes: Sequence[int] | None = None  # labelled tokens of each row, for tokens

    def table(self) -> dict[str, Any]:
        return {"score": self.score, "rows": list(self.rows)} | ({} if self.sizes is None else {"sizes": list(self.sizes)})


def ask(encoder: Encoder, head: Head, table: SampleTable, spec: TaskSpec, split: Split) -> Answers:
    """Score a split and keep each row's answer."""
    indices = table.indices(split)
    order = np.argsort(table.lengths(indices), kind="stable")  # rows of like length together: little is padded
    found: dict[int, Any] = {}
    wanted: dict[int, Any] = {}
    encoder.eval()
    head.eval()
    with torch.inference_mode():
        for start in range(0, len(order), BATCH):
            places = order[start : start + BATCH]
            batch = table.batch(indices[places])
            said = head.predict([encoder(side) for side in batch.inputs])
            for place, mine, truth in zip(places.tolist(), said.numpy(), batch.labels.numpy(), strict=True):
                kept = truth != IGNORED if spec.head == "tokens" else ...
                found[place], wanted[place] = np.atleast_1d(mine[kept]), np.atleast_1d(truth[kept])
    mine, truth = ([of[place] for place in range(len(order))] for of in (found, wanted))
    score = metrics.score(spec.measure, spec.head, np.concatenate(mine), np.concatenate(truth))
    if spec.head == "regression":
        return Answers(score, [round(100 * float(value[0])) for value in mine])
    right = [int((one == other).sum()) for one, other in zip(mine, truth, strict=True)]
    return Answers(score, right, [len(one) for one in truth] if spec.head == "tokens" else None)
