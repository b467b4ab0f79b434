from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tasks.batches import IGNORED, Batch, Encoded
from tasks.heads import Head, Pairs, Regression, make_head
from tasks.specs import TaskSpec
from trunkline.errors import SpecError

B, T, H, C = 5, 4, 3, 6
LABELS = tuple("abcdef")


def spec(head: str, **change: Any) -> TaskSpec:
    fields = ("a", "b") if head == "pairs" else ("a",)
    told = {"name": "t", "head": head, "data": "x.csv", "fields": fields, "label": None if head == "pairs" else "y"}
    return TaskSpec.model_validate(told | change)


def sides(count: int = 1, seed: int = 0) -> list[Encoded]:
    generator = torch.Generator().manual_seed(seed)
    tokens = [torch.randn(B, T, H, generator=generator) for _ in range(count)]
    return [Encoded(part.mean(1), part, torch.ones(B, T, dtype=torch.int64)) for part in tokens]


LABEL = {
    "single": torch.tensor([0, 5, 2, 2, 1]),
    "multi": torch.tensor(np.random.default_rng(0).integers(0, 2, (B, C)), dtype=torch.float32),
    "regression": torch.tensor([1.0, -2.0, 0.5, 3.0, 10.0]),
    "tokens": torch.tensor([[0, 1, IGNORED, 2], [IGNORED] * 4, [3, IGNORED, IGNORED, IGNORED], [1, 2, 3, 4], [5, 5, 0, IGNORED]]),
    "pairs": torch.arange(B),
}


def made(head: str, **change: Any) -> Head:
    return make_head(spec(head, **change), LABELS if head in ("single", "multi", "tokens") else (), H, 0, scale=(2.0, 4.0))


def log_softmax(rows: np.ndarray) -> np.ndarray:
    return rows - np.log(np.exp(rows).sum(-1, keepdims=True))


def plain_loss(head: Head, kind: str, given: list[Encoded]) -> list[float]:
    """The loss of each sample by its formula."""
    raw, labels = head(given).detach().double().numpy(), LABEL[kind].double().numpy()
    if kind == "single":
        return [-log_softmax(raw)[row, int(labels[row])] for row in range(B)]
    if kind == "multi":
        chance = 1 / (1 + np.exp(-raw))
        return [-np.mean(labels[row] * np.log(chance[row]) + (1 - labels[row]) * np.log(1 - chance[row])) for row in range(B)]
    if kind == "regression":
        return [(raw[row] - (labels[row] - 2.0) / 4.0) ** 2 for row in range(B)]
    rows = []
    for row in range(B):
        each = [-log_softmax(raw)[row, place, int(label)] for place, label in enumerate(labels[row]) if label != IGNORED]
        rows.append(float(np.mean(each)) if each else 0.0)
    return rows


@pytest.mark.parametrize("kind", ["single", "multi", "regression", "tokens"])
def test_a_loss_is_its_formula_and_a_mean_over_samples(kind: str) -> None:
    head, given = made(kind), sides()
    batch = Batch("t", (), LABEL[kind], B)
    each = plain_loss(head, kind, given)
    assert head.loss(given, batch).item() == pytest.approx(np.mean(each), abs=1e-6)
    for piece, start in zip(batch.pieces(2), (0, 2, 4), strict=True):
        part = [Encoded(side.pooled[start : start + 2], side.tokens[start : start + 2]) for side in given]  # type: ignore[index]
        assert head.loss(part, piece).item() == pytest.approx(np.mean(each[start : start + 2]), abs=1e-6)


def test_pairs_compare_every_sample_with_every_other_both_ways() -> None:
    head, given = made("pairs"), sides(2)
    a, b = (side.pooled.double().numpy() for side in given)
    a, b = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (a, b))
    scores = 20.0 * a @ b.T
    wanted = -(np.diag(log_softmax(scores)).mean() + np.diag(log_softmax(scores.T)).mean()) / 2
    loss = head.loss(given, Batch("t", (), LABEL["pairs"], B))
    assert loss.item() == pytest.approx(wanted, abs=1e-4)
    assert not head.divisible and isinstance(head, Pairs)
    loss.backward()
    assert head.log_scale.grad is not None and head.log_scale.grad.abs() > 0


def test_the_unit_of_a_regressions_target_does_not_matter() -> None:
    given = sides()
    losses = []
    for factor, shift in ((1.0, 0.0), (1000.0, -7.0)):
        labels = LABEL["regression"] * factor + shift
        head = make_head(spec("regression"), (), H, 0, scale=(float(labels.mean()), float(labels.std(correction=0))))
        losses.append(head.loss(given, Batch("t", (), labels, B)).item())
        assert isinstance(head, Regression)
        back = (head.predict(given) - head.mean) / head.deviation
        assert torch.allclose(back, head(given), atol=1e-5)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_predictions_have_the_form_of_the_labels() -> None:
    for kind, label in LABEL.items():
        found = made(kind).predict(sides(2 if kind == "pairs" else 1))
        assert found.shape == ((B, B) if kind == "pairs" else label.shape)
        if kind in ("single", "tokens"):
            assert found.min() >= 0 and found.max() < C
        if kind == "multi":
            assert set(found.unique().tolist()) <= {0.0, 1.0}


@pytest.mark.parametrize("kind", list(LABEL))
def test_the_same_seed_makes_the_same_head_and_leaves_the_generators_alone(kind: str) -> None:
    before = torch.get_rng_state()
    first, second = made(kind).state_dict(), made(kind).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], second[name]) for name in first)
    if kind != "pairs":
        other = make_head(spec(kind), LABELS, H, 1).state_dict()
        assert not torch.equal(first["linear.weight"], other["linear.weight"])


def test_token_labels_need_tokens() -> None:
    with pytest.raises(SpecError, match="reads tokens"):
        made("tokens").loss([Encoded(torch.zeros(B, H))], Batch("t", (), LABEL["tokens"], B))


OWN = """
import torch
from torch import nn
from tasks.heads import Head

class Deep(Head):
    def __init__(self, spec, labels, hidden):
        super().__init__(spec, labels)
        self.layers = nn.Sequential(nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, len(labels)))
    def forward(self, sides):
        return self.layers(sides[0].pooled)
    def loss(self, sides, batch):
        return nn.functional.cross_entropy(self(sides), batch.labels)
    def predict(self, sides):
        return self(sides).argmax(-1)

def nothing(spec, labels, hidden):
    return nn.Linear(1, 1)

def few(spec):
    return None
"""


def test_a_users_own_head(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    first, second = (make_head(spec("single", custom_head="own.py:Deep"), LABELS, H, 3, modules=[tmp_path]) for _ in range(2))
    loss: Tensor = first.loss(sides(), Batch("t", (), LABEL["single"], B))
    assert loss.item() == second.loss(sides(), Batch("t", (), LABEL["single"], B)).item() > 0
    with pytest.raises(SpecError, match=r"should make a tasks.heads.Head, found Linear"):
        make_head(spec("single", custom_head="own.py:nothing"), LABELS, H, 3, modules=[tmp_path])
    with pytest.raises(SpecError, match=r"should take \(spec, labels, hidden\)"):
        make_head(spec("single", custom_head="own.py:few"), LABELS, H, 3, modules=[tmp_path])
