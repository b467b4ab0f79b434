"""Parameter sets on disk: safetensors files in one canonical form, read through memory maps.

The safetensors library does not promise an order of tensors, and cannot read bfloat16 as numpy. A version is named by the
digest of its file, so the form is fixed here: names sorted, no metadata, header padded with blanks to a multiple of 8 bytes.
Such a file opens with any safetensors reader. A header that came off a wire is believed only after every number in it was checked.
"""

import json
import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from trunkline.behind import Behind
from trunkline.errors import DamagedFile
from trunkline.files import HashAlong, WriteBehind, replacing, storage
from trunkline.tensors import DTYPES, Array, SetSpec, TensorSpec, dtype_name, row_slices, spec_of

HEADER_LIMIT = 16 << 20  # bytes

AROUND = 1 << 20
"""Bytes. Linux maps more than the page that is touched, so the first page of a slice brings back the end of the one before. With
slices of 64 KiB up to half of a file stayed; measured, nothing does when so much before a slice is given back once more.
"""


def _header(spec: SetSpec) -> bytes:
    entries: dict[str, Any] = {}
    offset = 0
    for name in sorted(spec):
        tensor = spec[name]
        entries[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [offset, offset + tensor.nbytes]}
        offset += tensor.nbytes
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=True).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def encoded_size(spec: SetSpec) -> int:
    """Bytes of the file that holds a set of this specification."""
    return len(_header(spec)) + sum(tensor.nbytes for tensor in spec.values())


class SetWriter:
    """Writes one parameter set slice by slice, in any order, and puts it in place whole when it is closed without an error.

    :param path: where the file goes.
    :param spec: every tensor that will be written.
    :param durable: see `trunkline.files.replacing`.
    :param mode: of the file, as for `chmod`.
    :param hashed: whether `digest` will be asked for. It costs least where rows come in the order of the file.
    :param spare: see `trunkline.files.replacing`.
    :param behind: whether a thread of its own writes, hashes, and has the disk begin. It pays where the caller computes meanwhile
        on a machine that has nothing else to do; a disk that fails is told of at a later call then, or at the end.
    """

    def __init__(
        self,
        path: Path,
        spec: SetSpec,
        *,
        durable: bool = True,
        mode: int = 0o644,
        hashed: bool = False,
        spare: Path | None = None,
        behind: bool = False,
    ) -> None:
        self.path, self.spec = path, dict(spec)
        self._durable, self._mode, self._hashed, self._spare, self._threaded = durable, mode, hashed, spare, behind
        self._start: dict[str, int] = {}
        self.digest = ""  # of the file, once it is in place

    def __enter__(self) -> Self:
        with storage(self.path), ExitStack() as opened:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._handle = opened.enter_context(replacing(self.path, durable=self._durable, mode=self._mode, spare=self._spare))
            self._flush = WriteBehind(self._handle) if self._durable or self._threaded else None
            self._hash = HashAlong(self._handle) if self._hashed else None
            self._reserve()
            self._behind = opened.enter_context(Behind()) if self._threaded else None
            self._opened = opened.pop_all()
        return self

    def _reserve(self) -> None:
        head = _header(self.spec)
        self._put(0, memoryview(head))
        offset = len(head)
        for name in sorted(self.spec):
            self._start[name] = offset
            offset += self.spec[name].nbytes
        os.truncate(self._handle, offset)

    def write(self, name: str, rows: slice, values: Array) -> None:
        """Put rows of a tensor where they belong, each once. The array is given away: nobody changes it after.

        :raises ValueError: `values` has not the tensor's own dtype, or does not fill those rows.
        """
        spec = self.spec[name]
        count = (rows.stop - rows.start) * spec.row
        if values.dtype != DTYPES[spec.dtype] or values.size != count:
            raise ValueError(f"{name!r} should get {count} of {spec.dtype}, found {values.size} of {values.dtype}.")
        offset, data = self._at(name, rows), _bytes_of(np.ascontiguousarray(values))
        if self._behind is None:
            self._put(offset, data)
        else:
            self._behind.do(self._put, offset, data)

    def read(self, name: str, rows: slice | None = None) -> Array:
        """Rows that were written, as `SetFile.read` will give them."""
        spec = self.spec[name]
        rows = rows or slice(0, spec.rows)
        values = np.empty((rows.stop - rows.start, *spec.shape[1:]) if spec.shape else (), DTYPES[spec.dtype])
        offset, view = self._at(name, rows), _bytes_of(values)
        self._finish()
        with storage(self.path):
            while view:
                done = os.preadv(self._handle, [view], offset)
                view, offset = view[done:], offset + done
        return values

    def _finish(self) -> None:
        if self._behind is not None:
            self._behind.finish()

    def _at(self, name: str, rows: slice) -> int:
        spec = self.spec[name]
        return self._start[name] + rows.start * spec.row * DTYPES[spec.dtype].itemsize

    def _put(self, offset: int, data: memoryview) -> None:
        view, at = data, offset
        with storage(self.path):
            while view:
                done = os.pwrite(self._handle, view, at)
                view, at = view[done:], at + done
            if self._flush is not None:
                self._flush.wrote(offset, at)
            if self._hash is not None:
                self._hash.wrote(offset, data)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with storage(self.path):
            if kind is not None:
                self._opened.__exit__(kind, error, trace)
                return
            with self._opened:
                self._finish()
                self.digest = self._hash.digest() if self._hash is not None else ""


