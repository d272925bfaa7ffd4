"""Certificates for servers in tests, issued by an authority that nothing else trusts."""

from __future__ import annotations

import ipaddress
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """Signs certificates into a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Test authority")])
        certificate = self._builder(self.name, self.key).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.file = self._write("ca", certificate, None)

    def issue(self, name: str, *, days: int = 1, passphrase: str = "") -> str:
        """A PEM file with a certificate for a host and its key, which may be encrypted; valid for `days` from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.DNSName(name)]
        if name[0].isdigit():
            names = [x509.IPAddress(ipaddress.ip_address(name))]
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._builder(subject, key, days).add_extension(
            x509.SubjectAlternativeName(names), critical=False
        )
        return self._write(name, certificate, key, passphrase)

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, days: int = 1) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=2))
            .not_valid_after(now + timedelta(days=days))
        )

    def _write(
        self, name: str, builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey | None, passphrase: str = ""
    ) -> str:
        data = builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        if key is not None:
            sealed: serialization.KeySerializationEncryption = serialization.NoEncryption()
            if passphrase:
                sealed = serialization.BestAvailableEncryption(passphrase.encode())
            data += key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, sealed)
        path = self.directory / f"{name}.pem"
        path.write_bytes(data)
        return str(path)


def verify_strictly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have new contexts demand everything that RFC 5280 does, which is the default from Python 3.13 on."""
    default = ssl.create_default_context

    def strict(**options: Any) -> ssl.SSLContext:
        context = default(**options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    for name in ("create_default_context", "_create_default_https_context"):
        monkeypatch.setattr(ssl, name, strict)
