"""Files of samples as streams of rows: CSV, TSV, JSON Lines, Parquet, Hugging Face `datasets` folders, a user's own reader.

No file is held in memory. Whatever is wrong with one becomes a `SampleError` that says where.
"""

import csv
import json
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tasks import plugins
from tasks.specs import TaskSpec
from trunkline.errors import SampleError, SpecError

Record = tuple[int, Mapping[str, Any]]
"""The line (or row) number, counted from 1, and the values by column. A missing value is None or not there."""

_ROWS_A_BATCH = 256

_SAVED = ("dataset_info.json", "dataset_dict.json")
"""What `save_to_disk` leaves in its folder: the one for a `Dataset`, the other for a `DatasetDict`."""


def records(spec: TaskSpec, base: Path, modules: Sequence[Path] = ()) -> Iterator[Record]:
    """Every row of a task's file, one at a time.

    :param base: folder that `spec.data` is relative to.
    :param modules: folders with a user's own reader.
    :raises SampleError: no such file, empty, wrong encoding, or not of its format.
    :raises SpecError: a format, encoding or reader that there is none of.
    """
    path = spec.source(base)
    check_there(spec, path)
    if spec.reader is not None:
        return _own(spec, path, plugins.load(spec.reader, (base, *modules), "trunkline.readers"))
    form = spec.form(base)
    if form is None:
        raise SpecError(
            f"`data` should end in .csv, .tsv, .jsonl or .parquet, found {path.name!r}.", hint="Say what it is with `format`."
        )
    return {"csv": _csv, "tsv": _tsv, "jsonl": _jsonl, "parquet": _parquet, "datasets": _datasets}[form](spec, path)


def check_there(spec: TaskSpec, path: Path) -> None:
    """Whether there is something to read at all, before a byte of it is: a pipe would be waited for, a disk read to its end.

    :raises SampleError: no such file, empty, no file at all, or a folder that holds no data set.
    """
    try:
        about = path.stat()
    except FileNotFoundError:
        raise SampleError(f"`{path}` should be a file of samples, found none.") from None
    except OSError as error:
        raise SampleError(f"`{path}` should be readable, found: {error.strerror}.") from None
    if stat.S_ISDIR(about.st_mode):
        if spec.reader is None and not any((path / name).is_file() for name in _SAVED):
            raise SampleError(f"`{path}` should be a folder that `datasets` has saved, found none of {', '.join(_SAVED)} in it.")
    elif not stat.S_ISREG(about.st_mode):
        raise SampleError(f"`{path}` should be a file of samples, found a device or a pipe.", hint="Write it to a file first.")
    elif about.st_size == 0:
        raise SampleError(f"`{path}` should hold samples, found an empty file.")


@contextmanager
def _text(spec: TaskSpec, path: Path) -> Iterator[Any]:
    """Open a text file; what is wrong with its bytes is told with the line."""
    encoding = "utf-8-sig" if spec.encoding.lower().replace("_", "-") in ("utf-8", "utf8") else spec.encoding
    try:
        with path.open("r", encoding=encoding, newline="") as file:
            yield file
    except LookupError:
        raise SpecError(f"`encoding` should be the name of an encoding, found {spec.encoding!r}.") from None
    except UnicodeError:
        raise SampleError(
            f"`{path}` should be {spec.encoding}, found other bytes{_first_bad_line(path, encoding)}.",
            hint='Name its encoding in the task, for example `encoding = "cp1252"`, or save it as UTF-8.',
        ) from None
    except OSError as error:
        raise SampleError(f"`{path}` should be readable, found: {error.strerror}.") from None


def _first_bad_line(path: Path, encoding: str) -> str:
    if "16" in encoding or "32" in encoding:  # lines cannot be told apart by single bytes there
        return ""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode(encoding)
            except UnicodeError:
                return f" in line {number}"
    return ""


def _csv(spec: TaskSpec, path: Path) -> Iterator[Record]:
    return _separated(spec, path, ",")


def _tsv(spec: TaskSpec, path: Path) -> Iterator[Record]:
    return _separated(spec, path, "\t")


