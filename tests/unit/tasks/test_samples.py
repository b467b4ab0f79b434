import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from tasks.samples import Row, rows, taken
from tasks.specs import TaskSpec
from tasks.survey import survey
from tests.unit.tasks.conftest import Write
from trunkline.errors import SampleError, SpecError

ROWS = [
    ("good food", "yes", "train"),
    ('a "quoted", cell\nof two lines', "no", "test"),
    ("café", "yes", "val"),
    ("", "no", "train"),
]
HEADER = ("text", "label", "split")


def single(data: str = "a.csv", **change: Any) -> TaskSpec:
    return TaskSpec.model_validate({"name": "t", "head": "single", "data": data, "fields": ("text",), "label": "label"} | change)


def write_all(folder: Path, write_csv: Write) -> list[str]:
    """The same rows in every format."""
    write_csv("a.csv", [HEADER, *ROWS])
    write_csv("a.tsv", [HEADER, *ROWS])
    table = [dict(zip(HEADER, row, strict=True)) for row in ROWS]
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, table)), encoding="utf-8")
    parquet.write_table(pyarrow.Table.from_pylist(table), folder / "a.parquet")
    (folder / "own.py").write_text(f"def read(path, spec):\n    yield from {table!r}\n")
    return ["a.csv", "a.tsv", "a.jsonl", "a.parquet"]


def content(found: list[Row]) -> list[tuple[Any, ...]]:
    return [(row.fields, row.label, row.split) for row in found]


def test_every_format_gives_the_same_samples(tmp_path: Path, write_csv: Write) -> None:
    wanted = [((text,), label, {"val": "validation"}.get(split, split)) for text, label, split in ROWS]
    for data in write_all(tmp_path, write_csv):
        assert content(list(rows(single(data), tmp_path))) == wanted, data
    assert content(list(rows(single("a.csv", reader="own.py:read"), tmp_path))) == wanted


def test_lines_are_counted_as_an_editor_counts_them(tmp_path: Path, write_csv: Write) -> None:
    write_all(tmp_path, write_csv)
    assert [row.line for row in rows(single("a.csv"), tmp_path)] == [2, 3, 5, 6]
    assert [row.line for row in rows(single("a.jsonl"), tmp_path)] == [1, 2, 3, 4]


# -- what is wrong is told, with its place -----------------------------------------------------------------------------

BAD: list[tuple[str, str, dict[str, Any], str]] = [
    ("a.csv", "", {}, "found an empty file"),
    ("a.csv", "text,label,split\n", {}, "found no row"),
    ("a.csv", "\n", {}, "names of its columns"),
    ("a.csv", "text,label,label\na,b,c\n", {}, "'label' twice"),
    ("a.csv", "text,lable\na,b\n", {}, "a column 'label', found text, lable. Did you mean 'lable'"),
    ("a.csv", "text,label\na,b\nonly\n", {}, "line 3, column 'label': should have a label, found none"),
    ("a.csv", "text,label\nonly\na,b\n", {}, "line 2, column 'label': should have a label, found none"),
    ("a.csv", "text,label\na,b\nc,\n", {}, "line 3, column 'label': should have a label, found none"),
    ("a.csv", "text,label\na,b,c\n", {}, "line 2: should have 2 cells, found 3"),
    ("a.csv", 'text,label\n"a,b\n', {}, "line 2: should be a row of cells"),
    ("a.csv", "text,label\na,b\nc,x\n", {"labels": ("b", "c")}, "line 3, column 'label': should be one of b, c, found 'x'"),
    ("a.csv", "text,label\na,pos\nc,psitive\n", {"labels": ("positive", "pos")}, "Did you mean 'positive'"),
    (
        "a.csv",
        "text,label,split\na,b,train\na,b,tset\n",
        {},
        "line 3, column 'split': should be train, validation or test, found 'tset'",
    ),
    ("a.csv", "text,label\na,b\n", {"split": "part"}, "a column 'part'"),
    (
        "a.csv",
        "text,label\na,1.5\nb,much\n",
        {"head": "regression"},
        "line 3, column 'label': should be a finite number, found 'much'",
    ),
    ("a.csv", "text,label\na,nan\n", {"head": "regression"}, "should be a finite number, found 'nan'"),
    ("a.csv", "text,label\na,inf\n", {"head": "regression"}, "should be a finite number, found 'inf'"),
    ("a.csv", "text,label\na,1e39\n", {"head": "regression"}, "should be a finite number"),
    ("a.csv", "text,label\na b c,x y\n", {"head": "tokens"}, "a label for each of 3 tokens, found 2"),
    ("a.jsonl", '{"text": "a"\n', {}, "line 1: should be a JSON object"),
    ("a.jsonl", "[1]\n", {}, "line 1: should be a JSON object, found list"),
    ("a.jsonl", '{"text": "a", "label": "b"}\n\n{"label": "b"}\n', {}, "line 3, column 'text': should have a value, found none"),
    ("a.jsonl", '{"text": "a", "label": null}\n', {}, "should have a label, found none"),
    ("a.jsonl", '{"text": "a", "label": ["b"]}\n', {}, "should be the name of a label, found ['b']"),
    ("a.jsonl", '{"text": "a", "label": true}\n', {"head": "regression"}, "should be a finite number, found True"),
    ("a.jsonl", '{"text": "a", "label": {"x": 1}}\n', {"head": "multi"}, "or a list, found {'x': 1}"),
    ("a.jsonl", '{"text": [1], "label": ["x"]}\n', {"head": "tokens"}, "column 'text': should be a list of strings, found [1]"),
    ("a.jsonl", '{"text": "a \\ud83d", "label": "b"}\n', {}, "line 1, column 'text': should be whole characters, found half of a"),
    ("a.jsonl", '{"text": "a", "label": "\\ud83d"}\n', {}, "line 1, column 'label': should be whole characters"),
    (
        "a.jsonl",
        '{"text": ["a", "\\udc00"], "label": ["b", "b"]}\n',
        {"head": "tokens"},
        "column 'text': should be whole characters",
    ),
    ("a.parquet", "no parquet", {}, "should be a Parquet file"),
]


