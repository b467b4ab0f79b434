import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tasks import tablewriter
from tasks.batches import IGNORED, Batch
from tasks.encoders import Encoder
from tasks.processors import TextProcessor, VectorProcessor
from tasks.samples import rows, taken
from tasks.specs import TaskSpec
from tasks.table import SampleTable, open_table
from tests.support import tiny
from tests.unit.tasks.conftest import Write
from trunkline.errors import SampleError, SpecError, StorageFailed

TEXTS = [
    "good food",
    "the place was very slow and not good at all , really !",
    "bad",
    "x" * 120,
    "",
    "win win win",
    "north road city",
]
MEMORY = 1 << 20


def spec(**change: Any) -> TaskSpec:
    return TaskSpec.model_validate({"name": "t", "head": "single", "data": "a.csv", "fields": ("text",), "label": "label"} | change)


@pytest.fixture(scope="session")
def processor(encoder_folder: Path) -> TextProcessor:
    return TextProcessor(encoder_folder, 16)


@pytest.fixture
def texts(tmp_path: Path, write_csv: Write) -> Path:
    splits = ["train", "train", "test", "train", "validation", "train", "test"]
    labels = ["z", "b", "b", "b", "z", "b", "a"]  # "a" comes up in the last line only
    write_csv("a.csv", [("text", "label", "split"), *zip(TEXTS, labels, splits, strict=True)])
    return tmp_path


def direct(processor: TextProcessor, texts: list[str], length: int) -> dict[str, Tensor]:
    """What the tokenizer itself says, padded to the longest."""
    found = processor.tokenizer(texts, truncation=True, max_length=length, padding="longest", return_tensors="pt")
    return {name: found[name] for name in ("input_ids", "attention_mask")}


def check_side(found: Any, wanted: dict[str, Tensor]) -> None:
    assert set(found) == set(wanted)
    for name in wanted:
        assert found[name].dtype == torch.int64
        assert torch.equal(found[name], wanted[name]), name


@pytest.mark.parametrize("length", [None, 3, 6, 16, 100])
@pytest.mark.parametrize("places", [[0], [2, 0], [6, 1, 4, 3], [4]])
def test_a_batch_is_what_the_tokenizer_makes_of_its_texts(
    length: int | None, places: list[int], processor: TextProcessor, texts: Path
) -> None:
    table = open_table(spec(), processor, texts / "cache", texts, MEMORY)
    batch = table.batch(np.array(places), length)
    check_side(batch.inputs[0], direct(processor, [TEXTS[place] for place in places], min(length or 16, 16)))
    assert batch.size == len(places) and batch.task == "t"


def test_labels_are_numbered_in_sorted_order_also_when_one_comes_last(processor: TextProcessor, texts: Path) -> None:
    table = open_table(spec(), processor, texts / "cache", texts, MEMORY)
    assert table.labels == ("a", "b", "z")
    assert table.batch(np.arange(7)).labels.tolist() == [2, 1, 1, 1, 2, 1, 0]
    fixed = open_table(spec(labels=("z", "a", "b", "other")), processor, texts / "cache", texts, MEMORY)
    assert fixed.labels == ("z", "a", "b", "other")
    assert fixed.batch(np.arange(7)).labels.tolist() == [0, 2, 2, 2, 0, 2, 1]


def test_splits_and_shares(processor: TextProcessor, texts: Path) -> None:
    table = open_table(spec(), processor, texts / "cache", texts, MEMORY)
    assert [table.indices(split).tolist() for split in ("train", "validation", "test")] == [[0, 1, 3, 5], [4], [2, 6]]
    assert all(table.indices(split).dtype == np.int64 for split in ("train", "test"))
    half = open_table(spec(rows=0.5), processor, texts / "cache", texts, MEMORY)
    assert np.array_equal(half.indices("train"), taken(spec(rows=0.5), table.indices("train"))) and half.count("train") == 2
    assert half.count("test") == 2
    assert half.folder == table.folder and half.digest != table.digest  # the same files, another set of samples


