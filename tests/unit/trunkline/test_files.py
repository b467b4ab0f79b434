"""Files that survive: whole or not at all, one process a folder, the disk's words turned into ours."""

import errno
import hashlib
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from trunkline.errors import AlreadyRunning, StorageFailed
from trunkline.files import Lock, WriteBehind, replacing, sha256_file, sha256_remembered, storage, write_all, write_atomically


def test_the_new_bytes_take_the_place_of_the_old(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "file"
    for data in (b"", b"one", b"x" * (3 << 20)):
        write_atomically(path, data)
        assert path.read_bytes() == data
    assert list(path.parent.iterdir()) == [path]


def test_a_secret_is_never_readable_by_others(tmp_path: Path) -> None:
    write_atomically(tmp_path / "key", b"k", mode=0o600)
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_a_failure_at_any_step_leaves_the_old_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(*((Path, "replace", fail) if step == "replace" else (os, step, fail)))
    with pytest.raises(StorageFailed, match=r"`.*file` should be writable, found: No space left on device\.") as caught:
        write_atomically(path, b"new")
    monkeypatch.undo()
    assert caught.value.hint == "Free some space and try again; nothing was lost."
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_limit_of_the_system_is_met_halfway(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(StorageFailed):
            write_atomically(tmp_path / "file", b"x" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [0, 3, 1 << 20])
def test_a_spare_file_is_written_over_and_gone(tmp_path: Path, size: int) -> None:
    """And not the file that it takes the place of: who has that open keeps it."""
    path, spare = tmp_path / "file", tmp_path / "spare"
    path.write_bytes(b"old")
    spare.write_bytes(b"x" * size)
    place = spare.stat().st_ino
    with path.open("rb") as reader:
        with replacing(path, durable=False, spare=spare) as handle:
            write_all(handle, b"new")
            os.truncate(handle, 3)
            assert path.read_bytes() == b"old" and not spare.exists()
        assert reader.read() == b"old"
    assert path.read_bytes() == b"new" and path.stat().st_ino == place
    with replacing(path, durable=False, spare=spare) as handle:
        write_all(handle, b"without")
    assert path.read_bytes() == b"without"


def test_a_failure_costs_the_spare_file_and_nothing_else(tmp_path: Path) -> None:
    path, spare = tmp_path / "file", tmp_path / "spare"
    path.write_bytes(b"old")
    spare.write_bytes(b"spare")
    with pytest.raises(KeyError), replacing(path, spare=spare) as handle:
        write_all(handle, b"ne")
        raise KeyError
    assert list(tmp_path.iterdir()) == [path] and path.read_bytes() == b"old"


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), replacing(tmp_path / "file") as handle:
        write_all(handle, b"half")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_two_writers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    with replacing(tmp_path / "file") as first, replacing(tmp_path / "file") as second:
        write_all(first, b"first")
        write_all(second, b"second")
    assert (tmp_path / "file").read_bytes() == b"first"  # the outer one is put in place last
    assert len(list(tmp_path.iterdir())) == 1


def test_a_file_in_the_place_of_a_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StorageFailed, match=r"should be writable, found: (Not a directory|File exists)"):
        write_atomically(tmp_path / "file" / "x", b"")


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.EROFS, "Mount it writable"),
        (errno.EACCES, "Give this user"),
        (errno.EDQUOT, "Free some space"),
        (errno.EIO, "Name another"),
    ],
)
def test_each_word_of_the_disk_has_its_advice(number: int, hint: str) -> None:
    with pytest.raises(StorageFailed) as caught, storage(Path("x")):
        raise OSError(number, os.strerror(number))
    assert (caught.value.hint or "").startswith(hint)
    assert os.strerror(number) in caught.value.message


def test_that_a_file_is_not_there_stays_what_it_is() -> None:
    with pytest.raises(FileNotFoundError), storage(Path("x")):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")


@pytest.mark.parametrize("size", [0, 1, (1 << 20) + 7])
def test_the_digest_is_that_of_the_bytes(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    (tmp_path / "file").write_bytes(data)
    assert sha256_file(tmp_path / "file") == hashlib.sha256(data).hexdigest()


# -- one process a folder ----------------------------------------------------------------------------------------------

HOLD = """
import sys
from pathlib import Path
from trunkline.files import Lock
lock = Lock(Path(sys.argv[1]), "daemon")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_lock_in_one_process_is_found_once_and_free_again(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "home" / "lock", "master")
    with pytest.raises(
        AlreadyRunning, match=rf"`.*home` should be used by one master, found process {os.getpid()} already on it\."
    ):
        Lock(tmp_path / "home" / "lock", "master")
    lock.release()
    Lock(tmp_path / "home" / "lock", "master").release()


def test_a_lock_ends_with_its_process_however_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(AlreadyRunning, match=f"found process {holder.pid} already on it"):
            Lock(path, "daemon")
        holder.kill()
        holder.wait(timeout=30)
        Lock(path, "daemon").release()


def test_a_remembered_digest_is_that_of_the_bytes_there_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, reads = tmp_path / "file", []
    monkeypatch.setattr("trunkline.files.sha256_file", lambda of: reads.append(of) or sha256_file(of))
    path.write_bytes(b"first")
    assert sha256_remembered(path) == hashlib.sha256(b"first").hexdigest()
    path.write_bytes(b"again")  # at once, and of the same size
    assert sha256_remembered(path) == hashlib.sha256(b"again").hexdigest()
    monkeypatch.setattr("trunkline.files.SETTLED", -1.0)
    reads.clear()
    assert {sha256_remembered(path) for _ in range(3)} == {hashlib.sha256(b"again").hexdigest()} and len(reads) == 1
    path.with_name("other").write_bytes(b"other")
    path.with_name("other").replace(path)  # another file under the name
    assert sha256_remembered(path) == hashlib.sha256(b"other").hexdigest() and len(reads) == 2
    with pytest.raises(FileNotFoundError):
        sha256_remembered(tmp_path / "none")


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="this system cannot be told to begin writing")
def test_the_disk_is_told_to_begin_with_stretches_that_hang_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda handle, begin, length, advice: told.append((begin, begin + length)))
    behind = WriteBehind(0, every=10)
    for begin, end in [(0, 6), (6, 12), (12, 20), (20, 24), (100, 109), (109, 110), (0, 3)]:
        behind.wrote(begin, end)
    assert told == [(0, 12), (12, 24), (100, 110)]
