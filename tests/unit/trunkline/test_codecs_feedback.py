"""What a codec leaves out is late, not lost: the sum of what arrived follows the sum of what was sent off."""

from pathlib import Path

import numpy as np
import pytest

from tests.support.wires import LOSSY, SPEC, WORDS, random_set, reader
from trunkline.codecs import Decoder, Owed, Sliced, encode, find, owed_spec
from trunkline.codecs.float32 import Float32
from trunkline.errors import Reason, RefusedValue
from trunkline.files import sha256_file
from trunkline.sets import SetFile, SetWriter, write_set
from trunkline.tensors import Array, SetSpec, TensorSpec, narrow, widen


class Sender:
    """A child that sends, round after round, and keeps what it owes in a file."""

    def __init__(self, folder: Path, codec: str, spec: SetSpec, feedback: bool = True) -> None:
        self.folder, self.codec, self.spec, self.feedback = folder, codec, spec, feedback
        self.owed: Owed | None = None

    def send(self, base: SetFile, new: dict[str, Array]) -> dict[str, Array]:
        with SetWriter(self.folder / "owed", owed_spec(find(self.codec), base.spec)) as rest:
            encode(self.folder / "wire", self.codec, base, reader(new), owed=self.owed, left=rest.write)
        with SetFile(self.folder / "wire") as wire:
            decoder = Decoder(wire, self.codec, base)
            if self.feedback:
                file = SetFile(self.folder / "owed")
                self.owed = Owed(file.spec, file.read)
            return {name: decoder.read(name, slice(0, tensor.rows)) for name, tensor in base.spec.items()}


LAYERS = {"bias": TensorSpec((80,)), "weight": TensorSpec((60, 50)), "conv": TensorSpec((8, 8, 3, 3))}


def drift(folder: Path, codec: str, rounds: int, *, constant: bool = True, feedback: bool = True) -> tuple[float, float]:
    """How far the sum of what arrived is from the sum of what was sent off, and the largest that one round left out, as norms."""
    sender = Sender(folder, codec, LAYERS, feedback)
    write_set(folder / "base", random_set(0, LAYERS, 0.0), LAYERS)
    wanted = {name: np.zeros(tensor.shape) for name, tensor in LAYERS.items()}
    arrived = {name: np.zeros(tensor.shape) for name, tensor in LAYERS.items()}
    step = 0.0
    with SetFile(folder / "base") as base:
        for number in range(rounds):
            new = random_set(7 if constant else 7 + number, LAYERS, 1e-3)
            got = sender.send(base, new)
            for name in LAYERS:
                wanted[name] += new[name]
                arrived[name] += got[name]
            step = max(step, norm({name: wanted[name] - arrived[name] for name in LAYERS}))
    return norm({name: wanted[name] - arrived[name] for name in LAYERS}), step


def norm(tensors: dict[str, Array]) -> float:
    return float(np.sqrt(sum((array.astype(np.float64) ** 2).sum() for array in tensors.values())))


@pytest.mark.parametrize(
    ("codec", "constant"), [*((word, True) for word in LOSSY if owed_spec(find(word), LAYERS)), ("int8", False), ("topk", False)]
)
def test_the_sum_of_what_arrived_follows_the_sum_of_what_was_sent_off(tmp_path: Path, codec: str, constant: bool) -> None:
    """Given the bound of a contraction, When the rounds double, Then the distance does not: it is what one round leaves out.

    With `|x - C(x)|^2 <= (1 - d) |x|^2` the rest stays below `2 sqrt(1 - d) / d` movements (Karimireddy et al., 2019, lemma 3).
    """
    few, _ = drift(tmp_path, codec, 8, constant=constant)
    many, most = drift(tmp_path, codec, 16, constant=constant)
    movement = norm(random_set(7, LAYERS, 1e-3))
    kept = {"bf16": 1 - 2**-18, "int8": 0.9999, "int4": 0.98, "topk": 0.01, "lowrank": 0.05}[codec.partition(":")[0]]
    assert most <= 1.1 * movement * 2 * np.sqrt(1 - kept) / kept + 1e-6 * movement
    assert many <= 1.9 * few + 1e-6 * movement
    alone, _ = drift(tmp_path, codec, 16, constant=constant, feedback=False)
    assert many < alone or alone <= 1e-5 * movement


