"""The state folder: secrets are the owner's, and a daemon that is gone is not believed."""

import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from master.home import DaemonInfo, MasterHome
from trunkline.errors import AlreadyRunning, DamagedFile, NotFound, StorageFailed


def info(pid: int) -> DaemonInfo:
    return DaemonInfo(pid=pid, url="https://127.0.0.1:8440", port=8440, superlink_port=8441, started=1.0, version="0")


def test_making_the_object_touches_nothing_and_create_makes_it_private(tmp_path: Path) -> None:
    home = MasterHome(tmp_path / "state")
    assert not home.folder.exists()
    home.create()
    home.create()
    for folder in (home.folder, home.tls, home.secrets, home.blobs):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_admin_token_is_made_once_for_the_owner_alone(tmp_path: Path) -> None:
    home = MasterHome(tmp_path)
    with pytest.raises(NotFound, match="trunkline serve"):
        home.admin_token()
    assert home.admin_token(make=lambda: "first") == home.admin_token(make=lambda: "second") == home.admin_token() == "first"
    assert stat.S_IMODE((home.secrets / "admin.token").stat().st_mode) == 0o600


def test_one_daemon_a_folder(tmp_path: Path) -> None:
    held = MasterHome(tmp_path).lock()
    with pytest.raises(AlreadyRunning, match=str(os.getpid())):
        MasterHome(tmp_path).lock()
    held.release()
    MasterHome(tmp_path).lock().release()


def test_the_cli_finds_a_daemon_that_lives(tmp_path: Path) -> None:
    home = MasterHome(tmp_path)
    assert home.daemon() is None
    home.write_daemon(info(os.getpid()))
    assert home.daemon() == info(os.getpid())
    elsewhere = replace(info(os.getpid()), ledger="postgresql://me:secret@host/ledger")
    home.write_daemon(elsewhere)
    assert home.daemon() == elsewhere and "secret" not in repr(elsewhere)
    home.forget_daemon()
    home.forget_daemon()
    assert home.daemon() is None


def test_a_daemon_that_was_killed_is_not_believed(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(timeout=30)
    home = MasterHome(tmp_path)
    home.write_daemon(info(gone.pid))
    assert home.daemon() is None


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b"no json", b'{"pid": "x"}', b"\xff\xfe\x00"])
def test_a_damaged_file_is_named(tmp_path: Path, text: bytes) -> None:
    home = MasterHome(tmp_path)
    (tmp_path / "daemon.json").write_bytes(text)
    with pytest.raises(DamagedFile, match=r"daemon\.json"):
        home.daemon()


@pytest.mark.parametrize("found", [b"\xff\xfe", b"half\x00", b"two\nlines"])
def test_a_token_of_other_bytes_is_named_and_not_sent(tmp_path: Path, found: bytes) -> None:
    home = MasterHome(tmp_path)
    home.secrets.mkdir()
    (home.secrets / "admin.token").write_bytes(found)
    with pytest.raises(DamagedFile, match=r"admin\.token"):
        home.admin_token()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_place_is_one_clear_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StorageFailed, match="writable"):
        MasterHome(tmp_path / "state").create()
