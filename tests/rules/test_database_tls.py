"""TLS to the database, as libpq understands `sslmode`: who is asked for, is looked at."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from heliograph import doctor
from heliograph.base.database.url import UrlError
from heliograph.base.network.connecting import connect
from tests.certificates import Authority
from tests.wire import wire


@pytest.fixture
def server(tmp_path: Path) -> tuple[ssl.SSLContext, str]:
    """What a server for `localhost` shows, and the file of the authority that vouches for it."""
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("localhost"))
    return context, authority.file


async def test_sslmode_is_honoured(database_url: str, server: tuple[ssl.SSLContext, str], tmp_path: Path) -> None:
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
        (tmp_path / "strange").mkdir()
        strange = Authority(tmp_path / "strange").file
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
