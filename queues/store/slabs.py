"""Gradients on their way from workers to the writer, one file each, on one host.

head    magic, form, length and CRC-32 of the table, CRC-32 of the data, where the data begins, size of the file
table   JSON: batch, attempt, task, base, samples, loss; of each tensor its name, shape, and whether only some rows are there
data    per tensor its rows' numbers (int64), if any, and its values (float32), each on a boundary of 64 bytes

NAME.part is being written, and locked by its writer as long as that one lives; HASH-ATTEMPT.slab is whole; NAME.free is done
with and is written over, for new pages cost three times what old ones do. Nothing here is made to reach the disk: a gradient that
a power cut took is computed again.
"""

import fcntl
import hashlib
import mmap
import os
import struct
import time
import uuid
import zlib
from contextlib import suppress
from pathlib import Path

import torch
from pydantic import ConfigDict
from torch import Tensor

from queues.store.rows import thinned
from queues.store.store import Rows, Sent
from trunkline.errors import DamagedFile, QueueFull
from trunkline.files import storage
from trunkline.values import Value

MAGIC, FORM = b"TRUNKSLA", 1
HEAD = struct.Struct("<8sIIIIQQ")
TABLE_LIMIT = 64 << 20  # bytes
ELEMENTS_LIMIT = 1 << 40
FORGOTTEN = 3600.0
"""Seconds after which a gradient that nobody asked for is let go; its batch would be computed again."""


class _Part(Value):
    name: str
    shape: tuple[int, ...]  # of the values
    rows: bool = False


class _Table(Value):
    model_config = ConfigDict(ser_json_inf_nan="constants")

    batch: str
    attempt: int
    task: str
    base: int
    samples: int
    loss: float
    parts: tuple[_Part, ...]


