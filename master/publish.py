"""Make a version of a rule's recipe: the file, its digest, and the difference from its base where the codec has one."""

from dataclasses import dataclass

from master.blobs import BlobStore
from master.rules import Parameters
from trunkline import codecs
from trunkline.codecs import Decoder, Owed
from trunkline.messages import DeltaRef
from trunkline.sets import SetFile, write_rows


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
    the codec leaves out is not lost: it is kept, and added before the next target is written (see `trunkline.codecs.left`).

    :param held: digest of the base.
    :param residual: what was left out before in this job.
    """
    if not codecs.find(codec).lossy:
        digest, size = _stored(blobs, "target", fused)
        return Target(digest, size, None)
    whole, difference, scratch = (blobs.scratch(name) for name in ("fused", "delta", "target"))
    write_rows(whole, fused.spec, fused.read, durable=False)  # a codec reads it several times, and fusing is the slower
    owed = None if residual is None else Owed(residual.spec, residual.read)
    try:
        with SetFile(whole) as new:
            codecs.encode(difference, codec, base, new.read, owed=owed, durable=False)
            with SetFile(difference) as wire:
                decoder = Decoder(wire, codec, base)
                decoder.write(scratch)
                with SetFile(scratch) as written:
                    left = codecs.left(decoder, new.read, owed, written=written)
                    rest = None if left is None else _stored(blobs, "residual", Parameters(left.spec, left.read))[0]
    finally:
        whole.unlink(missing_ok=True)
    digest, size = blobs.add_file(scratch, move=True)
    delta_digest, delta_size = blobs.add_file(difference, move=True)
    if delta_digest == digest:  # tensors so small that all of them travel as they are
        return Target(digest, size, None)
    return Target(digest, size, DeltaRef(held=held, digest=delta_digest, size=delta_size, codec=codec), rest)


def _stored(blobs: BlobStore, name: str, parameters: Parameters) -> tuple[str, int]:
    scratch = blobs.scratch(name)
    write_rows(scratch, parameters.spec, parameters.read)
    return blobs.add_file(scratch, move=True)
