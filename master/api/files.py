"""Which blobs are files of an encoder: those may be fetched by any child, all others need a grant."""

import threading

from master.blobs import BlobStore
from master.ledger import Ledger
from trunkline.api import Manifest
from trunkline.errors import NotFound, RefusedValue

MANIFEST_LIMIT = 1 << 20
"""Bytes of the longest list of files that is read."""


class Files:
    """The lists of files of all encoders. Lists never change (they are named by digest), so each is read once."""

    def __init__(self, ledger: Ledger, blobs: BlobStore) -> None:
        self._ledger, self._blobs = ledger, blobs
        self._lock = threading.Lock()
        self._known: dict[str, Manifest] = {}

    def manifest(self, digest: str) -> Manifest:
        """A list of files by its digest.

        :raises NotFound: it is not there.
        :raises RefusedValue: it is none.
        """
        with self._lock:
            if digest in self._known:
                return self._known[digest]
        if not self._blobs.has(digest) or self._blobs.size(digest) > MANIFEST_LIMIT:
            raise NotFound(f"the list of files {digest[:12]}… should be stored, found none.")
        found = Manifest.decode(self._blobs.path(digest).read_bytes())
        with self._lock:
            self._known[digest] = found
        return found

    def public(self, digest: str) -> bool:
        """Whether a blob is a file of an encoder, or the list of such files."""
        manifests = {encoder.manifest for encoder in self._ledger.encoders()}
        return digest in manifests or any(digest in self._listed(one) for one in manifests)

    def _listed(self, manifest: str) -> set[str]:
        try:
            return {file.digest for file in self.manifest(manifest).files.values()}
        except (NotFound, RefusedValue):
            return set()  # an encoder whose list is lost makes none of its files public, and keeps no other from being so
