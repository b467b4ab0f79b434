"""Parameter sets: one canonical form, the law of the safetensors library, and a header that is believed only when it is true."""

import hashlib
import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trunkline.errors import DamagedFile, StorageFailed
from trunkline.files import sha256_file
from trunkline.sets import SetFile, SetWriter, check_spec, encode_set, encoded_size, write_set
from trunkline.tensors import DTYPES, TensorSpec, row_slices, spec_of

NAMES = st.text('aZ.0 "\\\né中😀', min_size=1, max_size=4)
ARRAYS = st.sampled_from([dtype for name, dtype in DTYPES.items() if name != "BF16"]).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
)
SETS = st.dictionaries(NAMES, ARRAYS, max_size=5)

# Each example writes its file whole, so they may share a folder.
same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
same_folder_often = settings(same_folder, max_examples=100)


def raw(header: bytes, data: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + data


def spoken(entries: dict[str, Any], data: bytes = b"") -> bytes:
    return raw(json.dumps(entries).encode(), data)


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


# -- what we write -----------------------------------------------------------------------------------------------------


@same_folder
@given(SETS)
def test_the_library_reads_what_we_write_and_we_read_it_back(tmp_path: Path, tensors: dict[str, np.ndarray]) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(encode_set(tensors))
    theirs = safetensors.numpy.load_file(path)
    with SetFile(path) as ours:
        assert list(ours) == sorted(tensors)
        for name, array in tensors.items():
            assert theirs[name].dtype == array.dtype
            assert np.array_equal(theirs[name], array, equal_nan=array.dtype.kind == "f")
            assert ours.read(name).tobytes() == array.tobytes()
            assert ours.read(name).shape == array.shape


@same_folder
@given(SETS)
def test_the_form_is_canonical(tmp_path: Path, tensors: dict[str, np.ndarray]) -> None:
    path = tmp_path / "a.safetensors"
    write_set(path, dict(reversed(tensors.items())))
    data = path.read_bytes()
    assert data == encode_set(tensors)
    assert len(data) == encoded_size(spec_of(tensors))
    assert int.from_bytes(data[:8], "little") % 8 == 0


def test_bfloat16_opens_in_torch(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_set(path, {"w": np.array([[16256, 49184]], np.uint16)})
    read = safetensors.torch.load_file(path)["w"]
    assert str(read.dtype) == "torch.bfloat16"
    assert read.tolist() == [[1.0, -2.5]]


@same_folder
@given(SETS)
def test_what_the_library_writes_we_read(tmp_path: Path, tensors: dict[str, np.ndarray]) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(safetensors.numpy.save(tensors, metadata={"format": "pt"}))
    with SetFile(path) as ours:
        assert ours.spec == spec_of(tensors)
        assert all(ours.read(name).tobytes() == array.tobytes() for name, array in tensors.items())


def test_slices_may_be_written_in_any_order(tmp_path: Path) -> None:
    tensors = {"a": np.arange(40, dtype=np.float32).reshape(10, 4), "b": np.array(7)}
    slices = [(name, rows) for name, tensor in spec_of(tensors).items() for rows in row_slices(tensor, limit=12)]
    with SetWriter(tmp_path / "a", spec_of(tensors)) as writer:
        for name, rows in reversed(slices):
            writer.write(name, rows, tensors[name][rows] if tensors[name].shape else tensors[name])
    assert (tmp_path / "a").read_bytes() == encode_set(tensors)


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("order", ["forward", "backward", "from the middle"])
def test_the_digest_is_of_the_file_in_whatever_order_it_was_written(tmp_path: Path, order: str, behind: bool) -> None:
    tensors = {"a": np.arange(40, dtype=np.float32).reshape(10, 4), "b": np.array(7), "c": np.zeros((0, 3), np.int8)}
    slices = [(name, rows) for name, tensor in spec_of(tensors).items() for rows in row_slices(tensor, limit=12)]
    slices = {"forward": slices, "backward": slices[::-1], "from the middle": slices[2:] + slices[:2]}[order]
    with SetWriter(tmp_path / "a", spec_of(tensors), hashed=True, behind=behind) as writer:
        for name, rows in slices:
            writer.write(name, rows, tensors[name][rows] if tensors[name].shape else tensors[name])
    assert writer.digest == sha256_file(tmp_path / "a") == hashlib.sha256(encode_set(tensors)).hexdigest()


@pytest.mark.parametrize("size", [0, 50, 5000])
def test_of_a_spare_file_nothing_is_left_in_the_set(tmp_path: Path, size: int) -> None:
    tensors = {"a": np.arange(40, dtype=np.float32).reshape(10, 4), "b": np.array(7)}
    (tmp_path / "spare").write_bytes(b"x" * size)
    with SetWriter(tmp_path / "a", spec_of(tensors), durable=False, hashed=True, spare=tmp_path / "spare") as writer:
        writer.write("b", slice(0, 1), tensors["b"])
        writer.write("a", slice(0, 10), tensors["a"])
    assert (tmp_path / "a").read_bytes() == encode_set(tensors) and list(tmp_path.iterdir()) == [tmp_path / "a"]
    assert writer.digest == sha256_file(tmp_path / "a")


def test_what_was_written_can_be_read_before_it_is_in_place(tmp_path: Path) -> None:
    tensors = {"a": np.arange(40, dtype=np.float32).reshape(10, 4), "b": np.array(7), "c": np.zeros((0, 3), np.int8)}
    with SetWriter(tmp_path / "a", spec_of(tensors)) as writer:
        writer.write("a", slice(0, 10), tensors["a"])
        writer.write("b", slice(0, 1), tensors["b"])
        assert not (tmp_path / "a").exists()
        early = {name: (writer.read(name), writer.read(name, slice(0, min(1, spec.rows)))) for name, spec in writer.spec.items()}
    with SetFile(tmp_path / "a") as file:
        for name, found in early.items():
            for one, rows in zip(found, (None, slice(0, min(1, file.spec[name].rows))), strict=True):
                late = file.read(name, rows)
                assert (one.tobytes(), one.shape, one.dtype) == (late.tobytes(), late.shape, late.dtype)


@pytest.mark.parametrize("values", [np.zeros(2, np.float64), np.zeros(3, np.float32), np.zeros(1, np.float32)])
def test_rows_of_another_dtype_or_size_never_get_into_a_file(tmp_path: Path, values: np.ndarray) -> None:
    with (
        pytest.raises(ValueError, match=r"'a' should get 2 of F32, found"),
        SetWriter(tmp_path / "a", {"a": TensorSpec((2,)), "b": TensorSpec((9,))}) as writer,
    ):
        writer.write("a", slice(0, 2), values)
    assert list(tmp_path.iterdir()) == []


def test_rows_are_copies_that_outlive_the_map(tmp_path: Path) -> None:
    array = np.arange(1 << 16, dtype=np.float32).reshape(-1, 16)
    write_set(tmp_path / "a", {"x": array})
    with SetFile(tmp_path / "a") as file:
        part = file.read("x", slice(5, 9))
        again = file.read("x", slice(5, 9))
    assert np.array_equal(part, array[5:9])
    part[:] = 0
    assert np.array_equal(again, array[5:9])


# -- a disk that fails -------------------------------------------------------------------------------------------------


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A limit of the system stands in for a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("room", [0, 20, 200, 4000])
def test_a_disk_that_ends_leaves_the_old_set_and_nothing_else(tmp_path: Path, room: int, behind: bool) -> None:
    path = tmp_path / "a"
    write_set(path, {"x": np.zeros(1, np.float32)})
    before, open_files = path.read_bytes(), len(os.listdir("/proc/self/fd")) if Path("/proc").is_dir() else 0
    with (
        files_of_at_most(room),
        pytest.raises(StorageFailed, match=r"should be writable, found: File too large"),
        SetWriter(path, {"x": TensorSpec((2000,))}, behind=behind) as writer,
    ):
        for start in range(0, 2000, 100):
            writer.write("x", slice(start, start + 100), np.zeros(100, np.float32))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    if open_files:
        assert len(os.listdir("/proc/self/fd")) == open_files


# -- what we refuse ----------------------------------------------------------------------------------------------------

LIES = {
    "empty": b"",
    "seven bytes": b"1234567",
    "a header longer than the file": (1 << 40).to_bytes(8, "little") + b"{}",
    "not JSON": raw(b"{nothing"),
    "a list": raw(b"[]      "),
    "a blank before the brace": raw(b" {}"),
    "UTF-16": raw("{}".encode("utf-16-le")),
    "a byte order mark": raw(b"\xef\xbb\xbf{}"),
    "not UTF-8": raw(b'{"\xff":1}'),
    "half a surrogate pair": spoken({"\ud800": entry()}, b"8" * 8),
    "nested without end": raw(b'{"a":' + b"[" * 100_000),
    "a name twice": raw(
        b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'
    ),
    "an entry that is a number": spoken({"a": 1}),
    "an entry without a shape": spoken({"a": {"dtype": "F32", "data_offsets": [0, 8]}}, b"8" * 8),
    "an unknown dtype": spoken({"a": entry("F31")}, b"8" * 8),
    "a dtype that is a list": spoken({"a": entry(["F32"])}, b"8" * 8),
    "a shape that is a text": spoken({"a": entry(shape="2")}, b"8" * 8),
    "a negative shape": spoken({"a": entry(shape=[-1, -2])}, b"8" * 8),
    "a shape of reals": spoken({"a": entry(shape=[2.0])}, b"8" * 8),
    "a shape of truths": spoken({"a": entry("U8", [True], [0, 1])}, b"8"),
    "a shape beyond all memory": spoken({"a": entry(shape=[1 << 60, 1 << 60])}, b"8" * 8),
    "offsets of reals": spoken({"a": entry(offsets=[0.0, 8.0])}, b"8" * 8),
    "offsets of texts": spoken({"a": entry(offsets=["0", "8"]), "b": entry(offsets=[0, 8])}, b"8" * 8),
    "one offset": spoken({"a": entry(offsets=[8])}, b"8" * 8),
    "offsets that do not fit the shape": spoken({"a": entry(offsets=[0, 4])}, b"8" * 4),
    "a hole": spoken({"a": entry(offsets=[4, 12])}, b"8" * 12),
    "an overlap": spoken({"a": entry(), "b": entry(offsets=[4, 12])}, b"8" * 12),
    "bytes left over": spoken({"a": entry()}, b"8" * 9),
    "bytes missing": spoken({"a": entry()}, b"8" * 7),
    "metadata of numbers": spoken({"__metadata__": {"a": 1}}),
    "NaN": raw(b'{"__metadata__":{"a":NaN}}'),
}


@pytest.mark.parametrize("data", LIES.values(), ids=LIES.keys())
def test_a_file_that_lies_is_damaged(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "lie"
    path.write_bytes(data)
    with pytest.raises(DamagedFile, match=r"`lie` should .*, found "):
        SetFile(path)


def test_a_header_longer_than_any_honest_one_is_not_even_read(tmp_path: Path) -> None:
    path = tmp_path / "lie"
    path.write_bytes((17 << 20).to_bytes(8, "little"))
    os.truncate(path, 18 << 20)  # a sparse file: it costs nothing
    with pytest.raises(DamagedFile, match=r"found one of 17825792 bytes in 18874368\."):
        SetFile(path)


def accepts(path: Path) -> bool:
    try:
        SetFile(path).close()
    except DamagedFile:
        return False
    return True


def library_accepts(path: Path) -> bool:
    try:
        with safetensors.safe_open(path, "np"):
            return True
    except safetensors.SafetensorError:
        return False


GOOD = encode_set({"bias": np.arange(3, dtype=np.float32), "n": np.array(5), "w": np.ones((2, 2), np.float16)})


@same_folder_often
@given(st.integers(0, len(GOOD) - 1), st.binary(min_size=0, max_size=3), st.integers(0, 3))
def test_of_any_damage_we_accept_no_more_than_the_library(tmp_path: Path, at: int, put: bytes, cut: int) -> None:
    path = tmp_path / "a"
    path.write_bytes(GOOD[:at] + put + GOOD[at + cut :])
    if accepts(path):
        assert library_accepts(path)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 12) | st.floats(0, 8) | st.sampled_from(["F32", "U8", "x", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "dtype", "shape"]), inner, max_size=3),
    max_leaves=6,
)
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "U8", "BOOL", "I64"]) | VALUES,
        "shape": st.lists(st.integers(0, 4), max_size=2) | VALUES,
        "data_offsets": st.tuples(st.integers(0, 8), st.integers(0, 16)) | VALUES,
    }
)


