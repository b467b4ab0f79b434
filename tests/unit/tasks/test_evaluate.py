import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasks import encoders, metrics
from tasks import evaluate as module
from tasks.encoders import Encoder
from tasks.evaluate import evaluate, predict
from tasks.heads import Head, make_head
from tasks.specs import EncoderSpec, TaskSpec
from tasks.step import gradient
from tasks.table import SampleTable, open_table
from tests.support import tiny
from trunkline.errors import Reason, SampleError, TrainingFailed
from trunkline.settings import build
from trunkline.toml import read_toml

KINDS = {
    "single": {"fields": ("text",), "label": "name"},
    "multi": {"fields": ("text",), "label": "names"},
    "regression": {"fields": ("text",), "label": "number"},
    "tokens": {"fields": ("words",), "label": "kinds"},
    "pairs": {"fields": ("text", "other"), "label": None},
}
COUNT = 24


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    lines = []
    for number in range(COUNT):
        words = rng.choice(tiny.WORDS, rng.integers(1, 12)).tolist()
        lines.append(
            {
                "text": " ".join(words),
                "other": " ".join(reversed(words)),
                "words": words,
                "name": "abc"[int(rng.integers(3))],
                "names": [name for name in "xyz" if rng.random() < 0.5],
                "number": float(rng.normal()),
                "kinds": [word[0].upper() for word in words],
                "split": "test" if number % 3 else "train",
            }
        )
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return tmp_path


def opened(kind: str, encoder: Encoder, folder: Path, **change: Any) -> tuple[TaskSpec, SampleTable, Head]:
    spec = TaskSpec.model_validate({"name": "t", "head": kind, "data": "a.jsonl"} | KINDS[kind] | change)
    table = open_table(spec, encoder, folder / "cache", folder, 1 << 20)
    return spec, table, make_head(spec, table.labels, encoder.hidden, 0, scale=table.scale)


