"""A blob is there, complete and right, or it is not there: whatever is put in, deleted, interrupted or full."""

import errno
import hashlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from master.blobs import BlobStore
from trunkline.clock import ManualClock
from trunkline.errors import DamagedFile, NotFound, Reason, RefusedValue, StorageFailed
from trunkline.sets import encode_set

DATA = b"some bytes" * 1000
NAME = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs", ManualClock())


def leftovers(store: BlobStore) -> list[Path]:
    """Every file that is no blob."""
    return [path for path in store.folder.rglob("*") if path.is_file() and path.name not in set(store.digests())]


def test_bytes_are_found_by_their_digest(store: BlobStore) -> None:
    assert not store.has(NAME) and list(store.digests()) == []
    assert store.add_bytes(DATA) == NAME == store.add_bytes(DATA)
    assert store.path(NAME) == store.folder / NAME[:2] / NAME
    assert store.path(NAME).read_bytes() == DATA and store.size(NAME) == len(DATA)
    assert list(store.digests()) == [NAME] and leftovers(store) == []
    assert BlobStore(store.folder).has(NAME)
    assert store.add_bytes(b"") == hashlib.sha256().hexdigest()


@pytest.mark.parametrize("name", ["", "..", "../../etc/passwd", "A" * 64, "a" * 63, "a" * 65, "a" * 64 + "\n", "/" + "a" * 63])
def test_only_digests_are_names(store: BlobStore, name: str) -> None:
    for ask in (store.path, store.has, store.size, store.open_set, store.verify, store.delete, lambda name: store.upload(name, 10)):
        with pytest.raises(RefusedValue, match="64 digits") as caught:
            ask(name)
        assert caught.value.reason == Reason.DIGEST


@pytest.mark.parametrize("move", [False, True])
@pytest.mark.parametrize("there", [False, True])
def test_a_file_is_stored(store: BlobStore, tmp_path: Path, move: bool, there: bool) -> None:
    if there:
        store.add_bytes(DATA)
    path = tmp_path / "file"
    path.write_bytes(DATA)
    assert store.add_file(path, move) == (NAME, len(DATA))
    assert path.exists() == (not move)
    store.verify(NAME)
    assert leftovers(store) == []


def test_a_file_on_another_disk_is_copied(store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    monkeypatch.setattr(BlobStore, "_rename", lambda *_: False)
    assert store.add_file(path, move=True) == (NAME, len(DATA))
    assert not path.exists() and store.path(NAME).read_bytes() == DATA


def test_a_stored_file_does_not_change_with_its_source(store: BlobStore, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    store.add_file(path)
    path.write_bytes(b"other")
    store.verify(NAME)


def test_a_file_that_changes_while_it_is_stored_is_refused(
    store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"other")
    monkeypatch.setattr("master.blobs.sha256_file", lambda _: NAME)
    with pytest.raises(DamagedFile, match="changed"):
        store.add_file(path)
    assert not store.has(NAME) and leftovers(store) == []


def test_a_set_is_opened_through_a_memory_map(store: BlobStore) -> None:
    name = store.add_bytes(encode_set({"w": np.arange(3, dtype=np.float32)}))
    with store.open_set(name) as file:
        store.delete(name)
        assert file.read("w").tolist() == [0.0, 1.0, 2.0], "who has it open keeps it"
    store.add_bytes(DATA)
    with pytest.raises(DamagedFile):
        store.open_set(NAME)


def test_what_is_not_there_is_not_found(store: BlobStore) -> None:
    for ask in (store.size, store.open_set, store.verify):
        with pytest.raises(NotFound, match=NAME):
            ask(NAME)
    assert store.delete(NAME) is False
    store.add_bytes(DATA)
    assert store.delete(NAME) is True and not store.has(NAME)


def test_a_damaged_blob_is_noticed(store: BlobStore) -> None:
    store.add_bytes(DATA)
    store.verify(NAME)
    with store.path(NAME).open("r+b") as file:
        file.write(b"X")
    with pytest.raises(DamagedFile, match=NAME):
        store.verify(NAME)


def test_scratch_files_lie_beside_the_blobs_and_never_meet(store: BlobStore) -> None:
    paths = {store.scratch("target") for _ in range(20)}
    assert len(paths) == 20
    assert {path.parent for path in paths} == {store.folder / "scratch"}
    odd = store.scratch("../../x/\0")
    assert odd.parent == store.folder / "scratch"
    odd.write_bytes(DATA)
    before = odd.stat().st_ino
    store.add_file(odd, move=True)
    assert store.path(NAME).stat().st_ino == before, "renamed, not copied"


def test_leftovers_are_swept_by_age(store: BlobStore) -> None:
    store.add_bytes(DATA)
    with store.upload("a" * 64, 100) as part:
        part.write(0, [b"x"])
    scratch, tmp = store.scratch("x"), store.path(NAME).with_name(".half.tmp")
    for path in (scratch, tmp):
        path.write_bytes(b"x")
    left = leftovers(store)
    assert len(left) == 3
    now = store._clock.now()
    for path in left:
        os.utime(path, (now - 100, now - 100))
    os.utime(store.path(NAME), (now - 1e5, now - 1e5))
    assert store.sweep(older_than=100.0) == 0
    assert store.sweep(older_than=99.0) == 3
    assert leftovers(store) == [] and store.has(NAME)


def full(after: int) -> Callable[..., int]:
    """`os.write` on a disk with room for so many bytes."""
    real, left = os.write, [after]

    def write(handle: int, data: bytes) -> int:
        if left[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = real(handle, data[: left[0]])
        left[0] -= done
        return done

    return write


def test_a_full_disk_loses_nothing(store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = store.add_bytes(b"kept")
    path = tmp_path / "file"
    path.write_bytes(DATA)
    monkeypatch.setattr(os, "write", full(500))
    with pytest.raises(StorageFailed, match=r"No space left.*nothing was lost"):
        store.add_bytes(DATA)
    with pytest.raises(StorageFailed):
        store.add_file(path)
    monkeypatch.undo()
    assert not store.has(NAME) and leftovers(store) == [] and path.read_bytes() == DATA
    store.verify(kept)
    assert store.add_file(path) == (NAME, len(DATA))
    assert store.free() > 0


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_folder_is_said(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StorageFailed, match="right to write"):
        BlobStore(tmp_path / "blobs")


def test_many_threads_store_the_same_bytes(store: BlobStore) -> None:
    start = threading.Barrier(8)

    def put(_: int) -> str:
        start.wait(20)
        return store.add_bytes(DATA)

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(put, range(8))) == {NAME}
    store.verify(NAME)
    assert leftovers(store) == []
