"""Gradients on their way: whole or not there, bounded, written over when done with, and let go when their worker died."""

import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from queues.store import slabs as module
from queues.store.slabs import HEAD, Slabs
from queues.store.store import Rows, Sent
from tests.support.plain_optim import sent
from trunkline.errors import DamagedFile, QueueFull

TENSORS: Mapping[str, Tensor | Rows] = {
    "shared/a": torch.arange(6.0).view(2, 3),
    "shared/scalar": torch.tensor(3.5),
    "shared/empty": torch.empty(0, 4),
    "shared/rows": Rows(torch.tensor([1, 5]), torch.ones(2, 2)),
    "shared/no-rows": Rows(torch.empty(0, dtype=torch.int64), torch.empty(0, 2)),
}

SENT = Sent("batch", 1, "mood", 3, 8, 0.25, TENSORS)


@pytest.fixture
def slabs(tmp_path: Path) -> Slabs:
    return Slabs(tmp_path / "slabs", 4, 1 << 20)


def the_file(slabs: Slabs, suffix: str = ".slab") -> Path:
    (path,) = slabs.folder.glob(f"*{suffix}")
    return path


def alike(left: Tensor | Rows, right: Tensor | Rows) -> bool:
    if isinstance(left, Rows) and isinstance(right, Rows):
        return left.index.equal(right.index) and left.values.equal(right.values)
    return isinstance(left, Tensor) and isinstance(right, Tensor) and left.equal(right)


def test_a_gradient_comes_out_as_it_went_in(slabs: Slabs) -> None:
    slabs.lay(SENT)
    found = slabs.load("batch", 1)
    assert found is not None
    assert replace(found, tensors={}) == replace(SENT, tensors={})
    assert list(found.tensors) == list(TENSORS)
    assert all(alike(found.tensors[name], tensor) for name, tensor in TENSORS.items())


@pytest.mark.parametrize("loss", [float("inf"), float("nan"), -1e300, 0.1])
def test_any_loss_comes_out(slabs: Slabs, loss: float) -> None:
    slabs.lay(replace(SENT, loss=loss))
    found = slabs.load("batch", 1)
    assert found is not None
    assert repr(found.loss) == repr(loss)


@pytest.mark.parametrize("batch", ["../../x", "a/b", "", "x" * 5000, "ü\n"])
def test_any_batch_has_a_name_of_its_own_in_the_folder(slabs: Slabs, batch: str) -> None:
    slabs.lay(replace(SENT, batch=batch))
    assert the_file(slabs).parent == slabs.folder
    found = slabs.load(batch, 1)
    assert found is not None
    assert found.batch == batch


def test_any_changed_byte_is_found_or_says_nothing(slabs: Slabs) -> None:
    """Only what lies between tensors may change, and then nothing of the gradient does."""
    slabs.lay(SENT)
    path = the_file(slabs)
    whole = path.read_bytes()
    silent = 0
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x11]) + whole[place + 1 :])
        try:
            found = slabs.load("batch", 1)
        except DamagedFile:
            continue
        silent += 1
        assert found is not None
        assert all(alike(found.tensors[name], tensor) for name, tensor in TENSORS.items())
    data = sum(len(t.reshape(-1)) * 4 for v in TENSORS.values() for t in ([v] if isinstance(v, Tensor) else [v.values])) + 16
    length = HEAD.unpack(whole[: HEAD.size])[2]
    assert silent == len(whole) - HEAD.size - length - data


@pytest.mark.parametrize("size", [0, 1, HEAD.size - 1, HEAD.size, 200, -64, -1])
def test_a_file_that_is_cut_off_is_none(slabs: Slabs, size: int) -> None:
    slabs.lay(SENT)
    os.truncate(the_file(slabs), size if size >= 0 else the_file(slabs).stat().st_size + size)
    with pytest.raises(DamagedFile):
        slabs.load("batch", 1)