def test_a_small_memory_gives_the_same_bytes(processor: TextProcessor, tmp_path: Path, write_csv: Write) -> None:
    rng = np.random.default_rng(0)
    lines = [(" ".join(rng.choice(tiny.WORDS, rng.integers(0, 40))), f"l{rng.integers(5)}", "train") for _ in range(1100)]
    write_csv("a.csv", [("text", "label", "split"), *lines])
    small = open_table(spec(), processor, tmp_path / "small", tmp_path, 1)
    large = open_table(spec(), processor, tmp_path / "large", tmp_path, 1 << 30)
    names = sorted(path.name for path in small.folder.iterdir())
    assert names == ["ends0.bin", "ids0.bin", "labels.bin", "splits.bin", "table.json"]
    assert all((small.folder / name).read_bytes() == (large.folder / name).read_bytes() for name in names)
    picked = rng.permutation(1100)[:20]
    check_side(small.batch(picked).inputs[0], direct(processor, [lines[place][0] for place in picked], 16))
    assert np.array_equal(small.lengths(picked), small.batch(picked).inputs[0]["attention_mask"].sum(1).numpy())


def test_rows_are_taken_in_chunks_within_the_budget(tmp_path: Path, write_csv: Write) -> None:
    write_csv("a.csv", [("text", "label"), *(("x" * size, "y") for size in (10, 10, 10, 100, 1))])
    chunks = [[len(row.fields[0]) for row in chunk] for chunk in tablewriter.chunks(rows(spec(), tmp_path), 25)]
    assert chunks == [[10, 10], [10], [100], [1]]


