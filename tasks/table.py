"""A task's samples, read and tokenised once into memory-mapped files.

    CACHE/table-TASK-KEY/
        ids0.bin, ids1.bin      int32 token ids of each side, one sample after the other      (text)
        ends0.bin, ends1.bin    int64 end of each sample in them
        features0.bin, …        float32 (n, F)                                               (vectors)
        labels.bin              int32 or float64; for tokens one label a token id
        label_ends.bin          int64                                                        (multi)
        splits.bin              uint8 place in SPLITS
        table.json              written last: without it the folder counts for nothing

Labels are numbered as they come up; `order` in table.json maps these numbers to the places of the sorted names, so a label that
stands only in the last line is no surprise. KEY is a digest of the file's content, of what the task says of it, and of the
tokenizer.
"""

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tasks.batches import IGNORED, Batch, Inputs
from tasks.encoders import Encoder
from tasks.padding import padded, text_side
from tasks.processors import Processor, TextProcessor, VectorProcessor
from tasks.samples import taken
from tasks.specs import TaskSpec
from tasks.survey import content_key
from tasks.tablewriter import build
from trunkline.errors import SampleError, SpecError
from trunkline.files import storage
from trunkline.values import SPLITS, Split

_DTYPES = {"ids": "<i4", "ends": "<i8", "features": "<f4", "labels": "<i4", "label_ends": "<i8", "splits": "|u1"}
_FORM = 1
"""Counts up whenever these files change their meaning."""

_KEY = 24  # characters of the digest in a folder's name
_KEPT = 4  # tables of one task


def open_table(
    spec: TaskSpec, encoder: Encoder | Processor, cache: Path, base: Path, memory: int, modules: Sequence[Path] = ()
) -> "SampleTable":
    """The samples of a task as an encoder reads them; made on the first call, mapped on every other.

    :param encoder: an `Encoder`, or its processor.
    :param cache: folder for the tables, of this site alone.
    :param base: folder that `spec.data` is relative to.
    :param memory: bytes that reading may take, whatever the size of the file.
    :param modules: folders with a user's own reader.
    :raises SampleError: something is wrong in the file, or it has no training samples.
    :raises StorageFailed: the disk refused.
    """
    processor = encoder.processor if isinstance(encoder, Encoder) else encoder
    _check_features(spec, processor)
    key = content_key(spec, base, modules, processor.digest, str(_FORM))
    folder = cache / f"table-{spec.name}-{key[:_KEY]}"
    if not _is_whole(folder):
        with storage(folder):
            folder.mkdir(parents=True, exist_ok=True)
        build(folder, key, spec, processor, base, memory, modules)
        _forget_old(cache, spec.name)
    table = SampleTable(folder, spec, processor)
    if not table.count("train"):
        raise SampleError(f"`{spec.data}` should have training samples for task {spec.name!r}, found none.")
    return table


def _is_whole(folder: Path) -> bool:
    """Whether all files are there with the sizes that were written down last."""
    try:
        sizes = json.loads((folder / "table.json").read_bytes())["bytes"]
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False  # a cache: what is not whole is made again


def _forget_old(cache: Path, task: str) -> None:
    """Keep the newest tables of a task; a file that changes often would fill the disk with them."""
    mine = [folder for folder in cache.glob("table-*") if folder.name[: -_KEY - 1] == f"table-{task}"]
    for folder in sorted(mine, key=lambda path: path.stat().st_mtime, reverse=True)[_KEPT:]:
        shutil.rmtree(folder, ignore_errors=True)


def _check_features(spec: TaskSpec, processor: Processor) -> None:
    if isinstance(processor, VectorProcessor) and spec.head == "tokens":
        raise SpecError(f"task {spec.name!r} should not label tokens, found an encoder that reads vectors.")


