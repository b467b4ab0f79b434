"""Blobs to and from a master: resumed where they broke, checked by SHA-256, put in place whole. Memory stays at a few chunks.

    GET  /v1/blobs/{sha256}   Range: bytes=N-            206 with the rest
    HEAD /v1/blobs/{sha256}                              X-Trunkline-Have: how many bytes the master has; 200 if all, else 204
    PUT  /v1/blobs/{sha256}   X-Trunkline-Offset: N      the bytes from N to the end; 201 once all are there and the digest is right

Both directions may be repeated at any time: what is there already does not travel again.
"""

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from trunkline.api_errors import GRANT_HEADER, HAVE_HEADER, OFFSET_HEADER
from trunkline.errors import Conflict, DamagedFile, Unreachable
from trunkline.files import sha256_file, storage, sync_folder
from trunkline.https import Https

CHUNK = 1 << 20
"""Bytes that are read, written and hashed at a time."""

SMALL = 1 << 16
"""Bytes that are sent sooner than it is asked whether they are there already."""


def fetch(
    https: Https, digest: str, size: int, grant: str | None, to: Path, *, durable: bool = True, place: str = "/v1/blobs"
) -> int:
    """Bring a blob to a file, whole and checked, or not at all. A file that is there already is not fetched.

    What arrived before a connection broke stays beside `to`, also over a restart of the process, and only the rest is asked for.
    Two callers should not fetch to the same place at the same time.

    :param size: bytes.
    :param grant: for a parameter set; files of an encoder need none.
    :param durable: see `trunkline.files.replacing`.
    :param place: where the master has it.
    :returns: bytes that were moved.
    :raises DamagedFile: what came is not what the digest says.
    :raises NotAuthorized, NotFound, RefusedValue: the master said so.
    :raises Unreachable: nothing came for `patience.progress` seconds.
    :raises StorageFailed: the disk refused.
    """
    if to.is_file() and to.stat().st_size == size and sha256_file(to) == digest:
        return 0
    with storage(to):
        to.parent.mkdir(parents=True, exist_ok=True)
        download = _Download(to, digest, size, durable, f"{place}/{digest}")
        https.tried(lambda: download.run(https, grant), f"to fetch blob {digest[:12]}", lambda: download.furthest)
        download.part.replace(to)
        if durable:
            sync_folder(to.parent)
    return download.moved


def send(https: Https, path: Path, digest: str, grant: str | None, *, check: bool = True) -> int:
    """Bring a file to the master. What it has already, all or in part, is not sent again.

    :param check: hash the file first; leave it out only for a file that was just written under its digest.
    :returns: bytes that were moved.
    :raises DamagedFile: the file is not what the digest says; nothing was sent.
    :raises NotAuthorized, RefusedValue: the master said so.
    :raises Unreachable: nothing was taken for `patience.progress` seconds.
    """
    if check and sha256_file(path) != digest:
        raise DamagedFile(f"`{path}` should have the digest {digest[:12]}…, found another.")
    upload = _Upload(path, digest)
    https.tried(lambda: upload.run(https, grant), f"to send blob {digest[:12]}", lambda: upload.taken)
    return upload.moved


def held(https: Https, digest: str, grant: str | None) -> tuple[int, bool]:
    """How many bytes of a blob the master has, and whether that is all of it."""
    with https.talk("HEAD", _where(digest), _granted(grant)) as answer:
        return int(answer.headers.get(HAVE_HEADER.lower(), 0)), answer.status == 200


class _Download:
    """A blob that is arriving. `part` lies beside the file and survives a restart."""

    def __init__(self, to: Path, digest: str, size: int, durable: bool, where: str) -> None:
        self.digest, self.size, self._durable, self._where = digest, size, durable, where
        self.part = to.with_name(f".{to.name}.{digest[:16]}.part")
        self.moved = self.furthest = 0
        self._hash, self._hashed = hashlib.sha256(), 0
        self._inherited = self.part.exists()

    def run(self, https: Https, grant: str | None) -> None:
        """Get what is missing."""
        with self.part.open("ab") as file:
            begin = self._resume(file.tell())
            if begin < self.size or not self.size:
                self._stream(https, grant, begin, file.write)
            if self._durable:
                os.fsync(file.fileno())
        self._check()

    def _resume(self, length: int) -> int:
        """Where to go on, given how long the part is. Bytes of an earlier process are hashed once, later ones as they come."""
        if length > self.size:
            os.truncate(self.part, 0)
            length = 0
        if length != self._hashed:
            self._hash, self._hashed = hashlib.sha256(), 0
            with self.part.open("rb") as file:
                while self._hashed < length and (chunk := file.read(min(CHUNK, length - self._hashed))):
                    self._took(chunk)
        return self._hashed

    def _stream(self, https: Https, grant: str | None, begin: int, write: Callable[[bytes], object]) -> None:
        ranged = {"Range": f"bytes={begin}-"} if begin else {}
        with https.talk("GET", self._where, _granted(grant) | ranged) as answer:
            if begin and not answer.headers.get("content-range", "").startswith(f"bytes {begin}-"):
                raise DamagedFile(f"the answer should begin at byte {begin} of blob {self.digest[:12]}, found another range.")
            for chunk in answer.chunks:
                if self._hashed + len(chunk) > self.size:
                    raise DamagedFile(f"blob {self.digest[:12]} should have {self.size} bytes, found more.")
                write(chunk)
                self._took(chunk)
                self.moved += len(chunk)
        if self._hashed < self.size:
            raise Unreachable(f"blob {self.digest[:12]} ended after {self._hashed} of {self.size} bytes.")

    def _took(self, chunk: bytes) -> None:
        self._hash.update(chunk)
        self._hashed += len(chunk)
        self.furthest = max(self.furthest, self._hashed)

    def _check(self) -> None:
        if self._hash.hexdigest() == self.digest:
            return
        self.part.unlink()
        self._hash, self._hashed = hashlib.sha256(), 0
        if self._inherited:  # a part that an earlier process left may be bad; then everything is fetched once more
            self._inherited = False
            raise Unreachable(f"blob {self.digest[:12]} came out damaged from an older part.")
        raise DamagedFile(f"blob {self.digest[:12]} should have its digest, found other bytes.", hint="The master's copy is bad.")


class _Upload:
    """A file that is being sent."""

    def __init__(self, path: Path, digest: str) -> None:
        self.path, self.digest, self.size = path, digest, path.stat().st_size
        self.taken = 0  # the most bytes that the master said it has
        self.tried = False
        self.moved = 0

    def run(self, https: Https, grant: str | None) -> None:
        """Ask what is there and send the rest."""
        have = 0
        if self.tried or self.size > SMALL:
            have, complete = held(https, self.digest, grant)
            self.taken = max(self.taken, have)
            if complete:
                return
        self.tried = True
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(max(0, self.size - have)),
            OFFSET_HEADER: str(have),
        }
        try:
            with https.talk("PUT", _where(self.digest), _granted(grant) | headers, content=self._chunks(have)) as answer:
                if answer.status != 201:
                    raise Unreachable(f"blob {self.digest[:12]} should be complete after {self.size} bytes, found it is not.")
        except Conflict as error:  # an earlier upload of the same blob was still being written: ask again where to begin
            raise Unreachable(error.message, hint=error.hint) from error

    def _chunks(self, begin: int) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            file.seek(begin)
            while chunk := file.read(CHUNK):
                self.moved += len(chunk)
                yield chunk


def _where(digest: str) -> str:
    return f"/v1/blobs/{digest}"


def _granted(grant: str | None) -> dict[str, str]:
    return {GRANT_HEADER: grant} if grant else {}
