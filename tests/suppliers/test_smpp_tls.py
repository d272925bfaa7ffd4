"""TLS: a session is opened with the right name and authority, and with no other."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from smpp_peer import Peer, PeerAccount, until

from heliograph.suppliers.contract import Verdict


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

    def issue(self, name: str) -> str:
        """A PEM file with a certificate for a host and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.DNSName(name)]
        if name[0].isdigit():
            names = [x509.IPAddress(ipaddress.ip_address(name))]
        certificate = self._builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key).add_extension(
            x509.SubjectAlternativeName(names), critical=False
        )
        return self._write(name, certificate, key)

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
        )

    def _write(self, name: str, builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey | None) -> str:
        data = builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        if key is not None:
            data += key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        path = self.directory / f"{name}.pem"
        path.write_bytes(data)
        return str(path)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
async def peer(authority: Authority) -> AsyncIterator[Peer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("smsc.example"))
    peer = await Peer().start(tls=context)
    yield peer
    await peer.stop()


async def test_the_right_name(peer: Peer, authority: Authority) -> None:
    account = await PeerAccount(peer.port, tls=True, tls_ca_file=authority.file, tls_server_name="smsc.example").start()
    account.submit()
    assert (await account.ended())[0].verdict is Verdict.ACCEPTED
    await account.connector.stop(grace=1)


@pytest.mark.parametrize("name", ["other.example", ""])
async def test_a_wrong_name_sends_no_password(peer: Peer, authority: Authority, name: str) -> None:
    account = PeerAccount(peer.port, tls=True, tls_ca_file=authority.file, tls_server_name=name)
    await account.connector.start()
    await until(lambda: "certificate" in account.connector.health().last_error)
    assert peer.read == []
    account.submit()
    assert (await account.ended())[0].verdict is Verdict.UNREACHABLE
    await account.connector.stop(grace=1)


async def test_an_unknown_authority_sends_no_password(peer: Peer) -> None:
    account = PeerAccount(peer.port, tls=True, tls_server_name="smsc.example")
    await account.connector.start()
    await until(lambda: "certificate" in account.connector.health().last_error)
    assert peer.read == []
    await account.connector.stop(grace=1)


async def test_checking_may_be_switched_off(peer: Peer) -> None:
    account = await PeerAccount(peer.port, tls=True, tls_verify=False).start()
    await account.connector.stop(grace=1)


async def test_a_client_certificate(authority: Authority) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.file)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(authority.issue("127.0.0.1"))
    peer = await Peer().start(tls=context)
    account = await PeerAccount(
        peer.port, tls=True, tls_ca_file=authority.file, tls_certificate_file=authority.issue("esme.example")
    ).start()
    await account.connector.stop(grace=1)
    await peer.stop()


async def test_a_plain_server_behind_a_tls_setting_is_an_error_like_another() -> None:
    peer = await Peer().start()
    account = PeerAccount(peer.port, tls=True, tls_verify=False, connect_seconds=0.5)
    await account.connector.start()
    await until(lambda: "cannot connect" in account.connector.health().last_error)
    await account.connector.stop(grace=1)
    await peer.stop()
