"""How a parameter set travels.

`float32` sends the values themselves. `bf16` sends the difference from a set that both sides hold, rounded to bfloat16; what it
decodes to *is* the set (`base + (new - base)` is not `new` in float32, so digests are compared after decoding, never before).
Either way a matrix that was trained by a low-rank product travels as its two factors, `NAME@A` (r, in) and `NAME@B` (out, r), with
the scale inside B: its decoded value is `base + B A`, so it is products that are fused, never factors.
Integer and boolean tensors always travel as they are.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from trunkline.errors import Reason, RefusedValue, SpecError
from trunkline.sets import SetFile, SetWriter
from trunkline.tensors import FLOATS, SLICE_ELEMENTS, Array, SetSpec, TensorSpec, from_bf16, narrow, row_slices, to_bf16, widen
from trunkline.values import Codec

CODECS: tuple[str, ...] = get_args(Codec)

Read = Callable[[str, slice], Array]
"""Rows of a decoded tensor, by name, in the tensor's own dtype."""


def check_codec(name: str) -> str:
    """:raises SpecError: no such codec."""
    if name not in CODECS:
        raise SpecError(f"`codec` should be one of {', '.join(CODECS)}, found {name!r}.")
    return name


def encode(
    path: Path,
    codec: str,
    base: SetFile,
    new: Read,
    factors: Mapping[str, tuple[Array, Array]] | None = None,
    *,
    durable: bool = True,
) -> None:
    """Write what travels from `base` to the set that `new` reads.

    :param factors: by name, A `(r, in)` and B `(out, r)` in float32 of the tensors that were trained as products.
    :param durable: see `trunkline.files.replacing`.
    """
    factors = factors or {}
    spec = wire_spec(codec, base.spec, {name: a.shape[0] for name, (a, _) in factors.items()})
    with SetWriter(path, spec, durable=durable) as writer:
        for name, tensor in base.spec.items():
            if name in factors:
                for part, values in zip("AB", factors[name], strict=True):
                    wire = spec[f"{name}@{part}"]
                    writer.write(f"{name}@{part}", slice(0, wire.rows), narrow(values.astype(np.float64), wire.dtype))
                continue
            for rows in row_slices(tensor):
                values = new(name, rows)
                if spec[name].dtype != tensor.dtype:
                    values = to_bf16(_difference(values, base.read(name, rows), tensor.dtype))
                writer.write(name, rows, values)


def wire_spec(codec: str, spec: SetSpec, ranks: Mapping[str, int] | None = None) -> dict[str, TensorSpec]:
    """What the file that travels looks like, for a set of this specification."""
    check_codec(codec)
    ranks = ranks or {}
    wire: dict[str, TensorSpec] = {}
    for name, tensor in spec.items():
        dtype = "BF16" if codec == "bf16" and tensor.dtype in FLOATS else tensor.dtype
        if name in ranks:
            wire[f"{name}@A"] = TensorSpec((ranks[name], tensor.shape[1]), dtype)
            wire[f"{name}@B"] = TensorSpec((tensor.shape[0], ranks[name]), dtype)
        else:
            wire[name] = TensorSpec(tensor.shape, dtype)
    return wire


