"""Nothing that is foreign to a codec gets through: what a file holds is refused with its reason, or decodes to finite numbers."""

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.wires import LOSSY, SPEC, WORDS, random_set, reader, travel
from trunkline.codecs import CODECS, Decoder, Reach, encode, find, wire_spec
from trunkline.errors import DamagedFile, Reason, RefusedValue
from trunkline.sets import SetFile, write_set
from trunkline.tensors import LARGEST, Array, SetSpec, TensorSpec, narrow, real, row_slices, widen


@pytest.fixture
def base(tmp_path: Path) -> Iterator[SetFile]:
    write_set(tmp_path / "base", random_set(0), SPEC)
    with SetFile(tmp_path / "base") as file:
        yield file


def refusal(folder: Path, base: SetFile, wire: SetSpec, codec: str) -> RefusedValue:
    write_set(
        folder / "wire",
        {name: np.ones(tensor.shape, narrow(np.ones(1), tensor.dtype).dtype) for name, tensor in wire.items()},
        wire,
    )
    with pytest.raises(RefusedValue) as caught:
        Decoder(SetFile(folder / "wire"), codec, base)
    return caught.value


@pytest.mark.parametrize(
    ("codec", "change", "reason", "said"),
    [
        (
            "float32",
            {"head.weight": TensorSpec((2, 2))},
            Reason.NAMES,
            "'head.weight' should not be in the update: it is not shared.",
        ),
        ("float32", {"bias": None}, Reason.NAMES, "'bias' should be in the update, found none."),
        ("float32", {"bias": TensorSpec((8,))}, Reason.SHAPE, "'bias' should be (7,), found (8,)."),
        ("float32", {"bias": TensorSpec((7,), "F64")}, Reason.DTYPE, "'bias' should be F32, found F64."),
        ("float32", {"weight@A": TensorSpec((2, 40))}, Reason.NAMES, "'weight' should not be in the update"),
        (
            "float32",
            {"weight": None, "weight@A": TensorSpec((2, 40))},
            Reason.NAMES,
            "'weight@B' should be in the update, found none.",
        ),
        (
            "float32",
            {"weight": None, "weight@A": TensorSpec((41, 40))},
            Reason.SHAPE,
            "'weight' should have a product of rank 1 to 40",
        ),
        (
            "float32",
            {"weight": None, "weight@A": TensorSpec((0, 40))},
            Reason.SHAPE,
            "'weight' should have a product of rank 1 to 40",
        ),
        ("float32", {"bias": None, "bias@A": TensorSpec((1, 7))}, Reason.SHAPE, "'bias' should have a product"),
        ("float32", {"scale": None, "scale@A": TensorSpec((1, 1))}, Reason.SHAPE, "'scale' should have a product"),
        ("float32", {"flags@A": TensorSpec((1, 1), "BOOL")}, Reason.SHAPE, "'flags' should have a product"),
        (
            "float32",
            {"weight": None, "weight@A": TensorSpec((2, 3)), "weight@B": TensorSpec((90, 2))},
            Reason.SHAPE,
            "'weight@A' should be (2, 40), found (2, 3).",
        ),
        (
            "float32",
            {"weight": None, "weight@A": TensorSpec((2, 40)), "weight@B": TensorSpec((90, 3))},
            Reason.SHAPE,
            "'weight@B' should be (90, 2), found (90, 3).",
        ),
        ("int8", {"weight@scale": None}, Reason.NAMES, "'weight@scale' should be in the update, found none."),
        ("int8", {"weight@scale": TensorSpec((90,))}, Reason.SHAPE, "'weight@scale' should be (90, 1), found (90,)."),
        ("int8", {"weight@scale": TensorSpec((90, 1), "F64")}, Reason.DTYPE, "'weight@scale' should be F32, found F64."),
        ("int8", {"weight": TensorSpec((90, 40))}, Reason.DTYPE, "'weight' should be I8, found F32."),
        ("int8", {"scale@scale": TensorSpec((1,))}, Reason.NAMES, "'scale@scale' should not be in the update"),
        ("int8", {"head@scale": TensorSpec((1,))}, Reason.NAMES, "'head@scale' should not be in the update"),
        ("int4", {"weight": TensorSpec((90, 21), "U8")}, Reason.SHAPE, "'weight' should be (90, 20), found (90, 21)."),
        ("topk", {"weight": TensorSpec((90, 40))}, Reason.NAMES, "'weight' should not be in the update"),
        ("topk", {"weight@index": TensorSpec((37,), "I32")}, Reason.SHAPE, "'weight@index' should be (36,), found (37,)."),
        ("topk", {"weight@index": TensorSpec((36,), "I64")}, Reason.DTYPE, "'weight@index' should be I32, found I64."),
        ("lowrank", {"weight": TensorSpec((90, 40), "BF16")}, Reason.NAMES, "'weight' should not be in the update"),
        ("lowrank", {"weight@A": TensorSpec((8, 40), "F32")}, Reason.DTYPE, "'weight@A' should be BF16, found F32."),
    ],
)
def test_a_file_of_another_form_is_refused(
    tmp_path: Path, base: SetFile, codec: str, change: Mapping[str, TensorSpec | None], reason: Reason, said: str
) -> None:
    wire = {name: tensor for name, tensor in (wire_spec(find(codec), SPEC) | dict(change)).items() if tensor is not None}
    error = refusal(tmp_path, base, wire, codec)
    assert error.reason is reason
    assert said in error.message


