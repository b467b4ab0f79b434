"""Files that survive a crash: written beside, flushed, renamed; foreign errors become ours here."""

import errno
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

from trunkline.errors import AlreadyRunning, StorageFailed

_CHUNK = 1 << 18  # bytes; they stay in a cache between reading and hashing

_FREE = "Free some space and try again; nothing was lost."
_ALLOW = "Give this user the right to write there, or name another folder."
_HINTS = {
    errno.ENOSPC: _FREE,
    errno.EDQUOT: _FREE,
    errno.EFBIG: "Raise this user's limit for the size of a file; nothing was lost.",
    errno.EROFS: "Mount it writable, or name another folder.",
    errno.EACCES: _ALLOW,
    errno.EPERM: _ALLOW,
}


@contextmanager
def storage(path: Path) -> Iterator[None]:
    """Turn what the disk says about `path` into one error with advice. That a file is not there stays `FileNotFoundError`."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StorageFailed(
            f"`{path}` should be writable, found: {error.strerror}.", hint=_HINTS.get(error.errno or 0, "Name another folder.")
        ) from error


def write_atomically(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Replace a file whole: readers see the old bytes or the new ones, also after a power cut.

    :raises StorageFailed: the disk refused.
    """
    with storage(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, mode=mode) as handle:
            write_all(handle, data)


def write_all(handle: int, data: bytes) -> None:
    """Write every byte, however few the system takes at a time."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


@contextmanager
def replacing(path: Path, *, mode: int = 0o644, durable: bool = True, spare: Path | None = None) -> Iterator[int]:
    """A file descriptor to write to; on success its content takes the place of `path`, on failure nothing happened.

    :param durable: whether it also survives a power cut. Not needed for a file whose checksum is compared before it is used.
    :param spare: a file of the same mode and disk that nobody reads any more. If it is there it is what is written over, for the
        system takes three times as long where it has to find room; the caller cuts off what is left of it.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    try:
        if spare is None:
            raise FileNotFoundError
        spare.replace(beside)
        handle = os.open(beside, os.O_RDWR)
    except FileNotFoundError:
        handle = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
    try:
        yield handle
        if durable:
            os.fsync(handle)
        beside.replace(path)
    except BaseException:
        discard(beside)
        raise
    finally:
        os.close(handle)
    if durable:
        sync_folder(path.parent)


def discard(path: Path) -> None:
    """Delete a file in the making. A disk that refused the file may refuse this too: what it said first is what counts."""
    with suppress(OSError):
        path.unlink(missing_ok=True)


class WriteBehind:
    """Has the disk begin with what was just written, so that flushing a large file at its end finds little left to do.

    :param handle: the file. Bytes that were written are told to `wrote`, in the order of their offsets or not.
    """

    def __init__(self, handle: int, every: int = 8 << 20) -> None:
        self._handle, self._every = handle, every
        self._begin = self._end = 0

    def wrote(self, begin: int, end: int) -> None:
        """These bytes were written. Where the system cannot be told, nothing happens."""
        if begin != self._end:
            self._begin = begin
        self._end = end
        if end - self._begin >= self._every and hasattr(os, "posix_fadvise"):
            # "Not needed" makes Linux begin to write; what is not written yet it cannot drop.
            os.posix_fadvise(self._handle, self._begin, end - self._begin, os.POSIX_FADV_DONTNEED)
            self._begin = end


class HashAlong:
    """SHA-256 of a file as it is written: what comes in order is hashed while it is in the caches, the rest is read at the end.

    :param handle: the file, open for reading too.
    """

    def __init__(self, handle: int) -> None:
        self._handle, self._hash, self._hashed = handle, hashlib.sha256(), 0

    def wrote(self, offset: int, data: bytes | memoryview) -> None:
        """These bytes were written; none is written twice."""
        if offset == self._hashed:
            self._hash.update(data)
            self._hashed += len(data)

    def digest(self) -> str:
        """Of the whole file, lower-case hex."""
        with open(self._handle, "rb", closefd=False) as file:
            file.seek(self._hashed)
            while chunk := file.read(_CHUNK):
                self._hash.update(chunk)
                self._hashed += len(chunk)
        return self._hash.hexdigest()


def sync_folder(folder: Path) -> None:
    """Make a rename in this folder durable; a no-op where folders cannot be opened (Windows)."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes, lower-case hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


SETTLED = 2.0
"""Seconds after which a file's times say whether it was written since; some file systems count whole seconds."""


def sha256_remembered(path: Path) -> str:
    """SHA-256 of a file's bytes, lower-case hex. A file that this process has read and nobody touched since is not read again."""
    before = path.stat()
    if time.time() - max(before.st_mtime, before.st_ctime) < SETTLED:  # a second write may leave the times of the first
        return sha256_file(path)
    return _sha256_of(path, before.st_dev, before.st_ino, before.st_size, before.st_mtime_ns, before.st_ctime_ns)


@lru_cache(maxsize=4096)
def _sha256_of(path: Path, *identity: int) -> str:
    return sha256_file(path)


class Lock:
    """One process a state folder. Held until `release` or the end of the process, however it ends.

    :raises AlreadyRunning: another process holds it.
    """

    def __init__(self, path: Path, what: str) -> None:
        with storage(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+", encoding="utf-8")
        try:
            _lock(self._file.fileno())
        except OSError:
            self._file.seek(0)
            holder = self._file.read().strip() or "unknown"
            self._file.close()
            raise AlreadyRunning(
                f"`{path.parent}` should be used by one {what}, found process {holder} already on it.",
                hint="Stop that one, or give this one a folder of its own.",
            ) from None
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()

    def release(self) -> None:
        self._file.close()


def _lock(handle: int) -> None:
    if os.name == "nt":
        import msvcrt

        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    else:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
