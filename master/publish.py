"""Make a version of a rule's recipe: the file, its digest, and the difference from its base where the codec has one."""

from dataclasses import dataclass

from master.blobs import BlobStore
from master.rules import Parameters
from trunkline import codecs
from trunkline.messages import DeltaRef
from trunkline.sets import SetFile, SetWriter
from trunkline.tensors import row_slices


@dataclass(frozen=True, slots=True)
class Target:
    """A parameter set in the blob store, ready to be named by the ledger."""

    digest: str
    size: int  # bytes
    delta: DeltaRef | None


def publish(blobs: BlobStore, held: str, base: SetFile, fused: Parameters, codec_name: str) -> Target:
    """Write the target set, one slice in memory at a time.

    With a lossy codec the target is what its difference decodes to, so a child that gets the difference holds the same bits.

    :param held: digest of the base.
    """
    scratch = blobs.scratch("target")
    if codec_name == "float32":
        with SetWriter(scratch, fused.spec) as writer:
            for name, tensor in fused.spec.items():
                for rows in row_slices(tensor):
                    writer.write(name, rows, fused.read(name, rows))
        digest, size = blobs.add_file(scratch, move=True)
        return Target(digest, size, None)
    difference = blobs.scratch("delta")
    codecs.encode(difference, codec_name, base, fused.read)
    with SetFile(difference) as wire:
        codecs.Decoder(wire, codec_name, base).write(scratch)
    digest, size = blobs.add_file(scratch, move=True)
    delta_digest, delta_size = blobs.add_file(difference, move=True)
    return Target(digest, size, DeltaRef(held=held, digest=delta_digest, size=delta_size, codec=codec_name))
