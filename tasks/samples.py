"""From the rows of a file to samples of a task: columns found, labels checked, each in its split."""

import difflib
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.readers import records
from tasks.specs import TaskSpec
from trunkline.errors import SampleError
from trunkline.values import Split

Label = None | str | float | tuple[str, ...]
"""None for pairs, a name, a number, or several names: a set for `multi`, one a token for `tokens`."""

DEFAULT_FRACTIONS = (0.8, 0.1, 0.1)

_LARGEST = float(np.finfo(np.float32).max)

_SPLIT_WORDS: dict[str, Split] = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One sample, before the encoder's own processing."""

    line: int  # in its file, from 1
    fields: tuple[Any, ...]  # raw values of the input columns, none of them None
    label: Label
    split: Split


def wrong(spec: TaskSpec, line: int, column: str, what: str, hint: str | None = None) -> SampleError:
    """An error about one cell. `what` reads "should be …, found …"."""
    return SampleError(f"`{spec.data}`, line {line}, column {column!r}: {what}.", hint=hint)


def rows(spec: TaskSpec, base: Path, modules: Sequence[Path] = ()) -> Iterator[Row]:
    """Every sample of a task, checked, one at a time.

    :raises SampleError: names file, line, column, what should be and what was found.
    """
    by_column: bool | None = None
    for line, values in records(spec, base, modules):
        if by_column is None:
            _check_columns(spec, values)
            by_column = spec.split is not None or (spec.fractions is None and "split" in values)
        row = row_of(spec, line, values)
        yield replace(row, split=_split_of(spec, line, values) if by_column else _seeded_split(spec, row.fields))
    if by_column is None:
        raise SampleError(f"`{spec.data}` should hold samples, found no row.")


def row_of(spec: TaskSpec, line: int, values: Mapping[str, Any]) -> Row:
    """One sample, checked; for training, whatever it says of splits.

    :raises SampleError: names line and column, what should be and what was found.
    """
    fields = tuple(_present(spec, line, values, column) for column in spec.fields)
    label = _label(spec, line, values, fields)
    for column, value in zip((*spec.fields, spec.label), (*fields, label), strict=True):
        _check_text(spec, line, column or "", value)
    return Row(line, fields, label, "train")


def _check_columns(spec: TaskSpec, values: Mapping[str, Any]) -> None:
    for column in (*spec.fields, spec.label, spec.split):
        if column is not None and column not in values:
            near = difflib.get_close_matches(column, [str(name) for name in values], n=1, cutoff=0.5)
            raise SampleError(
                f"`{spec.data}` should have a column {column!r}, found {', '.join(map(str, values))}.",
                hint=f"Did you mean {near[0]!r}?" if near else None,
            )


def _present(spec: TaskSpec, line: int, values: Mapping[str, Any], column: str) -> Any:
    value = values.get(column)
    if value is None:
        raise wrong(spec, line, column, "should have a value, found none")
    return value


def _check_text(spec: TaskSpec, line: int, column: str, value: Any) -> None:
    """JSON can escape half of a character, as in an emoji that was cut in two; no tokenizer and no file takes that.

    :raises SampleError: there is one.
    """
    for text in value if isinstance(value, list | tuple) else (value,):
        if isinstance(text, str) and not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                half = f"half of a character at place {error.start}"
                raise wrong(spec, line, column, f"should be whole characters, found {half}") from None


# -- labels ------------------------------------------------------------------------------------------------------------


def _label(spec: TaskSpec, line: int, values: Mapping[str, Any], fields: tuple[Any, ...]) -> Label:
    if spec.label is None:
        return None
    value = values.get(spec.label)
    if spec.head == "multi":
        return _set_of_names(spec, line, value)
    if value is None or value == "":
        raise wrong(spec, line, spec.label, "should have a label, found none")
    if spec.head == "regression":
        return _number(spec, line, value)
    if spec.head == "tokens":
        return _names_of_tokens(spec, line, value, fields[0])
    return _name(spec, line, value)


def _name(spec: TaskSpec, line: int, value: Any) -> str:
    if isinstance(value, bool):
        name = str(value).lower()
    elif isinstance(value, str | int | float) and value == value:
        name = str(value)
    else:
        raise wrong(spec, line, spec.label or "", f"should be the name of a label, found {value!r}")
    if spec.labels is not None and name not in spec.labels:
        near = difflib.get_close_matches(name, spec.labels, n=1)
        raise wrong(
            spec,
            line,
            spec.label or "",
            f"should be one of {', '.join(spec.labels[:20])}, found {name!r}",
            f"Did you mean {near[0]!r}?" if near else "Add it to `labels`, or leave `labels` out to take all that are found.",
        )
    return name


def _set_of_names(spec: TaskSpec, line: int, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        value = [part.strip() for part in value.split(spec.separator) if part.strip()]
    if not isinstance(value, list | tuple):
        raise wrong(spec, line, spec.label or "", f"should be names parted by {spec.separator!r} or a list, found {value!r}")
    return tuple(sorted({_name(spec, line, item) for item in value}))


def _number(spec: TaskSpec, line: int, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not abs(number) <= _LARGEST:  # NaN too
        raise wrong(spec, line, spec.label or "", f"should be a finite number, found {value!r}")
    return number


def words(spec: TaskSpec, line: int, column: str, value: Any) -> list[str]:
    """A list of tokens or of their labels: a list, a JSON list in a cell, or words parted by blanks.

    :raises SampleError: it is none of these.
    """
    if isinstance(value, str):
        if value.lstrip().startswith("["):
            try:
                value = json.loads(value)
            except ValueError:
                raise wrong(spec, line, column, f"should be a JSON list, found {value[:60]!r}") from None
        else:
            value = value.split()
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise wrong(spec, line, column, f"should be a list of strings, found {repr(value)[:60]}")
    return list(value)


def _names_of_tokens(spec: TaskSpec, line: int, value: Any, tokens: Any) -> tuple[str, ...]:
    names = tuple(_name(spec, line, name) for name in words(spec, line, spec.label or "", value))
    count = len(words(spec, line, spec.fields[0], tokens))
    if len(names) != count:
        raise wrong(spec, line, spec.label or "", f"should have a label for each of {count} tokens, found {len(names)}")
    return names


# -- splits ------------------------------------------------------------------------------------------------------------


def _split_of(spec: TaskSpec, line: int, values: Mapping[str, Any]) -> Split:
    column = spec.split or "split"
    word = str(_present(spec, line, values, column)).strip().lower()
    if word not in _SPLIT_WORDS:
        raise wrong(
            spec, line, column, f"should be train, validation or test, found {word!r}", "Or set `fractions` to split by a seed."
        )
    return _SPLIT_WORDS[word]


def _seeded_split(spec: TaskSpec, fields: tuple[Any, ...]) -> Split:
    """By a hash of the input: the same text is never on two sides, and rows that are added move no other."""
    text = json.dumps([spec.seed, *fields], ensure_ascii=False, default=str)
    point = int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big") / 2**64
    train, validation, _ = spec.fractions or DEFAULT_FRACTIONS
    return "train" if point < train else "validation" if point < train + validation else "test"


def taken(spec: TaskSpec, training: NDArray[np.int64]) -> NDArray[np.int64]:
    """The training rows that `spec.rows` leaves, chosen by its seed, in the order of the file; never none."""
    if spec.rows is None or not len(training):
        return training
    count = max(1, round(len(training) * spec.rows))
    return np.sort(np.random.default_rng(spec.seed).permutation(training)[:count])