@pytest.mark.parametrize("sent", [word for word in WORDS if not word.startswith("lowrank")])  # products may come in every codec
def test_a_set_in_another_codec_than_agreed_is_refused(tmp_path: Path, base: SetFile, sent: str) -> None:
    encode(tmp_path / "sent", sent, base, reader(random_set(1)))
    with SetFile(tmp_path / "sent") as wire:
        for agreed in WORDS:
            if agreed != sent and wire_spec(find(agreed), SPEC) != wire.spec:
                with pytest.raises(RefusedValue) as caught:
                    Decoder(wire, agreed, base)
                assert caught.value.reason in (Reason.NAMES, Reason.SHAPE, Reason.DTYPE)


@pytest.mark.parametrize("word", ["zip", "", "topk:share=7", "int8:", "int8:scale", "lowrank:rank=1e3", "bf16" * 1000])
def test_a_codec_that_is_none_is_refused(tmp_path: Path, base: SetFile, word: str) -> None:
    error = refusal(tmp_path, base, SPEC, word)
    assert error.reason is Reason.CODEC
    assert len(error.message) < 400


def changed(folder: Path, codec: str, base: SetFile, name: str, values: Array) -> SetFile:
    """A file in which one part holds something else."""
    travel(folder, codec, base, random_set(1))
    with SetFile(folder / "wire") as wire:
        tensors, spec = wire.tensors(), wire.spec
    write_set(folder / "changed", tensors | {name: np.asarray(values, tensors[name].dtype).reshape(spec[name].shape)}, spec)
    return SetFile(folder / "changed")


@pytest.mark.parametrize(("bad", "reason"), [(np.nan, Reason.NOT_FINITE), (np.inf, Reason.NOT_FINITE), (-1e-3, Reason.MALFORMED)])
@pytest.mark.parametrize("codec", ["int8", "int4"])
def test_a_scale_that_is_none_is_refused(tmp_path: Path, base: SetFile, codec: str, bad: float, reason: Reason) -> None:
    scales = np.ones(wire_spec(find(codec), SPEC)["weight@scale"].elements)
    scales[-1] = bad
    with pytest.raises(RefusedValue, match="the scales of 'weight' should") as caught:
        Decoder(changed(tmp_path, codec, base, "weight@scale", scales), codec, base)
    assert caught.value.reason is reason


