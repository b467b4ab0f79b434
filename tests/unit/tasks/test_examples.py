"""What stands under `examples/` works as its README says."""

from pathlib import Path

import torch

from tasks.encoders import Encoder
from tasks.heads import make_head
from tasks.samples import rows
from tasks.specs import TaskSpec
from tasks.step import gradient
from tasks.table import open_table
from tests.unit.tasks.conftest import Write

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_a_head_of_one_s_own_learns(encoder: Encoder, tmp_path: Path, write_csv: Write) -> None:
    cells = [("the food was good", "yes"), ("the room was bad", "no")] * 4
    path = write_csv("a.csv", [("text", "label", "split"), *((text, label, "train") for text, label in cells)])
    table = {"name": "t", "head": "single", "data": str(path), "fields": ("text",), "label": "label"}
    spec = TaskSpec.model_validate(table | {"custom_head": "head.py:Smoothed"})
    samples = open_table(spec, encoder, tmp_path / "cache", tmp_path, 1 << 20)
    head = make_head(spec, samples.labels, encoder.hidden, 0, modules=(EXAMPLES / "own_head",))
    batch, optimiser = samples.batch(range(8)), torch.optim.SGD(head.parameters(), lr=0.05)
    losses = []
    for _ in range(20):
        found = gradient(encoder, head, batch)
        losses.append(found.loss)
        for name, parameter in head.named_parameters():
            parameter.grad = found.head[name]
        optimiser.step()
    assert losses[-1] < losses[0]


def test_a_reader_of_one_s_own_reads(tmp_path: Path) -> None:
    (tmp_path / "mail.txt").write_text("text: good\nlabel: yes\n\n\ntext: bad: very\nlabel: no\n", encoding="utf-8")
    table = {"name": "t", "head": "single", "data": "mail.txt", "fields": ("text",), "label": "label"} | {
        "reader": "reader.py:records"
    }
    found = list(rows(TaskSpec.model_validate(table), tmp_path, (EXAMPLES / "own_reader",)))
    assert [(row.fields, row.label) for row in found] == [(("good",), "yes"), (("bad: very",), "no")]
