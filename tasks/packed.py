"""A sample as it travels through a queue: read, checked and tokenised once at the edge, then a few bytes.

    1 byte    version of this form, 1
    1 byte    what the numbers of a side are: 0 uint16 ids, 1 uint32 ids, 2 float32 features
    1 byte    sides: 1, or 2 for pairs
    1 byte    kind of label: 0 none, 1 one number, 2 several, 3 one a token id, 4 a float64
    sides     uint32 count each, then their numbers one side after the other
    label     the rest. 0: nothing; 1: uint32; 2: uint32 each; 3: int32 each, as many as ids of the first side; 4: float64

All little-endian. Labels are places in the task's `labels`, which therefore has to name them all.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tasks.batches import IGNORED, Batch, Inputs
from tasks.padding import padded, text_side
from tasks.processors import Processor, TextProcessor
from tasks.samples import Row, row_of
from tasks.specs import TaskSpec
from trunkline.errors import SampleError, SpecError

FORM = 1

_HEAD = struct.Struct("<BBBB")
_NUMBERS = (np.dtype("<u2"), np.dtype("<u4"), np.dtype("<f4"))
_LABELS = {"pairs": "<u4", "single": "<u4", "multi": "<u4", "tokens": "<i4", "regression": "<f8"}
_KINDS: Mapping[str, int] = {"pairs": 0, "single": 1, "multi": 2, "tokens": 3, "regression": 4}

LARGEST = 1 << 20
"""Bytes of one packed sample at most."""


class Packer:
    """Packs and unpacks the samples of one task.

    :param source: what messages call the place that samples come from.
    :raises SpecError: the task does not name all of its labels: a stream has no end at which they would be known.
    """

    def __init__(self, spec: TaskSpec, processor: Processor, source: str = "stream") -> None:
        if spec.head in ("single", "multi", "tokens") and spec.labels is None:
            raise SpecError(
                f"task {spec.name!r} should name all of its `labels` to learn from a queue, found none named.",
                hint="A queue has no end at which the labels in it would be known.",
            )
        self.spec, self.processor = spec.model_copy(update={"data": source}), processor
        self.labels = spec.labels or ()
        self._places = {name: place for place, name in enumerate(self.labels)}
        self._text = processor if isinstance(processor, TextProcessor) else None
        self._vocabulary = len(self._text.tokenizer) if self._text is not None else 0
        self._ids = int(self._vocabulary > 1 << 16)

    # -- to bytes ------------------------------------------------------------------------------------------------------

    def pack(self, samples: Sequence[Mapping[str, Any]], first: int = 1) -> list[bytes]:
        """Samples as the columns of a file would have them, each as bytes.

        :param first: number of the first of them, for messages.
        :raises SampleError: one is not what the task says; names its number and column. None is packed.
        """
        rows = [row_of(self.spec, number, values) for number, values in enumerate(samples, first)]
        if self._text is None:
            sides = [[self.processor.vector(self.spec, row, side) for row in rows] for side in self.spec.sides]  # type: ignore[union-attr]
            packed = [self._whole(row, self._label(row), *of) for row, *of in zip(rows, *sides, strict=True)]
        elif self.spec.head == "tokens":
            found = self._text.words([self._text.check_words(self.spec, row) for row in rows])
            packed = [self._whole(row, self._token_labels(row, first), ids) for row, (ids, first) in zip(rows, found, strict=True)]
        else:
            text = self._text
            lists = [text.texts([text.check_texts(self.spec, row, side) for row in rows]) for side in self.spec.sides]
            packed = [self._whole(row, self._label(row), *of) for row, *of in zip(rows, *lists, strict=True)]
        return packed

    def _whole(self, row: Row, label: bytes, *sides: Any) -> bytes:
        form = 2 if self._text is None else self._ids
        head = _HEAD.pack(FORM, form, len(sides), _KINDS[self.spec.head])
        counts = struct.pack(f"<{len(sides)}I", *(len(side) for side in sides))
        found = b"".join([head, counts, *(np.asarray(side, _NUMBERS[form]).tobytes() for side in sides), label])
        if len(found) > LARGEST:
            raise SampleError(f"`{self.spec.data}`, line {row.line}: should be at most {LARGEST} bytes packed, found {len(found)}.")
        return found

    def _label(self, row: Row) -> bytes:
        if isinstance(row.label, tuple):
            return np.array([self._places[name] for name in row.label], "<u4").tobytes()
        if isinstance(row.label, str):
            return struct.pack("<I", self._places[row.label])
        return b"" if row.label is None else struct.pack("<d", row.label)

    def _token_labels(self, row: Row, first: Sequence[int]) -> bytes:
        names = row.label if isinstance(row.label, tuple) else ()
        return np.array([IGNORED if word < 0 else self._places[names[word]] for word in first], "<i4").tobytes()

    # -- from bytes ----------------------------------------------------------------------------------------------------

    def check(self, sample: bytes) -> None:
        """:raises SampleError: not a sample of this task: of another form or head, cut short, an id or a label out of range."""
        self._parts(sample)

    def shown(self, sample: bytes) -> dict[str, Any]:
        """A sample for people: each side's text, as far as its tokens still tell it, or its features; and its label by name.

        :raises SampleError: see `check`.
        """
        label, sides = self._parts(sample)
        if self._text is None:
            inputs: list[Any] = [[round(float(value), 6) for value in side[:100]] for side in sides]
        else:
            inputs = [self._text.tokenizer.decode(side.tolist(), skip_special_tokens=True) for side in sides]
        named = [None if place == IGNORED else self.labels[place] for place in label.tolist()] if self.labels else label.tolist()
        one = self.spec.head in ("single", "regression")
        return {"inputs": inputs, "numbers": [int(side.size) for side in sides], "label": named[0] if one else named or None}

    def batch(self, samples: Sequence[bytes], max_length: int | None = None) -> Batch:
        """Packed samples as a batch, in this order; bit for bit what a table of the same samples gives.

        :param max_length: tokens at most; None: the task's own.
        :raises SampleError: see `check`; names the place in the batch.
        """
        parts = []
        for place, sample in enumerate(samples):
            try:
                parts.append(self._parts(sample))
            except SampleError as error:
                raise SampleError(f"sample {place} of the batch: {error.message}", hint=error.hint) from None
        sides = list(zip(*(of for _, of in parts), strict=True))
        if self._text is None:
            shape = self.processor.shape  # type: ignore[union-attr]
            inputs: tuple[Inputs, ...] = tuple({"features": torch.from_numpy(np.stack(side).reshape(-1, *shape))} for side in sides)
            return Batch(self.spec.name, inputs, self._label_tensor([label for label, _ in parts]), len(parts))
        limit = min(length for length in (max_length, self.spec.max_length, 2**31) if length is not None)
        texts = tuple(text_side(side, limit, self._text.pad_id, self._text.ends_special) for side in sides)
        return Batch(self.spec.name, texts, self._label_tensor([label for label, _ in parts], limit), len(parts))

    def _parts(self, sample: bytes) -> tuple[NDArray[Any], list[NDArray[Any]]]:
        """The label, and each side's numbers."""
        try:
            version, form, count, kind = _HEAD.unpack_from(sample)
        except struct.error:
            raise self._wrong("should be a packed sample", f"{len(sample)} bytes") from None
        wanted = (FORM, 2 if self._text is None else self._ids, len(self.spec.sides), _KINDS[self.spec.head])
        if (version, form, count, kind) != wanted:
            raise self._wrong(
                f"should begin with {wanted}", f"{(version, form, count, kind)}: another task's, or another encoder's"
            )
        try:
            lengths = struct.unpack_from(f"<{count}I", sample, _HEAD.size)
            at, sides = _HEAD.size + 4 * count, []
            for length in lengths:
                sides.append(np.frombuffer(sample, _NUMBERS[form], length, at))
                at += sides[-1].nbytes
            label = np.frombuffer(sample, _LABELS[self.spec.head], offset=at) if at < len(sample) else np.empty(0)
        except (struct.error, ValueError):
            raise self._wrong("should be whole", f"{len(sample)} bytes, which end too soon or in the middle of a number") from None
        self._check_numbers(sides, label)
        return label, sides

    def _check_numbers(self, sides: Sequence[NDArray[Any]], label: NDArray[Any]) -> None:
        for side in sides:
            if self._text is None:
                size = int(np.prod(self.processor.shape))  # type: ignore[union-attr]
                if side.size != size or not np.isfinite(side).all():
                    raise self._wrong(f"should have {size} finite features", f"{side.size}, or NaN or infinity")
            elif not side.size or int(side.max()) >= self._vocabulary:
                largest = int(side.max()) if side.size else "none"
                raise self._wrong(f"should have token ids below {self._vocabulary}", f"{largest}")
        if not self._fits(label, sides[0].size):
            raise self._wrong("should have a label within the set", f"{label.tolist()[:20]}")

    def _fits(self, label: NDArray[Any], length: int) -> bool:
        head = self.spec.head
        if head == "regression":
            return label.size == 1 and bool(abs(label[0]) <= np.finfo(np.float32).max)
        if head == "tokens":
            return label.size == length and bool(((label == IGNORED) | (label >= 0) & (label < len(self.labels))).all())
        count = {"single": label.size == 1, "pairs": label.size == 0, "multi": True}[head]
        return count and bool((label < len(self.labels)).all())

    def _wrong(self, what: str, found: str) -> SampleError:
        return SampleError(f"a packed sample of task {self.spec.name!r} {what}, found {found}.")

    def _label_tensor(self, labels: Sequence[NDArray[Any]], limit: int = 2**31) -> Tensor:
        head = self.spec.head
        if head == "single":
            return torch.from_numpy(np.concatenate(labels).astype(np.int64))
        if head == "regression":
            return torch.from_numpy(np.concatenate(labels).astype(np.float32))
        if head == "multi":
            hot = np.zeros((len(labels), len(self.labels)), np.float32)
            for row, places in enumerate(labels):
                hot[row, places.astype(np.int64)] = 1.0
            return torch.from_numpy(hot)
        if head == "tokens":
            ends_special = self._text is not None and self._text.ends_special
            return torch.from_numpy(padded(labels, limit, IGNORED, ends_special)[0])
        return torch.arange(len(labels))