class Slabs:
    """The folder of gradients.

    :param most: files that may wait; several workers at one moment may go beyond by one each.
    :param size: bytes that all files may have, done with or not.
    """

    def __init__(self, folder: Path, most: int, size: int) -> None:
        self.folder, self._most, self._size = folder, most, size

    # -- the worker's side ---------------------------------------------------------------------------------------------

    def lay(self, sent: Sent) -> None:
        """Write a gradient, whole or not at all.

        :raises QueueFull: there is no room for it now.
        :raises StorageFailed: the disk refused.
        """
        tensors = thinned(sent.tensors)
        parts = tuple(_part(name, tensor) for name, tensor in tensors.items())
        table = _Table(
            batch=sent.batch,
            attempt=sent.attempt,
            task=sent.task,
            base=sent.base,
            samples=sent.samples,
            loss=sent.loss,
            parts=parts,
        )
        text = table.model_dump_json().encode()
        begin = _aligned(HEAD.size + len(text))
        buffers = [_bytes(tensor) for value in tensors.values() for tensor in _flat(value)]
        size = begin + sum(_aligned(len(buffer)) for buffer in buffers)
        with storage(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, part = self._take(size)
            try:
                at, check = begin, 0
                for buffer in buffers:
                    _put(handle, buffer, at)
                    check = zlib.crc32(buffer, check)
                    at += _aligned(len(buffer))
                os.truncate(handle, size)
                _put(handle, memoryview(HEAD.pack(MAGIC, FORM, len(text), zlib.crc32(text), check, begin, size) + text), 0)
                part.replace(self._path(sent.batch, sent.attempt))
            except BaseException:
                with suppress(OSError):
                    part.unlink(missing_ok=True)
                raise
            finally:
                os.close(handle)

    def _take(self, size: int) -> tuple[int, Path]:
        """A file to write, locked; one that is done with, where there is one."""
        found = self._listed()
        if not self._fits(found, size):
            self.sweep()
            found = self._listed()
            for path in [path for path in found if path.suffix == ".free"]:
                path.unlink(missing_ok=True)
                del found[path]
            if not self._fits(found, size):
                raise full(self._most, self._size)
        for path in [path for path in found if path.suffix == ".free"]:
            if (taken := self._taken(path)) is not None:
                return taken
        while True:
            path = self.folder / f"{uuid.uuid4().hex}.free"
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            if (taken := self._taken(path)) is not None:
                return taken

    def _taken(self, path: Path) -> tuple[int, Path] | None:
        """Lock a file that is done with, then give it the name of one in the making; None: another was quicker."""
        part = path.with_suffix(".part")
        try:
            handle = _locked(path)
        except (FileNotFoundError, BlockingIOError):
            return None
        try:
            path.replace(part)
        except FileNotFoundError:
            os.close(handle)
            return None
        return handle, part

    def _fits(self, found: dict[Path, int], size: int) -> bool:
        waiting = [path for path in found if path.suffix != ".free"]
        spare = max((size for path, size in found.items() if path.suffix == ".free"), default=0)
        return len(waiting) < self._most and sum(found.values()) - spare + size <= self._size

    def _listed(self) -> dict[Path, int]:
        found: dict[Path, int] = {}
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name.endswith((".part", ".slab", ".free")):
                    with suppress(FileNotFoundError):
                        found[Path(entry.path)] = entry.stat().st_size
        return found

    # -- the writer's side ---------------------------------------------------------------------------------------------

    def load(self, batch: str, attempt: int) -> Sent | None:
        """A gradient, its tensors in a memory map; None: it is not there.

        :raises DamagedFile: it is not whole, or another one's.
        """
        path = self._path(batch, attempt)
        try:
            with storage(path), path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < HEAD.size:
                    raise DamagedFile(f"`{path}` should be a gradient, found {size} bytes.")
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # torch warns of what cannot be stored to
        except FileNotFoundError:
            return None
        return _decoded(data, size, path, (batch, attempt))

    def free(self, batch: str, attempt: int, *, earlier: bool) -> None:
        """Let a gradient go.

        :param earlier: also those of the attempts before.
        """
        begin = _hash(batch)
        for path in self._listed() if self.folder.is_dir() else ():
            name, _, number = path.stem.partition("-")
            if path.suffix != ".slab" or name != begin or not number.isdigit():
                continue
            if int(number) == attempt or (earlier and int(number) < attempt):
                with suppress(FileNotFoundError):
                    path.replace(self.folder / f"{uuid.uuid4().hex}.free")

    def sweep(self, seconds: float = FORGOTTEN) -> None:
        """Delete what a worker left that died while it wrote, and what nobody asked for in this time."""
        for path in self._listed() if self.folder.is_dir() else ():
            with suppress(FileNotFoundError, BlockingIOError):
                if path.suffix == ".part":
                    os.close(_locked(path))  # or its writer lives
                    path.unlink()
                elif path.suffix == ".slab" and time.time() - path.stat().st_mtime > seconds:
                    path.unlink()

    def _path(self, batch: str, attempt: int) -> Path:
        return self.folder / f"{_hash(batch)}-{attempt}.slab"


def full(most: int, size: int) -> QueueFull:
    """What a store says that has no room for another gradient."""
    return QueueFull(
        f"at most {most} gradients of {size} bytes should wait in the store, found no room for another.",
        hint="Wait for the server.",
    )


def _hash(batch: str) -> str:
    return hashlib.sha256(batch.encode()).hexdigest()[:32]


def _locked(path: Path) -> int:
    handle = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _part(name: str, tensor: Tensor | Rows) -> _Part:
    if isinstance(tensor, Rows):
        return _Part(name=name, shape=tuple(tensor.values.shape), rows=True)
    return _Part(name=name, shape=tuple(tensor.shape))


def _flat(tensor: Tensor | Rows) -> tuple[Tensor, ...]:
    if isinstance(tensor, Rows):
        return tensor.index.to(torch.int64), tensor.values.to(torch.float32)
    return (tensor.to(torch.float32),)


def _bytes(tensor: Tensor) -> memoryview:
    plain = tensor.detach().cpu().contiguous().reshape(-1).numpy()
    return plain.view("u1").data if plain.size else memoryview(b"")


def _put(handle: int, data: memoryview, at: int) -> None:
    while data:
        done = os.pwrite(handle, data, at)
        data, at = data[done:], at + done


def _aligned(size: int) -> int:
    return -(-size // 64) * 64


def _decoded(data: mmap.mmap, size: int, path: Path, key: tuple[str, int]) -> Sent:
    magic, form, length, check, data_check, begin, said = HEAD.unpack(data[: HEAD.size])
    if (magic, form, said) != (MAGIC, FORM, size) or HEAD.size + length > min(begin, TABLE_LIMIT) or begin > size:
        raise DamagedFile(f"`{path}` should be a gradient of {size} bytes, found another head.")
    text = data[HEAD.size : HEAD.size + length]
    try:
        if zlib.crc32(text) != check:
            raise ValueError
        table = _Table.model_validate_json(text)
        if (table.batch, table.attempt) != key:
            raise ValueError
        places = _places(table, begin, size)
    except ValueError:
        raise DamagedFile(f"`{path}` should hold the table of its gradient, found something else.") from None
    found, computed = memoryview(data), 0
    for at, count, width in (place for part in places for place in part):
        computed = zlib.crc32(found[at : at + count * width], computed)
    if computed != data_check:
        raise DamagedFile(f"`{path}` should hold what its checksum is of, found something else.")
    tensors: dict[str, Tensor | Rows] = {}
    for part, where in zip(table.parts, places, strict=True):
        *index, values = (_tensor(data, *place) for place in where)
        whole = values.view(part.shape)
        tensors[part.name] = Rows(index[0], whole) if index else whole
    return Sent(table.batch, table.attempt, table.task, table.base, table.samples, table.loss, tensors)


def _places(table: _Table, begin: int, size: int) -> list[list[tuple[int, int, int]]]:
    """Of each part its pieces: where they begin, elements, bytes an element.

    :raises ValueError: they are not what the file holds.
    """
    found: list[list[tuple[int, int, int]]] = []
    at = begin
    for part in table.parts:
        elements = 1
        for length in part.shape:
            if length < 0 or length > ELEMENTS_LIMIT:
                raise ValueError
            elements *= length
        if elements > ELEMENTS_LIMIT or (part.rows and not part.shape):
            raise ValueError
        pieces = []
        for count, width in ([(part.shape[0], 8)] if part.rows else []) + [(elements, 4)]:
            pieces.append((at, count, width))
            at += _aligned(count * width)
        found.append(pieces)
    if at != size or len({part.name for part in table.parts}) != len(table.parts):
        raise ValueError
    return found


def _tensor(data: mmap.mmap, at: int, count: int, width: int) -> Tensor:
    dtype = torch.int64 if width == 8 else torch.float32
    return torch.frombuffer(data, dtype=dtype, count=count, offset=at) if count else torch.empty(0, dtype=dtype)
