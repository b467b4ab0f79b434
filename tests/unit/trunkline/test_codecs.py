"""How sets travel, in every codec: what is decoded is the set, to the same bytes on both sides, and as a plain reading has it."""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support import plain_codecs
from tests.support.wires import LOSSY, SPEC, WORDS, decoded, random_set, reader, travel
from trunkline.choices import describe
from trunkline.codecs import CODECS, Codec, Decoder, encode, find, owed_spec, wire_spec
from trunkline.errors import SpecError
from trunkline.files import sha256_file
from trunkline.sets import SetFile, SetWriter, encoded_size, write_set
from trunkline.tensors import FLOATS, Array, TensorSpec, from_bf16, row_slices, widen


@pytest.fixture
def base(tmp_path: Path) -> Iterator[SetFile]:
    write_set(tmp_path / "base", random_set(0), SPEC)
    with SetFile(tmp_path / "base") as file:
        yield file


# -- laws --------------------------------------------------------------------------------------------------------------


def test_float32_is_the_identity(tmp_path: Path, base: SetFile) -> None:
    new = random_set(1)
    decoder = travel(tmp_path, "float32", base, new)
    assert not decoder.adds
    decoder.write(tmp_path / "target")
    write_set(tmp_path / "new", new, SPEC)
    assert sha256_file(tmp_path / "target") == sha256_file(tmp_path / "new") == sha256_file(tmp_path / "wire")


@pytest.mark.parametrize("codec", WORDS)
def test_both_sides_decode_to_the_same_bytes_however_they_slice(tmp_path: Path, base: SetFile, codec: str) -> None:
    decoder = travel(tmp_path, codec, base, random_set(1))
    decoder.write(tmp_path / "whole")
    other = Decoder(SetFile(tmp_path / "wire"), codec, SetFile(tmp_path / "base"))
    with SetWriter(tmp_path / "sliced", SPEC) as writer:
        for name, tensor in SPEC.items():
            for rows in row_slices(tensor, limit=3 * max(1, tensor.elements // 20)):
                writer.write(name, rows, other.read(name, rows))
    assert sha256_file(tmp_path / "whole") == sha256_file(tmp_path / "sliced")


@pytest.mark.parametrize(
    ("codec", "scale"), [*((word, 1.0) for word in WORDS), *((word, 1e-30) for word in CODECS), ("int8", 1e30)]
)
def test_what_is_decoded_is_what_the_bytes_plainly_say(tmp_path: Path, base: SetFile, codec: str, scale: float) -> None:
    spec = {name: tensor for name, tensor in SPEC.items() if tensor.dtype != "F16" or scale <= 1}
    write_set(tmp_path / "base", random_set(0, spec, scale), spec)
    with SetFile(tmp_path / "base") as base:
        travel(tmp_path, codec, base, random_set(1, spec, scale)).write(tmp_path / "target")
    plain = plain_codecs.decode(tmp_path / "wire", tmp_path / "base", codec)
    assert {name: values for name, (_, _, values) in plain_codecs.read(tmp_path / "target").items()} == plain


@pytest.mark.parametrize("codec", WORDS)
def test_a_set_that_did_not_move_arrives_bit_for_bit(tmp_path: Path, base: SetFile, codec: str) -> None:
    decoder = travel(tmp_path, codec, base, base.tensors())
    decoder.check_finite()
    decoder.write(tmp_path / "target")
    assert sha256_file(tmp_path / "target") == sha256_file(tmp_path / "base")


@pytest.mark.parametrize("codec", WORDS)
def test_the_same_movement_gives_the_same_file(tmp_path: Path, base: SetFile, codec: str) -> None:
    new = random_set(1)
    untouched = {name: array.tobytes() for name, array in new.items()}
    encode(tmp_path / "one", codec, base, reader(new))
    encode(tmp_path / "two", codec, base, reader(new))
    assert sha256_file(tmp_path / "one") == sha256_file(tmp_path / "two")
    assert {name: array.tobytes() for name, array in new.items()} == untouched


@pytest.mark.parametrize("codec", WORDS)
def test_what_a_codec_would_not_make_smaller_travels_as_it_is(codec: str) -> None:
    wire = wire_spec(find(codec), SPEC)
    for name in ("flags", "steps", "empty"):
        assert wire[name] == SPEC[name]
    for name, tensor in SPEC.items():
        sent = sum(part.nbytes for key, part in wire.items() if key.split("@")[0] == name)
        assert sent < tensor.nbytes or wire[name] == tensor, name


@pytest.mark.parametrize(
    ("codec", "most"), [("bf16", 0.501), ("int8", 0.27), ("int4", 0.145), ("topk", 0.0155), ("lowrank", 0.04), ("float32", 1.001)]
)
def test_bytes_on_the_wire(codec: str, most: float) -> None:
    layer = {"query": (384, 384), "in": (1536, 384), "out": (384, 1536), "bias": (384,), "norm": (384,)}
    spec = {f"layer.{number}.{name}": TensorSpec(shape) for number in range(6) for name, shape in layer.items()}
    spec["words"] = TensorSpec((30522, 384))
    assert encoded_size(wire_spec(find(codec), spec)) <= most * encoded_size(spec)


# -- how much is lost --------------------------------------------------------------------------------------------------


def moves(base: SetFile, new: dict[str, Array], arrived: dict[str, Array]) -> Iterator[tuple[str, Array, Array, Array]]:
    """Name, wanted movement, error, and the rounding that adding to the base may cost, in float64."""
    for name, tensor in base.spec.items():
        if tensor.dtype not in FLOATS:
            assert arrived[name].tobytes() == new[name].tobytes()
            continue
        was, want, got = (widen(tensors[name], tensor.dtype) for tensors in (base.tensors(), new, arrived))
        bits = {"F64": 23, "F32": 23, "F16": 10, "BF16": 7}[tensor.dtype]
        yield name, want - was, got - want, (np.abs(want) + np.abs(was) + np.abs(got)) * 2.0**-bits


def test_bf16_keeps_each_movement_to_one_part_in_256(tmp_path: Path, base: SetFile) -> None:
    new = random_set(1)
    for name, moved, error, unit in moves(base, new, decoded(travel(tmp_path, "bf16", base, new))):
        assert (np.abs(error) <= np.abs(moved) / 256 + unit).all(), name


@pytest.mark.parametrize(("codec", "most", "levels"), [("int8", 4096, 127), ("int4", 64, 7), ("int4:group=16", 16, 7)])
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e-40, 1e30])
def test_no_element_is_off_by_more_than_half_a_scale(tmp_path: Path, codec: str, most: int, levels: int, scale: float) -> None:
    spec = {name: tensor for name, tensor in SPEC.items() if tensor.dtype == "F32"}
    write_set(tmp_path / "base", random_set(0, spec, 0.0), spec)
    new = random_set(1, spec, scale)
    new["weight"][3] = 0
    new["weight"][4, 1:] = 0
    with SetFile(tmp_path / "base") as base:
        decoder = travel(tmp_path, codec, base, new)
        for name, moved, error, _ in moves(base, new, decoded(decoder)):
            scales = plain_codecs.scales(moved.reshape(-1).tolist(), spec[name].shape, most, levels)
            if f"{name}@scale" in decoder.wire.spec:
                assert decoder.wire.read(f"{name}@scale").reshape(-1).tolist() == scales
                allowed = [scales[plain_codecs.run_of(at, spec[name].shape, most)] for at in range(moved.size)]
                assert (np.abs(error.reshape(-1)) <= np.multiply(allowed, 0.5 + 2e-5)).all(), name


