"""The bytes of a gradient, in a file between two processes and in the body of a call between two machines.

head    magic, form, length and CRC-32 of the table, CRC-32 of the data, where the data begins, size of the whole
table   JSON: batch, attempt, task, base, samples, loss; of each tensor its name, shape, whether only some rows are there, and
        whether its values are bfloat16, the upper half of a float32, or float32
data    per tensor its rows' numbers (int64), if any, and its values, each on a boundary of 64 bytes

Whoever reads it believes nothing: every length is compared with what is there before it is used.
"""

import mmap
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from pydantic import ConfigDict
from torch import Tensor

from queues.store.rows import thinned
from queues.store.store import Rows, Sent
from trunkline.errors import DamagedFile
from trunkline.values import Value

MAGIC, FORM = b"TRUNKSLA", 1
HEAD = struct.Struct("<8sIIIIQQ")
TABLE_LIMIT = 64 << 20  # bytes
ELEMENTS_LIMIT = 1 << 40


class Part(Value):
    """One tensor."""

    name: str
    shape: tuple[int, ...]  # of the values
    rows: bool = False
    half: bool = False  # bfloat16


class Table(Value):
    """What a gradient says of itself."""

    model_config = ConfigDict(ser_json_inf_nan="constants")

    batch: str
    attempt: int
    task: str
    base: int
    samples: int
    loss: float
    parts: tuple[Part, ...]


class Place(NamedTuple):
    """Where some numbers lie."""

    at: int  # byte
    count: int
    width: int  # bytes of each: 8, 4 or 2


@dataclass(frozen=True, slots=True)
class Form:
    """A gradient as bytes: what stands before the data, and the data by pieces."""

    front: bytes  # head and table
    pieces: tuple[tuple[int, memoryview], ...]  # where each begins
    size: int  # of the whole, bytes

    def chunks(self, most: int = 1 << 18) -> Iterator[bytes]:
        """All of it in order, what lies between two pieces as zeros.

        :param most: bytes of a chunk, about.
        """
        small, done = bytearray(), 0
        for at, piece in ((0, memoryview(self.front)), *self.pieces, (self.size, memoryview(b""))):
            small += bytes(at - done)
            done = at + len(piece)
            if len(piece) < most:
                small += piece
            if small and (len(piece) >= most or len(small) >= most or done == self.size):
                yield bytes(small)
                small.clear()
            if len(piece) >= most:
                yield from (bytes(piece[start : start + most]) for start in range(0, len(piece), most))


def encode(sent: Sent, *, half: bool = False) -> Form:
    """A gradient as bytes; of a long embedding of which few rows hold anything, only these.

    :param half: values as bfloat16, rounded to the nearest: half the bytes, and 8 bits of each number instead of 24.
    """
    tensors = thinned(sent.tensors)
    table = Table(
        batch=sent.batch,
        attempt=sent.attempt,
        task=sent.task,
        base=sent.base,
        samples=sent.samples,
        loss=sent.loss,
        parts=tuple(_part(name, tensor, half) for name, tensor in tensors.items()),
    )
    text = table.model_dump_json().encode()
    begin = _aligned(HEAD.size + len(text))
    pieces, at, check = [], begin, 0
    for tensor in (one for value in tensors.values() for one in _flat(value, half)):
        data = _bytes(tensor)
        check = zlib.crc32(data, check)
        pieces.append((at, data))
        at += _aligned(len(data))
    return Form(HEAD.pack(MAGIC, FORM, len(text), zlib.crc32(text), check, begin, at) + text, tuple(pieces), at)


class Front(NamedTuple):
    """The head, checked as far as it can be by itself."""

    length: int  # of the table
    table_check: int
    check: int  # of the data
    begin: int
    size: int


def read_head(head: bytes, size: int, what: str) -> Front:
    """The first HEAD.size bytes of a gradient.

    :param size: that the whole has.
    :param what: it is called in messages.
    :raises DamagedFile: it is none, or has another size.
    """
    if len(head) < HEAD.size:
        raise DamagedFile(f"{what} should be a gradient, found {len(head)} bytes.")
    magic, form, length, table_check, check, begin, said = HEAD.unpack(head[: HEAD.size])
    if (magic, form, said) != (MAGIC, FORM, size) or HEAD.size + length > min(begin, TABLE_LIMIT) or begin > size:
        raise DamagedFile(f"{what} should be a gradient of {size} bytes, found another head.")
    return Front(length, table_check, check, begin, size)


