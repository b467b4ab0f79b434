"""Writes a task's table: rows of its file, processed in chunks, to files that grow together. Their form stands in `tasks.table`."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tasks.batches import IGNORED
from tasks.processors import Processor, TextProcessor, VectorProcessor
from tasks.samples import Row, rows
from tasks.specs import TaskSpec
from trunkline.errors import SampleError
from trunkline.files import replacing, storage, write_atomically
from trunkline.values import SPLITS

_EXPANSION = 128
"""Bytes allowed for a byte of text in work. A tokenizer took about 50 (26 MB for 0.5 MB of long texts); the rest is room."""


class _Columns:
    """Files that grow together and take their places together."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._stack, self._files = folder, ExitStack(), {}

    def __enter__(self) -> Self:
        return self

    def append(self, name: str, values: NDArray[Any]) -> None:
        with storage(self._folder):
            if name not in self._files:
                handle = self._stack.enter_context(replacing(self._folder / f"{name}.bin", mode=0o600))
                self._files[name] = self._stack.enter_context(open(handle, "wb", closefd=False))  # noqa: SIM115
            self._files[name].write(np.ascontiguousarray(values).data)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with storage(self._folder):
            self._stack.__exit__(kind, error, trace)


class _Labels:
    """Numbers for label names, in the order they come up."""

    def __init__(self, fixed: tuple[str, ...] | None) -> None:
        self._fixed = fixed
        self._numbers: dict[str, int] = {name: number for number, name in enumerate(fixed or ())}

    def number(self, name: str) -> int:
        return self._numbers.setdefault(name, len(self._numbers))

    def final(self) -> tuple[tuple[str, ...], list[int]]:
        """The names in their final order, and by number the place in it."""
        names = self._fixed or tuple(sorted(self._numbers))
        place = {name: number for number, name in enumerate(names)}
        return names, [place[name] for name in self._numbers]


def build(
    folder: Path,
    key: str,
    spec: TaskSpec,
    processor: Processor,
    base: Path,
    memory: int,
    modules: Sequence[Path],
) -> None:
    """Write a task's table into a folder that is there.

    :param key: what the folder is named by, see `tasks.table`.
    :param base, memory, modules: see `open_table`.
    :raises SampleError: something is wrong in the file, or it has too few labels.
    :raises StorageFailed: the disk refused.
    """
    labels = _Labels(spec.labels)
    ends: dict[str, int] = {}
    count = 0
    with _Columns(folder) as columns:
        for chunk in chunks(rows(spec, base, modules), max(1 << 14, memory // _EXPANSION)):
            count += len(chunk)
            columns.append("splits", np.array([SPLITS.index(row.split) for row in chunk], np.uint8))
            if isinstance(processor, VectorProcessor):
                _add_vectors(columns, spec, processor, chunk)
            elif spec.head == "tokens":
                _add_words(columns, spec, processor, chunk, labels, ends)
                continue
            else:
                _add_texts(columns, spec, processor, chunk, ends)
            _add_labels(columns, spec, chunk, labels, ends)
    names, order = labels.final()
    if spec.head in ("single", "tokens") and len(names) < 2:
        raise SampleError(
            f"`{spec.data}`, column {spec.label!r}: should have at least two different labels, found {', '.join(names) or 'none'}."
        )
    if spec.head == "multi" and not names:
        raise SampleError(f"`{spec.data}`, column {spec.label!r}: should have at least one label, found none.")
    sizes = {path.name: path.stat().st_size for path in sorted(folder.glob("*.bin"))}
    about = {"key": key, "rows": count, "labels": names, "order": order, "bytes": sizes}
    write_atomically(folder / "table.json", json.dumps(about).encode(), mode=0o600)


def chunks(source: Iterable[Row], budget: int) -> Iterator[list[Row]]:
    """Rows in groups of at most `budget` bytes (never less than one row) and 1,024 rows."""
    chunk: list[Row] = []
    size = 0
    for row in source:
        weight = sum(len(field) if isinstance(field, str) else len(str(field)) for field in row.fields)
        if chunk and (size + weight > budget or len(chunk) == 1024):
            yield chunk
            chunk, size = [], 0
        chunk.append(row)
        size += weight
    if chunk:
        yield chunk


def _add_texts(columns: _Columns, spec: TaskSpec, processor: TextProcessor, chunk: list[Row], ends: dict[str, int]) -> None:
    for number, side in enumerate(spec.sides):
        lists = processor.texts([processor.check_texts(spec, row, side) for row in chunk])
        _add_lists(columns, f"ids{number}", f"ends{number}", lists, ends)


def _add_words(
    columns: _Columns, spec: TaskSpec, processor: TextProcessor, chunk: list[Row], labels: _Labels, ends: dict[str, int]
) -> None:
    found = processor.words([processor.check_words(spec, row) for row in chunk])
    _add_lists(columns, "ids0", "ends0", [ids for ids, _ in found], ends)
    for row, (_, first) in zip(chunk, found, strict=True):
        names = row.label if isinstance(row.label, tuple) else ()
        numbers = [labels.number(name) for name in names]  # also of words that were cut off, so that the names do not depend on it
        columns.append("labels", np.array([IGNORED if word < 0 else numbers[word] for word in first], "<i4"))


def _add_vectors(columns: _Columns, spec: TaskSpec, processor: VectorProcessor, chunk: list[Row]) -> None:
    for number, side in enumerate(spec.sides):
        columns.append(f"features{number}", np.stack([processor.vector(spec, row, side) for row in chunk]))


def _add_labels(columns: _Columns, spec: TaskSpec, chunk: list[Row], labels: _Labels, ends: dict[str, int]) -> None:
    if spec.head == "single":
        columns.append("labels", np.array([labels.number(str(row.label)) for row in chunk], "<i4"))
    elif spec.head == "regression":
        columns.append("labels", np.array([row.label for row in chunk], "<f8"))
    elif spec.head == "multi":
        lists = [[labels.number(name) for name in row.label] if isinstance(row.label, tuple) else [] for row in chunk]
        _add_lists(columns, "labels", "label_ends", lists, ends)


def _add_lists(columns: _Columns, name: str, end_name: str, lists: list[list[int]], ends: dict[str, int]) -> None:
    stops = ends.get(name, 0) + np.cumsum([len(item) for item in lists], dtype=np.int64)
    columns.append(name, np.array([number for item in lists for number in item], "<i4"))
    columns.append(end_name, stops.astype("<i8"))
    ends[name] = int(stops[-1])
