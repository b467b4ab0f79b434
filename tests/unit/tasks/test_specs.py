import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from pydantic import ValidationError

from tasks.specs import Config, EncoderSpec, Lora, Module, Pretrained, TaskSpec
from trunkline.errors import SettingsError
from trunkline.settings import build

ENCODERS = [
    EncoderSpec(name="a", source=Pretrained(path="folder")),
    EncoderSpec(
        name="b", source=Pretrained(path="org/name", revision="v1"), layers=2, freeze=("embeddings", "*.bias"), pooling="cls"
    ),
    EncoderSpec(
        name="c", source=Config(options={"model_type": "bert", "hidden_size": 8, "x": [1, 2]}, seed=3), tuning=Lora(rank=2)
    ),
    EncoderSpec(name="d", type="user", source=Module(path="m.py:Net", options={"width": 4}), shape=(2, 2), dropout=0.0),
]
TASKS = [
    TaskSpec(name="s", head="single", data="a.csv", fields=("text",), label="label"),
    TaskSpec(name="m", head="multi", data="a.jsonl", fields=("text", "more"), label="tags", labels=("x", "y"), separator=";"),
    TaskSpec(
        name="r", head="regression", data="a.tsv", fields=("text",), label="y", metric="mse", rows=0.1, fractions=(0.5, 0.25, 0.25)
    ),
    TaskSpec(name="t", head="tokens", data="a.parquet", fields=("tokens",), label="tags", max_length=8),
    TaskSpec(name="p", head="pairs", data="a.csv", fields=("q", "a"), split="part", weight=2.0),
]


@pytest.mark.parametrize("spec", [*ENCODERS, *TASKS], ids=lambda spec: spec.name)
def test_a_declaration_survives_python_json_and_toml(spec: EncoderSpec | TaskSpec) -> None:
    kind: Any = type(spec)
    assert kind.model_validate(spec.model_dump()) == spec
    assert kind.model_validate_json(spec.model_dump_json()) == spec
    assert build(kind, tomllib.loads(tomli_w.dumps(spec.table())), "x") == spec


def test_a_misspelt_key_is_told_with_the_nearest() -> None:
    with pytest.raises(SettingsError, match=r"`lable`.*did you mean `label`"):
        build(
            TaskSpec, {"name": "s", "head": "single", "data": "a.csv", "fields": ["text"], "lable": "x", "label": "y"}, "task.toml"
        )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"label": None}, "`label` should name the column"),
        ({"fields": ("label",)}, "different columns, found label, label"),
        ({"fields": ("text", "text")}, "different columns, found text, text, label"),
        ({"head": "pairs"}, "two columns"),
        ({"head": "pairs", "fields": ("a", "b")}, "should be left out for pairs"),
        ({"head": "tokens", "fields": ("a", "b")}, "one column"),
        ({"head": "regression", "labels": ("a", "b")}, "left out for regression"),
        ({"labels": ("a", "a")}, "different"),
        ({"labels": ("a",)}, "at least 2"),
        ({"metric": "pearson"}, "accuracy, f1"),
        ({"fractions": (0.5, 0.5, 0.5)}, "sum to 1"),
        ({"fractions": (0.5, 0.25, 0.25), "split": "part"}, "left out where `split`"),
        ({"fields": ()}, "at least 1"),
        ({"rows": 0.0}, "greater than 0"),
        ({"name": "a/b"}, "pattern"),
        ({"batch_size": 0}, "greater than or equal to 1"),
    ],
)
def test_a_task_that_cannot_work_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        TaskSpec.model_validate({"name": "s", "head": "single", "data": "a.csv", "fields": ("text",), "label": "label"} | change)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"source": Module(path="m.py:Net")}, "`shape` should be"),
        ({"source": Module(path="m.py:Net"), "shape": (2,), "layers": 1}, "`layers` should be left out"),
        ({"shape": (2,)}, "`shape` should be left out"),
        ({"source": Config()}, "model_type"),
        ({"layers": 0}, "greater than or equal to 1"),
    ],
)
def test_an_encoder_that_cannot_work_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        EncoderSpec.model_validate({"name": "e", "source": Pretrained(path="folder")} | change)


@pytest.mark.parametrize(
    ("data", "form"),
    [("a.csv", "csv"), ("a.TSV", "tsv"), ("b.ndjson", "jsonl"), ("b.pq", "parquet"), ("folder", "datasets"), ("a.xls", None)],
)
def test_the_ending_tells_the_format(data: str, form: str | None, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert TaskSpec(name="s", head="pairs", data=data, fields=("a", "b")).form(tmp_path) == form


def test_declaring_counting_and_exporting_need_no_torch() -> None:
    light = ("specs", "samples", "survey", "readers", "plugins", "export", "processors", "metrics")
    code = f"import sys, {', '.join(f'tasks.{name}' for name in light)}\n"
    code += "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'pyarrow')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], check=False).returncode == 0
