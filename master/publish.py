"""Make a version of a rule's recipe: the file, its digest, and the difference from its base where the codec has one."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from master.blobs import BlobStore
from master.rules import Parameters
from trunkline import codecs
from trunkline.codecs import Owed, Read, Sliced
from trunkline.messages import DeltaRef
from trunkline.sets import SetFile, SetWriter, write_rows


@dataclass(frozen=True, slots=True)
class Target:
    """A parameter set in the blob store, ready to be named by the ledger."""

    digest: str
    size: int  # bytes
    delta: DeltaRef | None
    residual: str | None = None  # digest of what the codec left out: the next round's to add


def publish(blobs: BlobStore, held: str, base: SetFile, fused: Parameters, codec: str, residual: SetFile | None = None) -> Target:
    """Write the target set, one slice in memory at a time.

    With a lossy codec the target is what its difference decodes to, so a child that gets the difference holds the same bits. What
    the codec leaves out is not lost: it is kept, and added before the next target is written (see `trunkline.codecs.encode`). All
    three are written in one pass over the recipe.

    :param held: digest of the base.
    :param residual: what was left out before in this job.
    """
    kind = codecs.find(codec)
    left = codecs.owed_spec(kind, base.spec)
    with blobs.scratches("target", "delta", "residual") as (whole, difference, rest):
        if not left:  # everything travels as it is
            return Target(*blobs.add_file(whole, move=True, digest=write_rows(whole, fused.spec, fused.read)), None)
        owed = None if residual is None else Owed(residual.spec, residual.read)
        with (
            _reading(blobs, fused, once=isinstance(kind, Sliced)) as new,
            SetWriter(whole, base.spec, durable=False, hashed=True, behind=True) as target,  # flushed as they become blobs
            SetWriter(rest, left, durable=False, hashed=True, behind=True) as kept,
        ):
            codecs.encode(difference, codec, base, new, owed=owed, arrives=target.write, left=kept.write, durable=False)
        digest, size = blobs.add_file(whole, move=True, digest=target.digest)
        delta, delta_size = blobs.add_file(difference, move=True)
        remembered, _ = blobs.add_file(rest, move=True, digest=kept.digest)
    return Target(digest, size, DeltaRef(held=held, digest=delta, size=delta_size, codec=codec), remembered)


@contextmanager
def _reading(blobs: BlobStore, fused: Parameters, *, once: bool) -> Iterator[Read]:
    """Rows of the recipe; from a file if they are read more than once, for fusing is the slower."""
    if once:
        yield fused.read
        return
    with blobs.scratches("fused") as (whole,):
        write_rows(whole, fused.spec, fused.read, durable=False)
        with SetFile(whole) as file:
            yield file.read