@pytest.mark.parametrize("codec", LOSSY)
def test_what_arrived_and_what_is_owed_are_what_was_sent_off(tmp_path: Path, codec: str) -> None:
    write_set(tmp_path / "base", random_set(0), SPEC)
    new, before = (
        random_set(1),
        {name: random_set(2, {name: tensor})[name] for name, tensor in owed_spec(find(codec), SPEC).items()},
    )
    owed = Owed(owed_spec(find(codec), SPEC), reader(before))
    with SetFile(tmp_path / "base") as base:
        with SetWriter(tmp_path / "owed", owed.spec) as writer:
            encode(tmp_path / "wire", codec, base, reader(new), owed=owed, left=writer.write)
        decoder = Decoder(SetFile(tmp_path / "wire"), codec, base)
        for name, rest in SetFile(tmp_path / "owed").tensors().items():
            got = widen(decoder.read(name, slice(0, SPEC[name].rows)), SPEC[name].dtype) + rest
            want = widen(new[name], SPEC[name].dtype) + before[name]
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("factors", [False, True])
@pytest.mark.parametrize("codec", WORDS)
def test_what_is_told_while_it_is_sent_is_what_the_file_says(tmp_path: Path, codec: str, factors: bool) -> None:
    """Given a set of every form, with tensors of several slices, Then what `arrives` takes is what the file decodes to, bit for
    bit and in the order of its canonical form; and `left` takes, of each tensor that can owe, what should have come less that."""
    spec = SPEC | {"b.wide": TensorSpec((3, 300_001), "BF16"), "vector": TensorSpec((600_001,)), "weight": TensorSpec((900, 400))}
    write_set(tmp_path / "base", random_set(0, spec), spec)
    new, rng = random_set(1, spec), np.random.default_rng(2)
    products = {"weight": (rng.normal(size=(2, 400)).astype(np.float32), rng.normal(size=(900, 2)).astype(np.float32))}
    products = products if factors else {}
    before = random_set(3, owed_spec(find(codec), spec, products), 0.1)
    seen: list[tuple[str, int]] = []
    with SetFile(tmp_path / "base") as base, SetWriter(tmp_path / "told", spec, hashed=True) as told:

        def arrives(name: str, rows: slice, values: Array) -> None:
            seen.append((name, rows.start))
            told.write(name, rows, values)

        with SetWriter(tmp_path / "owed", owed_spec(find(codec), spec, products)) as rest:
            owed = Owed(rest.spec, reader(before))
            encode(tmp_path / "wire", codec, base, reader(new), products, owed=owed, arrives=arrives, left=rest.write)
    assert told.digest == sha256_file(tmp_path / "told") and seen == sorted(seen)
    with SetFile(tmp_path / "base") as base, SetFile(tmp_path / "wire") as wire, SetFile(tmp_path / "owed") as rests:
        decoder = Decoder(wire, codec, base)
        assert decoder.write(tmp_path / "target") == told.digest
        for name, rest in rests.tensors().items():
            want, got = (widen(values, spec[name].dtype) for values in (new[name], decoder.read(name, slice(0, spec[name].rows))))
            assert rest.tobytes() == ((want - got).astype(np.float32) + before[name]).tobytes(), name


def test_a_recipe_is_read_once_where_slices_are_coded_alone(tmp_path: Path) -> None:
    """Fusing is slower than coding: a set that is fused as it is read is not fused twice."""
    write_set(tmp_path / "base", random_set(0), SPEC)
    for codec in WORDS:
        asked: list[tuple[str, int]] = []

        def new(name: str, rows: slice, asked: list[tuple[str, int]] = asked) -> Array:
            asked.append((name, rows.start))
            return reader(random_set(1))(name, rows)

        with SetFile(tmp_path / "base") as base:
            encode(tmp_path / "wire", codec, base, new, arrives=lambda *_: None, left=lambda *_: None)
        assert (len(asked) == len(set(asked))) == isinstance(find(codec), Sliced | Float32), codec


def test_what_does_not_lose_owes_nothing() -> None:
    assert owed_spec(find("float32"), SPEC) == {}
    assert owed_spec(find("int8"), SPEC).keys().isdisjoint({"flags", "steps", "empty", "scale"})
    assert "weight" not in owed_spec(find("int8"), SPEC, {"weight"})


@pytest.mark.parametrize("codec", [word for word in LOSSY if owed_spec(find(word), LAYERS)])
def test_an_update_that_diverged_changes_nothing_that_is_owed(tmp_path: Path, codec: str) -> None:
    """Given an update that holds NaN, Then it is refused where it is made, what is owed stays, and the next one gets through."""
    write_set(tmp_path / "base", random_set(0, LAYERS), LAYERS)
    sender = Sender(tmp_path, codec, LAYERS)
    with SetFile(tmp_path / "base") as base:
        sender.send(base, random_set(1, LAYERS))
        bad = random_set(2, LAYERS)
        bad["weight"][3, 4], bad["conv"][0, 0] = np.nan, np.inf
        with pytest.raises(RefusedValue) as caught:
            sender.send(base, bad)
        assert caught.value.reason is Reason.NOT_FINITE
        got = sender.send(base, random_set(3, LAYERS))
    assert all(np.isfinite(array).all() for array in got.values())


def test_small_movements_of_a_coarse_tensor_add_up(tmp_path: Path) -> None:
    """Given a bfloat16 tensor whose base is so large that one movement rounds away, When many are sent, Then they arrive."""
    spec = {"w": TensorSpec((40, 50), "BF16")}
    write_set(tmp_path / "base", {"w": narrow(np.full((40, 50), 256.0), "BF16")}, spec)
    sender, arrived = Sender(tmp_path, "int8", spec), np.zeros((40, 50))
    with SetFile(tmp_path / "base") as base:
        # What was trained is finer than the tensor: half a unit every other round.
        for number in range(64):
            new = {"w": narrow(np.full((40, 50), 256.0 + 2 * (number % 2)), "BF16")}
            arrived += widen(sender.send(base, new)["w"], "BF16") - 256
    assert np.abs(arrived - 64).max() <= 2