@pytest.mark.parametrize(
    "places", [[0] * 36, [-1, *range(1, 36)], [*range(35), 3600], [*range(35), 2**31 - 1], [*range(34), 35, 34], [*range(1, 36), 0]]
)
def test_places_out_of_range_or_order_are_refused(tmp_path: Path, base: SetFile, places: list[int]) -> None:
    with pytest.raises(RefusedValue, match="the places in 'weight' should be") as caught:
        Decoder(changed(tmp_path, "topk", base, "weight@index", np.array(places)), "topk", base)
    assert caught.value.reason is Reason.MALFORMED


@pytest.mark.parametrize("bad", [np.nan, -np.inf, 3e38])
@pytest.mark.parametrize("name", ["weight", "half", "scale", "short", "long"])
@pytest.mark.parametrize("codec", CODECS)
def test_what_diverged_at_a_child_is_refused_without_a_warning(tmp_path: Path, codec: str, name: str, bad: float) -> None:
    old = {key: np.full_like(array, 3e38) if key in ("weight", "scale") else array for key, array in random_set(0).items()}
    write_set(tmp_path / "base", old, SPEC)
    new = {key: array.copy() for key, array in old.items()}
    new[name].reshape(-1)[:3] = narrow(np.full(min(3, new[name].size), bad), SPEC[name].dtype)
    with SetFile(tmp_path / "base") as base, warnings.catch_warnings():
        warnings.simplefilter("error")
        if np.isfinite(widen(new[name], SPEC[name].dtype)).all():
            travel(tmp_path, codec, base, new).check_finite()
        else:
            with pytest.raises(RefusedValue, match=f"'{name}' should be finite, found NaN or infinity.") as caught:
                travel(tmp_path, codec, base, new).check_finite()
            assert caught.value.reason is Reason.NOT_FINITE


FAR = [word for word in WORDS if "@scale" in find(word).parts(SPEC["weight"])]


