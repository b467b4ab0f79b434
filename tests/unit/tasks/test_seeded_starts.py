"""An encoder that starts from a seed: both sets come out of its small files, bit for bit as they were when it was made."""

from pathlib import Path

import pytest

from tasks import encoders, starts
from tasks.folder import FROZEN, SEEDED, SHARED
from tasks.specs import Config, EncoderSpec, Lora, Module
from tests.support import tiny
from trunkline.errors import SpecError
from trunkline.sets import SetFile

NETWORK = """
import torch
from torch import nn

class Network(nn.Module):
    hidden = 6

    def __init__(self, odd=False):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 300), nn.BatchNorm1d(300), nn.ReLU(), nn.Linear(300, 6))
        if odd:
            self.scale = nn.Parameter(torch.randn(6))

    def forward(self, x):
        return self.layers(x)
"""


def text(tokenizer: Path, **changes: object) -> EncoderSpec:
    source = Config(options=tiny.OPTIONS, seed=7, init="seeded", tokenizer=str(tokenizer))
    return EncoderSpec.model_validate({"name": "tiny", "source": source, "max_length": 16} | changes)


@pytest.fixture
def module(tmp_path: Path) -> EncoderSpec:
    (tmp_path / "network.py").write_text(NETWORK, encoding="utf-8")
    source = Module(path=f"{tmp_path / 'network.py'}:Network", seed=7, init="seeded")
    return EncoderSpec(name="sensor", source=source, shape=(5,), freeze=("layers.0.*",))


def check(folder: Path, modules: tuple[Path, ...] = ()) -> None:
    start = starts.read(folder)
    assert start is not None
    for part in (FROZEN, SHARED):
        wanted = (folder / part).read_bytes()
        starts.make(folder, part, folder.parent / "made", modules)
        assert (folder.parent / "made").read_bytes() == wanted, part


@pytest.mark.parametrize("changes", [{"freeze": ("embeddings",)}, {"private": ("norms",)}, {"tuning": Lora(rank=2)}], ids=str)
def test_both_sets_come_out_of_the_small_files(tokenizer_folder: Path, tmp_path: Path, changes: dict[str, object]) -> None:
    encoders.create(text(tokenizer_folder, **changes), tmp_path / "e")
    check(tmp_path / "e")
    with SetFile(tmp_path / "e" / SHARED) as file, SetFile(tmp_path / "e" / FROZEN) as frozen:
        tensors = file.tensors() | frozen.tensors()
    words = tensors["embeddings.word_embeddings.weight"]
    assert not words[0].any() and 0.018 < words[1:].std() < 0.022  # the padding, and BERT's own spread
    assert (tensors["encoder.layer.1.output.LayerNorm.weight"] == 1).all() and not tensors[
        "encoder.layer.0.output.dense.bias"
    ].any()


def test_a_module_too_with_its_buffers(module: EncoderSpec, tmp_path: Path) -> None:
    encoders.create(module, tmp_path / "e")
    check(tmp_path / "e", (tmp_path,))
    with SetFile(tmp_path / "e" / SHARED) as file:
        assert file.spec["layers.1.num_batches_tracked"].dtype == "I64" and file.read("layers.1.running_var").all()
    loaded = encoders.load(tmp_path / "e", (tmp_path,))
    assert float(loaded.body.get_parameter("layers.0.weight").abs().max()) < 1 / 5**0.5


def test_the_seed_decides_and_not_what_was_drawn_before(tokenizer_folder: Path, tmp_path: Path) -> None:
    first, other = (Config(options=tiny.OPTIONS, seed=seed, init="seeded", tokenizer=str(tokenizer_folder)) for seed in (7, 8))
    digests = []
    for number, source in enumerate((first, first, other)):
        encoders.create(text(tokenizer_folder, source=source), tmp_path / str(number))
        start = starts.read(tmp_path / str(number))
        assert start is not None
        digests.append(start.shared)
    assert digests[0] == digests[1] != digests[2]


def test_a_parameter_that_nobody_knows_is_named_when_the_encoder_is_made(module: EncoderSpec, tmp_path: Path) -> None:
    odd = module.model_copy(update={"source": module.source.model_copy(update={"options": {"odd": True}})})
    with pytest.raises(SpecError, match=r"`scale` should be of a kind that has a rule, found Network.scale"):
        encoders.create(odd, tmp_path / "e")
    assert not (tmp_path / "e").exists()


@pytest.mark.parametrize("spread", [float("inf"), 1e38])
def test_a_spread_that_makes_no_numbers(tokenizer_folder: Path, tmp_path: Path, spread: float) -> None:
    source = Config(options={**tiny.OPTIONS, "initializer_range": spread}, init="seeded", tokenizer=str(tokenizer_folder))
    with pytest.raises(SpecError, match=r"`initializer_range` should be from 0 to 1e\+06, found "):
        encoders.create(EncoderSpec(name="tiny", source=source, max_length=16), tmp_path / "e")


def test_what_is_no_such_folder_is_said(encoder_folder: Path, tmp_path: Path) -> None:
    assert starts.read(encoder_folder) is None and not (encoder_folder / SEEDED).exists()
    with pytest.raises(SpecError, match=r"found no seeded\.json"):
        starts.make(encoder_folder, SHARED, tmp_path / "made")
    (tmp_path / SEEDED).write_text('{"recipe": 1}')
    with pytest.raises(SpecError, match="should say how an encoder starts, found: "):
        starts.read(tmp_path)
