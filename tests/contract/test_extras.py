"""The optional extras, each against what it does by itself: peft, datasets, sentence-transformers. They take seconds to import."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tasks import encoders
from tasks.batches import Batch
from tasks.encoders import Encoder
from tasks.export import export
from tasks.heads import make_head
from tasks.samples import rows
from tasks.specs import Config, EncoderSpec, Lora, TaskSpec
from tasks.step import gradient
from tests.support import tiny
from trunkline import codecs
from trunkline.errors import SpecError
from trunkline.sets import SetFile, write_set
from trunkline.tensors import TensorSpec

pytestmark = pytest.mark.contract

TEXTS = ["good food", "the place was slow and very bad", "win a free call now !"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.tokenizer(tmp_path_factory.mktemp("tokenizer"))


def spec_of(tokenizer: Path, **change: Any) -> EncoderSpec:
    source = Config(options=dict(tiny.OPTIONS), seed=1, tokenizer=str(tokenizer))
    return EncoderSpec.model_validate({"name": "tiny", "source": source, "max_length": 16} | change)


def inputs(encoder: Encoder) -> dict[str, Tensor]:
    found = encoder.processor.tokenizer(TEXTS, padding=True, return_tensors="pt", return_token_type_ids=False)  # type: ignore[union-attr]
    return dict(found)


def batch(encoder: Encoder) -> Batch:
    return Batch("t", (inputs(encoder),), torch.tensor([0, 1, 0]), len(TEXTS))


TASK = TaskSpec(name="t", head="single", data="a.csv", fields=("text",), label="label")

# -- peft --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lora_folder(tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("peft")
    folder = tmp_path_factory.mktemp("lora") / "e"
    encoders.create(spec_of(tokenizer, tuning=Lora(rank=2, alpha=6.0, targets=("*query", "*output.dense"))), folder)
    return folder


@pytest.fixture
def lora(lora_folder: Path) -> Encoder:
    return encoders.load(lora_folder)


def trained(encoder: Encoder, steps: int = 5) -> Encoder:
    head = make_head(TASK, ("x", "y"), encoder.hidden, 0)
    optimizer = torch.optim.SGD(encoder.shared_parameters().values(), lr=5.0)
    for seed in range(steps):
        result = gradient(encoder, head, batch(encoder), seed=seed)
        for name, parameter in encoder.shared_parameters().items():
            parameter.grad = result.shared.get(name)
        optimizer.step()
    return encoder


def test_lora_shares_whole_matrices_and_trains_their_products(lora: Encoder) -> None:
    names = {name for name in lora.shared_spec() if name.endswith("query.weight")}
    assert len(lora.shared_spec()) == 6 and len(names) == 2  # query, attention.output.dense and output.dense of two layers
    assert lora.shared_spec()["encoder.layer.0.attention.self.query.weight"] == TensorSpec((32, 32))
    assert set(lora.shared_parameters()) == {f"{name}@{part}" for name in lora.shared_spec() for part in "AB"}
    before = lora.frozen_tensors()["encoder.layer.0.attention.self.query.bias"].copy()
    result = gradient(lora, make_head(TASK, ("x", "y"), 32, 0), batch(lora))
    assert set(result.shared) == set(lora.shared_parameters())
    assert np.array_equal(trained(lora).frozen_tensors()["encoder.layer.0.attention.self.query.bias"], before)


def test_lora_starts_where_full_training_starts(lora: Encoder, tokenizer: Path, tmp_path: Path) -> None:
    encoders.create(spec_of(tokenizer), tmp_path / "full")
    full = encoders.load(tmp_path / "full")
    assert torch.allclose(lora(inputs(lora)).pooled, full(inputs(full)).pooled, atol=1e-6)
    for name, spec in lora.shared_spec().items():
        assert np.array_equal(lora.read_shared(name, slice(0, spec.rows)), full.read_shared(name, slice(0, spec.rows)))


def test_what_lora_learnt_is_what_a_plain_encoder_computes_with_its_set(lora: Encoder, tokenizer: Path, tmp_path: Path) -> None:
    trained(lora)
    given = {name: lora.read_shared(name, slice(0, spec.rows)) for name, spec in lora.shared_spec().items()}
    encoders.create(spec_of(tokenizer), tmp_path / "full")
    full = encoders.load(tmp_path / "full").eval()
    start = full(inputs(full)).pooled
    plain = full.read_shared
    full.load_shared(lambda name: given[name] if name in given else plain(name, slice(0, full.shared_spec()[name].rows)))
    found = lora.eval()(inputs(lora)).pooled
    assert torch.allclose(found, full(inputs(full)).pooled, atol=1e-5)
    assert not torch.allclose(found, start, atol=1e-2)


@pytest.mark.parametrize("name", codecs.CODECS)
def test_what_travels_decodes_to_what_lora_reads(name: str, lora: Encoder, lora_folder: Path, tmp_path: Path) -> None:
    trained(lora)
    with SetFile(lora_folder / "shared.safetensors") as base:
        codecs.encode(tmp_path / "wire", name, base, lora.read_shared, lora.factors())
        with SetFile(tmp_path / "wire") as wire:
            decoder = codecs.Decoder(wire, name, base)
            for tensor, spec in lora.shared_spec().items():
                rows = slice(0, spec.rows)
                decoded, mine = decoder.read(tensor, rows), lora.read_shared(tensor, rows)
                moved = float(np.abs(np.asarray(mine, float) - np.asarray(base.read(tensor, rows), float)).max())
                assert moved > 1e-4
                assert np.array_equal(decoded, mine) if name == "float32" else np.allclose(decoded, mine, atol=0.02 * moved)


@pytest.mark.parametrize("name", codecs.CODECS)
def test_what_travels_is_what_was_trained(name: str, lora: Encoder, lora_folder: Path, tmp_path: Path) -> None:
    """T-18: the bytes on the wire are those of the trained parameters, not of the matrices that they move."""
    trained(lora)
    with SetFile(lora_folder / "shared.safetensors") as base:
        codecs.encode(tmp_path / "wire", name, base, lora.read_shared, lora.factors())
        whole = sum(tensor.nbytes for tensor in base.spec.values())
    with SetFile(tmp_path / "wire") as wire:
        sent = sum(tensor.nbytes for tensor in wire.spec.values())
    parameters = sum(parameter.numel() for parameter in lora.shared_parameters().values())
    assert sent == parameters * (4 if name == "float32" else 2) < whole / 4


def test_loading_a_set_starts_the_products_anew_and_the_same_everywhere(lora: Encoder, lora_folder: Path) -> None:
    fresh = {name: tensor.detach().clone() for name, tensor in encoders.load(lora_folder).shared_parameters().items()}
    state = torch.get_rng_state()
    trained(lora)
    with SetFile(lora_folder / "shared.safetensors") as file:
        lora.load_shared(file.read)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, fresh[name]) for name, tensor in lora.shared_parameters().items())
    assert all(tensor.abs().sum() > 0 for name, tensor in fresh.items() if name.endswith("@A"))
    assert len({float(tensor.sum()) for name, tensor in fresh.items() if name.endswith("@A")}) == len(fresh) // 2


@pytest.mark.parametrize(
    ("tuning", "said"),
    [
        (Lora(targets=("*nothing",)), r"found none for '\*nothing'; their names end in dense, key, query, value"),
        (Lora(rank=33), "`tuning.rank` should be at most the smaller side"),
    ],
)
def test_lora_that_cannot_work(tuning: Lora, said: str, tokenizer: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=said):
        encoders.create(spec_of(tokenizer, tuning=tuning), tmp_path / "e")


def test_without_peft_it_is_told(tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(SpecError, match=r"pip install 'trunkline\[lora\]'"):
        encoders.create(spec_of(tokenizer, tuning=Lora()), tmp_path / "e")


# -- datasets ----------------------------------------------------------------------------------------------------------


def test_a_datasets_folder_gives_its_parts_as_splits_and_class_labels_by_name(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    parts = {
        "train": datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}, features=features),
        "test": datasets.Dataset.from_dict({"text": ["c"], "label": [1]}, features=features),
    }
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "several"))
    parts["train"].save_to_disk(str(tmp_path / "one"))
    wanted = [(("a",), "yes", "train"), (("b",), "no", "train"), (("c",), "yes", "test")]
    several = TASK.model_copy(update={"data": "several"})
    assert [(row.fields, row.label, row.split) for row in rows(several, tmp_path)] == wanted
    one = TASK.model_copy(update={"data": "one", "fractions": (1.0, 0.0, 0.0)})
    assert [(row.fields, row.label, row.split) for row in rows(one, tmp_path)] == wanted[:2]


def test_a_folder_that_is_no_dataset_is_told(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    (tmp_path / "empty").mkdir()
    with pytest.raises(Exception, match="should be a folder that `datasets` has saved"):
        list(rows(TASK.model_copy(update={"data": "empty"}), tmp_path))


# -- what was exported, read by others ---------------------------------------------------------------------------------


@pytest.fixture(params=["mean", "cls", "max"])
def moved(request: pytest.FixtureRequest, tokenizer: Path, tmp_path: Path) -> Iterator[tuple[Encoder, Path, SetFile]]:
    """An encoder, its folder, and a parameter set that is not its first."""
    encoders.create(spec_of(tokenizer, pooling=request.param, freeze=("embeddings",)), tmp_path / "e")
    encoder = encoders.load(tmp_path / "e")
    rng = np.random.default_rng(0)
    tensors = {}
    for name, spec in encoder.shared_spec().items():
        tensors[name] = encoder.read_shared(name, slice(0, spec.rows)) + rng.normal(0, 0.1, spec.shape).astype(np.float32)
    encoder.load_shared(tensors.__getitem__)
    write_set(tmp_path / "set", tensors)
    with SetFile(tmp_path / "set") as file:
        yield encoder.eval(), tmp_path / "e", file


@torch.no_grad()
def test_sentence_transformers_gives_the_same_vectors(moved: tuple[Encoder, Path, SetFile], tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    encoder, folder, shared = moved
    export(folder, shared, tmp_path / "out", "sentence-transformers", "# Card\n")
    model = library.SentenceTransformer(str(tmp_path / "out"), device="cpu", local_files_only=True)
    assert np.allclose(model.encode(TEXTS), encoder(inputs(encoder)).pooled.numpy(), atol=1e-5)
    assert model.max_seq_length == 16


@torch.no_grad()
def test_auto_model_gives_the_same_vectors(moved: tuple[Encoder, Path, SetFile], tmp_path: Path) -> None:
    from transformers import AutoModel, AutoTokenizer

    encoder, folder, shared = moved
    export(folder, shared, tmp_path / "out", "hf", "# Card\n")
    model = AutoModel.from_pretrained(tmp_path / "out", local_files_only=True).eval()
    given = AutoTokenizer.from_pretrained(tmp_path / "out", local_files_only=True)(TEXTS, padding=True, return_tensors="pt")
    assert torch.allclose(model(**given).last_hidden_state, encoder(inputs(encoder)).tokens, atol=1e-6)  # type: ignore[arg-type]
    assert (tmp_path / "out" / "README.md").read_text() == "# Card\n"