def _bytes_of(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")


def write_set(path: Path, tensors: Mapping[str, Array], spec: SetSpec | None = None, *, mode: int = 0o644) -> str:
    """Write arrays in memory as a parameter set, and tell the digest of the file.

    :param spec: dtype names, where uint16 arrays should not be taken for bfloat16.
    """
    spec = spec or spec_of(tensors)
    with SetWriter(path, spec, mode=mode, hashed=True) as writer:
        for name in sorted(spec):
            tensor = spec[name]
            array = tensors[name].reshape(tensor.shape)
            for rows in row_slices(tensor):
                writer.write(name, rows, array[rows] if tensor.shape else array)
    return writer.digest


def write_rows(path: Path, spec: SetSpec, read: Callable[[str, slice], Array], *, durable: bool = True) -> str:
    """Write a parameter set that is computed as it is read, one slice in memory at a time, and tell the digest of the file.

    :param durable: see `trunkline.files.replacing`.
    """
    with SetWriter(path, spec, durable=durable, hashed=True) as writer:
        for name in sorted(spec):
            for rows in row_slices(spec[name]):
                writer.write(name, rows, read(name, rows))
    return writer.digest


def encode_set(tensors: Mapping[str, Array]) -> bytes:
    """A parameter set as bytes, the same as its file."""
    spec = spec_of(tensors)
    return _header(spec) + b"".join(np.ascontiguousarray(tensors[name]).tobytes() for name in sorted(spec))


class SetFile:
    """A parameter set read through a memory map; nothing is copied until a slice is.

    :raises DamagedFile: the header lies about the data, or is no header.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < 8:
                raise DamagedFile(f"`{path.name}` should be a safetensors file, found {size} bytes.")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            self.spec, self._start = _read_header(self._map, size, path.name)
        except BaseException:
            self._map.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Unmap. Arrays handed out before are copies, so none is left dangling."""
        with suppress(BufferError):  # an error's traceback holds what was lent; the map goes with it
            self._map.close()

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.spec))

    def read(self, name: str, rows: slice | None = None) -> Array:
        """A copy of rows of a tensor (default: all), in its own dtype; shape `(rows, ...)`, or `()` for a 0-d tensor.

        The pages are given back to the system at once, so reading a set of any size leaves memory flat.
        """
        spec = self.spec[name]
        dtype = DTYPES[spec.dtype]
        rows = rows or slice(0, spec.rows)
        start = self._start[name] + rows.start * spec.row * dtype.itemsize
        count = (rows.stop - rows.start) * spec.row
        flat = np.frombuffer(self._map, dtype=dtype, count=count, offset=start).copy() if count else np.empty(0, dtype)
        self._forget(start, count * dtype.itemsize)
        return flat.reshape((rows.stop - rows.start, *spec.shape[1:])) if spec.shape else flat.reshape(())

    @contextmanager
    def lent(self, name: str, rows: slice) -> Iterator[Array]:
        """What `read` gives, to look at within the block only: a view of the file, without a copy where it lies well."""
        spec = self.spec[name]
        dtype = DTYPES[spec.dtype]
        start, count = self._start[name] + rows.start * spec.row * dtype.itemsize, (rows.stop - rows.start) * spec.row
        if not count or start % dtype.itemsize:
            yield self.read(name, rows)
            return
        flat = np.frombuffer(self._map, dtype=dtype, count=count, offset=start)
        yield flat.reshape((rows.stop - rows.start, *spec.shape[1:])) if spec.shape else flat.reshape(())
        self._forget(start, count * dtype.itemsize)

    def _forget(self, start: int, length: int) -> None:
        first = max(0, start - AROUND)
        first -= first % mmap.PAGESIZE
        if length > mmap.PAGESIZE and hasattr(self._map, "madvise"):
            self._map.madvise(mmap.MADV_DONTNEED, first, start + length - first)

    def tensors(self) -> dict[str, Array]:
        """Every tensor, copied into memory."""
        return {name: self.read(name) for name in self}