@pytest.mark.parametrize("share", [0.0, 1e-6, 0.2, 0.49, 0.51, 0.9, 1.0])
@pytest.mark.parametrize(
    ("codec", "name"), [(word, name) for word in FAR for name in SPEC if f"{name}@scale" in wire_spec(find(word), SPEC)]
)
def test_what_stays_within_bounds_is_not_decoded_and_nothing_else_is_let_through(
    tmp_path: Path, codec: str, name: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a base and a movement that reach far, Then the verdict is what decoding every value gives."""
    spec, largest = {name: SPEC[name]}, LARGEST[SPEC[name].dtype]
    write_set(tmp_path / "base", {name: narrow(np.full(spec[name].shape, largest * share), spec[name].dtype)}, spec)
    with SetFile(tmp_path / "base") as base:
        travel(tmp_path, codec, base, base.tensors())
        with SetFile(tmp_path / "wire") as wire:
            tensors, form = wire.tensors(), wire.spec
        for scale in (0.0, 1e-6 * largest, largest / 300, largest / 128, largest / 10):
            if scale > LARGEST["F32"]:
                continue
            tensors[f"{name}@scale"][...], tensors[name][...] = scale, 127 if codec == "int8" else 0xFF
            write_set(tmp_path / "far", tensors, form)
            decoder = Decoder(SetFile(tmp_path / "far"), codec, base)
            if not np.isfinite(real(decoder.read(name, slice(0, spec[name].rows)), spec[name].dtype)).all():
                with pytest.raises(RefusedValue, match=f"'{name}' should be finite"):
                    decoder.check_finite()
                continue
            decoder.check_finite()
            if share + 128 * scale / largest < 0.5:
                with monkeypatch.context() as patched:
                    patched.setattr(decoder, "read", lambda *_: pytest.fail("it should not be decoded"))
                    decoder.check_finite()


def test_a_base_is_looked_at_once_for_all_updates(tmp_path: Path, base: SetFile, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, reach = travel(tmp_path, "int8", base, random_set(1)), Reach()
    decoder.check_finite(reach)
    with SetFile(tmp_path / "base") as anew:
        other = Decoder(SetFile(tmp_path / "wire"), "int8", anew)
        monkeypatch.setattr(anew, "lent", lambda *_: pytest.fail("it was looked at before"))
        other.check_finite(reach)


def test_a_base_that_is_not_finite_is_no_bound(tmp_path: Path) -> None:
    spec = {"weight": SPEC["weight"]}
    bad = random_set(0, spec)
    bad["weight"][3, 4] = np.nan
    write_set(tmp_path / "base", bad, spec)
    with SetFile(tmp_path / "base") as base:
        write_set(tmp_path / "good", random_set(0, spec), spec)
        with SetFile(tmp_path / "good") as good:
            travel(tmp_path, "int8", good, random_set(1, spec))
        with pytest.raises(RefusedValue, match="'weight' should be finite"):
            Decoder(SetFile(tmp_path / "wire"), "int8", base).check_finite()


def test_an_infinite_product_is_refused(tmp_path: Path, base: SetFile) -> None:
    a, b = np.full((1, 40), 3e38, np.float32), np.full((90, 1), 3e38, np.float32)
    encode(tmp_path / "wire", "float32", base, reader(base.tensors()), {"weight": (a, b)})
    with pytest.raises(RefusedValue, match="'weight' should be finite"):
        Decoder(SetFile(tmp_path / "wire"), "float32", base).check_finite()


# -- whatever comes ----------------------------------------------------------------------------------------------------

SMALL: dict[str, TensorSpec] = {name: SPEC[name] for name in ("bias", "conv", "flags", "half", "odd", "scale", "short", "steps")}


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """A folder with a base and a good file, by codec."""
    folders = {}
    for word in WORDS:
        folders[word] = tmp_path_factory.mktemp("sent")
        write_set(folders[word] / "base", random_set(0, SMALL), SMALL)
        with SetFile(folders[word] / "base") as base:
            encode(folders[word] / "wire", word, base, reader(random_set(1, SMALL)))
    return folders


@pytest.mark.parametrize("codec", WORDS)
@given(data=st.data())
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_bytes_are_refused_or_decode_to_finite_numbers(sent: Mapping[str, Path], codec: str, data: st.DataObject) -> None:
    good = (sent[codec] / "wire").read_bytes()
    at = data.draw(st.integers(0, len(good) - 1) | st.integers(max(0, int.from_bytes(good[:8], "little") - 20), len(good) - 1))
    junk = data.draw(st.binary(min_size=1, max_size=16))
    path = sent[codec] / "junk"
    path.write_bytes(good[:at] + junk + good[at + len(junk) :])
    with SetFile(sent[codec] / "base") as base, warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            with SetFile(path) as wire:
                decoder = Decoder(wire, codec, base)
                decoder.check_finite()
                for name, tensor in SMALL.items():
                    for rows in row_slices(tensor, 7):
                        values = decoder.read(name, rows)
                        assert tensor.dtype in ("BF16", "BOOL") or np.isfinite(values).all()
        except DamagedFile:
            return
        except RefusedValue as error:
            assert error.reason in (Reason.NAMES, Reason.SHAPE, Reason.DTYPE, Reason.NOT_FINITE, Reason.MALFORMED)


@pytest.mark.parametrize("codec", LOSSY)
def test_a_decoder_that_was_not_asked_to_check_reads_no_place_outside(tmp_path: Path, base: SetFile, codec: str) -> None:
    """Given bytes that are all ones, When rows are read unchecked, Then there is a refusal or numbers, and never another error."""
    encode(tmp_path / "wire", codec, base, reader(random_set(1)))
    data = (tmp_path / "wire").read_bytes()
    head = 8 + int.from_bytes(data[:8], "little")
    (tmp_path / "ones").write_bytes(data[:head] + b"\xff" * (len(data) - head))
    try:
        decoder = Decoder(SetFile(tmp_path / "ones"), codec, base)
    except RefusedValue:
        return
    for name, tensor in SPEC.items():
        for rows in row_slices(tensor, 100):
            decoder.read(name, rows)
