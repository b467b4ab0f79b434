"""Values in order: the network against sorting, signed zeros, ties, and shares that stay with their values."""

from itertools import permutations, product
from math import factorial

import numpy as np
import pytest

from master.rules.order import network, ordered, ordered_with
from master.rules.orders import FEW, order_of, orders
from trunkline.tensors import Array

KINDS = [np.float32, np.float64]


@pytest.mark.parametrize("count", range(1, 11))
def test_a_network_sorts_every_row_of_zeros_and_ones_and_so_every_row(count: int) -> None:
    """Knuth, The Art of Computer Programming 3, theorem 5.3.4Z."""
    values = np.array(list(product([0.0, 1.0], repeat=count)), np.float32).T.copy()
    expected = np.sort(values, axis=0)
    np.testing.assert_array_equal(np.stack(ordered(values.copy())), expected)
    for rank in range(count):
        np.testing.assert_array_equal(ordered(values.copy(), [rank])[rank], expected[rank])


def test_a_network_leaves_out_what_no_wanted_rank_depends_on() -> None:
    assert len(network(64, tuple(range(64)))) == 543  # Batcher's count
    assert len(network(64, (31, 32))) < 450
    assert len(network(16, (0,))) == 15
    assert network(1, (0,)) == ()


def nasty(dtype: type[np.floating]) -> Array:
    """Large, small, denormal, equal and signed, in rows of every order."""
    line = np.array([0.0, -0.0, 1e-40, -1e-40, 1.0, 1.0, -1.0, np.finfo(dtype).max, np.finfo(dtype).min, 3.5, -2.25], dtype)
    rng = np.random.default_rng(0)
    return np.stack([rng.permutation(line) for _ in range(200)], axis=1)


@pytest.mark.parametrize("dtype", KINDS)
def test_values_come_back_bit_for_bit_with_a_negative_zero_first(dtype: type[np.floating]) -> None:
    values = nasty(dtype)
    found = np.stack(ordered(values.copy()))
    np.testing.assert_array_equal(found, np.sort(values, axis=0))
    assert np.signbit(found[4]).all(), "the negative zero, after four negative numbers"
    assert not np.signbit(found[5]).any()
    rows = [row for row, _ in ordered_with(values.copy(), np.arange(len(values), dtype=np.float64))]
    assert np.stack(rows).tobytes() == found.tobytes()


@pytest.mark.parametrize("dtype", KINDS)
def test_shares_stay_with_their_values_and_equal_values_in_the_order_of_the_children(dtype: type[np.floating]) -> None:
    values = nasty(dtype)
    number = np.arange(len(values), dtype=np.float64)
    rows, theirs = zip(*ordered_with(values.copy(), number), strict=True)
    for row, share in zip(rows, theirs, strict=True):
        assert values[share.astype(int), np.arange(values.shape[1])].tobytes() == row.tobytes()
    ones = [(row == 1.0).all() for row in rows].index(True)
    assert (theirs[ones] < theirs[ones + 1]).all()


@pytest.mark.parametrize("count", range(1, FEW + 1))
def test_the_number_of_an_order_says_who_stands_where(count: int) -> None:
    """Every order, and every way of being equal."""
    keys = np.array(list(product(range(count), repeat=count)) if count < 6 else list(permutations(range(count))), np.int32).T
    found = orders(count)[order_of(keys)]
    np.testing.assert_array_equal(found, np.argsort(keys, axis=0, kind="stable").T)
    assert len(orders(count)) == factorial(count) == len({tuple(order) for order in found.tolist()})
