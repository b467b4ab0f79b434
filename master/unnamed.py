"""Blobs that no row of the ledger names: bytes of updates that were refused, or whose sender died before it spoke of them."""

import logging

from master.blobs import BlobStore
from master.ledger import Ledger
from trunkline.api import Manifest
from trunkline.errors import RefusedValue

logger = logging.getLogger(__name__)


def sweep(ledger: Ledger, blobs: BlobStore, older_than: float) -> int:
    """Delete blobs that nothing names and that nobody touched for so many seconds, and say how many.

    A file is there before the row that names it, so a young one may be waiting for its row. While the list of an encoder's files
    cannot be read, nothing is deleted: what it names is not known.
    """
    old = blobs.older_than(older_than)
    if not old:
        return 0
    named = ledger.named()
    for encoder in ledger.encoders():
        try:
            named |= {file.digest for file in Manifest.decode(blobs.path(encoder.manifest).read_bytes()).files.values()}
        except (OSError, RefusedValue):
            logger.warning("the list of files of encoder %s cannot be read, so no blob is swept", encoder.name)
            return 0
    return sum(blobs.delete(digest) for digest in old - named)
