"""A few thousand numbers that stand for a gradient of millions: inner products survive, but for a small error.

A count sketch (Charikar et al., 2002; Weinberger et al., 2009, arXiv:0902.2206): every element is added, with a random sign, to a
random one of `size` numbers. For two gradients x and y the product of their sketches is `x y` in the mean over the draws, with a
variance of at most `(|x|^2 |y|^2 + (x y)^2) / size`.

Random places for millions of elements cost more than reading them. So they are drawn for blocks: a tensor is cut into blocks of
ROWS x size elements; within a block element (i, j) has the sign `signs[i, j]` and the place j; the places of each block are turned
by an offset of its own, and its signs by one sign. So elements of one block meet with independent signs, and what lies at regular
distances in a tensor, as a column does, is spread by the offsets. Both are functions of the seed, the tensor's name and the
block's number, so tasks may lack tensors, and no table of all elements is needed.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tasks.balance.rule import Floats

SIZE = 4096
ROWS = 64


class SomeRows(Protocol):
    """Some rows of a gradient whose other rows are zero, as an embedding's is."""

    @property
    def index(self) -> Tensor:
        """(R,) int64, different."""
        ...

    @property
    def values(self) -> Tensor:
        """(R, ...) float32."""
        ...


def sketch(gradient: Mapping[str, Tensor | SomeRows], seed: int = 0, size: int = SIZE) -> Floats:
    """The sketch of a gradient `(size,)`.

    :param gradient: float32 tensors by their shared names; one that is missing is zero.
    :param seed: of what is drawn; sketches of one seed and size can be compared.
    """
    signs, total = _signs(seed, size), np.zeros(size)
    with torch.no_grad():
        for name in sorted(gradient):
            found = gradient[name]
            if isinstance(found, Tensor):
                for number, block in enumerate(_blocks(found.reshape(-1), size)):
                    total += _turned(_summed(block, signs), seed, name, number)
            else:
                total += _of_rows(found, signs, seed, name)
    return total


def _blocks(flat: Tensor, size: int) -> Iterator[Tensor]:
    """(rows, size), at most ROWS rows; the last one filled up with zeros."""
    for start in range(0, flat.numel(), ROWS * size):
        block = flat[start : start + ROWS * size]
        if short := -block.numel() % size:
            block = torch.cat([block, block.new_zeros(short)])
        yield block.reshape(-1, size)


def _summed(block: Tensor, signs: Tensor) -> Floats:
    return (block * signs[: len(block)]).sum(0).numpy().astype(np.float64)


def _of_rows(found: SomeRows, signs: Tensor, seed: int, name: str) -> Floats:
    """The same sums, element by element."""
    size = signs.shape[1]
    values = found.values.reshape(len(found.index), -1).numpy().astype(np.float64)
    at = found.index.numpy()[:, None] * values.shape[1] + np.arange(values.shape[1])
    number, within = np.divmod(at, ROWS * size)
    total = np.zeros(size)
    for block in np.unique(number):
        here = number == block
        signed = values[here] * signs.numpy().reshape(-1)[within[here]]
        summed = np.bincount(within[here] % size, signed, size).astype(np.float64)
        total += _turned(summed, seed, name, int(block))
    return total


def _turned(sums: Floats, seed: int, name: str, number: int) -> Floats:
    drawn = int.from_bytes(sha256(f"{seed}/{name}/{number}".encode()).digest()[:8], "little")
    turned: NDArray[np.float64] = np.roll(sums, drawn // 2 % len(sums))
    return -turned if drawn % 2 else turned


@lru_cache(maxsize=4)
def _signs(seed: int, size: int) -> Tensor:
    """(ROWS, size), 1 or -1."""
    bits = np.random.default_rng([seed, size]).integers(0, 2, (ROWS, size), dtype=np.int8)
    return torch.from_numpy((2 * bits - 1).astype(np.float32))
