"""Files named by the SHA-256 of their bytes: parameter sets, updates, encoder files.

    ab/abcdef…            a blob; it is complete and right, or it is not there
    parts/<digest>.…      an upload that is not complete yet; goes on where it stopped, also after a crash
    scratch/<name>.…      files being written by the master itself, on the same disk, so that they can be renamed into place

A file is written beside, flushed, verified and renamed: a reader never sees half of one, and two writers of the same bytes agree.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from master.incoming import Incoming, make_room, write_at
from trunkline.clock import Clock, SystemClock
from trunkline.errors import DamagedFile, NotFound, Reason, RefusedValue
from trunkline.files import discard, replacing, sha256_file, storage, sync_folder
from trunkline.sets import SetFile

_CHUNK = 1 << 20


class BlobStore:
    """Content-addressed files in a folder. Safe to use from several threads and processes at once.

    :param folder: where they lie; made if it is not there.
    :param clock: tells the age of leftovers.
    :raises StorageFailed: (whatever writes) the disk is full or read-only; nothing that was there is lost.
    """

    def __init__(self, folder: Path, clock: Clock | None = None) -> None:
        self.folder, self._clock = folder, clock or SystemClock()
        self._parts, self._scratch = folder / "parts", folder / "scratch"
        with storage(folder):
            for path in (folder, self._parts, self._scratch):
                path.mkdir(parents=True, exist_ok=True)

    def path(self, digest: str) -> Path:
        """Where a blob lies, or would lie.

        :raises RefusedValue: `digest`: not a SHA-256 in lower-case hex.
        """
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise RefusedValue(Reason.DIGEST, f"a digest should be 64 digits of lower-case hex, found {digest[:80]!r}.")
        return self.folder / digest[:2] / digest

    def has(self, digest: str) -> bool:
        """Whether the blob is there, complete."""
        return self.path(digest).is_file()

    def size(self, digest: str) -> int:
        """Bytes of a blob.

        :raises NotFound: it is not there.
        """
        try:
            return self.path(digest).stat().st_size
        except FileNotFoundError:
            raise self._missing(digest) from None

    def open_set(self, digest: str) -> SetFile:
        """A blob as a parameter set, through a memory map.

        :raises NotFound: it is not there.
        :raises DamagedFile: it is no parameter set.
        """
        try:
            return SetFile(self.path(digest))
        except FileNotFoundError:
            raise self._missing(digest) from None

    def verify(self, digest: str) -> None:
        """Read a blob and compare.

        :raises NotFound: it is not there.
        :raises DamagedFile: its bytes are not what its name says.
        """
        try:
            found = sha256_file(self.path(digest))
        except FileNotFoundError:
            raise self._missing(digest) from None
        if found != digest:
            raise DamagedFile(f"blob {digest} should have that SHA-256, found {found}.", hint="Delete it and send it again.")

    def delete(self, digest: str) -> bool:
        """Take a blob away, and tell whether it was there. A reader that has it open keeps it."""
        path = self.path(digest)
        with storage(path):
            try:
                path.unlink()
            except FileNotFoundError:
                return False
        return True

    def digests(self) -> Iterator[str]:
        """Every blob, in no order."""
        for folder in self.folder.glob("[0-9a-f][0-9a-f]"):
            yield from (path.name for path in folder.iterdir() if len(path.name) == 64)

    def older_than(self, seconds: float) -> set[str]:
        """Blobs that nobody put in, or was told of, for so many seconds."""
        before, found = self._clock.now() - seconds, set()
        for digest in self.digests():
            with suppress(FileNotFoundError):
                if self.path(digest).stat().st_mtime < before:
                    found.add(digest)
        return found

    def known(self, digest: str) -> bool:
        """Whether a blob need not be put in, for it is here; it counts as just put in then, so that no sweep takes it away."""
        try:
            os.utime(self.path(digest))
        except FileNotFoundError:
            return False
        return True

    # -- putting in --------------------------------------------------------------------------------------------------

    def add_bytes(self, data: bytes) -> str:
        """Store bytes and return their digest."""
        digest = hashlib.sha256(data).hexdigest()
        if not self.known(digest):
            with self._place(digest) as handle:
                write_at(handle, data, 0)
        return digest

    def add_file(self, path: Path, move: bool = False, digest: str | None = None) -> tuple[str, int]:
        """Store a file's bytes and return their digest and size.

        :param move: the file is given away: renamed into place where that is possible, gone afterwards in any case.
        :param digest: of a file that was hashed as it was written.
        :raises DamagedFile: it changed while it was read.
        """
        with storage(path):
            digest, size = digest or sha256_file(path), path.stat().st_size
            if not self.known(digest) and not (move and self._rename(path, digest)):
                self._copy(path, digest)
            if move:
                path.unlink(missing_ok=True)
        return digest, size

    def _rename(self, path: Path, digest: str) -> bool:
        target = self.path(digest)
        make_room(target)
        if path.stat().st_dev != target.parent.stat().st_dev:
            return False
        with path.open("rb+") as file:
            os.fsync(file.fileno())
        path.replace(target)
        sync_folder(target.parent)
        return True

    def _copy(self, path: Path, digest: str) -> None:
        found = hashlib.sha256()
        with path.open("rb") as source, self._place(digest) as handle:
            offset = 0
            while chunk := source.read(_CHUNK):
                found.update(chunk)
                offset = write_at(handle, chunk, offset)
            if found.hexdigest() != digest:
                raise DamagedFile(f"`{path}` should stay as it is while it is stored, found it changed.")

    @contextmanager
    def _place(self, digest: str) -> Iterator[int]:
        target = self.path(digest)
        make_room(target)
        with storage(target), replacing(target) as handle:
            yield handle

    def _missing(self, digest: str) -> NotFound:
        return NotFound(f"blob {digest} should be there, found none.")

    # -- uploads -----------------------------------------------------------------------------------------------------

    def upload(self, digest: str, size_limit: int, *, size: int | None = None, owner: str = "") -> Incoming:
        """Begin an upload, or go on with one.

        :param digest: what the bytes should come to.
        :param size_limit: bytes at most.
        :param size: bytes in all, where that is known: the upload is finished when they are there; otherwise call `finish`.
        :param owner: who sends it; one owner's bad bytes are never mixed with another's good ones.
        :raises RefusedValue: `digest`, `size`: not a digest, or too large.
        """
        return Incoming(digest, self._part(digest, owner), self.path(digest), size_limit, size, self._clock)

    def _part(self, digest: str, owner: str) -> Path:
        name = self.path(digest).name
        return self._parts / f"{name}.{hashlib.sha256(owner.encode()).hexdigest()[:16]}"

    # -- leftovers ---------------------------------------------------------------------------------------------------

    def scratch(self, name: str) -> Path:
        """A path for a file in the making, unlike any other; hand it to `add_file(path, move=True)` when it is complete."""
        return self._scratch / f"{re.sub(r'[^A-Za-z0-9._-]', '_', name)[:80]}.{os.getpid()}.{os.urandom(6).hex()}"

    @contextmanager
    def scratches(self, *names: str) -> Iterator[list[Path]]:
        """Such paths; a file that was not handed over when the block ends is deleted, so a full disk is not filled by retries."""
        paths = [self.scratch(name) for name in names]
        try:
            yield paths
        finally:
            for path in paths:
                discard(path)

    def sweep(self, older_than: float) -> int:
        """Delete parts, scratch and half-written files that nobody touched for so many seconds, and say how many."""
        before, count = self._clock.now() - older_than, 0
        for pattern in ("parts/*", "scratch/*", "[0-9a-f][0-9a-f]/.*.tmp"):
            for path in self.folder.glob(pattern):
                try:
                    if path.stat().st_mtime < before:
                        shutil.rmtree(path) if path.is_dir() else path.unlink()
                        count += 1
                except FileNotFoundError:
                    continue
        return count

    def free(self) -> int:
        """Bytes left on the disk."""
        return shutil.disk_usage(self.folder).free
