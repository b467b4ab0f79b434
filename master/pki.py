"""The master's own certificate authority and the certificate that its ports show.

The authority (EC P-256, ten years) is made once and is what children trust: an invitation carries the SHA-256 of its certificate.
The server certificate (EC P-256, one year) is made anew at a start when it ends within thirty days, when the names changed, or
when it is not of this authority. Every file has mode 0600 and is replaced whole.
"""

import hashlib
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from trunkline.errors import DamagedFile, SettingsError, UsageError
from trunkline.files import storage, write_atomically

CA_DAYS = 3_650
SERVER_DAYS = 365
RENEW_DAYS = 30
_BACKDATE = timedelta(hours=1)  # a child's clock may be behind


@dataclass(frozen=True, slots=True)
class Tls:
    """Where the certificates lie, and what an invitation says about them."""

    ca: Path
    certificate: Path  # the server's, followed by the authority's
    key: Path
    fingerprint: str


def ensure(folder: Path, names: Sequence[str], now: float) -> Tls:
    """Certificates that are good for these names now, made where they are missing.

    :param names: DNS names and IP addresses.
    :param now: seconds since the epoch.
    :raises SettingsError: a name that cannot stand in a certificate.
    :raises DamagedFile: the authority's files cannot be read; they are never replaced, because every child trusts them.
    :raises StorageFailed: the disk refused.
    """
    alternatives = [_alternative(name) for name in names]
    moment = datetime.fromtimestamp(now, UTC)
    ca, ca_key = _authority(folder, moment)
    certificate, key = folder / "server.pem", folder / "server.key"
    if not _good(certificate, key, ca, alternatives, moment):
        _issue(certificate, key, ca, ca_key, alternatives, moment)
    return Tls(folder / "ca.pem", certificate, key, fingerprint((folder / "ca.pem").read_bytes()))


def fingerprint(ca_pem: bytes) -> str:
    """SHA-256 of a certificate (its DER form), lower-case hex.

    :raises DamagedFile: not a certificate.
    """
    try:
        return x509.load_pem_x509_certificate(ca_pem).fingerprint(hashes.SHA256()).hex()
    except ValueError:
        raise DamagedFile("the authority's certificate should be PEM, found something else.") from None


def check_node_key(public_key: bytes) -> bytes:
    """A child's public key as the SuperLink wants it: EC P-384, PEM, in one spelling.

    :raises UsageError: another kind of key.
    """
    try:
        key = serialization.load_pem_public_key(public_key)
    except (ValueError, TypeError):
        raise UsageError("the node's public key should be PEM, found something else.") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise UsageError("the node's public key should be EC P-384, found another kind.")
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def key_id(public_key: bytes) -> str:
    """A short name of a public key for logs and lists: the first 16 hex digits of its SHA-256."""
    return hashlib.sha256(public_key).hexdigest()[:16]


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        if not name or len(name) > 253 or any(c.isspace() or c in "/:@" for c in name):
            raise ValueError
        return x509.DNSName(name.encode("idna").decode("ascii"))
    except ValueError:
        raise SettingsError(
            f"`names` should hold DNS names and IP addresses, found {name!r}.", hint="Write it without scheme and port."
        ) from None


def _authority(folder: Path, now: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    path, key_path = folder / "ca.pem", folder / "ca.key"
    if not path.exists():  # the key is written first: a certificate without a key never lies there
        key = _reuse_key(key_path) or ec.generate_private_key(ec.SECP256R1())
        _write_key(key_path, key)
        _write_certificate(path, _self_signed(key, now))
    with storage(path):
        pem = path.read_bytes()
    try:
        certificate = x509.load_pem_x509_certificate(pem)
    except ValueError:
        raise DamagedFile(f"`{path}` should be a certificate, found something else.", hint="Restore it from a backup.") from None
    key = _reuse_key(key_path)
    if key is None or key.public_key() != certificate.public_key():
        raise DamagedFile(f"`{key_path}` should be the key of `{path}`, found another or none.", hint="Restore both from a backup.")
    return certificate, key


def _reuse_key(path: Path) -> ec.EllipticCurvePrivateKey | None:
    try:
        with storage(path):
            key = serialization.load_pem_private_key(path.read_bytes(), None)
    except (FileNotFoundError, ValueError, TypeError):
        return None
    return key if isinstance(key, ec.EllipticCurvePrivateKey) else None


def _self_signed(key: ec.EllipticCurvePrivateKey, now: datetime) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Trunkline master authority")])
    builder = _builder(name, name, key.public_key(), now, CA_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(sign_certificates=True), critical=True)
    return builder.sign(key, hashes.SHA256())


def _issue(
    path: Path,
    key_path: Path,
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
    names: Sequence[x509.GeneralName],
    now: datetime,
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Trunkline master")])
    builder = _builder(subject, ca.subject, key.public_key(), now, SERVER_DAYS)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(sign_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    builder = builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
    _write_key(key_path, key)
    _write_certificate(path, builder.sign(ca_key, hashes.SHA256()), ca)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number())
    builder = builder.not_valid_before(now - _BACKDATE).not_valid_after(now + timedelta(days=days))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _good(path: Path, key_path: Path, ca: x509.Certificate, names: Sequence[x509.GeneralName], now: datetime) -> bool:
    """Whether the server certificate that lies there can go on being used."""
    key = _reuse_key(key_path)
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        certificate.verify_directly_issued_by(ca)
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (FileNotFoundError, ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return False
    fresh = certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc - timedelta(days=RENEW_DAYS)
    return fresh and key is not None and key.public_key() == certificate.public_key() and set(found) == set(names)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    write_atomically(path, pem, mode=0o600)


def _write_certificate(path: Path, *chain: x509.Certificate) -> None:
    write_atomically(path, b"".join(one.public_bytes(serialization.Encoding.PEM) for one in chain), mode=0o600)