def test_the_file_is_read_once_for_each_content(processor: TextProcessor, texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_table(spec(), processor, texts / "cache", texts, MEMORY)
    with monkeypatch.context() as patch:
        patch.setattr(tablewriter, "rows", lambda *_: pytest.fail("read again"))
        assert open_table(spec(weight=2.0), processor, texts / "cache", texts, MEMORY).digest == first.digest
    with (texts / "a.csv").open("a") as file:
        file.write("new,a,train\n")
    assert open_table(spec(), processor, texts / "cache", texts, MEMORY).count("train") == 5
    shorter = TextProcessor(Path(processor.tokenizer.name_or_path), 8)
    assert open_table(spec(), shorter, texts / "cache", texts, MEMORY).digest != first.digest


class Crash(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("calls", range(1, 7))
def test_a_crash_at_any_file_leaves_no_half_table(
    calls: int, processor: TextProcessor, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    left, replace = [calls], os.replace

    def failing(source: Any, target: Any) -> None:
        left[0] -= 1
        if not left[0]:
            raise Crash
        replace(source, target)

    monkeypatch.setattr(os, "replace", failing)
    if calls <= 5:
        with pytest.raises(Crash):
            open_table(spec(), processor, texts / "cache", texts, MEMORY)
    monkeypatch.setattr(os, "replace", replace)
    table = open_table(spec(), processor, texts / "cache", texts, MEMORY)
    check_side(table.batch([1, 0]).inputs[0], direct(processor, [TEXTS[1], TEXTS[0]], 16))
    assert not list(table.folder.glob("*.tmp"))


@pytest.mark.parametrize("damage", ["gone", "short", "json"])
def test_a_table_that_is_not_whole_is_made_again(damage: str, processor: TextProcessor, texts: Path) -> None:
    folder = open_table(spec(), processor, texts / "cache", texts, MEMORY).folder
    if damage == "gone":
        (folder / "ids0.bin").unlink()
    elif damage == "short":
        (folder / "ids0.bin").write_bytes((folder / "ids0.bin").read_bytes()[:-4])
    else:
        (folder / "table.json").write_text('{"bytes": 3}')
    table = open_table(spec(), processor, texts / "cache", texts, MEMORY)
    check_side(table.batch([1, 0]).inputs[0], direct(processor, [TEXTS[1], TEXTS[0]], 16))


def test_few_old_tables_are_kept_and_those_of_other_tasks_are_left_alone(processor: TextProcessor, texts: Path) -> None:
    other = open_table(spec(name="t-other"), processor, texts / "cache", texts, MEMORY).folder
    newest = open_table(spec(), processor, texts / "cache", texts, MEMORY)
    for number in range(6):
        with (texts / "a.csv").open("a") as file:
            file.write(f"new {number},a,train\n")
        newest = open_table(spec(), processor, texts / "cache", texts, MEMORY)
    assert other.is_dir() and newest.folder.is_dir() and newest.count("train") == 10
    assert len(list((texts / "cache").iterdir())) == 1 + 4


def test_a_row_that_is_wrong_leaves_nothing_behind(processor: TextProcessor, texts: Path) -> None:
    with (texts / "a.csv").open("a") as file:
        file.write("new,,train\n")
    with pytest.raises(SampleError, match="line 9, column 'label'"):
        open_table(spec(), processor, texts / "cache", texts, MEMORY)
    assert not [path for path in (texts / "cache").rglob("*") if path.is_file()]


def test_a_full_disk_is_our_error(processor: TextProcessor, texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno
    import os

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StorageFailed, match="No space left"):
        open_table(spec(), processor, texts / "cache", texts, MEMORY)


@pytest.mark.parametrize(
    ("lines", "change", "said"),
    [
        ([("a", "x", "test"), ("b", "y", "test")], {}, "should have training samples"),
        ([("a", "x", "train"), ("b", "x", "train")], {}, "at least two different labels, found x"),
        ([("a", "", "train")], {"head": "multi"}, "at least one label"),
        ([("", "x", "train"), ("a b", "x y", "train")], {"head": "tokens"}, "line 2"),
    ],
)
def test_tasks_that_cannot_be_learnt_are_refused(
    lines: list[Any], change: dict[str, Any], said: str, processor: TextProcessor, tmp_path: Path, write_csv: Write
) -> None:
    write_csv("a.csv", [("text", "label", "split"), *lines])
    with pytest.raises(SampleError, match=said):
        open_table(spec(**change), processor, tmp_path / "cache", tmp_path, MEMORY)


# -- the other heads ---------------------------------------------------------------------------------------------------


def write_jsonl(folder: Path, lines: list[dict[str, Any]]) -> None:
    (folder / "a.jsonl").write_text("\n".join(json.dumps({"split": "train"} | line) for line in lines))


def opened(processor: Any, folder: Path, **change: Any) -> SampleTable:
    return open_table(spec(data="a.jsonl", **change), processor, folder / "cache", folder, MEMORY)


def test_several_labels(processor: TextProcessor, tmp_path: Path) -> None:
    write_jsonl(tmp_path, [{"text": "a", "label": tags} for tags in (["y"], [], ["x", "y"], ["w"])])
    table = opened(processor, tmp_path, head="multi")
    assert table.labels == ("w", "x", "y")
    assert table.batch([2, 1, 3, 0]).labels.tolist() == [[0, 1, 1], [0, 0, 0], [1, 0, 0], [0, 0, 1]]
    assert table.batch([0]).labels.dtype == torch.float32


def test_regression_knows_the_scale_of_its_training_targets(processor: TextProcessor, tmp_path: Path) -> None:
    targets = [1.0, 2.0, 4.0, 1000.0]
    lines = [{"text": "a", "label": target, "split": "test" if target > 999 else "train"} for target in targets]
    write_jsonl(tmp_path, lines)
    table = opened(processor, tmp_path, head="regression")
    assert table.scale == pytest.approx((7 / 3, np.std(targets[:3])))
    assert table.labels == () and table.batch([3, 0]).labels.tolist() == [1000.0, 1.0]
    write_jsonl(tmp_path, [{"text": "a", "label": 3.0}, {"text": "b", "label": 3.0}])
    assert opened(processor, tmp_path, head="regression").scale == (3.0, 1.0)


def test_pairs_have_two_sides(processor: TextProcessor, tmp_path: Path) -> None:
    write_jsonl(tmp_path, [{"q": "good", "a": "very very good food"}, {"q": "bad", "a": "slow"}])
    table = opened(processor, tmp_path, head="pairs", fields=("q", "a"), label=None)
    batch = table.batch([1, 0])
    check_side(batch.inputs[0], direct(processor, ["bad", "good"], 16))
    check_side(batch.inputs[1], direct(processor, ["slow", "very very good food"], 16))
    assert table.lengths(np.array([0, 1])).tolist() == [6, 3]


def test_several_fields_of_one_sample_are_parted_by_the_separator(processor: TextProcessor, tmp_path: Path) -> None:
    write_jsonl(tmp_path, [{"a": "good", "b": "food", "label": label} for label in "xy"])
    ids = opened(processor, tmp_path, fields=("a", "b")).batch([0]).inputs[0]["input_ids"]
    assert processor.tokenizer.convert_ids_to_tokens(ids[0]) == ["[CLS]", "good", "[SEP]", "food", "[SEP]"]


def test_a_tokens_label_stands_at_the_first_piece_of_its_word(processor: TextProcessor, tmp_path: Path) -> None:
    lines = [{"text": ["loved", "slowly", "red"], "label": ["V", "R", "A"]}, {"text": ["cat"], "label": ["N"]}]
    write_jsonl(tmp_path, lines)
    table = opened(processor, tmp_path, head="tokens")
    assert table.labels == ("A", "N", "R", "V")
    batch = table.batch([0, 1])
    tokens = [processor.tokenizer.convert_ids_to_tokens(row) for row in batch.inputs[0]["input_ids"]]
    assert tokens[0] == ["[CLS]", "loved", "slow", "##ly", "red", "[SEP]"]
    assert batch.labels.tolist() == [[IGNORED, 3, 2, IGNORED, 0, IGNORED], [IGNORED, 1, IGNORED, IGNORED, IGNORED, IGNORED]]
    cut = table.batch([0], 4)
    assert processor.tokenizer.convert_ids_to_tokens(cut.inputs[0]["input_ids"][0]) == ["[CLS]", "loved", "slow", "[SEP]"]
    assert cut.labels.tolist() == [[IGNORED, 3, 2, IGNORED]]


def test_labels_of_words_that_are_cut_off_are_known_all_the_same(processor: TextProcessor, tmp_path: Path) -> None:
    write_jsonl(tmp_path, [{"text": ["cat"] * 20, "label": ["A"] * 19 + ["LATE"]}])
    assert opened(processor, tmp_path, head="tokens").labels == ("A", "LATE")


# -- vectors -----------------------------------------------------------------------------------------------------------


def test_vectors_come_from_columns_or_from_a_list(tmp_path: Path, write_csv: Write) -> None:
    numbers: NDArray[np.float32] = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    lines = [(*map(str, row), json.dumps(row.tolist()), label) for row, label in zip(numbers, "xyx", strict=True)]
    write_csv("a.csv", [("a", "b", "c", "d", "all", "label"), *lines])
    processor = VectorProcessor((2, 2))
    for fields in (("a", "b", "c", "d"), ("all",)):
        change = spec(fields=fields, fractions=(1.0, 0.0, 0.0))
        batch = open_table(change, processor, tmp_path / "cache", tmp_path, MEMORY).batch([2, 0])
        assert torch.equal(batch.inputs[0]["features"], torch.from_numpy(numbers[[2, 0]].reshape(2, 2, 2)))
        assert batch.labels.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("[1, 2]", "should be 4 numbers"),
        ("[1, 2, 3, NaN]", "should be finite"),
        ('["a", 1, 2, 3]', "should be numbers"),
        ("1 2 3 4", "JSON list"),
        ("[[1], [2, 3]]", "should be numbers"),
    ],
)
def test_vectors_that_do_not_fit_are_told(cell: str, said: str, tmp_path: Path, write_csv: Write) -> None:
    write_csv("a.csv", [("all", "label"), ("[1, 2, 3, 4]", "x"), (cell, "y")])
    with pytest.raises(SampleError, match="line 3, column 'all'.*" + said):
        open_table(spec(fields=("all",)), VectorProcessor((4,)), tmp_path / "cache", tmp_path, MEMORY)


def test_text_that_is_no_text_is_told(processor: TextProcessor, tmp_path: Path) -> None:
    write_jsonl(tmp_path, [{"text": "a", "label": "x"}, {"text": ["b"], "label": "y"}])
    with pytest.raises(SampleError, match="line 2, column 'text': should be text"):
        opened(processor, tmp_path)
    with pytest.raises(SpecError, match="should not label tokens"):
        opened(VectorProcessor((4,)), tmp_path, head="tokens")


def test_an_encoder_does_for_its_processor(encoder: Encoder, texts: Path) -> None:
    assert isinstance(open_table(spec(), encoder, texts / "cache", texts, MEMORY).batch([0]), Batch)
