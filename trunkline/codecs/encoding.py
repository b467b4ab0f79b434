"""The writing side: a set, or what changed in one, as the file that travels; and what did not fit into it."""

from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trunkline.codecs.codec import Codec, Moved, Owed, Read, Write
from trunkline.codecs.decoder import Decoder
from trunkline.codecs.form import wire_spec
from trunkline.codecs.registry import find
from trunkline.errors import Reason, RefusedValue
from trunkline.sets import SetFile, SetWriter
from trunkline.tensors import Array, SetSpec, TensorSpec, narrow, row_slices, widen


def encode(
    path: Path,
    codec: str,
    base: SetFile,
    new: Read,
    factors: Mapping[str, tuple[Array, Array]] | None = None,
    *,
    owed: Owed | None = None,
    durable: bool = True,
) -> None:
    """Write what travels from `base` to the set that `new` reads.

    :param factors: by name, A `(r, in)` and B `(out, r)` in float32 of the tensors that were trained as products.
    :param owed: what was not sent before, and is now.
    :param durable: see `trunkline.files.replacing`.
    """
    factors, kind = factors or {}, find(codec)
    spec = wire_spec(kind, base.spec, {name: a.shape[0] for name, (a, _) in factors.items()})
    with SetWriter(path, spec, durable=durable) as writer, np.errstate(over="ignore", invalid="ignore"):
        for name, tensor in base.spec.items():
            if name in factors:
                for part, values in zip("AB", factors[name], strict=True):
                    wire = spec[f"{name}@{part}"]
                    writer.write(f"{name}@{part}", slice(0, wire.rows), narrow(values.astype(np.float64), wire.dtype))
            elif kind.forms(tensor) is None:
                for rows in row_slices(tensor):
                    writer.write(name, rows, new(name, rows))
            else:
                kind.encode(tensor, _moved(name, tensor, base, new, owed), _parts_of(name, writer))


def left(
    decoder: Decoder, new: Read, owed: Owed | None = None, without: Collection[str] = (), *, written: SetFile | None = None
) -> Owed | None:
    """What is still owed after a file was sent: what should have arrived, less what did. None: nothing can be left.

    Error feedback: what a lossy codec leaves out is not lost, only late, so the sum of what was sent follows the sum of what
    should have been (Seide et al., 2014, "1-bit stochastic gradient descent", section 3; Karimireddy et al., 2019,
    arXiv:1901.09847, algorithm 1). In float32: with fewer bits, a small movement added to a large rest would round away.

    :param new: as it was encoded; it is read when the result is.
    :param owed: what was owed before.
    :param without: tensors that travelled as products of their own training: what their rounding left out is not kept.
    :param written: what the decoder reads, where it lies in a file already.
    :raises RefusedValue: (reading) `not_finite`: so was what was sent, and it will be refused.
    """
    spec = owed_spec(decoder.codec, decoder.spec, without)

    def read(name: str, rows: slice) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            arrived = written.read(name, rows) if written else decoder.read(name, rows)
            rest = _difference(new(name, rows), arrived, decoder.spec[name].dtype, out=arrived)
            if owed is not None and name in owed.spec:
                rest += owed.read(name, rows)
        if not np.isfinite(rest).all():  # it would spoil every later round
            raise RefusedValue(Reason.NOT_FINITE, f"{name!r} should be finite, found NaN or infinity.")
        return rest

    return Owed(spec, read) if spec else None


def owed_spec(codec: Codec, spec: SetSpec, without: Collection[str] = ()) -> dict[str, TensorSpec]:
    """The tensors of which a codec can leave something out."""
    if not codec.lossy:
        return {}
    return {
        name: TensorSpec(tensor.shape) for name, tensor in spec.items() if name not in without and codec.forms(tensor) is not None
    }


def _moved(name: str, tensor: TensorSpec, base: SetFile, new: Read, owed: Owed | None) -> Moved:
    def moved(rows: slice) -> NDArray[np.float32]:
        values = new(name, rows)
        with base.lent(name, rows) as old:
            difference = _difference(values, old, tensor.dtype)
        if owed is not None and name in owed.spec:
            difference += owed.read(name, rows)
        return difference

    return moved


def _parts_of(name: str, writer: SetWriter) -> Write:
    return lambda suffix, rows, values: writer.write(f"{name}{suffix}", rows, values)


def _difference(new: Array, old: Array, dtype: str, out: Array | None = None) -> NDArray[np.float32]:
    """:param out: takes the result where it is of float32."""
    if dtype == "F32":
        return np.asarray(np.subtract(new, old, out=out))
    return np.asarray(widen(new, dtype) - widen(old, dtype), dtype=np.float32)
