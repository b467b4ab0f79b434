"""What a site computes with: its own readers and encoders are found in its own folder, and what is not there is said."""

from pathlib import Path

import pytest

from child.home import ABANDONED, ChildHome, sweep
from child.registry import Registry
from child.sets import SetCache
from child.settings import ChildSettings
from child.site import Site
from child.state import SET, PrivateStore
from child.transfer import FolderTransfer
from tasks import encoders
from tasks.specs import EncoderSpec, Module, TaskSpec
from trunkline.errors import Reason, RefusedValue, SpecError
from trunkline.files import sha256_file
from trunkline.messages import EncoderRef

READER = """
def rows(path, spec):
    for word, label in (("good", "yes"), ("bad", "no"), ("fine", "yes")):
        yield {"text": word, "label": label, "split": "train"}
"""
NETWORK = """
import torch

class Network(torch.nn.Linear):
    def __init__(self):
        super().__init__(3, 2)
"""


def test_samples_are_counted_by_the_site_s_own_reader(tmp_path: Path) -> None:
    home = ChildHome(tmp_path / "home")
    (home.modules / "reader.py").write_text(READER, encoding="utf-8")
    (tmp_path / "samples").write_text("anything", encoding="utf-8")
    table = {"name": "mood", "head": "single", "data": str(tmp_path / "samples"), "fields": ["text"], "label": "label"}
    assert Registry(home).count(TaskSpec.model_validate(table | {"reader": "reader.py:rows"}))["train"] == 3
    with pytest.raises(SpecError, match=r"`other\.py` should be a file with your code"):
        Registry(home).count(TaskSpec.model_validate(table | {"reader": "other.py:rows"}))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A site whose master has an encoder that is a module."""
    (tmp_path / "network.py").write_text(NETWORK, encoding="utf-8")
    spec = EncoderSpec(name="sensor", type="sensor", source=Module(path="network.py:Network"), shape=(3,))
    encoders.create(spec, tmp_path / "encoder", (tmp_path,))
    blobs = {sha256_file(path): path for path in (tmp_path / "encoder").iterdir() if path.name != "shared.safetensors"}
    files = {path.name: (digest, path.stat().st_size) for digest, path in blobs.items()}
    transfer = FolderTransfer(blobs.__getitem__, lambda *_: None, lambda *_: None, lambda _: True, lambda *_: files)
    return Site(ChildHome(tmp_path / "home"), ChildSettings(), transfer)


def test_an_encoder_whose_code_is_not_here_is_refused_and_no_folder_of_the_site_is_told(site: Site, tmp_path: Path) -> None:
    reference = EncoderRef(name="sensor", type="sensor", manifest="0" * 64)
    with pytest.raises(RefusedValue, match=r"`network\.py` should be a file with your code, found none") as refused:
        site.encoder(reference)
    assert refused.value.reason is Reason.NO_MODULE and str(tmp_path) not in refused.value.public
    (site.home.modules / "network.py").write_text(NETWORK, encoding="utf-8")
    assert site.encoder(reference).hidden == 2


@pytest.mark.parametrize("noted", [b"", b"\xff\xfe\x00", b"../../key.pem", b"a" * 63])
def test_a_note_of_the_last_set_that_went_bad_is_no_set(tmp_path: Path, noted: bytes) -> None:
    """It is read in every round; what is no digest must not keep the child out until somebody resets it."""
    home = ChildHome(tmp_path)
    nowhere = FolderTransfer(Path, lambda *_: None, lambda *_: None, lambda *_: False, lambda *_: {})
    store = PrivateStore(home.private / "text")
    store.note_set("ab" * 32)
    (home.private / "text" / SET).write_bytes(noted)
    assert store.last_set() is None and list(SetCache(home, 3, nowhere)._in_use()) == []
    store.note_set("ab" * 32)
    assert store.last_set() == "ab" * 32 and list(SetCache(home, 3, nowhere)._in_use()) == ["ab" * 32]


def test_what_a_killed_process_left_is_swept_and_a_download_is_gone_on_with(tmp_path: Path) -> None:
    """Each is as large as an encoder: a child that is killed again and again filled its disk."""
    home = ChildHome(tmp_path)
    left = ["sets/.new-ab", "sets/.delta-ab", "updates/..new.7.ab.tmp", "private/tiny/.owed-ab.7.cd.tmp", "encoders/ab/.seeded-cd"]
    kept = ["sets/ab", "sets/.ab.ab.part", "updates/ab", "private/tiny/owed-ab", "private/tiny/spare", "encoders/ab/.own", "lock"]
    for name in (*left, *kept):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    now = (tmp_path / "sets/.ab.ab.part").stat().st_mtime
    assert sweep(home, now) == len(left)
    assert not any((tmp_path / name).exists() for name in left)
    assert all((tmp_path / name).exists() for name in kept)
    assert sweep(home, now + 2 * ABANDONED) == 1
    assert not (tmp_path / "sets/.ab.ab.part").exists()
