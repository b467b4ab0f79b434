"""Bytes that nothing names do not stay for ever, and what is named, or may be named soon, does."""

import os
from pathlib import Path

import pytest

from master import unnamed
from master.blobs import BlobStore
from master.ledger import Ledger
from tests.support.ledgers import memory_ledger
from trunkline.api import BlobFile, Manifest
from trunkline.clock import SystemClock

DAY = 86400.0


class Later(SystemClock):
    """The machine's clock, some days on."""

    days = 0.0

    def now(self) -> float:
        return super().now() + self.days * DAY


@pytest.fixture
def clock() -> Later:
    return Later()


@pytest.fixture
def blobs(tmp_path: Path, clock: Later) -> BlobStore:
    return BlobStore(tmp_path / "blobs", clock)


def with_encoder(ledger: Ledger, blobs: BlobStore) -> set[str]:
    """An encoder of one file, and the digests of all that it needs."""
    config, first = blobs.add_bytes(b"config"), blobs.add_bytes(b"set")
    manifest = blobs.add_bytes(Manifest(files={"config.json": BlobFile(digest=config, size=6)}).encode())
    ledger.create_encoder("text", "text", {}, manifest, {"w": [[2], "F32"]}, first=first, size=3)
    return {config, first, manifest}


def test_what_nothing_names_is_swept_when_it_is_old(blobs: BlobStore, clock: Later) -> None:
    ledger = memory_ledger()
    needed = with_encoder(ledger, blobs)
    refused = blobs.add_bytes(b"a refused update")
    assert unnamed.sweep(ledger, blobs, DAY) == 0 and blobs.has(refused), "its row may be on the way"
    clock.days = 2
    assert unnamed.sweep(ledger, blobs, DAY) == 1
    assert set(blobs.digests()) == needed
    assert unnamed.sweep(ledger, blobs, DAY) == 0


def test_who_was_told_that_a_blob_is_here_finds_it_here(blobs: BlobStore, clock: Later) -> None:
    ledger = memory_ledger()
    data = b"the same update again"
    digest = blobs.add_bytes(data)
    for told in (lambda: blobs.add_bytes(data), lambda: blobs.known(digest), lambda: blobs.upload(digest, 100).have()):
        path = blobs.path(digest)
        clock.days = 0
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 3 * DAY))
        told()
        assert unnamed.sweep(ledger, blobs, DAY) == 0 and blobs.has(digest)
    assert not blobs.known("0" * 64)


def test_nothing_is_swept_while_a_list_of_files_cannot_be_read(blobs: BlobStore, clock: Later) -> None:
    ledger = memory_ledger()
    needed = with_encoder(ledger, blobs)
    blobs.add_bytes(b"a refused update")
    manifest = ledger.encoders()[0].manifest
    blobs.path(manifest).write_bytes(b"not a list")
    clock.days = 2
    assert unnamed.sweep(ledger, blobs, DAY) == 0
    blobs.delete(manifest)
    assert unnamed.sweep(ledger, blobs, DAY) == 0
    assert needed - {manifest} <= set(blobs.digests())