def _read_header(data: mmap.mmap, size: int, name: str) -> tuple[dict[str, TensorSpec], dict[str, int]]:
    length = int.from_bytes(data[:8], "little")
    if length > min(HEADER_LIMIT, size - 8):
        raise DamagedFile(f"`{name}` should start with a safetensors header, found one of {length} bytes in {size}.")
    try:
        entries = _entries(data[8 : 8 + length])
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"`{name}` should have a safetensors header, found {type(error).__name__}: {error}.") from None
    spec: dict[str, TensorSpec] = {}
    offsets: dict[str, tuple[int, int]] = {}
    for key, entry in entries.items():
        if not _is_entry(entry):
            raise DamagedFile(f"`{name}` should give dtype, shape and data_offsets of {key!r} in whole numbers, found others.")
        if entry["dtype"] not in DTYPES:
            raise DamagedFile(f"`{name}` should hold dtypes {', '.join(DTYPES)}, found {entry['dtype']!r} for {key!r}.")
        spec[key] = TensorSpec(tuple(entry["shape"]), entry["dtype"])
        offsets[key] = (entry["data_offsets"][0], entry["data_offsets"][1])
    base, expected = 8 + length, 0
    for key in sorted(offsets, key=lambda item: (offsets[item], item)):
        tensor = spec[key]
        if offsets[key] != (expected, expected + tensor.nbytes):
            raise DamagedFile(f"`{name}` should hold {key!r} at {expected}-{expected + tensor.nbytes}, found {offsets[key]}.")
        expected += tensor.nbytes
    if base + expected != size:
        raise DamagedFile(f"`{name}` should have {base + expected} bytes by its header, found {size}.")
    return spec, {key: base + offsets[key][0] for key in spec}


def _entries(text: bytes) -> dict[str, Any]:
    """The table in a header, without its metadata. As strict as the safetensors library: a set that one reads, the other reads."""
    if not text.startswith(b"{"):
        raise ValueError("text that does not start with a brace")
    entries = json.loads(text.decode(), object_pairs_hook=_once, parse_int=_natural)
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("metadata that is no table of texts")
    for key in entries:
        key.encode()  # half of a surrogate pair is no text
    return entries


def _is_entry(entry: object) -> bool:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        return False
    shape, offsets = entry["shape"], entry["data_offsets"]
    numbers = [*shape, *offsets] if isinstance(shape, list) and isinstance(offsets, list) and len(offsets) == 2 else [None]
    return isinstance(entry["dtype"], str) and all(type(n) is int and n < 2**48 for n in numbers)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a name that stands twice")
    return table


def _natural(digits: str) -> int:
    if digits.startswith("-"):
        raise ValueError(f"a negative number {digits[:20]}")
    return int(digits)


def check_spec(found: SetSpec, wanted: SetSpec) -> str | None:
    """Say the first way in which a set differs from what it should be, or None.

    >>> check_spec({"w": TensorSpec((2,))}, {"w": TensorSpec((3,))})
    "'w' should be F32 (3,), found F32 (2,)."
    """
    for name in sorted(set(wanted) | set(found)):
        if name not in found:
            return f"{name!r} should be there, found none."
        if name not in wanted:
            return f"{name!r} should not be there."
        if found[name] != wanted[name]:
            return f"{name!r} should be {wanted[name].dtype} {wanted[name].shape}, found {found[name].dtype} {found[name].shape}."
    return None


__all__ = ["SetFile", "SetWriter", "check_spec", "dtype_name", "encode_set", "encoded_size", "write_rows", "write_set"]
