"""The reading side: a file that travelled as the set that it means, by rows, after everything in it was checked."""

from pathlib import Path

import numpy as np

from trunkline.codecs.codec import Read
from trunkline.codecs.form import compare, wire_spec
from trunkline.codecs.product import multiplied, ranks_in
from trunkline.codecs.registry import find
from trunkline.errors import Reason, RefusedValue, SpecError
from trunkline.sets import SetFile, write_rows
from trunkline.tensors import FLOATS, Array, SetSpec, from_bf16, narrow, row_slices, widen


class Decoder:
    """Reads a set that travelled, slice by slice; memory stays flat.

    :param wire: the file as it came.
    :param base: the set that it starts from.
    :raises RefusedValue: `codec`, `names`, `shape`, `dtype`, `malformed`, `not_finite`: the file is not what this codec makes of
        such a set.
    """

    def __init__(self, wire: SetFile, codec: str, base: SetFile) -> None:
        try:
            self.codec = find(codec)
        except SpecError as error:
            raise RefusedValue(Reason.CODEC, error.message) from None
        self.wire, self.base = wire, base
        self.spec: SetSpec = base.spec
        self.ranks = ranks_in(wire.spec, base.spec)
        compare(wire.spec, wire_spec(self.codec, base.spec, self.ranks))
        self._coded = {
            name for name, tensor in base.spec.items() if name not in self.ranks and self.codec.forms(tensor) is not None
        }
        for name in sorted(self._coded):
            self.codec.check(name, self.spec[name], self._parts_of(name))
        self._factors: dict[str, tuple[Array, Array]] = {}

    @property
    def adds(self) -> bool:
        """Whether what came is added to the base; otherwise the base's values are not read at all."""
        return bool(self.ranks or self._coded)

    def read(self, name: str, rows: slice) -> Array:
        """Rows of the decoded tensor, in its own dtype."""
        if name not in self.ranks and name not in self._coded:
            return self.wire.read(name, rows)
        tensor = self.spec[name]
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is found by `check_finite`
            moved = self._moved(name, rows)
            with self.base.lent(name, rows) as base:
                moved = moved.reshape(base.shape)
                if tensor.dtype == "F32":
                    np.add(base, moved, out=moved)
                else:
                    moved = widen(base, tensor.dtype) + moved
            return moved if moved.dtype == np.float32 else narrow(moved, tensor.dtype)

    def _moved(self, name: str, rows: slice) -> Array:
        """Rows of the difference from the base, fresh: float32, or float64 of a product."""
        if name in self.ranks:
            a, b = self._product(name)
            return multiplied(a, b[rows])
        return self.codec.decode(self.spec[name], self._parts_of(name), rows)

    def _parts_of(self, name: str) -> Read:
        return lambda suffix, rows: self.wire.read(f"{name}{suffix}", rows)

    def _product(self, name: str) -> tuple[Array, Array]:
        if name not in self._factors:
            a, b = (self._factor(f"{name}@{part}") for part in "AB")
            self._factors = {name: (a, b)}
        return self._factors[name]

    def _factor(self, name: str) -> Array:
        values, dtype = self.wire.read(name), self.wire.spec[name].dtype
        return from_bf16(values) if dtype == "BF16" else widen(values, dtype)

    def check_finite(self) -> None:
        """:raises RefusedValue: `not_finite`: a decoded value is NaN or infinite."""
        for name, tensor in self.spec.items():
            if tensor.dtype not in FLOATS:
                continue
            for rows in row_slices(tensor):
                values = self.read(name, rows)
                real = from_bf16(values.astype(np.uint16, copy=False)) if tensor.dtype == "BF16" else values
                if not np.isfinite(real).all():
                    raise RefusedValue(Reason.NOT_FINITE, f"{name!r} should be finite, found NaN or infinity.")

    def write(self, path: Path, *, durable: bool = True) -> None:
        """Write the decoded set in its canonical form.

        :param durable: see `trunkline.files.replacing`.
        """
        write_rows(path, self.spec, self.read, durable=durable)