class Decoder:
    """Reads a set that travelled, slice by slice; memory stays flat.

    :param wire: the file as it came.
    :param base: the set that it starts from.
    :raises RefusedValue: `codec`, `names`, `shape`, `dtype`: the file is not what this codec makes of such a set.
    """

    def __init__(self, wire: SetFile, codec: str, base: SetFile) -> None:
        if codec not in CODECS:
            raise RefusedValue(Reason.CODEC, f"the codec should be one of {', '.join(CODECS)}, found {codec!r}.")
        self.wire, self.codec, self.base = wire, codec, base
        self.spec: SetSpec = base.spec
        self.ranks = _ranks(wire.spec, base.spec)
        _compare(wire.spec, wire_spec(codec, base.spec, self.ranks))
        self._factors: dict[str, tuple[Array, Array]] = {}

    @property
    def adds(self) -> bool:
        """Whether what came is added to the base; otherwise the base's values are not read at all."""
        return bool(self.ranks) or any(self.wire.spec[name].dtype != tensor.dtype for name, tensor in self.spec.items())

    def read(self, name: str, rows: slice) -> Array:
        """Rows of the decoded tensor, in its own dtype."""
        tensor = self.spec[name]
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is found by `check_finite`
            if name in self.ranks:
                a, b = self._product(name)
                return narrow(widen(self.base.read(name, rows), tensor.dtype) + b[rows] @ a, tensor.dtype)
            values = self.wire.read(name, rows)
            if self.wire.spec[name].dtype == tensor.dtype:
                return values
            moved = from_bf16(values.astype(np.uint16, copy=False))
            if tensor.dtype == "F32":
                return np.asarray(self.base.read(name, rows) + moved)
            return narrow(widen(self.base.read(name, rows), tensor.dtype) + moved, tensor.dtype)

    def _product(self, name: str) -> tuple[Array, Array]:
        if name not in self._factors:
            self._factors = {
                name: tuple(  # type: ignore[dict-item]
                    widen(self.wire.read(f"{name}@{part}"), self.wire.spec[f"{name}@{part}"].dtype) for part in "AB"
                )
            }
        return self._factors[name]

    def check_finite(self) -> None:
        """:raises RefusedValue: `not_finite`: a decoded value is NaN or infinite."""
        for name, tensor in self.spec.items():
            if tensor.dtype not in FLOATS:
                continue
            for rows in row_slices(tensor, SLICE_ELEMENTS):
                values = self.read(name, rows)
                real = from_bf16(values.astype(np.uint16, copy=False)) if tensor.dtype == "BF16" else values
                if not np.isfinite(real).all():
                    raise RefusedValue(Reason.NOT_FINITE, f"{name!r} should be finite, found NaN or infinity.")

    def write(self, path: Path) -> None:
        """Write the decoded set in its canonical form."""
        with SetWriter(path, self.spec) as writer:
            for name, tensor in self.spec.items():
                for rows in row_slices(tensor):
                    writer.write(name, rows, self.read(name, rows))


def _difference(new: Array, base: Array, dtype: str) -> NDArray[np.float32]:
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype == "F32":
            return np.asarray(new - base, dtype=np.float32)
        return np.asarray(widen(new, dtype) - widen(base, dtype), dtype=np.float32)


def _ranks(wire: SetSpec, spec: SetSpec) -> dict[str, int]:
    ranks = {}
    for name, tensor in spec.items():
        factor = wire.get(f"{name}@A")
        if factor is None:
            continue
        if len(tensor.shape) != 2 or len(factor.shape) != 2 or not 1 <= factor.shape[0] <= min(tensor.shape):
            raise RefusedValue(
                Reason.SHAPE,
                f"{name!r} should have a product of rank 1 to {min(tensor.shape, default=0)}, "
                f"found factors {factor.shape} for {tensor.shape}.",
            )
        ranks[name] = factor.shape[0]
    return ranks


def _compare(found: SetSpec, wanted: SetSpec) -> None:
    for name in sorted(set(found) | set(wanted)):
        if name not in found:
            raise RefusedValue(Reason.NAMES, f"{name!r} should be in the update, found none.")
        if name not in wanted:
            raise RefusedValue(Reason.NAMES, f"{name!r} should not be in the update: it is not shared.")
        if found[name].shape != wanted[name].shape:
            raise RefusedValue(Reason.SHAPE, f"{name!r} should be {wanted[name].shape}, found {found[name].shape}.")
        if found[name].dtype != wanted[name].dtype:
            raise RefusedValue(Reason.DTYPE, f"{name!r} should be {wanted[name].dtype}, found {found[name].dtype}.")
