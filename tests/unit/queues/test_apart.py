"""What a worker on another machine makes of a stream's description, before it computes anything."""

import hashlib
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from queues.stream.apart import Machine, addresses, described, fetched, named, own_code
from queues.stream.described import Described
from tests.support.elsewhere import master
from tests.support.plain_optim import parameters, spec_of
from trunkline.api import BlobFile, Manifest
from trunkline.errors import DamagedFile, FailedError, NotFound, SettingsError, SpecError, UsageError
from trunkline.https import Https


def description(**change: Any) -> Described:
    table: dict[str, Any] = {
        "spec": spec_of(),
        "epoch": "epoch",
        "tensors": (("shared/bias", (3,)),),
        "files": Manifest(files={}),
        "modules": {},
        "redis": "redis://:secret@queues:6379",
        "broker": "redis://:secret@queues:6379",
    }
    return Described(**(table | change))


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# -- where the queues are ----------------------------------------------------------------------------------------------

HERE, OTHER, CELERY = "redis://10.0.0.7:6379", "redis://other:6379", "redis://celery:6379"


@pytest.mark.parametrize(
    ("of_stream", "machine", "wanted"),
    [
        ({"redis": OTHER, "broker": OTHER}, Machine(), (OTHER, OTHER)),
        ({"redis": OTHER, "broker": CELERY}, Machine(), (OTHER, CELERY)),
        ({"redis": OTHER, "broker": OTHER}, Machine(redis=HERE), (HERE, HERE)),
        ({"redis": OTHER, "broker": CELERY}, Machine(redis=HERE), (HERE, CELERY)),
        ({"redis": None, "broker": None}, Machine(redis=HERE), (HERE, HERE)),
        ({"redis": OTHER, "broker": OTHER}, Machine(broker=HERE), (OTHER, HERE)),
        ({"redis": None, "broker": CELERY}, Machine(redis=HERE, broker=OTHER), (HERE, OTHER)),
    ],
)
def test_addresses_are_the_streams_unless_others_are_named(
    of_stream: Mapping[str, Any], machine: Machine, wanted: tuple[str, str]
) -> None:
    assert addresses(description(**of_stream), machine) == wanted


def test_an_embedded_redis_is_told_to_be_out_of_reach() -> None:
    with pytest.raises(SettingsError, match=r"should have a Redis with an address .* found the embedded one") as error:
        addresses(description(redis=None, broker=None), Machine())
    assert "stream create --redis" in str(error.value.hint)


def test_a_password_is_not_shown() -> None:
    assert "secret" not in repr(description())


# -- code does not travel ----------------------------------------------------------------------------------------------


def test_own_code_is_taken_from_this_machine_if_it_is_what_the_stream_runs(tmp_path: Path) -> None:
    code = b"def head(): ...\n"
    path = tmp_path / "own.py"
    found = description(modules={"own.py": sha(code)})
    with pytest.raises(SpecError, match=r"should find its own code own\.py on this machine, found none") as error:
        own_code(found, (), tmp_path / "cache")
    assert "--module own.py" in str(error.value.hint)
    with pytest.raises(SpecError, match="found none"):
        own_code(found, (path,), tmp_path / "cache")
    path.write_bytes(b"another")
    with pytest.raises(SpecError, match="found another version of it"):
        own_code(found, (path,), tmp_path / "cache")
    path.write_bytes(code)
    (tmp_path / "more.py").write_bytes(b"x")
    folder = own_code(found, (path, tmp_path / "more.py"), tmp_path / "cache")
    assert [(one.name, one.read_bytes()) for one in folder.iterdir()] == [("own.py", code)]
    assert not list(own_code(description(), (path,), tmp_path / "cache").iterdir())


@pytest.mark.parametrize("name", ["../x.py", "x", "a/b.py", ".py", "x.py\n", ""])
def test_a_module_has_the_name_of_a_file(name: str) -> None:
    with pytest.raises(ValueError):
        description(modules={name: "0" * 64})


# -- a master ----------------------------------------------------------------------------------------------------------


def test_what_a_master_says_of_its_streams(tmp_path: Path) -> None:
    with master(tmp_path) as there, there.https() as https:
        with pytest.raises(NotFound, match="there should be a stream"):
            named(https, None)
        with there.store(spec_of(), parameters()) as (_, depot):
            _files(https, depot.home.encoder, tmp_path)
            assert named(https, None) == "stream"
            with pytest.raises(NotFound, match="should be one of stream, found 'other'"):
                named(https, "other")
            with there.store(spec_of().model_copy(update={"name": "other"}), parameters()):
                with pytest.raises(UsageError, match="other, stream"):
                    named(https, None)
                assert named(https, "other") == "other"
        _strange(https)


def _files(https: Https, encoder: Path, tmp_path: Path) -> None:
    """Files come once, whole, by digest; one that was changed on this machine comes again."""
    data = random.Random(1).randbytes(700_000)
    (encoder / "big.safetensors").write_bytes(data)
    (encoder / "empty.json").write_bytes(b"")
    path = "/v1/streams/stream/worker"
    found = described(https, path)
    assert found.files.files["big.safetensors"] == BlobFile(digest=sha(data), size=len(data))
    assert (found.redis, found.broker, found.epoch) == (None, None, found.epoch)
    for _ in range(2):
        folder = fetched(https, path, found, tmp_path / "cache" / "encoder")
        assert {one.name for one in folder.iterdir()} == {"big.safetensors", "empty.json"}
        assert (folder / "big.safetensors").read_bytes() == data
        (folder / "big.safetensors").write_bytes(data[:-1] + b"?")
    wrong = Manifest(files={"big.safetensors": BlobFile(digest="0" * 64, size=5)})
    with pytest.raises(NotFound, match="should have the digest 000000000000"):
        fetched(https, path, found.model_copy(update={"files": wrong}), tmp_path / "none")
    (encoder / "big.safetensors").write_bytes(b"x" * 700_000)
    with pytest.raises(DamagedFile):
        fetched(https, path, found, tmp_path / "damaged")


def _strange(https: Https) -> None:
    """A master of another version."""
    with pytest.raises(FailedError, match="should be one that this version reads"):
        described(https, "/v1/version")


def test_a_description_comes_as_it_was_sent() -> None:
    assert Described.of_table(json.loads(json.dumps(description().table()))) == description()


def test_files_are_kept_in_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert Machine().folder == tmp_path / "trunkline" / "streams"
    assert Machine(cache=tmp_path / "own").folder == tmp_path / "own"
