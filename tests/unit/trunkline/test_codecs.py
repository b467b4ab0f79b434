"""How sets travel: what is decoded is the set, to the same bytes on both sides, and nothing foreign to the codec gets through."""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from trunkline.codecs import CODECS, Decoder, encode, find, wire_spec
from trunkline.errors import Reason, RefusedValue, SpecError
from trunkline.files import sha256_file
from trunkline.sets import SetFile, SetWriter, write_set
from trunkline.tensors import FLOATS, Array, SetSpec, TensorSpec, from_bf16, narrow, row_slices, widen

SPEC: dict[str, TensorSpec] = {
    "bias": TensorSpec((7,)),
    "empty": TensorSpec((0, 3)),
    "flags": TensorSpec((4,), "BOOL"),
    "half": TensorSpec((3, 2), "F16"),
    "long": TensorSpec((6,), "F64"),
    "scale": TensorSpec(()),
    "short": TensorSpec((5, 2), "BF16"),
    "steps": TensorSpec((), "I64"),
    "weight": TensorSpec((9, 4)),
}


def random_set(seed: int, spec: SetSpec = SPEC, scale: float = 1.0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    tensors: dict[str, Array] = {}
    for name, tensor in spec.items():
        if tensor.dtype in FLOATS:
            tensors[name] = narrow(rng.normal(size=tensor.shape) * scale, tensor.dtype)
        else:
            whole = np.asarray(rng.integers(0, 2, tensor.shape))
            tensors[name] = whole.astype(bool) if tensor.dtype == "BOOL" else whole
    return tensors


def reader(tensors: Mapping[str, Array], spec: SetSpec = SPEC) -> Callable[[str, slice], Array]:
    return lambda name, rows: tensors[name][rows] if spec[name].shape else tensors[name]


@pytest.fixture
def base(tmp_path: Path) -> SetFile:
    write_set(tmp_path / "base", random_set(0), SPEC)
    return SetFile(tmp_path / "base")


def travel(folder: Path, codec: str, base: SetFile, new: Mapping[str, Array]) -> Decoder:
    encode(folder / "wire", codec, base, reader(new, base.spec))
    return Decoder(SetFile(folder / "wire"), codec, base)


def decoded(decoder: Decoder) -> dict[str, Array]:
    return {name: decoder.read(name, slice(0, tensor.rows)) for name, tensor in decoder.spec.items()}


# -- laws --------------------------------------------------------------------------------------------------------------


def test_float32_is_the_identity(tmp_path: Path, base: SetFile) -> None:
    new = random_set(1)
    decoder = travel(tmp_path, "float32", base, new)
    decoder.write(tmp_path / "target")
    write_set(tmp_path / "new", new, SPEC)
    assert sha256_file(tmp_path / "target") == sha256_file(tmp_path / "new") == sha256_file(tmp_path / "wire")


@pytest.mark.parametrize("codec", CODECS)
def test_both_sides_decode_to_the_same_bytes_however_they_slice(tmp_path: Path, base: SetFile, codec: str) -> None:
    decoder = travel(tmp_path, codec, base, random_set(1))
    decoder.write(tmp_path / "whole")
    other = Decoder(SetFile(tmp_path / "wire"), codec, SetFile(tmp_path / "base"))
    with SetWriter(tmp_path / "sliced", SPEC) as writer:
        for name, tensor in SPEC.items():
            for rows in row_slices(tensor, limit=3):
                writer.write(name, rows, other.read(name, rows))
    assert sha256_file(tmp_path / "whole") == sha256_file(tmp_path / "sliced")


@pytest.mark.parametrize("codec", CODECS)
def test_a_set_that_did_not_move_arrives_bit_for_bit(tmp_path: Path, base: SetFile, codec: str) -> None:
    decoder = travel(tmp_path, codec, base, base.tensors())
    decoder.write(tmp_path / "target")
    assert sha256_file(tmp_path / "target") == sha256_file(tmp_path / "base")


def test_bf16_keeps_each_movement_to_one_part_in_256(tmp_path: Path, base: SetFile) -> None:
    old, new = base.tensors(), random_set(1)
    arrived = decoded(travel(tmp_path, "bf16", base, new))
    for name, tensor in SPEC.items():
        if tensor.dtype not in FLOATS or tensor.dtype == "BF16":
            assert arrived[name].tobytes() == new[name].tobytes()
            continue
        was, is_, want = (widen(tensors[name], tensor.dtype) for tensors in (old, arrived, new))
        unit = np.spacing(np.abs(want).astype(np.float16 if tensor.dtype == "F16" else np.float32)).astype(np.float64)
        assert (np.abs(is_ - want) <= np.abs(want - was) / 256 + 2 * unit).all(), name


def test_bf16_halves_the_bytes_and_leaves_whole_numbers_alone() -> None:
    wire = wire_spec(find("bf16"), SPEC)
    assert wire["weight"] == TensorSpec((9, 4), "BF16")
    assert {name: wire[name].dtype for name in ("flags", "steps", "short")} == {"flags": "BOOL", "steps": "I64", "short": "BF16"}
    assert wire_spec(find("float32"), SPEC) == SPEC


@pytest.mark.parametrize("codec", CODECS)
def test_a_product_decodes_to_base_plus_b_a(tmp_path: Path, base: SetFile, codec: str) -> None:
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(2, 4)).astype(np.float32), rng.normal(size=(9, 2)).astype(np.float32)
    encode(tmp_path / "wire", codec, base, reader(base.tensors()), {"weight": (a, b)})
    wire = SetFile(tmp_path / "wire")
    decoder = Decoder(wire, codec, base)
    assert "weight" not in wire.spec
    assert decoder.ranks == {"weight": 2}
    if codec != "float32":
        a, b = (from_bf16(wire.read(f"weight@{part}").astype(np.uint16)) for part in "AB")
    expected = (base.read("weight").astype(np.float64) + b.astype(np.float64) @ a.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(decoder.read("weight", slice(0, 9)), expected, rtol=1e-6)
    assert np.array_equal(decoder.read("bias", slice(0, 7)), base.read("bias"))


# -- what is refused ---------------------------------------------------------------------------------------------------


def refusal(folder: Path, base: SetFile, wire: SetSpec, codec: str = "float32") -> RefusedValue:
    write_set(folder / "wire", random_set(3, wire), wire)
    with pytest.raises(RefusedValue) as caught:
        Decoder(SetFile(folder / "wire"), codec, base)
    return caught.value


@pytest.mark.parametrize(
    ("change", "reason", "said"),
    [
        ({"head.weight": TensorSpec((2, 2))}, Reason.NAMES, "'head.weight' should not be in the update: it is not shared."),
        ({"bias": None}, Reason.NAMES, "'bias' should be in the update, found none."),
        ({"bias": TensorSpec((8,))}, Reason.SHAPE, "'bias' should be (7,), found (8,)."),
        ({"bias": TensorSpec((7,), "F64")}, Reason.DTYPE, "'bias' should be F32, found F64."),
        ({"weight@A": TensorSpec((2, 4))}, Reason.NAMES, "'weight' should not be in the update"),
        ({"weight": None, "weight@A": TensorSpec((2, 4))}, Reason.NAMES, "'weight@B' should be in the update, found none."),
        ({"weight": None, "weight@A": TensorSpec((5, 4))}, Reason.SHAPE, "'weight' should have a product of rank 1 to 4"),
        ({"weight": None, "weight@A": TensorSpec((0, 4))}, Reason.SHAPE, "'weight' should have a product of rank 1 to 4"),
        ({"bias": None, "bias@A": TensorSpec((1, 7))}, Reason.SHAPE, "'bias' should have a product"),
        ({"scale": None, "scale@A": TensorSpec((1, 1))}, Reason.SHAPE, "'scale' should have a product"),
        (
            {"weight": None, "weight@A": TensorSpec((2, 3)), "weight@B": TensorSpec((9, 2))},
            Reason.SHAPE,
            "'weight@A' should be (2, 4), found (2, 3).",
        ),
        (
            {"weight": None, "weight@A": TensorSpec((2, 4)), "weight@B": TensorSpec((9, 3))},
            Reason.SHAPE,
            "'weight@B' should be (9, 2), found (9, 3).",
        ),
    ],
)
def test_a_file_of_another_form_is_refused(
    tmp_path: Path, base: SetFile, change: dict[str, TensorSpec | None], reason: Reason, said: str
) -> None:
    wire = {name: tensor for name, tensor in (SPEC | change).items() if tensor is not None}
    error = refusal(tmp_path, base, wire)
    assert error.reason is reason
    assert said in error.message


def test_a_set_in_another_codec_than_agreed_is_refused(tmp_path: Path, base: SetFile) -> None:
    assert refusal(tmp_path, base, SPEC, "bf16").reason is Reason.DTYPE
    assert refusal(tmp_path, base, wire_spec(find("bf16"), SPEC), "float32").reason is Reason.DTYPE
    assert refusal(tmp_path, base, SPEC, "zip").reason is Reason.CODEC


def test_an_unknown_codec_in_a_job_is_said_before_anything_starts() -> None:
    with pytest.raises(SpecError, match=r"`codec` should be one of float32, bf16, .*, found 'zip'\."):
        find("zip")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("name", ["weight", "half", "scale", "short", "long"])
@pytest.mark.parametrize("codec", ["float32", "bf16"])
def test_what_is_not_finite_is_refused_without_a_warning(tmp_path: Path, codec: str, name: str, bad: float) -> None:
    old = {key: np.full_like(array, 3e38) if key in ("weight", "scale") else array for key, array in random_set(0).items()}
    write_set(tmp_path / "base", old, SPEC)
    base, wire = SetFile(tmp_path / "base"), wire_spec(find(codec), SPEC)
    sent = random_set(4, wire)
    sent[name] = narrow(np.full(SPEC[name].shape, bad), wire[name].dtype)
    write_set(tmp_path / "wire", sent, wire)
    decoder = Decoder(SetFile(tmp_path / "wire"), codec, base)
    wide = widen(decoder.read(name, slice(0, SPEC[name].rows)), SPEC[name].dtype)
    others = [key for key in ("weight", "scale") if key != name and codec == "bf16"]
    assert not others or np.isfinite(decoder.read(others[0], slice(0, SPEC[others[0]].rows))).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if np.isfinite(wide).all():
            decoder.check_finite()
            assert bad == 3e38
        else:
            with pytest.raises(RefusedValue, match=f"'{name}' should be finite, found NaN or infinity.") as caught:
                decoder.check_finite()
            assert caught.value.reason is Reason.NOT_FINITE


def test_an_infinite_product_is_refused(tmp_path: Path, base: SetFile) -> None:
    a, b = np.full((1, 4), 3e38, np.float32), np.full((9, 1), 3e38, np.float32)
    encode(tmp_path / "wire", "float32", base, reader(base.tensors()), {"weight": (a, b)})
    with pytest.raises(RefusedValue, match="'weight' should be finite"):
        Decoder(SetFile(tmp_path / "wire"), "float32", base).check_finite()


def test_the_specification_is_that_of_the_base(tmp_path: Path, base: SetFile) -> None:
    assert travel(tmp_path, "bf16", base, random_set(1)).spec == SPEC
    assert decoded(travel(tmp_path, "bf16", base, random_set(1))).keys() == SPEC.keys()