@same_folder_often
@given(st.dictionaries(st.sampled_from(["a", "b", "__metadata__"]), ENTRIES | VALUES, max_size=2), st.integers(0, 16))
def test_of_any_header_we_accept_no_more_than_the_library(tmp_path: Path, entries: dict[str, Any], size: int) -> None:
    path = tmp_path / "a"
    path.write_bytes(spoken(entries, b"\x00" * size))
    if accepts(path):
        assert library_accepts(path)


def test_what_the_library_accepts_of_our_dtypes_we_accept(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(spoken({"b": entry(shape=[1], offsets=[8, 12]), "a": entry(), "z": entry("U8", [0], [8, 8])}, b"8" * 12))
    assert library_accepts(path)
    assert accepts(path)


# -- specifications ----------------------------------------------------------------------------------------------------

WANTED = {"a": TensorSpec((2,)), "b": TensorSpec((3, 1), "I64")}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (WANTED, None),
        ({"a": WANTED["a"]}, "'b' should be there, found none."),
        (WANTED | {"head": TensorSpec((1,))}, "'head' should not be there."),
        (WANTED | {"a": TensorSpec((2, 1))}, "'a' should be F32 (2,), found F32 (2, 1)."),
        (WANTED | {"b": TensorSpec((3, 1))}, "'b' should be I64 (3, 1), found F32 (3, 1)."),
    ],
)
def test_the_first_difference_is_said(found: dict[str, TensorSpec], said: str | None) -> None:
    assert check_spec(found, WANTED) == said
