"""Certificates that a TLS client accepts, kept as long as they are good, made anew when they are not."""

import hashlib
import ssl
import stat
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from master import pki
from trunkline.errors import DamagedFile, SettingsError, UsageError

NOW = 1_700_000_000.0
DAY = 86_400.0
NAMES = ["master.example", "localhost", "127.0.0.1", "::1"]


def server(tls: pki.Tls) -> x509.Certificate:
    return x509.load_pem_x509_certificate(tls.certificate.read_bytes())


def handshake(tls: pki.Tls, name: str, trusted: str) -> None:
    """A TLS handshake in memory; raises what ssl raises."""
    there, here = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cadata=trusted)
    there.load_cert_chain(tls.certificate, tls.key)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [there.wrap_bio(up, down, server_side=True), here.wrap_bio(down, up, server_hostname=name)]
    waiting = list(ends)
    for _ in range(20):
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                continue
        if not waiting:
            return
    raise AssertionError("the handshake did not end")


@pytest.fixture
def tls(tmp_path: Path) -> pki.Tls:
    return pki.ensure(tmp_path, NAMES, time.time())


@pytest.mark.parametrize("name", NAMES)
def test_a_client_that_trusts_the_authority_accepts_every_name(tls: pki.Tls, name: str) -> None:
    handshake(tls, name, tls.ca.read_text())


def test_a_client_refuses_another_name_and_another_authority(tls: pki.Tls, tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tls, "other.example", tls.ca.read_text())
    other = pki.ensure(tmp_path / "other", NAMES, NOW)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tls, "localhost", other.ca.read_text())


def test_the_server_certificate_can_sign_no_others(tls: pki.Tls) -> None:
    constraints = server(tls).extensions.get_extension_for_class(x509.BasicConstraints).value
    usage = server(tls).extensions.get_extension_for_class(x509.KeyUsage).value
    assert not constraints.ca and not usage.key_cert_sign


def test_only_the_owner_may_read_the_files(tls: pki.Tls) -> None:
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tls.ca.parent.iterdir() if path.is_file()}
    assert modes == dict.fromkeys(["ca.pem", "ca.key", "server.pem", "server.key"], 0o600)


def test_the_fingerprint_is_the_hash_of_the_der_form(tls: pki.Tls) -> None:
    der = ssl.PEM_cert_to_DER_cert(tls.ca.read_text())
    assert tls.fingerprint == hashlib.sha256(der).hexdigest() == pki.fingerprint(tls.ca.read_bytes())


@pytest.mark.parametrize(
    ("later", "same"), [(0, True), (334 * DAY, True), (336 * DAY, False), (400 * DAY, False), (-2 * DAY, False)]
)
def test_the_server_certificate_is_renewed_before_its_last_thirty_days(tmp_path: Path, later: float, same: bool) -> None:
    first = server(pki.ensure(tmp_path, NAMES, NOW))
    again = pki.ensure(tmp_path, NAMES, NOW + later)
    assert (server(again).serial_number == first.serial_number) is same
    assert server(again).not_valid_after_utc.timestamp() >= NOW + later + 30 * DAY
    assert x509.load_pem_x509_certificate(again.ca.read_bytes()).not_valid_after_utc.timestamp() > NOW + 9.9 * 365 * DAY


def test_other_names_make_a_new_certificate_of_the_same_authority(tmp_path: Path) -> None:
    first, second = pki.ensure(tmp_path, NAMES, NOW), pki.ensure(tmp_path, [*NAMES, "10.0.0.7"], NOW)
    found = server(second).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "10.0.0.7" in map(str, found.get_values_for_type(x509.IPAddress))
    assert first.fingerprint == second.fingerprint
    assert server(pki.ensure(tmp_path, [*NAMES, "10.0.0.7"], NOW)).serial_number == server(second).serial_number


@pytest.mark.parametrize("damage", ["server.pem", "server.key"])
@pytest.mark.parametrize("how", ["missing", "garbage", "another"])
def test_a_damaged_server_pair_is_made_anew(tmp_path: Path, damage: str, how: str) -> None:
    pki.ensure(tmp_path / "a", NAMES, NOW)
    other = pki.ensure(tmp_path / "b", NAMES, NOW)
    path = tmp_path / "a" / damage
    path.unlink()
    if how != "missing":
        path.write_bytes(b"garbage" if how == "garbage" else (other.ca.parent / damage).read_bytes())
    again = pki.ensure(tmp_path / "a", NAMES, NOW)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(again.certificate, again.key)
    server(again).verify_directly_issued_by(x509.load_pem_x509_certificate(again.ca.read_bytes()))


@pytest.mark.parametrize("damage", ["ca.key", "ca.pem"])
@pytest.mark.parametrize("garbage", [b"", b"garbage"])
def test_a_damaged_authority_is_never_replaced(tmp_path: Path, damage: str, garbage: bytes) -> None:
    pki.ensure(tmp_path, NAMES, NOW)
    (tmp_path / damage).write_bytes(garbage)
    with pytest.raises(DamagedFile, match=damage):
        pki.ensure(tmp_path, NAMES, NOW)
    assert (tmp_path / damage).read_bytes() == garbage


def test_a_crash_between_key_and_certificate_leaves_nothing_that_blocks(tmp_path: Path) -> None:
    first = pki.ensure(tmp_path, NAMES, NOW)
    first.ca.unlink()
    again = pki.ensure(tmp_path, NAMES, NOW)
    server(again).verify_directly_issued_by(x509.load_pem_x509_certificate(again.ca.read_bytes()))


@pytest.mark.parametrize("name", ["", "a b", "https://m.example", "m.example:8440", "user@m.example", "x" * 300])
def test_a_name_that_cannot_stand_in_a_certificate(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match="names"):
        pki.ensure(tmp_path, [name], NOW)
    assert list(tmp_path.iterdir()) == []


def test_a_node_key_is_p384_in_one_spelling() -> None:
    key = ec.generate_private_key(ec.SECP384R1()).public_key()
    pem = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    assert pki.check_node_key(b"\n" + pem + b"\n\n") == pki.check_node_key(pem) == pem


def _others() -> list[bytes]:
    small = ec.generate_private_key(ec.SECP256R1()).public_key()
    big = rsa.generate_private_key(65_537, 2_048).public_key()
    pems = [key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo) for key in (small, big)]
    return [b"", b"garbage", *pems]


@pytest.mark.parametrize("key", _others(), ids=["empty", "garbage", "p256", "rsa"])
def test_another_kind_of_node_key_is_refused(key: bytes) -> None:
    with pytest.raises(UsageError, match="public key"):
        pki.check_node_key(key)
