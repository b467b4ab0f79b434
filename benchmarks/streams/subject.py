"""What the measured streams train, and on what."""

import csv
import io
from importlib.resources import files
from pathlib import Path

from master.demo.run import model_folder
from queues.stream.model import Learner
from queues.stream.spec import StreamSpec
from tasks import encoders
from tasks.specs import Config, EncoderSpec, Module, Pretrained

SHOPS = ("amazon", "imdb", "yelp")

SMALL = '''"""A network of a few numbers."""

import torch
from torch import Tensor, nn


class Small(nn.Module):
    """Features `(B, 8)` to `(B, 16)`."""

    hidden = 16

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 16)

    def forward(self, features: Tensor) -> Tensor:
        return torch.tanh(self.layer(features))
'''


def minilm(folder: Path, *, tiny: bool = False) -> Path:
    """MiniLM with all of its six layers trained; or a BERT of one narrow layer, which reads the same tokens."""
    source: Pretrained | Config = Pretrained(path=str(model_folder()))
    if tiny:
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        words = {"model_type": "bert", "vocab_size": 30522, "max_position_embeddings": 128}
        source = Config(options={**words, **sizes}, tokenizer=str(model_folder()))
    encoders.create(EncoderSpec(name="measured", source=source, max_length=64), folder)
    return folder


def small(folder: Path, modules: Path) -> Path:
    """A network so small that nothing but the way of its gradients takes time."""
    modules.mkdir(parents=True, exist_ok=True)
    (modules / "small.py").write_text(SMALL, encoding="utf-8")
    source = Module(path=f"{modules / 'small.py'}:Small", seed=1)
    encoders.create(EncoderSpec(name="measured", type="vector", source=source, shape=(8,)), folder, [modules])
    return folder


def learner(spec: StreamSpec, encoder: Path) -> Learner:
    """Model and packers of a stream, in this process."""
    return Learner(spec, encoder, [])


def reviews(count: int) -> list[dict[str, str]]:
    """Rows of the three shops in turn, from the first again where there are not enough."""
    lists = []
    for shop in SHOPS:
        text = files("tasks.data").joinpath(f"reviews_{shop}.csv").read_text(encoding="utf-8")
        lists.append(list(csv.DictReader(io.StringIO(text, newline=""))))
    rows = [row for several in zip(*lists, strict=False) for row in several]
    return [rows[number % len(rows)] for number in range(count)]
