"""An authority of our own, and a certificate that it signed."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


def _signed(
    name: str, key: Any, issuer: str, by: Any, extensions: list[tuple[Any, bool]]
) -> x509.Certificate:
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
    )
    # Since 3.13, Python checks certificates by the letter of RFC 5280.
    issued_to = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    issued_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(by.public_key())
    for extension, critical in [(issued_to, False), (issued_by, False), *extensions]:
        builder = builder.add_extension(extension, critical)
    return builder.sign(by, hashes.SHA256())


def make_certificates(folder: Path) -> None:
    """`ca.pem`, and `some.pem` with `some.key` for 127.0.0.1 that it signed."""
    authority, key = (
        ec.generate_private_key(ec.SECP256R1()),
        ec.generate_private_key(ec.SECP256R1()),
    )
    no = False
    usage = x509.KeyUsage(no, no, no, no, no, True, no, no, no)  # the sixth: signs certificates
    basics = x509.BasicConstraints(True, None)
    root = _signed("root", authority, "root", authority, [(basics, True), (usage, True)])
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    leaf = _signed("here", key, "root", authority, [(here, False)])
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "ca.pem").write_bytes(root.public_bytes(Encoding.PEM))
    (folder / "some.pem").write_bytes(leaf.public_bytes(Encoding.PEM))
    (folder / "some.key").write_bytes(pem)
