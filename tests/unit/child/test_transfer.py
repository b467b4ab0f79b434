"""Copying inside one process under the same rules as over HTTPS. (Both kinds together: tests/contract/test_transfers.py.)"""

import hashlib
from pathlib import Path

import pytest

from child.transfer import FolderTransfer, check_manifest
from trunkline.errors import DamagedFile, NotAuthorized, Reason, RefusedValue

DATA = b"a parameter set"
DIGEST = hashlib.sha256(DATA).hexdigest()


def gate(grant: str, digest: str) -> None:
    if grant != f"for {digest}":
        raise NotAuthorized("no")


@pytest.fixture
def taken() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def transfer(tmp_path: Path, taken: list[tuple[str, str]]) -> FolderTransfer:
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    (blobs / DIGEST).write_bytes(DATA)
    return FolderTransfer(
        where=lambda digest: blobs / digest,
        take=lambda path, digest, grant: taken.append((digest, grant)),
        check=gate,
        public=lambda digest: digest == "public",
        files=lambda name, digest: {"config.json": (digest, 1)},
    )


def test_a_set_is_copied_against_its_grant(transfer: FolderTransfer, tmp_path: Path) -> None:
    for _ in range(2):
        transfer.fetch(DIGEST, len(DATA), f"for {DIGEST}", tmp_path / "deep" / "set")
    assert (tmp_path / "deep" / "set").read_bytes() == DATA


@pytest.mark.parametrize("grant", [None, "", "for another"])
def test_without_its_grant_nothing_is_copied_even_if_it_is_there(
    transfer: FolderTransfer, tmp_path: Path, grant: str | None
) -> None:
    (tmp_path / "set").write_bytes(DATA)
    with pytest.raises(NotAuthorized):
        transfer.fetch(DIGEST, len(DATA), grant, tmp_path / "set")


@pytest.mark.parametrize("bad", [b"another set of the same size"[: len(DATA)], b"short"])
def test_a_bad_copy_at_the_master_is_not_kept(transfer: FolderTransfer, tmp_path: Path, bad: bytes) -> None:
    (tmp_path / "blobs" / DIGEST).write_bytes(bad)
    with pytest.raises(DamagedFile):
        transfer.fetch(DIGEST, len(DATA), f"for {DIGEST}", tmp_path / "set")
    assert not (tmp_path / "set").exists()


def test_what_is_sent_is_checked_first(transfer: FolderTransfer, tmp_path: Path, taken: list[tuple[str, str]]) -> None:
    (tmp_path / "update").write_bytes(DATA)
    transfer.send(tmp_path / "update", DIGEST, "grant")
    assert taken == [(DIGEST, "grant")]
    with pytest.raises(DamagedFile):
        transfer.send(tmp_path / "update", "ab" * 32, "grant")
    assert len(taken) == 1


def test_a_list_of_files_is_the_one_that_was_named() -> None:
    check_manifest(DATA, DIGEST)
    with pytest.raises(RefusedValue) as caught:
        check_manifest(DATA + b" ", DIGEST)
    assert caught.value.reason is Reason.DIGEST
