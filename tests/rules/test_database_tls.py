"""TLS to the database follows libpq's `sslmode`: a certificate is verified if the mode asks for it."""

from __future__ import annotations

import socket
import ssl
import tempfile
import urllib.parse
from pathlib import Path

import pytest

from heliograph import doctor
from heliograph.base.database.pool import open_pool
from heliograph.base.database.url import UrlError, parse
from heliograph.base.embedded import copies, tunnel
from heliograph.base.embedded.install import PostgresError
from heliograph.base.network.connecting import TlsMissing, connect
from tests.certificates import Authority
from tests.processes import SECRET_KEY, Program, environment
from tests.wire import wire


@pytest.fixture
def server(tmp_path: Path) -> tuple[ssl.SSLContext, str]:
    """The certificate of a server for `localhost`, and the file of the authority that signed it."""
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
        # A name other than the certificate's: only `verify-full` refuses it.
        assert await encrypted(f"{elsewhere}?sslmode=verify-ca&sslrootcert={roots}")
        # Another authority's, or a self-signed one.
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


async def test_a_certificate_that_is_not_to_be_trusted_is_said_at_once(database_url: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    for name, days, told in (("localhost", -1, "certificate has expired"), ("db.example", 1, "Hostname mismatch")):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(authority.issue(name, days=days))
        async with wire(database_url, tls=context) as (_, elsewhere):
            named = elsewhere.replace("@127.0.0.1:", "@localhost:")
            url = f"{named}?sslmode=verify-full&sslrootcert={authority.file}"
            with pytest.raises(ssl.SSLCertVerificationError, match=told):
                await open_pool(url, size=1, wait=3600.0)
            up = ("up", "--port", "0", "--data-dir", str(tmp_path / "data"))
            for number, command in enumerate((("worker",), ("migrate",), up)):
                program = await Program.start(
                    *command,
                    log=tmp_path / f"{name}-{number}",
                    environment=environment(HELIOGRAPH_DATABASE_URL=url, HELIOGRAPH_SECRET_KEY=SECRET_KEY),
                )
                assert await program.ended() == 3
                assert f"its certificate cannot be verified: {told}" in program.err
                assert "_ssl.c" not in program.err


async def test_programs_reach_a_server_as_we_do_and_tell_nobody_how(database_url: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("localhost"))
    context.load_verify_locations(authority.file)
    context.verify_mode = ssl.CERT_REQUIRED
    key, said, answer = authority.issue("client", passphrase="x y=z&ç"), tmp_path / "said", tmp_path / "answer"
    Path(key).chmod(0o600)
    async with wire(database_url, tls=context) as (line, elsewhere):
        named = elsewhere.replace("@127.0.0.1:", "@localhost:")
        client = f"sslcert={key}&sslkey={key}&sslpassword=x%20y%3Dz%26%C3%A7&work_mem=5%20MB"
        for mode in ("prefer", "require", f"verify-full&sslrootcert={authority.file}"):
            async with tunnel.for_programs(f"{named}?sslmode={mode}&{client}") as (url, password):
                before, look = line.encrypted, rf"\! cat /proc/$PPID/cmdline > {said}"
                command = [
                    "psql",
                    f"--dbname={url}",
                    "--no-psqlrc",
                    "--no-password",
                    "--tuples-only",
                    f"--output={answer}",
                ]
                ask = "SELECT count(*), length(string_agg(n::text, '')), current_setting('work_mem')"
                await copies.run(
                    [*command, f"--command={ask} FROM generate_series(1, 1000000) n", f"--command={look}"],
                    password=password,
                )
                assert line.encrypted == before + 1, mode
                assert answer.read_text().split() == ["1000000", "|", "5888896", "|", "5MB"]
                shown = said.read_bytes()
                assert (b"--dbname=" in shown, b"sslpassword" in shown, password.encode() in shown) == (
                    True,
                    False,
                    False,
                )
                many = tmp_path / "many"
                await copies.run(
                    ["psql", f"--dbname={url}", f"--output={many}", "--command=TABLE pg_catalog.pg_proc"],
                    password=password,
                )
                assert many.stat().st_size > 500_000
                held = urllib.parse.parse_qs(urllib.parse.urlsplit(url).query)["host"][0]
                assert Path(held).stat().st_mode & 0o777 == 0o700
            assert not Path(held).exists()
        with pytest.raises(PostgresError, match="cannot connect to localhost"):
            async with tunnel.for_programs(f"{named}?sslmode=verify-full"):
                pass
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["postgresql"])
    async with wire(database_url, tls=context, direct=True) as (line, elsewhere):
        direct = f"{elsewhere}?sslmode=require&sslnegotiation=direct"
        async with tunnel.for_programs(direct) as (url, password):
            await copies.run(["psql", f"--dbname={url}", "--command=SELECT 1"], password=password)
        assert line.made == 2
    # If we use no TLS, programs connect by themselves.
    async with wire(database_url) as (_, plain), tunnel.for_programs(f"{plain}?sslmode=prefer") as (url, password):
        await copies.run(["psql", f"--dbname={url}", "--command=SELECT 1"], password=password)
        assert urllib.parse.urlsplit(url).netloc.endswith(urllib.parse.urlsplit(plain).netloc.rpartition("@")[2])


@pytest.mark.parametrize("name", ["t" * 100, "t,t"])
async def test_programs_reach_a_server_although_no_socket_fits_where_temporary_files_belong(
    database_url: str,
    server: tuple[ssl.SSLContext, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    context, _ = server
    place = tmp_path / name
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    async with (
        wire(database_url, tls=context) as (line, elsewhere),
        tunnel.for_programs(f"{elsewhere}?sslmode=require") as (url, password),
    ):
        before = line.encrypted
        await copies.run(["psql", f"--dbname={url}", "--command=SELECT 1"], password=password)
        assert line.encrypted == before + 1


@pytest.mark.parametrize(("asked", "expected"), [("", (1, 10, 10_000)), ("&keepalives_idle=7", (1, 7, 10_000))])
async def test_what_carries_a_program_finds_out_that_the_other_end_is_gone(
    database_url: str, server: tuple[ssl.SSLContext, str], asked: str, expected: tuple[int, int, int]
) -> None:
    """A backup would otherwise wait for ever for a machine that lost its power, and no other would be taken."""
    context, _ = server
    async with wire(database_url, tls=context) as (_, elsewhere):
        url = f"{elsewhere}?sslmode=require{asked}"
        conn = await connect(url)
        far = tunnel._far(conn, parse(url).keep_alive)
        await conn.close()
        assert far is not None
        _, writer = await tunnel._connected(far)
        sock = writer.get_extra_info("socket")
        try:
            found = (
                sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
                sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
                sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
            )
        finally:
            writer.close()
        assert found == expected


async def test_a_server_without_tls_is_refused_at_once_where_it_is_wanted(
    database_url: str, server: tuple[ssl.SSLContext, str]
) -> None:
    async with wire(database_url) as (_, plain):
        assert await (await connect(f"{plain}?sslmode=prefer")).fetchval("SELECT 1") == 1
        for mode in ("require", f"verify-full&sslrootcert={server[1]}"):
            with pytest.raises(TlsMissing, match=r"^it does not offer TLS, but `sslmode` requires it$"):
                await open_pool(f"{plain}?sslmode={mode}", size=1, wait=3600.0)


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
