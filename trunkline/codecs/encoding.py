"""The writing side: a set, or what changed in one, as the file that travels.

In the same pass, slice by slice, what the file will be read as, and what did not fit into it.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trunkline.codecs.codec import Codec, Owed, Read, Sliced, Write
from trunkline.codecs.decoder import Decoding, added
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
    arrives: Write | None = None,
    left: Write | None = None,
    durable: bool = True,
) -> None:
    """Write what travels from `base` to the set that `new` reads.

    Error feedback: what a lossy codec leaves out is not lost, only late, so the sum of what was sent follows the sum of what
    should have been (Seide et al., 2014, "1-bit stochastic gradient descent", section 3; Karimireddy et al., 2019,
    arXiv:1901.09847, algorithm 1). In float32: with fewer bits, a small movement added to a large rest would round away.

    :param new: read once, in the order of the canonical file, unless the codec looks at rows more than once (it is not `Sliced`).
    :param factors: by name, A `(r, in)` and B `(out, r)` in float32 of the tensors that were trained as products.
    :param owed: what was not sent before, and is now.
    :param arrives: takes the set that the file will be read as, row by row in the order of the canonical file.
    :param left: takes what is owed from now on, what should have arrived less what did: the tensors of `owed_spec`, in that order.
    :param durable: see `trunkline.files.replacing`.
    :raises RefusedValue: `not_finite`: so is what was to be sent; where `left` is asked for, which it would spoil for good.
    """
    factors, kind = factors or {}, find(codec)
    spec = wire_spec(kind, base.spec, {name: a.shape[0] for name, (a, _) in factors.items()})
    with SetWriter(path, spec, durable=durable) as writer, np.errstate(over="ignore", invalid="ignore"):
        way = _Way(kind, base, new, owed, writer, arrives, left)
        for name in sorted(base.spec):
            if name in factors:
                way.product(name, factors[name])
            elif kind.forms(base.spec[name]) is None:
                way.as_it_is(name)
            elif isinstance(kind, Sliced):
                way.by_slices(name, kind)
            else:
                way.whole(name)


def owed_spec(codec: Codec, spec: SetSpec, without: Collection[str] = ()) -> dict[str, TensorSpec]:
    """The tensors of which a codec can leave something out.

    :param without: those that travel as products of their own training: what their rounding leaves out is not kept.
    """
    if not codec.lossy:
        return {}
    return {
        name: TensorSpec(tensor.shape) for name, tensor in spec.items() if name not in without and codec.forms(tensor) is not None
    }


class _Way:
    """One tensor after another, from what is read to what travels, and from there to what arrives and what is left."""

    def __init__(
        self, kind: Codec, base: SetFile, new: Read, owed: Owed | None, wire: SetWriter, arrives: Write | None, left: Write | None
    ) -> None:
        self.kind, self.base, self.new, self.owed, self.wire, self.arrives, self.left = kind, base, new, owed, wire, arrives, left
        self._decoding = Decoding(kind, wire, base)

    def product(self, name: str, factors: tuple[Array, Array]) -> None:
        """A tensor that was trained as a product: its factors, and nothing is left."""
        for part, values in zip("AB", factors, strict=True):
            wire = self.wire.spec[f"{name}@{part}"]
            self.wire.write(f"{name}@{part}", slice(0, wire.rows), narrow(values.astype(np.float64), wire.dtype))
        if self.arrives is not None:
            for rows in row_slices(self.base.spec[name]):
                self.arrives(name, rows, self._decoding.read(name, rows))

    def as_it_is(self, name: str) -> None:
        """A tensor that its codec does not touch."""
        for rows in row_slices(self.base.spec[name]):
            values = self.new(name, rows)
            self.wire.write(name, rows, values)
            if self.arrives is not None:
                self.arrives(name, rows, values)

    def by_slices(self, name: str, kind: Sliced) -> None:
        """Slices that become bytes, and values again, while they are in the caches."""
        tensor = self.base.spec[name]
        for rows in kind.slices(tensor):
            values, before = self.new(name, rows), self._owed(name, rows)
            with self.base.lent(name, rows) as old:
                packed = kind.pack(tensor, rows, _movement(values, old, before, tensor.dtype))
                for suffix, (where, part) in packed.items():
                    self.wire.write(f"{name}{suffix}", where, part)
                if self.arrives is not None or self.left is not None:
                    moved = kind.decode(tensor, lambda suffix, _, packed=packed: packed[suffix][1], rows)
                    self._tell(name, rows, added(old, moved, tensor.dtype), values, before)

    def whole(self, name: str) -> None:
        """A tensor whose codec looks at all of it before it writes; it is read once more."""
        tensor = self.base.spec[name]

        def moved(rows: slice) -> NDArray[np.float32]:
            values = self.new(name, rows)
            with self.base.lent(name, rows) as old:
                return _movement(values, old, self._owed(name, rows), tensor.dtype)

        self.kind.encode(tensor, moved, lambda suffix, rows, values: self.wire.write(f"{name}{suffix}", rows, values))
        if self.arrives is not None or self.left is not None:
            for rows in row_slices(tensor):
                self._tell(name, rows, self._decoding.read(name, rows), self.new(name, rows), self._owed(name, rows))

    def _owed(self, name: str, rows: slice) -> Array | None:
        return None if self.owed is None or name not in self.owed.spec else self.owed.read(name, rows)

    def _tell(self, name: str, rows: slice, arrived: Array, values: Array, before: Array | None) -> None:
        if self.arrives is not None:
            self.arrives(name, rows, arrived)
        if self.left is not None:
            rest = _movement(values, arrived, before, self.base.spec[name].dtype)
            if not np.isfinite(rest).all():  # it would spoil every later round
                raise RefusedValue(Reason.NOT_FINITE, f"{name!r} should be finite, found NaN or infinity.")
            self.left(name, rows, rest)


def _movement(new: Array, old: Array, before: Array | None, dtype: str) -> NDArray[np.float32]:
    """From `old` to `new`, and what was owed before; fresh."""
    if dtype == "F32":
        moved = np.asarray(np.subtract(new, old))
    else:
        moved = np.asarray(widen(new, dtype) - widen(old, dtype), dtype=np.float32)
    if before is not None:
        moved += before
    return moved
