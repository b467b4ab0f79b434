"""What a target is written as, and what the master keeps of it for the next one."""

import errno
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from master.blobs import BlobStore
from master.publish import Target, publish
from master.rules import Parameters
from tests.support.wires import LOSSY, reader
from trunkline.codecs import Decoder
from trunkline.errors import RefusedValue, StorageFailed
from trunkline.sets import write_set
from trunkline.tensors import Array, TensorSpec

SPEC = {"bias": TensorSpec((60,)), "weight": TensorSpec((40, 50)), "count": TensorSpec((), "I64")}


def tensors(seed: int, scale: float = 1.0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    floats = {name: (rng.normal(size=tensor.shape) * scale).astype(np.float32) for name, tensor in SPEC.items() if tensor.shape}
    return floats | {"count": np.asarray(seed)}


def step(blobs: BlobStore, held: str, new: dict[str, Array], codec: str, residual: str | None = None) -> Target:
    rest = None if residual is None else blobs.open_set(residual)
    with blobs.open_set(held) as base:
        return publish(blobs, held, base, Parameters(SPEC, reader(new)), codec, rest)


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


@pytest.fixture
def first(tmp_path: Path, blobs: BlobStore) -> str:
    write_set(tmp_path / "first", tensors(0), SPEC)
    return blobs.add_file(tmp_path / "first")[0]


def test_without_loss_the_target_is_what_was_fused(blobs: BlobStore, first: str) -> None:
    target = step(blobs, first, tensors(1), "float32")
    assert (target.delta, target.residual) == (None, None)
    assert all(np.array_equal(array, tensors(1)[name]) for name, array in blobs.open_set(target.digest).tensors().items())


@pytest.mark.parametrize("codec", LOSSY)
def test_the_difference_decodes_to_the_target_and_nothing_else_stays(blobs: BlobStore, first: str, codec: str) -> None:
    target = step(blobs, first, tensors(1), codec)
    if codec == "topk:share=1.0":
        assert (target.delta, target.residual) == (None, None), "a difference that is no smaller is none"
        return
    assert target.delta is not None and target.delta.held == first and target.size == blobs.size(target.digest)
    with blobs.open_set(target.delta.digest) as wire, blobs.open_set(first) as base:
        Decoder(wire, target.delta.codec, base).write(blobs.scratch("again"))
    (again,) = (blobs.folder / "scratch").iterdir()
    assert again.read_bytes() == blobs.path(target.digest).read_bytes()
    assert set(blobs.digests()) == {first, target.digest, target.delta.digest, target.residual} - {None}


@pytest.mark.parametrize("codec", ["float32", *LOSSY])
def test_what_is_not_finite_is_not_published_and_nothing_of_it_stays(blobs: BlobStore, first: str, codec: str) -> None:
    """A rule that ran away would spoil every later version by what is kept."""
    new = tensors(1)
    new["weight"][3, 4] = np.nan
    if codec in ("float32", "topk:share=1.0"):  # nothing is kept, so the children's reports are what tells
        assert step(blobs, first, new, codec).residual is None
        return
    with pytest.raises(RefusedValue, match="'weight' should be finite"):
        step(blobs, first, new, codec)
    assert list((blobs.folder / "scratch").iterdir()) == [] and set(blobs.digests()) == {first}


@pytest.mark.parametrize("codec", LOSSY)
def test_a_recipe_is_cooked_once(blobs: BlobStore, first: str, codec: str) -> None:
    """Fusing is what takes longest: each row is asked for once, whatever the codec."""
    asked: list[tuple[str, int]] = []

    def read(name: str, rows: slice) -> Array:
        asked.append((name, rows.start))
        return reader(tensors(1))(name, rows)

    with blobs.open_set(first) as base:
        publish(blobs, first, base, Parameters(SPEC, read), codec)
    assert sorted(asked) == [("bias", 0), ("count", 0), ("weight", 0)]


@pytest.mark.parametrize("codec", [word for word in LOSSY if word != "topk:share=1.0"])
def test_the_versions_follow_what_was_fused(blobs: BlobStore, first: str, codec: str) -> None:
    """Given the same fused movement every round, Then where the versions come to is where it leads, less what is kept."""
    moved, held, residual = tensors(1, 1e-2), first, None
    for _ in range(12):
        with blobs.open_set(held) as base:
            new = {name: array + moved[name] if array.shape else array for name, array in base.tensors().items()}
        target = step(blobs, held, new, codec, residual)
        held, residual = target.digest, target.residual
    assert residual is not None
    found, rest, start = blobs.open_set(held).tensors(), blobs.open_set(residual).tensors(), tensors(0)
    for name in rest:
        np.testing.assert_allclose(found[name] + rest[name], start[name] + 12 * moved[name].astype(np.float64), atol=5e-5)


@pytest.mark.parametrize("codec", ["float32", "int8", "topk"])
def test_a_disk_that_fails_leaves_nothing_behind_at_whatever_write(
    blobs: BlobStore, first: str, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job stays open and is tried again: what each try left would fill the disk that has just been cleared."""
    calls, failing = itertools.count(1), 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if next(calls) == failing:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*arguments)

        return call

    for name in ("pwrite", "fsync", "replace"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    while True:
        calls, failing = itertools.count(1), failing + 1
        try:
            target = step(blobs, first, tensors(failing), codec)
        except StorageFailed:
            assert not list((blobs.folder / "scratch").iterdir()), failing
        else:
            break
    assert failing > 8
    blobs.verify(target.digest)