def read_table(front: Front, text: bytes, what: str) -> tuple[Table, list[list[Place]]]:
    """The table, and where of each of its tensors the numbers lie.

    :raises DamagedFile: it is none, or not of this head.
    """
    try:
        if zlib.crc32(text) != front.table_check:
            raise ValueError
        table = Table.model_validate_json(text)
        return table, _places(table, front)
    except ValueError:
        raise DamagedFile(f"{what} should hold the table of its gradient, found something else.") from None


def verified(data: bytearray | mmap.mmap, size: int, what: str) -> tuple[Table, list[list[Place]]]:
    """The table of a gradient that is whole, and where its numbers lie: of each tensor its rows', if any, and its values.

    :raises DamagedFile: it is not whole.
    """
    front = read_head(bytes(data[: HEAD.size]), size, what)
    table, places = read_table(front, bytes(data[HEAD.size : HEAD.size + front.length]), what)
    found, computed = memoryview(data), 0
    for at, count, width in (place for part in places for place in part):
        computed = zlib.crc32(found[at : at + count * width], computed)
    if computed != front.check:
        raise DamagedFile(f"{what} should hold what its checksum is of, found something else.")
    return table, places


def numbers(data: bytearray | mmap.mmap, place: Place) -> Tensor:
    """What lies at a place: (count,) int64, float32 or bfloat16."""
    dtype = _DTYPES[place.width]
    return torch.frombuffer(data, dtype=dtype, count=place.count, offset=place.at) if place.count else torch.empty(0, dtype=dtype)


def decode(data: bytearray | mmap.mmap, size: int, what: str) -> Sent:
    """A gradient from its bytes; float32 tensors stay where they lie, so these must not change as long as they are used.

    :param data: that can be written to, for torch warns of other.
    :raises DamagedFile: it is not whole.
    """
    table, places = verified(data, size, what)
    tensors: dict[str, Tensor | Rows] = {}
    for part, where in zip(table.parts, places, strict=True):
        *index, values = (numbers(data, place) for place in where)
        whole = values.float().view(part.shape)
        tensors[part.name] = Rows(index[0], whole) if index else whole
    return Sent(table.batch, table.attempt, table.task, table.base, table.samples, table.loss, tensors)


_DTYPES: Mapping[int, torch.dtype] = {8: torch.int64, 4: torch.float32, 2: torch.bfloat16}


def _part(name: str, tensor: Tensor | Rows, half: bool) -> Part:
    if isinstance(tensor, Rows):
        return Part(name=name, shape=tuple(tensor.values.shape), rows=True, half=half)
    return Part(name=name, shape=tuple(tensor.shape), half=half)


def _flat(tensor: Tensor | Rows, half: bool) -> tuple[Tensor, ...]:
    dtype = torch.bfloat16 if half else torch.float32
    if isinstance(tensor, Rows):
        return tensor.index.to(torch.int64), tensor.values.to(dtype)
    return (tensor.to(dtype),)


def _bytes(tensor: Tensor) -> memoryview:
    plain = tensor.detach().cpu().contiguous().reshape(-1)
    if plain.dtype == torch.bfloat16:
        plain = plain.view(torch.int16)  # which numpy knows
    return plain.numpy().view("u1").data if plain.numel() else memoryview(b"")


def _aligned(size: int) -> int:
    return -(-size // 64) * 64


def _places(table: Table, front: Front) -> list[list[Place]]:
    """:raises ValueError: they are not what is there."""
    found: list[list[Place]] = []
    at = front.begin
    for part in table.parts:
        elements = 1
        for length in part.shape:
            if length < 0 or length > ELEMENTS_LIMIT:
                raise ValueError
            elements *= length
        if elements > ELEMENTS_LIMIT or (part.rows and not part.shape):
            raise ValueError
        pieces = []
        for count, width in ([(part.shape[0], 8)] if part.rows else []) + [(elements, 2 if part.half else 4)]:
            pieces.append(Place(at, count, width))
            at += _aligned(count * width)
        found.append(pieces)
    if at != front.size or len({part.name for part in table.parts}) != len(table.parts):
        raise ValueError
    return found
