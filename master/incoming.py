"""One upload: resumable, verified, and never in the way of another upload of the same bytes."""

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from trunkline.clock import Clock, Deadline
from trunkline.errors import Conflict, Reason, RefusedValue
from trunkline.files import WriteBehind, storage, sync_folder

_CHUNK = 1 << 20
_PATIENCE = 30.0  # seconds to wait for another writer of the same part; it holds the lock for one chunk at a time


class Incoming:
    """An upload. Write to it from `have()` on; close it, or leave its `with` block, when done for now.

    What was written stays when the connection breaks. Two connections with the same bytes take turns chunk by chunk: the slower one
    is told where to go on.

    :param part: the file that grows; `target`: what it is renamed to when it is complete.
    :param limit: bytes at most; `size`: bytes in all, where that is known.
    :raises RefusedValue: `size`: it is larger than the limit.
    """

    def __init__(self, digest: str, part: Path, target: Path, limit: int, size: int | None, clock: Clock) -> None:
        self.digest, self._part, self._target, self.limit, self.size, self._clock = digest, part, target, limit, size, clock
        if size is not None and size > limit:
            raise RefusedValue(Reason.SIZE, f"blob {digest} should have at most {limit} bytes, found {size}.")
        self._hash, self._hashed = hashlib.sha256(), 0
        self._handle: int | None = None
        self._behind: WriteBehind | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Stop for now; what was written stays."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    @property
    def done(self) -> bool:
        """Whether the blob is there, complete and verified."""
        return self._target.is_file()

    def have(self) -> int:
        """Bytes that are there already; go on from here."""
        with suppress(FileNotFoundError):
            os.utime(self._target)  # who hears that it is here does not send it: no sweep may take it away before it is named
            return self._target.stat().st_size
        try:
            return self._part.stat().st_size
        except FileNotFoundError:
            return 0

    def write(self, offset: int, chunks: Iterable[bytes]) -> int:
        """Add bytes and return how many are there now. The last one, where `size` is known, finishes the upload.

        :param offset: where they belong; should be `have()`.
        :raises Conflict: they do not follow what is there; says where to go on.
        :raises RefusedValue: `size`: more than allowed; `digest`: complete, and not what was promised. The part is deleted.
        """
        for chunk in chunks:
            if self.done:
                return self.have()
            offset = self._append(offset, chunk)
        if not self.done and offset != self.have():
            raise self._elsewhere(offset)
        if self.size is not None and not self.done and self.have() >= self.size:
            self.finish()
        return self.have()

    def _append(self, offset: int, chunk: bytes) -> int:
        with storage(self._part), self._locked() as handle:
            if handle is None:
                return offset + len(chunk)  # somebody else has just finished it
            have = os.fstat(handle).st_size
            if offset != have:
                raise self._elsewhere(offset)
            end = offset + len(chunk)
            most = self.limit if self.size is None else self.size
            if end > most:
                self._part.unlink(missing_ok=True)
                raise RefusedValue(Reason.SIZE, f"blob {self.digest} should have at most {most} bytes, found {end}.")
            write_at(handle, chunk, offset)
            if self._behind is not None:
                self._behind.wrote(offset, end)
            if self._hashed == offset:
                self._hash.update(chunk)
                self._hashed = end
            return end

    def finish(self) -> int:
        """Verify the bytes, put the blob in place and return its size.

        :raises Conflict: bytes are missing still; says where to go on.
        :raises RefusedValue: `digest`: not what was promised; the part is deleted, so a new upload starts from nothing.
        """
        if self.size is not None and self.have() < self.size:
            raise self._elsewhere(self.size)
        with storage(self._part), self._locked() as handle:
            if handle is not None:
                self._hash_rest(handle)
                if self._hash.hexdigest() != self.digest:
                    self._part.unlink(missing_ok=True)
                    raise RefusedValue(
                        Reason.DIGEST, f"the bytes should have SHA-256 {self.digest}, found {self._hash.hexdigest()}."
                    )
                os.fsync(handle)
                make_room(self._target)
                self._part.replace(self._target)
                sync_folder(self._target.parent)
        self.close()
        return self._target.stat().st_size

    def _hash_rest(self, handle: int) -> None:
        """Hash what was written before this connection, or by another one."""
        with open(handle, "rb", closefd=False) as file:
            file.seek(self._hashed)
            while chunk := file.read(_CHUNK):
                self._hash.update(chunk)
                self._hashed += len(chunk)

    def _elsewhere(self, offset: int) -> Conflict:
        return Conflict(
            f"blob {self.digest} should go on at byte {self.have()}, found byte {offset}.", hint="Ask how many are there."
        )

    @contextmanager
    def _locked(self) -> Iterator[int | None]:
        """The part file, ours alone for a moment; None when the blob is complete.

        The file that is open may have been renamed to its final name, or deleted, by another connection: then it must not be
        written to, so after locking we look whether the name still leads to it.
        """
        deadline = Deadline(self._clock, _PATIENCE, f"another upload of {self.digest}")
        while True:
            if self._handle is None:
                if self.done:
                    yield None
                    return
                self._handle = os.open(self._part, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
                self._hash, self._hashed = hashlib.sha256(), 0
                self._behind = WriteBehind(self._handle)
            if _try_lock(self._handle):
                if _leads_to(self._part, self._handle):
                    break
                self.close()
                continue
            deadline.check()
            self._clock.sleep(0.005)
        try:
            yield self._handle
        finally:
            if self._handle is not None:
                _unlock(self._handle)


def make_room(target: Path) -> None:
    """Make the folder of a blob, for good. The blob store's own folder is there."""
    if not target.parent.is_dir():
        with storage(target):
            target.parent.mkdir(exist_ok=True)
            sync_folder(target.parent.parent)


def write_at(handle: int, data: bytes, offset: int) -> int:
    """Write all of `data` and return where it ends."""
    view = memoryview(data)
    os.lseek(handle, offset, os.SEEK_SET)
    while view:
        done = os.write(handle, view)
        view, offset = view[done:], offset + done
    return offset


def _leads_to(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _try_lock(handle: int) -> bool:
    try:
        if os.name == "nt":
            import msvcrt

            os.lseek(handle, 0, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _unlock(handle: int) -> None:
    if os.name == "nt":
        import msvcrt

        os.lseek(handle, 0, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)  # type: ignore[attr-defined]
    else:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_UN)
