"""One tiny encoder for all tests here; tests that change it load their own copy."""

import csv
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tasks import encoders
from tasks.encoders import Encoder
from tasks.specs import Config, EncoderSpec
from tests.support import tiny

Write = Callable[[str, Iterable[Iterable[object]]], Path]


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def tiny_spec(tokenizer_folder: Path) -> EncoderSpec:
    source = Config(options=dict(tiny.OPTIONS), seed=1, tokenizer=str(tokenizer_folder))
    return EncoderSpec(name="tiny", source=source, freeze=("embeddings",), max_length=16)


@pytest.fixture(scope="session")
def encoder_folder(tiny_spec: EncoderSpec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoders") / "tiny"
    encoders.create(tiny_spec, folder)
    return folder


@pytest.fixture
def encoder(encoder_folder: Path) -> Encoder:
    """A fresh one; dropout off."""
    return encoders.load(encoder_folder)


@pytest.fixture
def write_csv(tmp_path: Path) -> Write:
    """Write rows of cells under `tmp_path`."""

    def write(name: str, rows: Iterable[Iterable[object]]) -> Path:
        path = tmp_path / name
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, delimiter="\t" if name.endswith(".tsv") else ",").writerows(rows)
        return path

    return write
