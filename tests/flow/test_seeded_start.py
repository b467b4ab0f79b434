"""A seeded encoder's parameters are on no wire: every child makes them, all make the same, and what cannot be made is fetched."""

import logging
from pathlib import Path
from typing import Any

import pytest

from child.transfer import FolderTransfer
from tasks import starts
from tasks.folder import FROZEN, SEEDED, SHARED
from tasks.specs import Config, EncoderSpec, Module
from tests.support import tiny
from tests.support.world import World, make_world, sentiment, write_reviews
from trunkline.files import sha256_file
from trunkline.messages import InitialSet, Message

CHILDREN = ("amazon", "imdb", "yelp")


class Counted(FolderTransfer):
    """Writes down what was fetched."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.fetched: dict[str, int] = {}

    def fetch(self, digest: str, size: int, grant: str | None, to: Path) -> None:
        super().fetch(digest, size, grant, to)
        self.fetched[digest] = self.fetched.get(digest, 0) + size


@pytest.fixture(autouse=True)
def _counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.world.FolderTransfer", Counted)


def seeded(folder: Path) -> EncoderSpec:
    source = Config(options=tiny.OPTIONS, seed=7, init="seeded", tokenizer=str(tiny.tokenizer(folder / "tokenizer")))
    return EncoderSpec(name="tiny", source=source, max_length=32, freeze=("embeddings",))


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Three children and a seeded encoder."""
    world = make_world(tmp_path / "world", seeded(tmp_path))
    for number, name in enumerate(CHILDREN):
        world.add_child(name, sentiment(write_reviews(tmp_path / f"{name}.csv", 40, seed=number)))
    return world


def fetched(world: World, name: str) -> dict[str, int]:
    return world.children[name].transfer.fetched  # type: ignore[attr-defined]


def test_no_byte_of_a_first_set_is_fetched_and_all_children_make_the_same(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first = world.digest()
    frozen = sha256_file(world.folder / "encoder" / FROZEN)
    sent: list[InitialSet] = []
    for child in world.children.values():
        answer = child.answer

        def noted(message: Message, attachment: bytes | None = None, answer=answer):  # type: ignore[no-untyped-def]
            if isinstance(message, InitialSet):
                sent.append(message)
                assert attachment is None
            return answer(message, attachment)

        monkeypatch.setattr(child, "answer", noted)
    world.run(rounds=1)
    sizes = {path.name: path.stat().st_size for path in (world.folder / "encoder").iterdir()}
    for name in CHILDREN:
        assert not {first, frozen} & fetched(world, name).keys()
        home = world.children[name].home
        assert sha256_file(home.sets / first) == first
        assert sha256_file(home.encoders / world.encoder.manifest / FROZEN) == frozen
        small = sum(size for file, size in sizes.items() if file not in (FROZEN, SHARED))
        target = {world.digest()}  # what the round made, for the report
        assert sum(size for digest, size in fetched(world, name).items() if digest not in target) == small
    assert len(sent) == 3 and sizes[SEEDED] < 1024


def test_a_job_ends_as_if_the_sets_had_been_fetched(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = world.digest()
    world.run(rounds=2)
    monkeypatch.setattr("child.seeded.starts.read", lambda folder: None)
    other = make_world(tmp_path / "other", seeded(tmp_path))
    for name in CHILDREN:
        other.add_child(name, sentiment(tmp_path / f"{name}.csv"))
    other.run(rounds=2)
    assert all(first in fetched(other, name) for name in CHILDREN)
    assert other.digest() == world.digest() != first


def test_what_comes_out_otherwise_is_fetched_and_the_log_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = world.digest()
    making = starts.make

    def other_libraries(folder: Path, part: starts.Part, to: Path, modules: tuple[Path, ...] = ()) -> None:
        making(folder, part, to, modules)
        data = bytearray(to.read_bytes())
        data[-1] ^= 1
        to.write_bytes(data)

    monkeypatch.setattr(starts, "make", other_libraries)
    with caplog.at_level(logging.WARNING, logger="child.seeded"):
        world.run(rounds=1)
    assert world.digest() != first
    for name in CHILDREN:
        assert first in fetched(world, name)
        assert {path.name for path in world.children[name].home.sets.iterdir()} >= {first}
        assert not list(world.children[name].home.sets.glob(".seeded-*"))
    assert sum("cannot be made here from the seed and is fetched: it should come out as" in line for line in caplog.messages) == 6


CODE = """
import torch

class Net(torch.nn.Sequential):
    hidden = 2

    def __init__(self):
        super().__init__(torch.nn.Linear(3, 50), torch.nn.Linear(50, 2))
"""


def test_frozen_tensors_of_a_module_are_made_where_its_code_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "net.py").write_text(CODE, encoding="utf-8")
    source = Module(path=f"{tmp_path / 'net.py'}:Net", seed=7, init="seeded")
    world = make_world(tmp_path / "world", EncoderSpec(name="sensor", source=source, shape=(3,), freeze=("0.*",)))
    frozen = sha256_file(world.folder / "encoder" / FROZEN)
    knows, does_not = world.add_child("amazon"), world.add_child("imdb")
    (knows.home.modules / "net.py").write_text(CODE, encoding="utf-8")
    assert sha256_file(knows.site.files(world.encoder) / FROZEN) == frozen and frozen not in fetched(world, "amazon")
    assert not caplog.messages
    assert sha256_file(does_not.site.files(world.encoder) / FROZEN) == frozen and frozen in fetched(world, "imdb")
    assert "`net.py` should be a file with your code, found none" in caplog.text