@pytest.mark.parametrize(("name", "text", "change", "said"), BAD, ids=[f"{name}-{said[:30]}" for name, _, _, said in BAD])
def test_bad_files_are_told_with_their_place(name: str, text: str, change: dict[str, Any], said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(SampleError) as caught:
        list(rows(single(name, **change), tmp_path))
    assert said in str(caught.value)
    assert name in str(caught.value)


def test_other_bytes_than_the_encoding_are_told_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("text,label\ngood,yes\ncafé,no\n".encode("cp1252"))
    with pytest.raises(SampleError, match=r"should be utf-8, found other bytes in line 3.*encoding = "):
        list(rows(single(), tmp_path))
    assert [row.fields for row in rows(single(encoding="cp1252"), tmp_path)] == [("good",), ("café",)]
    with pytest.raises(SpecError, match="name of an encoding, found 'utf-9'"):
        list(rows(single(encoding="utf-9"), tmp_path))


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("\ufefftext,label\na,b\n".encode())
    assert len(list(rows(single(), tmp_path))) == 1


def test_files_that_are_not_there_and_formats_that_are_not_known(tmp_path: Path) -> None:
    with pytest.raises(SampleError, match="found none"):
        list(rows(single("missing.csv"), tmp_path))
    (tmp_path / "a.xls").write_text("x")
    with pytest.raises(SpecError, match="Say what it is with `format`"):
        list(rows(single("a.xls"), tmp_path))
    (tmp_path / "folder").mkdir()
    with pytest.raises(SampleError, match="a folder that `datasets` has saved"):
        list(rows(single("folder", format="csv"), tmp_path))


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_cannot_be_read_to_its_end_is_not_begun(kind: str, tmp_path: Path) -> None:
    """Not by whoever reads its rows, and not by whoever takes its digest."""
    data = {"pipe": tmp_path / "pipe.csv", "device": Path("/dev/zero"), "folder": tmp_path}[kind]
    if kind == "pipe":
        os.mkfifo(data)
    task = single(str(data), format="csv" if kind != "folder" else "datasets")
    for read in (lambda: list(rows(task, tmp_path)), lambda: survey(task, tmp_path, tmp_path)):
        with pytest.raises(SampleError, match=r"found a device or a pipe|found none of dataset_info\.json"):
            read()


def test_what_a_users_reader_raises_is_its_own_error(tmp_path: Path, write_csv: Write) -> None:
    write_csv("a.csv", [HEADER, *ROWS])
    (tmp_path / "own.py").write_text(
        "def bad(path, spec):\n    yield {'text': 'a', 'label': 'b'}\n    raise KeyError('x')\n\n"
        "def odd(path, spec):\n    yield 3\n"
    )
    with pytest.raises(SampleError, match=r"own.py:bad.*KeyError"):
        list(rows(single(reader="own.py:bad"), tmp_path))
    with pytest.raises(SampleError, match="should yield mappings, found int"):
        list(rows(single(reader="own.py:odd"), tmp_path))


# -- labels ------------------------------------------------------------------------------------------------------------


def test_labels_of_each_head_are_read(tmp_path: Path) -> None:
    lines = [
        {"text": "a", "tags": ["y", "x", "y"], "n": 3, "flag": True, "toks": ["p", "q"], "kinds": ["P", "Q"]},
        {"text": "b", "tags": None, "n": -0.5, "flag": False, "toks": ["r"], "kinds": ["P"]},
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))

    def labels(head: str, label: str, field: str = "text") -> list[Any]:
        return [row.label for row in rows(single("a.jsonl", head=head, label=label, fields=(field,)), tmp_path)]

    assert labels("multi", "tags") == [("x", "y"), ()]
    assert labels("regression", "n") == [3.0, -0.5]
    assert labels("single", "n") == ["3", "-0.5"]
    assert labels("single", "flag") == ["true", "false"]
    assert labels("tokens", "kinds", "toks") == [("P", "Q"), ("P",)]


