"""Samples as they travel through a queue, against a table of the same samples, which is read another way."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasks.packed import LARGEST, Packer
from tasks.processors import Processor, TextProcessor, VectorProcessor
from tasks.specs import TaskSpec
from tasks.table import open_table
from trunkline.errors import SampleError, SpecError

TEXT: list[dict[str, Any]] = [
    {"text": "good food", "label": "z"},
    {"text": "the place was very slow and not good at all , really !", "label": "b"},
    {"text": "", "label": "z"},
    {"text": "x" * 120, "label": "b"},
]
MANY = [{"text": "a", "label": labels} for labels in (["y"], [], ["x", "y"], ["w"])]
NUMBERS = [{"text": "good", "label": number} for number in (1.0, -2.5, 1e-12, 3e38)]
PAIRS = [{"q": "good", "a": "very very good food"}, {"q": "bad", "a": "slow"}]
TOKENS = [
    {"text": ["loved", "slowly", "red"], "label": ["V", "R", "A"]},
    {"text": ["cat"], "label": ["N"]},
    {"text": ["cat"] * 20, "label": ["N"] * 20},
]
VECTORS = [{"all": [1.5, -2, 3e-9, 4], "label": "z"}, {"all": [0, 0, 0, 0.1], "label": "b"}]

KINDS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "single": (TEXT, {"labels": ("b", "z")}),
    "multi": (MANY, {"head": "multi", "labels": ("w", "x", "y")}),
    "regression": (NUMBERS, {"head": "regression"}),
    "pairs": (PAIRS, {"head": "pairs", "fields": ("q", "a"), "label": None}),
    "tokens": (TOKENS, {"head": "tokens", "labels": ("A", "N", "R", "V")}),
    "vectors": (VECTORS, {"fields": ("all",), "labels": ("b", "z")}),
}


@pytest.fixture(scope="session")
def text(encoder_folder: Path) -> TextProcessor:
    return TextProcessor(encoder_folder, 16)


def spec(**change: Any) -> TaskSpec:
    return TaskSpec.model_validate(
        {"name": "t", "head": "single", "data": "a.jsonl", "fields": ("text",), "label": "label"} | change
    )


def made(kind: str, text: TextProcessor) -> tuple[Packer, list[dict[str, Any]], Processor, TaskSpec]:
    samples, change = KINDS[kind]
    processor: Processor = VectorProcessor((2, 2)) if kind == "vectors" else text
    return Packer(spec(**change), processor), samples, processor, spec(**change)


@pytest.mark.parametrize("length", [None, 3, 6])
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_that_of_a_table_bit_for_bit(kind: str, length: int | None, text: TextProcessor, tmp_path: Path) -> None:
    packer, samples, processor, task = made(kind, text)
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"split": "train"} | one) for one in samples))
    order = list(range(len(samples)))[::-1]
    wanted = open_table(task, processor, tmp_path / "cache", tmp_path, 1 << 20).batch(order, length)
    packed = packer.pack(samples)
    found = packer.batch([packed[place] for place in order], length)
    assert (found.task, found.size) == (wanted.task, wanted.size)
    assert found.labels.dtype == wanted.labels.dtype and torch.equal(found.labels, wanted.labels)
    for mine, other in zip(found.inputs, wanted.inputs, strict=True):
        assert set(mine) == set(other)
        assert all(mine[name].dtype == other[name].dtype and torch.equal(mine[name], other[name]) for name in other)


def test_a_sample_of_64_tokens_has_about_140_bytes(encoder_folder: Path) -> None:
    packer = Packer(spec(labels=("b", "z")), TextProcessor(encoder_folder, 64))
    (packed,) = packer.pack([{"text": "good " * 100, "label": "z"}])
    assert len(packed) == 4 + 4 + 2 * 64 + 4


def test_ids_of_a_large_vocabulary_are_wider(text: TextProcessor, monkeypatch: pytest.MonkeyPatch) -> None:
    """int16 does not hold what is above 32,767, uint16 not what is above 65,535."""

    class Large:
        def __len__(self) -> int:
            return 250_002

    class Processor(TextProcessor):
        def __init__(self) -> None:
            self.tokenizer, self.pad_id, self.ends_special = Large(), 0, False

        def texts(self, texts: Any) -> list[list[int]]:
            return [[1, 40_000, 70_000, 250_001] for _ in texts]

    packer = Packer(spec(labels=("b", "z")), Processor())
    batch = packer.batch(packer.pack([{"text": "", "label": "b"}]))
    assert batch.inputs[0]["input_ids"].tolist() == [[1, 40_000, 70_000, 250_001]]


def test_a_stream_cannot_find_out_its_labels(text: TextProcessor) -> None:
    for head in ("single", "multi", "tokens"):
        with pytest.raises(SpecError, match="should name all of its `labels`"):
            Packer(spec(head=head), text)


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        ({"label": "z"}, "line 7, column 'text': should have a value"),
        ({"text": "a"}, "column 'label': should have a label"),
        ({"text": "a", "label": "q"}, "should be one of b, z, found 'q'"),
        ({"text": ["a"], "label": "z"}, "should be text"),
        ({"text": "\ud83d", "label": "z"}, "should be whole characters"),
    ],
)
def test_what_is_no_sample_is_told_with_its_number(sample: dict[str, Any], said: str, text: TextProcessor) -> None:
    with pytest.raises(SampleError, match=said):
        Packer(spec(labels=("b", "z")), text).pack([TEXT[0], sample], first=6)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e39, "x", True])
def test_targets_are_finite_numbers(number: Any, text: TextProcessor) -> None:
    with pytest.raises(SampleError, match="finite number"):
        Packer(spec(head="regression"), text).pack([{"text": "a", "label": number}])


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_that_are_no_sample_of_the_task_are_refused(kind: str, text: TextProcessor) -> None:
    """Cut anywhere, longer, of another task: never an error of another kind, never a batch."""
    packer, samples, _, _ = made(kind, text)
    packed = packer.pack(samples)
    for sample in packed:
        packer.check(sample)
        for cut in range(len(sample)):
            if not (kind == "multi" and cut >= len(sample) - 8):  # fewer labels are labels too
                with pytest.raises(SampleError):
                    packer.check(sample[:cut])
        with pytest.raises(SampleError):
            packer.check(sample + b"x")
    with pytest.raises(SampleError, match="sample 1 of the batch"):
        packer.batch([packed[0], b"\x01\x09", packed[1]])
    for other in KINDS:
        stranger, their_samples, _, _ = made(other, text)
        if other != kind:
            with pytest.raises(SampleError, match="should begin with"):
                packer.check(stranger.pack(their_samples)[0])


def test_numbers_out_of_range_are_refused(text: TextProcessor) -> None:
    packer = Packer(spec(labels=("b", "z")), text)
    (good,) = packer.pack(TEXT[:1])
    beyond = len(text.tokenizer)
    for place, value, said in (
        (8, struct.pack("<H", beyond), f"ids below {beyond}"),
        (len(good) - 4, struct.pack("<I", 2), "label within"),
    ):
        bad = good[:place] + value + good[place + len(value) :]
        with pytest.raises(SampleError, match=said):
            packer.check(bad)
    with pytest.raises(SampleError, match="ids below"):
        packer.check(struct.pack("<BBBBII", 1, 0, 1, 1, 0, 0))  # not one token
    vectors = Packer(spec(fields=("all",), labels=("b", "z")), VectorProcessor((2, 2)))
    (good,) = vectors.pack(VECTORS[:1])
    with pytest.raises(SampleError, match="finite features"):
        vectors.check(good[:8] + np.float32("nan").tobytes() + good[12:])


def test_random_bytes_are_refused_and_nothing_else(text: TextProcessor) -> None:
    rng = np.random.default_rng(0)
    packers = [made(kind, text)[0] for kind in KINDS]
    for _ in range(2000):
        data = bytearray(rng.bytes(int(rng.integers(0, 40))))
        packer = packers[int(rng.integers(len(packers)))]
        data[:4] = packer.pack(KINDS[list(KINDS)[packers.index(packer)]][0][:1])[0][: min(4, len(data))]
        try:
            packer.check(bytes(data))
        except SampleError:
            continue
        packer.batch([bytes(data)])


def test_a_sample_has_a_largest_size(text: TextProcessor) -> None:
    wide = VectorProcessor((LARGEST // 4,))
    with pytest.raises(SampleError, match="should be at most"):
        Packer(spec(fields=("all",), labels=("b", "z")), wide).pack([{"all": [0.0] * (LARGEST // 4), "label": "z"}])