@pytest.mark.parametrize(("codec", "share"), [("topk", 0.01), ("topk:share=0.2", 0.2), ("topk:share=1.0", 1.0)])
def test_only_the_largest_are_sent_and_the_first_of_equals(tmp_path: Path, codec: str, share: float) -> None:
    spec = {"equal": TensorSpec((30, 20)), "mixed": TensorSpec((17, 31)), "zero": TensorSpec((600,)), "any": TensorSpec((999,))}
    write_set(tmp_path / "base", random_set(0, spec, 0.0), spec)
    new = random_set(1, spec)
    new["equal"] = np.where(new["equal"] > 0, np.float32(2), np.float32(-2))
    new["mixed"] = np.rint(new["mixed"]).astype(np.float32)
    new["zero"][:] = 0
    with SetFile(tmp_path / "base") as base:
        decoder = travel(tmp_path, codec, base, new)
        for name, array in new.items():
            flat = array.reshape(-1).tolist()
            chosen = plain_codecs.largest(flat, -(-round(share * len(flat), 6) // 1).__int__())
            if share < 1:
                assert decoder.wire.read(f"{name}@index").tolist() == chosen
            expected = [
                plain_codecs.brain(value) if at in chosen and share < 1 else value * (share == 1) for at, value in enumerate(flat)
            ]
            assert decoder.read(name, slice(0, spec[name].rows)).reshape(-1).tolist() == expected, name


def test_a_movement_of_low_rank_arrives_and_another_nearly_as_well_as_can_be(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    spec = {
        "low": TensorSpec((300, 70)),
        "any": TensorSpec((300, 70)),
        "conv": TensorSpec((64, 8, 3, 3)),
        "thin": TensorSpec((300, 2)),
    }
    new = {
        "low": (rng.normal(size=(300, 5)) @ rng.normal(size=(5, 70))).astype(np.float32),
        "any": (rng.normal(size=(300, 70)) * 0.8 ** np.arange(70)).astype(np.float32),
        "conv": (rng.normal(size=(64, 4)) @ rng.normal(size=(4, 72))).reshape(64, 8, 3, 3).astype(np.float32),
        "thin": rng.normal(size=(300, 2)).astype(np.float32),
    }
    write_set(tmp_path / "base", random_set(0, spec, 0.0), spec)
    with SetFile(tmp_path / "base") as base:
        decoder = travel(tmp_path, "lowrank:rank=5", base, new)
        assert set(decoder.ranks) == {"low", "any", "conv"}
        for name, array in new.items():
            matrix = array.reshape(len(array), -1).astype(np.float64)
            off = decoder.read(name, slice(0, len(array))).reshape(matrix.shape) - matrix
            best = np.sqrt((np.linalg.svd(matrix, compute_uv=False)[5:] ** 2).sum())
            assert np.linalg.norm(off) <= 1.1 * best + np.linalg.norm(matrix) / 256, name


@pytest.mark.parametrize("codec", LOSSY)
def test_every_scale_of_movement_arrives(tmp_path: Path, codec: str) -> None:
    spec = {name: tensor for name, tensor in SPEC.items() if tensor.dtype == "F32"}
    write_set(tmp_path / "base", random_set(0, spec, 0.0), spec)
    with SetFile(tmp_path / "base") as base:
        for scale in (1e-30, 1.0, 1e30):
            new = random_set(1, spec, scale)
            decoder = travel(tmp_path, codec, base, new)
            decoder.check_finite()
            for name, moved, error, _ in moves(base, new, decoded(decoder)):
                assert np.linalg.norm(error / scale) <= np.linalg.norm(moved / scale), name


# -- products ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("codec", "rank"), [*((word, 3) for word in CODECS), ("float32", 40), ("lowrank", 1), ("int8", 40)])
def test_a_product_decodes_to_base_plus_b_a(tmp_path: Path, base: SetFile, codec: str, rank: int) -> None:
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(rank, 40)).astype(np.float32), rng.normal(size=(90, rank)).astype(np.float32)
    encode(tmp_path / "wire", codec, base, reader(base.tensors()), {"weight": (a, b)})
    wire = SetFile(tmp_path / "wire")
    decoder = Decoder(wire, codec, base)
    assert "weight" not in wire.spec
    assert decoder.ranks["weight"] == rank
    if codec != "float32":
        a, b = (from_bf16(wire.read(f"weight@{part}").astype(np.uint16)) for part in "AB")
    expected = (base.read("weight").astype(np.float64) + b.astype(np.float64) @ a.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(decoder.read("weight", slice(0, 90)), expected, rtol=1e-6, atol=1e-6)
    assert np.array_equal(decoder.read("bias", slice(0, 7)), base.read("bias"))
    decoder.write(tmp_path / "target")
    plain = plain_codecs.decode(tmp_path / "wire", tmp_path / "base", codec)
    assert plain_codecs.read(tmp_path / "target")["weight"][2] == plain["weight"]


# -- memory ------------------------------------------------------------------------------------------------------------


def peak(folder: Path, codec: str, rows: int) -> int:
    """Bytes in memory at most while a set is written, read, and what is owed of it."""
    folder.mkdir()
    for seed in range(2):
        write_set(folder / f"{seed}", {"w": np.random.default_rng(seed).standard_normal((rows, 1024), dtype=np.float32)})
    tracemalloc.start()
    try:
        with SetFile(folder / "0") as base, SetFile(folder / "1") as new:
            with (
                SetWriter(folder / "told", base.spec, durable=False) as told,
                SetWriter(folder / "rest", owed_spec(find(codec), base.spec), durable=False) as rest,
            ):
                encode(folder / "wire", codec, base, new.read, arrives=told.write, left=rest.write, durable=False)
            with SetFile(folder / "wire") as wire:
                Decoder(wire, codec, base).write(folder / "target", durable=False)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", CODECS)
def test_memory_does_not_grow_with_the_set(tmp_path: Path, codec: str) -> None:
    few, many = (peak(tmp_path / f"{rows}", codec, rows) for rows in (2048, 8192))
    assert many < 1.3 * few


# -- words -------------------------------------------------------------------------------------------------------------


def test_an_unknown_codec_is_said_before_anything_starts() -> None:
    with pytest.raises(SpecError, match=r"`codec` should be one of float32, bf16, .*, found 'zip'\."):
        find("zip")


@pytest.mark.parametrize(
    "word", ["topk:share=0", "topk:share=1.5", "topk:share=0.1234567", "lowrank:rank=0", "int4:group=17", "int8:x=1"]
)
def test_an_option_that_cannot_be_is_said(word: str) -> None:
    with pytest.raises(SpecError, match="`codec`"):
        find(word)


@pytest.mark.parametrize("kind", CODECS.values(), ids=list(CODECS))
def test_every_codec_explains_itself_and_fits_into_a_record(kind: type[Codec]) -> None:
    assert kind.__doc__ and kind.__doc__ != Codec.__doc__
    assert all(option["meaning"] for option in describe(kind)["options"])
    assert find(kind.name) == kind()
    assert len(str(find("topk:share=0.000001"))) <= 32