def _separated(spec: TaskSpec, path: Path, delimiter: str) -> Iterator[Record]:
    with _text(spec, path) as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        line = 1
        try:
            header = next(reader, None)
            if not header:
                raise SampleError(f"`{path}` should start with the names of its columns, found none.")
            if len(set(header)) != len(header):
                twice = next(name for name in header if header.count(name) > 1)
                raise SampleError(f"`{path}` should name each column once, found {twice!r} twice.")
            line = reader.line_num + 1
            for cells in reader:
                if len(cells) > len(header):
                    raise SampleError(f"`{path}`, line {line}: should have {len(header)} cells, found {len(cells)}.")
                if cells:  # a blank line is no row
                    missing = [None] * (len(header) - len(cells))
                    yield line, dict(zip(header, [*cells, *missing], strict=True))
                line = reader.line_num + 1
        except csv.Error as error:
            raise SampleError(
                f"`{path}`, line {line}: should be a row of cells, found: {error}.",
                hint="Quotes inside a quoted cell are written twice; JSON Lines knows neither this trap nor a largest cell.",
            ) from None


def _jsonl(spec: TaskSpec, path: Path) -> Iterator[Record]:
    with _text(spec, path) as file:
        for line, text in enumerate(file, start=1):
            if not text.strip():
                continue
            try:
                values = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise SampleError(f"`{path}`, line {line}: should be a JSON object, found: {error}.") from None
            if not isinstance(values, dict):
                raise SampleError(f"`{path}`, line {line}: should be a JSON object, found {type(values).__name__}.")
            yield line, values


def _parquet(spec: TaskSpec, path: Path) -> Iterator[Record]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path, memory_map=True) as file:
            wanted = {*spec.fields, spec.label, spec.split or "split"}
            columns = [name for name in file.schema_arrow.names if name in wanted]
            if not columns:  # let the row say which names there are
                columns = file.schema_arrow.names
            row = 0
            for batch in file.iter_batches(batch_size=_ROWS_A_BATCH, columns=columns):
                for values in batch.to_pylist():
                    row += 1
                    yield row, values
    except (pyarrow.ArrowException, OSError) as error:
        raise SampleError(f"`{path}` should be a Parquet file, found: {error}.") from None


def _datasets(spec: TaskSpec, path: Path) -> Iterator[Record]:
    """A folder written by `save_to_disk`; the parts of a `DatasetDict` are its splits, class labels come by name."""
    try:
        import datasets
    except ImportError:
        raise SpecError(
            "the package `datasets` should be installed to read its folders, found none.", hint="pip install 'trunkline[datasets]'"
        ) from None
    try:
        loaded = datasets.load_from_disk(str(path))
    except (OSError, ValueError) as error:
        raise SampleError(f"`{path}` should be a folder that `datasets` has saved, found: {error}.") from None
    parts = loaded if isinstance(loaded, dict) else {None: loaded}
    row = 0
    for split, part in parts.items():
        names = {key: feature for key, feature in part.features.items() if isinstance(feature, datasets.ClassLabel)}
        for values in _plain(part):
            row += 1
            named = {key: names[key].int2str(value) for key, value in values.items() if key in names and value is not None}
            yield row, {**values, **named} if split is None else {(spec.split or "split"): split, **values, **named}


def _plain(part: Any) -> Iterator[dict[str, Any]]:
    """Rows of a `Dataset` as plain values, whatever format it was saved with."""
    yield from part.with_format(None)


def _own(spec: TaskSpec, path: Path, reader: Any) -> Iterator[Record]:
    """A user's own reader; what it raises is told as its error, not ours."""
    rows = iter(reader(path, spec))
    row = 0
    while True:
        try:
            values = next(rows)
        except StopIteration:
            return
        except Exception as error:
            raise SampleError(f"the reader `{spec.reader}` should yield rows, found {type(error).__name__}: {error}.") from error
        row += 1
        if not isinstance(values, Mapping):
            raise SampleError(f"the reader `{spec.reader}` should yield mappings, found {type(values).__name__} for row {row}.")
        yield row, values
