"""What the file that travels looks like, and whether one does."""

from collections.abc import Mapping

from trunkline.codecs.codec import Codec
from trunkline.codecs.product import factor_specs
from trunkline.errors import Reason, RefusedValue
from trunkline.tensors import SetSpec, TensorSpec


def wire_spec(codec: Codec, spec: SetSpec, ranks: Mapping[str, int] | None = None) -> dict[str, TensorSpec]:
    """The file's tensors, for a set of this specification.

    :param ranks: of the tensors that travel as products, by name.
    """
    ranks = ranks or {}
    wire: dict[str, TensorSpec] = {}
    for name, tensor in spec.items():
        if name in ranks:
            parts: Mapping[str, TensorSpec] = factor_specs(tensor, ranks[name], "BF16" if codec.lossy else tensor.dtype)
        else:
            parts = codec.forms(tensor) or {"": tensor}
        wire |= {f"{name}{suffix}": part for suffix, part in parts.items()}
    return wire


def compare(found: SetSpec, wanted: SetSpec) -> None:
    """:raises RefusedValue: `names`, `shape`, `dtype`: the first difference."""
    for name in sorted(set(found) | set(wanted)):
        if name not in found:
            raise RefusedValue(Reason.NAMES, f"{name!r} should be in the update, found none.")
        if name not in wanted:
            raise RefusedValue(Reason.NAMES, f"{name!r} should not be in the update: it is not shared.")
        if found[name].shape != wanted[name].shape:
            raise RefusedValue(Reason.SHAPE, f"{name!r} should be {wanted[name].shape}, found {found[name].shape}.")
        if found[name].dtype != wanted[name].dtype:
            raise RefusedValue(Reason.DTYPE, f"{name!r} should be {wanted[name].dtype}, found {found[name].dtype}.")
