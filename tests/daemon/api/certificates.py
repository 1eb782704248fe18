"""Certificates for tests: an authority, and one that it signed for 127.0.0.1."""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID
from msgspec import Struct


class Files(Struct, frozen=True):
    """PEM files; `fingerprint`: of the certificate, in hex."""

    ca: Path
    cert: Path
    key: Path
    locked: Path
    fingerprint: str


def make(folder: Path, host: str = "127.0.0.1") -> Files:
    """An authority and a certificate for `host`; `locked` is its key, encrypted.

    With no more in them than such authorities often write: no key identifiers, which Python 3.13 asks for by itself.
    """
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test daemon")])
    now = datetime.now(UTC)

    def begun(subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(ca_name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
        )

    ca = (
        begun(ca_name, ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    cert = (
        begun(name, key.public_key())
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))]), critical=False
        )
        .sign(ca_key, hashes.SHA256())
    )
    files = Files(
        folder / "ca.pem",
        folder / "cert.pem",
        folder / "key.pem",
        folder / "locked.pem",
        cert.fingerprint(hashes.SHA256()).hex(),
    )
    files.ca.write_bytes(ca.public_bytes(Encoding.PEM))
    files.cert.write_bytes(cert.public_bytes(Encoding.PEM))
    for path, how in [(files.key, NoEncryption()), (files.locked, BestAvailableEncryption(b"secret"))]:
        path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how))
    return files
