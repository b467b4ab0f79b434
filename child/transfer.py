"""How a child's handlers get and give bytes: over HTTPS (`child.api.MasterApi`), or by copying (`FolderTransfer`)."""

import hashlib
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from trunkline.errors import DamagedFile, NotAuthorized, Reason, RefusedValue
from trunkline.files import replacing, sha256_file, storage

Manifest = Mapping[str, tuple[str, int]]
"""Files of an encoder: name -> (digest, bytes)."""


class Transfer(Protocol):
    """Moves blobs between a child and its master. Every method may be called again after it failed, or after it worked."""

    def fetch(self, digest: str, size: int, grant: str | None, to: Path) -> None:
        """Bring a blob to a file, whole and checked, or not at all.

        :param grant: for a parameter set; files of an encoder need none.
        :raises NotAuthorized, NotFound, RefusedValue: the master said no.
        :raises DamagedFile: what came is not what the digest says.
        :raises Unreachable: nothing came for long.
        :raises StorageFailed: the disk refused.
        """
        ...

    def send(self, path: Path, digest: str, grant: str, *, check: bool = True) -> None:
        """Bring a file to the master.

        :param check: hash the file first; left out where the caller has just done so. The master hashes what arrives, too.
        :raises NotAuthorized, RefusedValue: the master said no.
        :raises DamagedFile: the file is not what the digest says.
        :raises Unreachable: nothing was taken for long.
        """
        ...

    def manifest(self, encoder: str, digest: str) -> Manifest:
        """The files of an encoder.

        :raises NotFound: no such encoder.
        :raises RefusedValue: `digest`: the encoder is made of other files now.
        """
        ...


class FolderTransfer:
    """A master and its children in one process: blobs are copied, under the same grants as over HTTPS.

    :param where: the path of a blob at the master; raises what the master raises for one that it does not have.
    :param take: `(file, digest, grant)` gives the master a file, if its gate lets it in.
    :param check: `(grant, digest)` raises `NotAuthorized` where the gate does not let a parameter set out.
    :param public: whether a blob is a file of an encoder, so needs no grant.
    :param files: the files of an encoder by `(name, digest)`.
    """

    def __init__(
        self,
        where: Callable[[str], Path],
        take: Callable[[Path, str, str], None],
        check: Callable[[str, str], None],
        public: Callable[[str], bool],
        files: Callable[[str, str], Manifest],
    ) -> None:
        self._where, self._take, self._check, self._public, self._files = where, take, check, public, files

    def fetch(self, digest: str, size: int, grant: str | None, to: Path) -> None:
        if grant is not None:
            self._check(grant, digest)
        elif not self._public(digest):
            raise NotAuthorized(f"blob {digest[:12]} should be fetched with a grant, found none.")
        if to.is_file() and to.stat().st_size == size and sha256_file(to) == digest:
            return
        source = self._where(digest)
        if source.stat().st_size != size:
            raise DamagedFile(f"blob {digest[:12]} should have {size} bytes, found {source.stat().st_size}.")
        with storage(to):
            to.parent.mkdir(parents=True, exist_ok=True)
            with replacing(to) as handle, source.open("rb") as file, open(handle, "wb", closefd=False) as copy:
                shutil.copyfileobj(file, copy, 1 << 20)
        if sha256_file(to) != digest:
            to.unlink()
            raise DamagedFile(f"blob {digest[:12]} should have its digest, found other bytes.")

    def send(self, path: Path, digest: str, grant: str, *, check: bool = True) -> None:
        if check and sha256_file(path) != digest:
            raise DamagedFile(f"`{path}` should have the digest {digest[:12]}…, found another.")
        self._take(path, digest, grant)

    def manifest(self, encoder: str, digest: str) -> Manifest:
        return self._files(encoder, digest)


def check_manifest(data: bytes, digest: str) -> None:
    """:raises RefusedValue: `digest`: a list of files is not the one that was named."""
    if (found := hashlib.sha256(data).hexdigest()) != digest:
        raise RefusedValue(Reason.DIGEST, f"the encoder's manifest should be {digest[:12]}…, found {found[:12]}….")