class SampleTable:
    """A task's samples, mapped from disk. Made by `open_table`."""

    def __init__(self, folder: Path, spec: TaskSpec, processor: Processor) -> None:
        self.folder, self.spec, self.processor = folder, spec, processor
        about = json.loads((folder / "table.json").read_bytes())
        self.labels: tuple[str, ...] = tuple(about["labels"])
        self.digest: str = hashlib.sha256(f"{about['key']} {spec.rows}".encode()).hexdigest()
        self._order = np.array(about["order"], dtype=np.int64)
        self._splits = self._map("splits")
        training = np.flatnonzero(self._splits == 0).astype(np.int64)
        self._training = taken(spec, training)
        self._indices: dict[Split, NDArray[np.int64]] = {"train": self._training}
        sides = range(len(spec.sides))
        self._text = isinstance(processor, TextProcessor)
        if self._text:
            self._ids = [self._map(f"ids{side}") for side in sides]
            self._ends = [self._map(f"ends{side}") for side in sides]
        else:
            width = int(np.prod(processor.shape))  # type: ignore[union-attr]
            self._features = [self._map(f"features{side}").reshape(-1, width) for side in sides]
        self._labels = self._map("labels") if spec.head != "pairs" else np.empty(0, "<i4")
        self._label_ends = self._map("label_ends") if spec.head == "multi" else np.empty(0, "<i8")
        self.scale: tuple[float, float] = self._scale()

    def _map(self, name: str) -> NDArray[Any]:
        path = self.folder / f"{name}.bin"
        dtype = "<f8" if name == "labels" and self.spec.head == "regression" else _DTYPES[name.rstrip("01")]
        return np.memmap(path, dtype=dtype, mode="r") if path.stat().st_size else np.empty(0, dtype)

    def _scale(self) -> tuple[float, float]:
        """Mean and standard deviation of the training targets of a regression, else (0, 1)."""
        if self.spec.head != "regression" or not len(self._training):
            return 0.0, 1.0
        targets = self._labels[self._training]
        return float(targets.mean()), float(targets.std()) or 1.0

    def count(self, split: Split) -> int:
        """Samples in a split; training ones after `rows`."""
        return len(self.indices(split))

    def indices(self, split: Split) -> NDArray[np.int64]:
        """Row numbers of a split, rising."""
        if split not in self._indices:
            self._indices[split] = np.flatnonzero(self._splits == SPLITS.index(split)).astype(np.int64)
        return self._indices[split]

    def lengths(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Tokens of each sample, of its longer side; 1 for vectors."""
        if not self._text:
            return np.ones(len(indices), np.int64)
        sides = [ends[indices] - np.where(indices > 0, ends[np.maximum(indices - 1, 0)], 0) for ends in self._ends]
        return np.max(sides, axis=0)

    def batch(self, indices: Sequence[int] | NDArray[np.int64], max_length: int | None = None) -> Batch:
        """These samples as a batch, in this order.

        :param max_length: tokens at most; None: the task's own.
        """
        limit = min(length for length in (max_length, self.spec.max_length, 2**31) if length is not None)
        if not self._text:
            inputs: tuple[Inputs, ...] = tuple(
                {"features": torch.from_numpy(side[indices].reshape(-1, *self.processor.shape))}  # type: ignore[union-attr]
                for side in self._features
            )
            return Batch(self.spec.name, inputs, self._label_tensor(indices), len(indices))
        text: TextProcessor = self.processor  # type: ignore[assignment]
        sides = [self._rows(ids, ends, indices) for ids, ends in zip(self._ids, self._ends, strict=True)]
        texts = tuple(text_side(side, limit, text.pad_id, text.ends_special) for side in sides)
        return Batch(self.spec.name, texts, self._label_tensor(indices, limit), len(indices))

    @staticmethod
    def _rows(flat: NDArray[Any], ends: NDArray[Any], indices: Sequence[int] | NDArray[np.int64]) -> list[NDArray[Any]]:
        """What a flat array holds of each of these samples."""
        return [flat[(int(ends[index - 1]) if index else 0) : int(ends[index])] for index in map(int, indices)]

    def _label_tensor(self, indices: Any, limit: int = 2**31) -> torch.Tensor:
        head = self.spec.head
        if head == "single":
            return torch.from_numpy(self._order[self._labels[indices]])
        if head == "regression":
            return torch.from_numpy(self._labels[indices].astype(np.float32))
        if head == "tokens":
            rows = self._rows(self._labels, self._ends[0], indices)
            numbers, _ = padded(rows, limit, IGNORED, self.processor.ends_special)  # type: ignore[union-attr]
            return torch.from_numpy(np.where(numbers >= 0, self._order[np.maximum(numbers, 0)], IGNORED))
        if head == "multi":
            hot = np.zeros((len(indices), len(self.labels)), np.float32)
            for row, numbers in enumerate(self._rows(self._labels, self._label_ends, indices)):
                hot[row, self._order[numbers]] = 1.0
            return torch.from_numpy(hot)
        return torch.arange(len(indices))


__all__ = ["SampleTable", "open_table"]