def test_the_file_of_another_gradient_is_none(slabs: Slabs) -> None:
    slabs.lay(SENT)
    path = the_file(slabs)
    shutil.copy(path, path.with_name(path.name.replace("-1.", "-2.")))
    with pytest.raises(DamagedFile):
        slabs.load("batch", 2)
    assert slabs.load("other", 1) is None


def test_a_gradient_laid_again_takes_the_place_of_the_first(slabs: Slabs) -> None:
    slabs.lay(SENT)
    slabs.lay(replace(SENT, loss=9.0))
    found = slabs.load("batch", 1)
    assert found is not None
    assert found.loss == 9.0


def test_what_is_done_with_is_written_over(slabs: Slabs) -> None:
    slabs.lay(SENT)
    first = the_file(slabs).stat().st_ino
    slabs.free("batch", 1, earlier=True)
    slabs.lay(sent(0, "mood", skip=("shared/embedding",)))
    assert the_file(slabs).stat().st_ino == first
    slabs.free("batch-0", 1, earlier=True)
    slabs.lay(SENT)  # a smaller one than the file was made for
    found = slabs.load("batch", 1)
    assert found is not None
    assert alike(found.tensors["shared/a"], TENSORS["shared/a"])
    assert [path.suffix for path in slabs.folder.iterdir()] == [".slab"]


def test_no_more_wait_than_may(slabs: Slabs) -> None:
    for number in range(4):
        slabs.lay(replace(SENT, batch=str(number)))
    with pytest.raises(QueueFull, match="at most 4"):
        slabs.lay(SENT)
    slabs.free("2", 1, earlier=False)
    slabs.lay(SENT)


def test_no_more_bytes_wait_than_may(tmp_path: Path) -> None:
    slabs = Slabs(tmp_path / "slabs", 100, 100_000)
    wide = {"shared/a": torch.ones(10_000)}
    slabs.lay(replace(SENT, tensors=wide))
    slabs.lay(replace(SENT, batch="2", tensors=wide))
    with pytest.raises(QueueFull):
        slabs.lay(replace(SENT, batch="3", tensors=wide))
    slabs.free("batch", 1, earlier=False)
    slabs.free("2", 1, earlier=False)
    slabs.lay(replace(SENT, batch="3", tensors={"shared/a": torch.ones(20_000)}))  # those that are done with make room
    assert sum(path.stat().st_size for path in slabs.folder.iterdir()) <= 100_000
    with pytest.raises(QueueFull):
        slabs.lay(replace(SENT, batch="4", tensors={"shared/a": torch.ones(30_000)}))


def test_what_a_dead_worker_was_writing_makes_room_and_what_a_living_one_writes_does_not(slabs: Slabs) -> None:
    slabs.folder.mkdir()
    dead = [slabs.folder / f"{number}.part" for number in range(2)]
    for path in dead:
        path.write_bytes(b"half")
    alive, handle = slabs.folder / "alive.part", -1
    try:
        alive.write_bytes(b"half")
        handle = module._locked(alive)
        for number in range(3):
            slabs.lay(replace(SENT, batch=str(number)))
        assert [path.exists() for path in (*dead, alive)] == [False, False, True]
        with pytest.raises(QueueFull):
            slabs.lay(SENT)
    finally:
        os.close(handle)


def test_what_nobody_asked_for_goes_after_a_while(slabs: Slabs) -> None:
    slabs.lay(SENT)
    slabs.sweep()
    assert slabs.load("batch", 1) is not None
    long_ago = time.time() - 2 * module.FORGOTTEN
    os.utime(the_file(slabs), (long_ago, long_ago))
    slabs.sweep()
    assert list(slabs.folder.iterdir()) == []


def test_a_gradient_that_cannot_be_written_leaves_nothing(slabs: Slabs, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, "_put", fail)
        slabs.lay(SENT)
    assert list(slabs.folder.iterdir()) == []


def test_without_a_folder_there_is_nothing(slabs: Slabs) -> None:
    slabs.sweep()
    slabs.free("batch", 1, earlier=True)
    assert slabs.load("batch", 1) is None