def test_lists_in_cells(tmp_path: Path, write_csv: Write) -> None:
    write_csv("a.csv", [("toks", "tags", "kinds"), ("a b", "x| y", "A B"), ('["a b", "c"]', "", '["A", "B"]')])
    multi = single(head="multi", label="tags", fields=("toks",))
    tokens = single(head="tokens", label="kinds", fields=("toks",))
    assert [row.label for row in rows(multi, tmp_path)] == [("x", "y"), ()]
    assert [row.label for row in rows(tokens, tmp_path)] == [("A", "B"), ("A", "B")]


# -- splits and shares -------------------------------------------------------------------------------------------------


def test_a_seeded_split_keeps_its_fractions_and_moves_nobody_when_rows_are_added(tmp_path: Path, write_csv: Write) -> None:
    table = [(f"text {number}", "x") for number in range(3000)]
    write_csv("a.csv", [("text", "label"), *table[:2000]])
    spec = single(fractions=(0.6, 0.3, 0.1), seed=5)
    before = {row.fields: row.split for row in rows(spec, tmp_path)}
    write_csv("a.csv", [("text", "label"), *reversed(table)])
    after = {row.fields: row.split for row in rows(spec, tmp_path)}
    assert all(after[fields] == split for fields, split in before.items())
    for split, share in zip(("train", "validation", "test"), (0.6, 0.3, 0.1), strict=True):
        assert abs(sum(found == split for found in after.values()) / 3000 - share) < 4 * math.sqrt(share * (1 - share) / 3000)
    other = {row.fields: row.split for row in rows(single(fractions=(0.6, 0.3, 0.1), seed=6), tmp_path)}
    assert 0.3 < np.mean([other[fields] == split for fields, split in after.items()]) < 0.7  # 0.46 if they are independent


def test_equal_inputs_are_never_on_two_sides(tmp_path: Path, write_csv: Write) -> None:
    write_csv("a.csv", [("text", "label"), *((f"text {number % 50}", f"{number % 2}") for number in range(500))])
    sides: dict[Any, set[str]] = {}
    for row in rows(single(), tmp_path):
        sides.setdefault(row.fields, set()).add(row.split)
    assert all(len(found) == 1 for found in sides.values())
    assert len(set().union(*sides.values())) > 1


def test_fractions_take_the_place_of_a_split_column(tmp_path: Path, write_csv: Write) -> None:
    write_csv("a.csv", [HEADER, *((f"t{number}", "x", "train") for number in range(100))])
    assert {row.split for row in rows(single(), tmp_path)} == {"train"}
    assert {row.split for row in rows(single(fractions=(0.0, 1.0, 0.0)), tmp_path)} == {"validation"}


def test_a_share_of_the_training_rows_is_chosen_by_seed_and_never_none() -> None:
    training = np.arange(0, 2000, 2, dtype=np.int64)
    tenth = taken(single(rows=0.1, seed=1), training)
    assert len(tenth) == 100 and set(tenth) <= set(training) and np.all(np.diff(tenth) > 0)
    assert np.array_equal(tenth, taken(single(rows=0.1, seed=1), training))
    assert not np.array_equal(tenth, taken(single(rows=0.1, seed=2), training))
    assert len(taken(single(rows=1e-6), training)) == 1
    assert np.array_equal(taken(single(), training), training)
    assert len(taken(single(rows=0.1), training[:0])) == 0
