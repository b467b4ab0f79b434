"""Parameter sets that a child holds, by digest. What lies here whole is not fetched again."""

import hashlib
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from child.home import ChildHome, keep_newest
from child.state import SET, noted_set
from child.transfer import Transfer
from trunkline.codecs import Decoder
from trunkline.errors import DamagedFile, Reason, RefusedValue
from trunkline.files import discard, sha256_file, write_atomically
from trunkline.messages import DeltaRef, SetRef
from trunkline.sets import SetFile

Make = Callable[[str, Path], bool]
"""Writes the set of a digest to a file, whole and checked, and says whether it could."""


class SetCache:
    """Fetches a set whole or as a difference, checks its digest after decoding, and keeps the newest few."""

    def __init__(self, home: ChildHome, keep: int, transfer: Transfer) -> None:
        self.home, self.keep, self.transfer = home, keep, transfer

    def get(
        self,
        wanted: SetRef,
        delta: DeltaRef | None,
        token: str,
        attachment: bytes | None,
        make: Make = lambda digest, to: False,
        *,
        spare: Collection[str] = (),
    ) -> Path:
        """Where the set lies now.

        :param make: asked for the set before it is fetched.
        :param spare: digests of what the same message needs, and which may lie here already.
        :raises RefusedValue: `digest`, `damaged`: what came is not what was named.
        """
        path = self.home.sets / wanted.digest
        if path.exists() and sha256_file(path) == wanted.digest:
            os.utime(path)
            return path
        if delta is not None:
            self._decode(wanted, delta, token, attachment, path)
        elif attachment is not None or not make(wanted.digest, path):
            self._fetch("parameter set", wanted.digest, wanted.size, token, attachment, path)
        keep_newest(self.home.sets, self.keep, {wanted.digest, *spare, *self._in_use()})
        return path

    def _in_use(self) -> Iterator[str]:
        """The set that came last, of each encoder that heads were trained with: predictions need it."""
        for path in self.home.private.glob(f"*/{SET}"):
            if (digest := noted_set(path)) is not None:
                yield digest

    def _fetch(self, what: str, digest: str, size: int, token: str, attachment: bytes | None, to: Path) -> None:
        """Bring bytes to a file, checked."""
        if attachment is None:
            self.transfer.fetch(digest, size, token, to)
            return
        _check(what, digest, hashlib.sha256(attachment).hexdigest())
        write_atomically(to, attachment)

    def _decode(self, wanted: SetRef, delta: DeltaRef, token: str, attachment: bytes | None, to: Path) -> None:
        held = self.home.sets / delta.held
        if not held.exists():
            raise RefusedValue(Reason.BASE, f"{delta.held[:12]} should be here to start from, found none.")
        wire, beside = (self.home.sets / f".{kind}-{delta.digest}" for kind in ("delta", "new"))
        try:
            self._fetch("difference", delta.digest, delta.size, token, attachment, wire)
            with SetFile(held) as base, SetFile(wire) as file:
                found = Decoder(file, delta.codec, base).write(beside, durable=False)  # its digest is compared before each use
            try:
                _check("parameter set", wanted.digest, found)
            except RefusedValue:
                held.unlink(missing_ok=True)
                raise
            beside.replace(to)
        except DamagedFile as error:
            held.unlink(missing_ok=True)  # what came is what was named, so this is what is damaged; it is not named again
            raise RefusedValue(Reason.DAMAGED, error.message) from None
        finally:
            discard(wire)
            discard(beside)


def _check(what: str, wanted: str, found: str) -> None:
    if found != wanted:
        raise RefusedValue(Reason.DIGEST, f"the {what} should be {wanted[:12]}, found {found[:12]}.")
