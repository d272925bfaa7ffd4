"""TLS to the database, as libpq understands `sslmode`: who is asked for, is looked at."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from heliograph import doctor
from heliograph.base.database.url import UrlError
from heliograph.base.network.connecting import connect
from tests.wire import wire

PEM = serialization.Encoding.PEM


def certified(name: str) -> tuple[bytes, bytes]:
    """A key and a certificate of its own for a host."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return private, certificate.public_bytes(PEM)


@pytest.fixture
def server(tmp_path: Path) -> tuple[ssl.SSLContext, Path]:
    """What a server for `localhost` shows, and the file of the authority that vouches for it."""
    key, certificate = certified("localhost")
    both, roots = tmp_path / "both.pem", tmp_path / "roots.pem"
    both.write_bytes(key + certificate)
    roots.write_bytes(certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(both)
    return context, roots


async def test_sslmode_is_honoured(database_url: str, server: tuple[ssl.SSLContext, Path], tmp_path: Path) -> None:
    context, roots = server
    async with wire(database_url, tls=context) as (line, elsewhere):
        named = elsewhere.replace("@127.0.0.1:", "@localhost:")

        async def encrypted(url: str) -> bool:
            before = line.encrypted
            conn = await connect(url)
            assert await conn.fetchval("SELECT 1") == 1
            await conn.close()
            return line.encrypted > before

        assert not await encrypted(f"{named}?sslmode=disable")
        for mode in ("prefer", "require", f"verify-ca&sslrootcert={roots}", f"verify-full&sslrootcert={roots}"):
            assert await encrypted(f"{named}?sslmode={mode}")
        # Another name than the certificate's: only `verify-full` minds.
        assert await encrypted(f"{elsewhere}?sslmode=verify-ca&sslrootcert={roots}")
        # Another authority's, or nobody's.
        strange = tmp_path / "strange.pem"
        strange.write_bytes(certified("localhost")[1])
        for wrong in (
            f"{elsewhere}?sslmode=verify-full&sslrootcert={roots}",
            f"{named}?sslmode=verify-ca&sslrootcert={strange}",
            f"{named}?sslmode=verify-full&sslrootcert={strange}",
            f"{named}?sslrootcert=system",
        ):
            with pytest.raises(ssl.SSLCertVerificationError):
                await connect(wrong)
        with pytest.raises(UrlError, match=r"sslrootcert.*missing\.pem"):
            await connect(f"{named}?sslmode=verify-full&sslrootcert={tmp_path / 'missing.pem'}")


async def test_a_server_without_tls_is_refused_where_it_is_wanted(database_url: str) -> None:
    assert await (await connect(f"{database_url}?sslmode=prefer")).fetchval("SELECT 1") == 1
    with pytest.raises(ConnectionError, match="SSL"):
        await connect(f"{database_url}?sslmode=require")


@pytest.mark.parametrize(
    ("query", "state", "said"),
    [
        ("", "warning", "prefer, the default"),
        ("?sslmode=require", "warning", "sslmode is require"),
        ("?sslmode=verify-ca", "warning", "sslmode is verify-ca"),
        ("?sslmode=verify-full", "ok", "verified"),
        ("?sslrootcert=system", "ok", "verified"),
    ],
)
def test_doctor_warns_of_less_than_verify_full(
    query: str, state: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGSSLMODE", raising=False)
    found = doctor._encryption(f"postgresql://u@127.0.0.1,db.example.net/db{query}")
    assert found.state == state
    assert said in found.detail
    assert ("verify-full" in found.remedy) is (state == "warning")
    assert doctor._encryption(f"postgresql://u@localhost/db{query}").state == "ok"
