"""Few children can stand in few orders: which one a coordinate has is a number, and what follows from the order is looked up by it.

The number is Lehmer's code: of each child, how many of those before it sent more, as digits of which the k-th has k values.

Legend: n children, d coordinates.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from trunkline.tensors import Array

FEW = 7
"""Children of which all orders are laid out: 5040. Of eight there are 40,320, whose tables caches do not hold."""

Numbers = NDArray[np.intp]


def order_of(keys: Array) -> Numbers:
    """The number of each column's order `(d,)`, a place in `orders`; equal keys stand in the order of the children.

    :param keys: `(n, d)` of whole numbers, n at most `FEW`.

    >>> orders(3)[order_of(np.array([[5], [9], [7]]))].tolist()
    [[0, 2, 1]]
    """
    code, more = np.zeros(keys.shape[1:], np.uint16), np.empty(keys.shape[1:], np.bool_)
    for child in range(1, len(keys)):
        code *= child + 1
        for before in keys[:child]:
            np.greater(before, keys[child], out=more)
            code += more
    return code.astype(np.intp)


@lru_cache(maxsize=FEW)
def orders(count: int) -> Numbers:
    """All orders of so many children `(n!, n)` by their numbers: who stands at each rank.

    >>> orders(2).tolist()
    [[0, 1], [1, 0]]
    """
    found = np.zeros((1, 1), np.intp)
    for child in range(1, count):
        ways = [np.insert(found, child - larger, child, axis=1) for larger in range(child + 1)]
        found = np.stack(ways, axis=1).reshape(-1, child + 1)
    return found