def one_by_one(kind: str, encoder: Encoder, head: Head, table: SampleTable, spec: TaskSpec) -> float:
    """The metric from samples that were never in one batch, in the order of the file."""
    found, wanted = [], []
    with torch.no_grad():
        for index in table.indices("test"):
            batch = table.batch([int(index)])
            sides = [encoder(side) for side in batch.inputs]
            if kind == "pairs":
                found.append(sides[0].pooled[0].numpy())
                wanted.append(sides[1].pooled[0].numpy())
                continue
            mine, truth = head.predict(sides).numpy(), batch.labels.numpy()
            kept = truth != -100 if kind == "tokens" else slice(None)
            found.append(mine[kept])
            wanted.append(truth[kept])
    join = np.stack if kind == "pairs" else np.concatenate
    return metrics.score(spec.measure, kind, join(found), join(wanted))


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_score_is_that_of_the_samples_one_by_one(kind: str, encoder: Encoder, samples: Path) -> None:
    spec, table, head = opened(kind, encoder, samples)
    encoder.eval()
    wanted = one_by_one(kind, encoder, head, table, spec)
    for size in (1, 7, 64):
        score = evaluate(encoder, head, table, spec, "test", size)
        assert score.value == pytest.approx(wanted, abs=1e-5)
        assert (score.task, score.split, score.metric, score.samples) == ("t", "test", spec.measure, COUNT * 2 // 3)


def test_modes_are_given_back_and_dropout_is_off(encoder: Encoder, samples: Path) -> None:
    spec, table, head = opened("single", encoder, samples)
    encoder.train()
    head.eval()
    modes: list[bool] = []
    encoder.register_forward_pre_hook(lambda *_: modes.append(encoder.training or torch.is_grad_enabled()))
    evaluate(encoder, head, table, spec, "test")
    assert encoder.training and not head.training and modes and not any(modes)


def test_an_empty_split_is_told(encoder: Encoder, samples: Path) -> None:
    spec, table, head = opened("single", encoder, samples)
    with pytest.raises(SampleError, match="should have samples in the split 'validation' for task 't', found none"):
        evaluate(encoder, head, table, spec, "validation")


def test_parameters_that_give_no_number_fail(encoder: Encoder, samples: Path) -> None:
    spec, table, head = opened("regression", encoder, samples)
    torch.nn.init.constant_(head.linear.weight, float("nan"))  # type: ignore[union-attr]
    with pytest.raises(TrainingFailed) as caught:
        evaluate(encoder, head, table, spec, "test")
    assert caught.value.reason is Reason.NOT_FINITE


def test_pairs_are_searched_among_a_bounded_number(encoder: Encoder, samples: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, table, head = opened("pairs", encoder, samples)
    monkeypatch.setattr(module, "CANDIDATES", 10)
    assert evaluate(encoder, head, table, spec, "test").samples == 10


def test_mse_is_better_when_it_is_less(encoder: Encoder, samples: Path) -> None:
    spec, table, head = opened("regression", encoder, samples, metric="mse")
    assert evaluate(encoder, head, table, spec, "test").higher_is_better is False


@pytest.mark.parametrize("kind", list(KINDS))
def test_an_encoder_that_gives_no_number_fails_whatever_the_head(kind: str, encoder: Encoder, samples: Path) -> None:
    spec, table, head = opened(kind, encoder, samples)
    encoder.load_shared(lambda name: np.full(encoder.shared_spec()[name].shape, np.nan, np.float32))
    with pytest.raises(TrainingFailed) as caught:
        evaluate(encoder, head, table, spec, "test")
    assert caught.value.reason is Reason.NOT_FINITE


@pytest.mark.parametrize("kind", list(KINDS))
def test_new_samples_get_what_samples_of_the_file_get(kind: str, encoder: Encoder, samples: Path) -> None:
    spec, table, head = opened(kind, encoder, samples)
    lines = [json.loads(line) for line in (samples / "a.jsonl").read_text().splitlines()][:5]
    given = [tuple(line[field] for field in spec.fields) if kind == "pairs" else line[spec.fields[0]] for line in lines]
    answers = predict(encoder, head, spec, table.labels, given, batch_size=2)
    encoder.eval()
    for place, answer in enumerate(answers):
        batch = table.batch([place])
        with torch.no_grad():
            found = head.predict([encoder(side) for side in batch.inputs])[0]
        if kind == "single":
            assert answer["label"] == table.labels[int(found)] and 1 / 3 <= answer["probability"] <= 1
        elif kind == "multi":
            assert answer["labels"] == [name for name, on in zip(table.labels, found, strict=True) if on]
        elif kind == "regression":
            assert answer["value"] == pytest.approx(found.item(), abs=1e-5)
        elif kind == "pairs":
            assert answer["similarity"] == pytest.approx(found.item(), abs=1e-5)
        else:
            kept = batch.labels[0] != -100
            assert answer["labels"] == [table.labels[int(k)] for k in found[kept]]
            assert len(answer["labels"]) == len(lines[place]["words"])


def test_words_beyond_the_length_have_no_label(encoder: Encoder, samples: Path) -> None:
    spec, table, head = opened("tokens", encoder, samples)
    (answer,) = predict(encoder, head, spec, table.labels, [["cat"] * 20])
    assert len(answer["labels"]) == 20 and answer["labels"][14:] == [None] * 6 and None not in answer["labels"][:14]


@pytest.mark.parametrize(("kind", "row"), [("single", ["a", "b"]), ("pairs", "one"), ("tokens", 3), ("single", None)])
def test_rows_that_do_not_fit_are_told(kind: str, row: Any, encoder: Encoder, samples: Path) -> None:
    spec, table, head = opened(kind, encoder, samples)
    with pytest.raises(SampleError, match="should"):
        predict(encoder, head, spec, table.labels, [row])


def test_an_encoder_of_ones_own_learns_from_columns_of_numbers(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(300, 4))
    names = np.where((points[:, 0] * points[:, 1] > 0), "same", "other")
    lines = [",".join([*map(str, point), name]) for point, name in zip(points, names, strict=True)]
    (tmp_path / "a.csv").write_text("\n".join(["x0,x1,x2,x3,label", *lines]))
    example = Path(__file__).parents[3] / "examples" / "vector_encoder"
    encoders.create(build(EncoderSpec, read_toml(example / "encoder.toml"), "x"), tmp_path / "e", [example])
    encoder = encoders.load(tmp_path / "e", [example])
    columns = ("x0", "x1", "x2", "x3")
    spec = TaskSpec(name="t", encoder="sensor", head="single", data="a.csv", fields=columns, label="label", fractions=(0.7, 0, 0.3))
    table = open_table(spec, encoder, tmp_path / "cache", tmp_path, 1 << 20)
    head = make_head(spec, table.labels, encoder.hidden, 0)
    before = evaluate(encoder, head, table, spec, "test").value
    optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=0.01)
    for step in range(80):
        found = gradient(encoder, head, table.batch(rng.choice(table.indices("train"), 32, replace=False)), seed=step)
        for name, parameter in [*encoder.shared_parameters().items(), *head.named_parameters()]:
            parameter.grad = found.shared.get(name, found.head.get(name))
        optimizer.step()
    assert before < 0.7 and evaluate(encoder, head, table, spec, "test").value > 0.85
    (answer,) = predict(encoder, head, spec, table.labels, [(2.0, 2.0, 0.0, 0.0)])
    assert answer["label"] == "same" and answer["probability"] > 0.9
