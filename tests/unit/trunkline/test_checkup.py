"""What `doctor` finds."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from trunkline import checkup
from trunkline.checkup import Check
from trunkline.errors import NotFound


def statuses(checks: object) -> dict[str, str]:
    return {check.check: check.status for check in checks}  # type: ignore[attr-defined]


def test_each_library_against_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = ["numpy>=1", "numpy-none>=1", "pydantic<1", "torch>=2; extra == 'gpu'", "not a requirement !"]
    monkeypatch.setattr(checkup, "requires", lambda name: needs)
    found = {check.check: check for check in checkup.installation()}
    assert {name: check.status for name, check in found.items()} == {
        "python": "ok",
        "numpy": "ok",
        "numpy-none": "failed",
        "pydantic": "failed",
    }
    assert "should be <1, found 2" in found["pydantic"].found and found["pydantic"].hint == 'pip install "pydantic<1"'


def test_an_installation_whose_bounds_are_not_known() -> None:
    assert statuses(checkup.installation("trunkline-that-is-not-installed"))["packages"] == "warning"


def test_a_folder_that_is_there_will_be_made_or_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert statuses(checkup.folder("home", tmp_path))["home"] == "ok"
    assert "will be made" in next(iter(checkup.folder("home", tmp_path / "a" / "b"))).found
    (tmp_path / "file").touch()
    assert statuses(checkup.folder("home", tmp_path / "file")) == {"home": "failed"}
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert statuses(checkup.folder("home", tmp_path)) == {"home": "failed"}
    assert not (tmp_path / "a").exists(), "looking makes nothing"


@pytest.mark.parametrize(("free", "status"), [(10 << 30, "ok"), (1 << 30, "warning"), (1 << 20, "failed")])
def test_free_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, status: str) -> None:
    monkeypatch.setattr(checkup.shutil, "disk_usage", lambda path: type("Usage", (), {"free": free}))
    assert statuses(checkup.folder("home", tmp_path))["free space"] == status


def test_a_clock_that_went_back(tmp_path: Path) -> None:
    (tmp_path / "ledger").touch()
    at = (tmp_path / "ledger").stat().st_mtime
    assert checkup.clock(tmp_path, at + 1).status == "ok"
    assert checkup.clock(tmp_path, at - 3600).status == "failed"
    assert checkup.clock(tmp_path / "none", 0.0).status == "ok"


def certificate(path: Path, begins: datetime, ends: datetime) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
    made = builder.not_valid_before(begins).not_valid_after(ends).sign(key, hashes.SHA256())
    path.write_bytes(made.public_bytes(Encoding.PEM))


@pytest.mark.parametrize(("days", "status"), [(-20, "failed"), (-5, "ok"), (70, "warning"), (101, "failed")])
def test_a_certificate_at_each_age(tmp_path: Path, days: int, status: str) -> None:
    begins = datetime(2026, 1, 1, tzinfo=UTC)
    certificate(tmp_path / "pem", begins - timedelta(days=10), begins + timedelta(days=100))
    assert checkup.certificate("server", tmp_path / "pem", (begins + timedelta(days=days)).timestamp()).status == status


def test_a_certificate_that_is_none(tmp_path: Path) -> None:
    assert checkup.certificate("server", tmp_path / "none").status == "warning"
    (tmp_path / "pem").write_text("hello")
    assert checkup.certificate("server", tmp_path / "pem").status == "failed"


def test_one_that_failed_makes_the_whole_fail_and_all_are_told() -> None:
    def look() -> str:
        raise NotFound("x should be there, found none.", hint="Look.")

    checks = [Check("a", "ok", "1"), Check("b", "warning", "2"), checkup.tried("c", look), checkup.tried("d", lambda: "4")]
    assert checks[2] == Check("c", "failed", "x should be there, found none.", "Look.") and checks[3] == Check("d", "ok", "4")
    result = checkup.told(checks)
    assert result.exit_code == 1 and len(result.data) == 4 and len(result.lines) == 5
    assert checkup.told(checks[:2]).exit_code == 0
