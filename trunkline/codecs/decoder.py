"""The reading side: a file that travelled as the set that it means, by rows, after everything in it was checked."""

from pathlib import Path

import numpy as np

from trunkline.codecs.codec import Codec, Read, Wire
from trunkline.codecs.form import compare, wire_spec
from trunkline.codecs.product import multiplied, ranks_in
from trunkline.codecs.reach import Reach
from trunkline.codecs.registry import find
from trunkline.errors import Reason, RefusedValue, SpecError
from trunkline.sets import SetFile, write_rows
from trunkline.tensors import FLOATS, LARGEST, Array, SetSpec, from_bf16, narrow, real, row_slices, widen


class Decoding:
    """What the rows of a file that travels mean, beside those of the base. Nothing is checked.

    :param codec: the file's.
    :param wire: the file, or what can be read of it already.
    :param base: the set that it starts from.
    """

    def __init__(self, codec: Codec, wire: Wire, base: SetFile) -> None:
        self.codec, self.wire, self.base = codec, wire, base
        self.spec: SetSpec = base.spec
        self.ranks = ranks_in(wire.spec, base.spec)
        self._coded = {
            name for name, tensor in base.spec.items() if name not in self.ranks and self.codec.forms(tensor) is not None
        }
        self._factors: dict[str, tuple[Array, Array]] = {}

    @property
    def adds(self) -> bool:
        """Whether what came is added to the base; otherwise the base's values are not read at all."""
        return bool(self.ranks or self._coded)

    def read(self, name: str, rows: slice) -> Array:
        """Rows of the decoded tensor, in its own dtype."""
        if name not in self.ranks and name not in self._coded:
            return self.wire.read(name, rows)
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is found by `check_finite`
            moved = self._moved(name, rows)
            with self.base.lent(name, rows) as base:
                return added(base, moved, self.spec[name].dtype)

    def _moved(self, name: str, rows: slice) -> Array:
        """Rows of the difference from the base, fresh: float32, or float64 of a product."""
        if name in self.ranks:
            a, b = self._product(name)
            return multiplied(a, b[rows])
        return self.codec.decode(self.spec[name], self.parts_of(name), rows)

    def parts_of(self, name: str) -> Read:
        """Reads the parts of a tensor on the wire, by suffix."""
        return lambda suffix, rows: self.wire.read(f"{name}{suffix}", rows)

    def _product(self, name: str) -> tuple[Array, Array]:
        if name not in self._factors:
            a, b = (self._factor(f"{name}@{part}") for part in "AB")
            self._factors = {name: (a, b)}
        return self._factors[name]

    def _factor(self, name: str) -> Array:
        values, dtype = self.wire.read(name), self.wire.spec[name].dtype
        return from_bf16(values) if dtype == "BF16" else widen(values, dtype)


class Decoder(Decoding):
    """Reads a set that travelled, slice by slice; memory stays flat.

    :param wire: the file as it came.
    :param base: the set that it starts from.
    :raises RefusedValue: `codec`, `names`, `shape`, `dtype`, `malformed`, `not_finite`: the file is not what this codec makes of
        such a set.
    """

    def __init__(self, wire: SetFile, codec: str, base: SetFile) -> None:
        try:
            kind = find(codec)
        except SpecError as error:
            raise RefusedValue(Reason.CODEC, error.message) from None
        super().__init__(kind, wire, base)
        compare(wire.spec, wire_spec(kind, base.spec, self.ranks))
        for name in sorted(self._coded):
            kind.check(name, self.spec[name], self.parts_of(name))

    def check_finite(self, reach: Reach | None = None) -> None:
        """Look at every value that this comes to, or tell from bounds that none can be otherwise.

        :param reach: of the base; the same for all files of one base, so that it is looked up once.
        :raises RefusedValue: `not_finite`: a decoded value is NaN or infinite.
        """
        reach = reach or Reach()
        for name, tensor in self.spec.items():
            if tensor.dtype not in FLOATS or self._stays_within(name, reach):
                continue
            for rows in row_slices(tensor):
                if not np.isfinite(real(self.read(name, rows), tensor.dtype)).all():
                    raise RefusedValue(Reason.NOT_FINITE, f"{name!r} should be finite, found NaN or infinity.")

    def _stays_within(self, name: str, reach: Reach) -> bool:
        """Whether what is added to the base is known to be so little that nothing overflows."""
        if name not in self._coded:
            return False
        most = self.codec.most(self.spec[name], self.parts_of(name))
        return most is not None and most + reach.of(self.base, name) < LARGEST[self.spec[name].dtype] / 2  # rounding adds less

    def write(self, path: Path, *, durable: bool = True) -> str:
        """Write the decoded set in its canonical form, and tell the digest of the file.

        :param durable: see `trunkline.files.replacing`.
        """
        return write_rows(path, self.spec, self.read, durable=durable)


def added(base: Array, moved: Array, dtype: str) -> Array:
    """Rows of a base and how far they moved, in the base's shape and dtype; the work may be done in `moved`."""
    moved = moved.reshape(base.shape)
    if dtype == "F32" and moved.dtype == np.float32:
        return np.add(base, moved, out=moved)
    return narrow(widen(base, dtype) + moved, dtype)
