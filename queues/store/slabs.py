"""Gradients on their way from workers to the writer, one file each, on one host; what is in a file, `queues.store.wireform` says.

NAME.part is being written, and locked by its writer as long as that one lives; HASH-ATTEMPT.slab is whole; NAME.free is done
with and is written over, for new pages cost three times what old ones do. Nothing here is made to reach the disk: a gradient that
a power cut took is computed again.
"""

import fcntl
import hashlib
import mmap
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from queues.store.store import Sent
from queues.store.wireform import HEAD, decode, encode
from trunkline.errors import DamagedFile, QueueFull
from trunkline.files import storage

FORGOTTEN = 3600.0
"""Seconds after which a gradient that nobody asked for is let go; its batch would be computed again."""


class Slabs:
    """The folder of gradients.

    :param most: files that may wait; several workers at one moment may go beyond by one each.
    :param size: bytes that all files may have, done with or not.
    """

    def __init__(self, folder: Path, most: int, size: int) -> None:
        self.folder, self._most, self._size = folder, most, size

    # -- the worker's side ---------------------------------------------------------------------------------------------

    def lay(self, sent: Sent) -> None:
        """Write a gradient, whole or not at all.

        :raises QueueFull: there is no room for it now.
        :raises StorageFailed: the disk refused.
        """
        form = encode(sent)
        with self.arriving(form.size) as (handle, part):
            for at, piece in form.pieces:
                _put(handle, piece, at)
            _put(handle, memoryview(form.front), 0)
            part.replace(self.path(sent.batch, sent.attempt))

    @contextmanager
    def arriving(self, size: int) -> Iterator[tuple[int, Path]]:
        """A file of this size to write to; whoever wrote all of it gives it the name of its gradient, or it is gone.

        :raises QueueFull: there is no room for it now.
        :raises StorageFailed: the disk refused.
        """
        with storage(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, part = self._take(size)
            try:
                os.truncate(handle, size)
                yield handle, part
            finally:
                with suppress(OSError):
                    part.unlink(missing_ok=True)
                os.close(handle)

    def _take(self, size: int) -> tuple[int, Path]:
        """A file to write, locked; one that is done with, where there is one."""
        found = self._listed()
        if not self._fits(found, size):
            self.sweep()
            found = self._listed()
            for path in [path for path in found if path.suffix == ".free"]:
                path.unlink(missing_ok=True)
                del found[path]
            if not self._fits(found, size):
                raise full(self._most, self._size)
        for path in [path for path in found if path.suffix == ".free"]:
            if (taken := self._taken(path)) is not None:
                return taken
        while True:
            path = self.folder / f"{uuid.uuid4().hex}.free"
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            if (taken := self._taken(path)) is not None:
                return taken

    def _taken(self, path: Path) -> tuple[int, Path] | None:
        """Lock a file that is done with, then give it the name of one in the making; None: another was quicker."""
        part = path.with_suffix(".part")
        try:
            handle = _locked(path)
        except (FileNotFoundError, BlockingIOError):
            return None
        try:
            path.replace(part)
        except FileNotFoundError:
            os.close(handle)
            return None
        return handle, part

    def _fits(self, found: dict[Path, int], size: int) -> bool:
        waiting = [path for path in found if path.suffix != ".free"]
        spare = max((size for path, size in found.items() if path.suffix == ".free"), default=0)
        return len(waiting) < self._most and sum(found.values()) - spare + size <= self._size

    def _listed(self) -> dict[Path, int]:
        found: dict[Path, int] = {}
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name.endswith((".part", ".slab", ".free")):
                    with suppress(FileNotFoundError):
                        found[Path(entry.path)] = entry.stat().st_size
        return found

    # -- the writer's side ---------------------------------------------------------------------------------------------

    def load(self, batch: str, attempt: int) -> Sent | None:
        """A gradient, its tensors in a memory map; None: it is not there.

        :raises DamagedFile: it is not whole, or another one's.
        """
        path = self.path(batch, attempt)
        try:
            with storage(path), path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < HEAD.size:
                    raise DamagedFile(f"`{path}` should be a gradient, found {size} bytes.")
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # torch warns of what cannot be stored to
        except FileNotFoundError:
            return None
        found = decode(data, size, f"`{path}`")
        if (found.batch, found.attempt) != (batch, attempt):
            raise DamagedFile(f"`{path}` should hold its own gradient, found another's.")
        return found

    def free(self, batch: str, attempt: int, *, earlier: bool) -> None:
        """Let a gradient go.

        :param earlier: also those of the attempts before.
        """
        begin = _hash(batch)
        for path in self._listed() if self.folder.is_dir() else ():
            name, _, number = path.stem.partition("-")
            if path.suffix != ".slab" or name != begin or not number.isdigit():
                continue
            if int(number) == attempt or (earlier and int(number) < attempt):
                with suppress(FileNotFoundError):
                    path.replace(self.folder / f"{uuid.uuid4().hex}.free")

    def sweep(self, seconds: float = FORGOTTEN) -> None:
        """Delete what a worker left that died while it wrote, and what nobody asked for in this time."""
        for path in self._listed() if self.folder.is_dir() else ():
            with suppress(FileNotFoundError, BlockingIOError):
                if path.suffix == ".part":
                    os.close(_locked(path))  # or its writer lives
                    path.unlink()
                elif path.suffix == ".slab" and time.time() - path.stat().st_mtime > seconds:
                    path.unlink()

    def path(self, batch: str, attempt: int) -> Path:
        """Of a gradient that is whole."""
        return self.folder / f"{_hash(batch)}-{attempt}.slab"


def full(most: int, size: int) -> QueueFull:
    """What a store says that has no room for another gradient."""
    return QueueFull(
        f"at most {most} gradients of {size} bytes should wait in the store, found no room for another.",
        hint="Wait for the server.",
    )


def _hash(batch: str) -> str:
    return hashlib.sha256(batch.encode()).hexdigest()[:32]


def _locked(path: Path) -> int:
    handle = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _put(handle: int, data: memoryview, at: int) -> None:
    while data:
        done = os.pwrite(handle, data, at)
        data, at = data[done:], at + done
