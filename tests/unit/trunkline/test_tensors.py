"""Specifications, slices, and bfloat16 against torch."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trunkline.tensors import DTYPES, TensorSpec, dtype_name, from_bf16, narrow, row_slices, spec_of, to_bf16, widen

FLOAT32 = hnp.arrays(np.float32, hnp.array_shapes(min_dims=0, max_dims=3, max_side=5), elements=st.floats(width=32))


def torch_bf16(values: np.ndarray) -> np.ndarray:
    """The same rounding by torch, as uint16."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(torch.bfloat16).view(torch.int16).numpy().astype(np.uint16)


@given(st.integers(0, 40), st.integers(0, 7), st.integers(1, 30))
def test_slices_cover_each_row_once_in_order_and_keep_the_limit(rows: int, row: int, limit: int) -> None:
    spec = TensorSpec((rows, row))
    slices = list(row_slices(spec, limit))
    assert [index for part in slices for index in range(rows)[part]] == list(range(rows))
    assert all((part.stop - part.start) * row <= max(limit, row) for part in slices)


def test_a_0d_tensor_is_one_row_of_one_element() -> None:
    spec = TensorSpec((), "I64")
    assert (spec.rows, spec.row, spec.elements, spec.nbytes) == (1, 1, 1, 8)
    assert list(row_slices(spec)) == [slice(0, 1)]


@given(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4), st.sampled_from(sorted(DTYPES)))
def test_elements_are_rows_times_row_and_bytes_those_of_numpy(shape: tuple[int, ...], dtype: str) -> None:
    spec, array = TensorSpec(shape, dtype), np.zeros(shape, DTYPES[dtype])
    assert spec.elements == array.size
    assert spec.nbytes == array.nbytes
    if shape and shape[0]:
        assert spec.rows * spec.row == spec.elements


def test_dtype_names_are_there_and_back() -> None:
    assert {name: dtype_name(np.zeros(1, dtype)) for name, dtype in DTYPES.items()} == {name: name for name in DTYPES}
    with pytest.raises(TypeError, match=r"a tensor's dtype should be one of .*, found complex128\."):
        dtype_name(np.zeros(1, np.complex128))
    assert spec_of({"a": np.zeros((2, 3), np.int8), "b": np.zeros((), bool)}) == {
        "a": TensorSpec((2, 3), "I8"),
        "b": TensorSpec((), "BOOL"),
    }


def test_bf16_rounds_as_torch_does_for_every_upper_half_and_the_ties_around_it() -> None:
    upper = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
    for lower in (0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        values = (upper | np.uint32(lower)).view(np.float32)
        ours, theirs = to_bf16(values), torch_bf16(values)
        number = ~np.isnan(values)
        assert np.array_equal(ours[number], theirs[number])
        assert np.isnan(from_bf16(ours[~number])).all()


@given(FLOAT32)
def test_bf16_keeps_the_shape_and_widening_is_exact(values: np.ndarray) -> None:
    half = to_bf16(values)
    assert (half.shape, half.dtype) == (values.shape, np.uint16)
    wide = from_bf16(half)
    assert (wide.shape, wide.dtype) == (values.shape, np.float32)
    assert np.array_equal(to_bf16(wide), half)
    back = torch.from_numpy(half.astype(np.int16)).view(torch.bfloat16).float().numpy()
    assert np.array_equal(back, wide, equal_nan=True)


def test_bf16_takes_a_strided_view() -> None:
    values = np.linspace(-3, 3, 24, dtype=np.float32).reshape(4, 6)
    assert np.array_equal(to_bf16(values.T), to_bf16(values).T)


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16"])
def test_widening_and_narrowing_again_changes_nothing(dtype: str) -> None:
    values = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    own = narrow(values.astype(np.float64), dtype)
    assert own.dtype == DTYPES[dtype]
    assert np.array_equal(narrow(widen(own, dtype), dtype), own)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_what_is_too_large_becomes_infinite_without_a_warning(dtype: str) -> None:
    assert np.isinf(widen(narrow(np.array([1e300, -1e300]), dtype), dtype)).all()
