"""PgBouncer in transaction mode in front of a test server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import re
import shutil
import subprocess
import tempfile
import urllib.parse
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from tests.certificates import Authority
from tests.ports import held_port

PROGRAM = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")


def version() -> tuple[int, ...]:
    """The program's version. Skips the test if it is not installed."""
    if PROGRAM is None:
        pytest.skip("pgbouncer is not installed: on Debian, apt-get install pgbouncer")
    said = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"PgBouncer (\d+)\.(\d+)", said)
    assert found, said
    return tuple(map(int, found.groups()))


class Bouncer:
    """A running PgBouncer. `url`: the database through it."""

    def __init__(self, url: str, authority: Authority, admin: str) -> None:
        self.url, self.authority, self._admin = url, authority, admin

    async def reconnect(self) -> None:
        """Make it open new connections to the server, like RECONNECT on its console."""
        conn = await asyncpg.connect(self._admin, statement_cache_size=0)
        try:
            await conn.execute("RECONNECT")
        finally:
            await conn.close()


@contextlib.asynccontextmanager
async def bouncing(url: str, *, connections: int = 4, prepared: int = 0) -> AsyncIterator[Bouncer]:
    """`url` through PgBouncer with this many connections to the server, and TLS on the client side. `prepared`: the
    number of prepared statements it keeps, which needs 1.21."""
    known = version()
    parts = urllib.parse.urlsplit(url)
    with tempfile.TemporaryDirectory(prefix="heliograph-pgbouncer-") as name, held_port() as port:
        place = Path(name)
        authority = Authority(place)
        lines = [
            "[databases]",
            f"* = host={parts.hostname} port={parts.port}",
            "[pgbouncer]",
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =",
            f"pool_mode = transaction\nadmin_users = {parts.username}",
            f"default_pool_size = {connections}\nmax_client_conn = 500",
            f"auth_type = scram-sha-256\nauth_file = {place / 'users'}",
            f"client_tls_sslmode = allow\nclient_tls_key_file = {place / 'key.pem'}",
            f"client_tls_cert_file = {place / 'localhost.pem'}",
            f"max_prepared_statements = {prepared}" if known >= (1, 21) else "",
        ]
        (place / "bouncer.ini").write_text("\n".join(lines) + "\n")
        (place / "users").write_text(f'"{parts.username}" "{urllib.parse.unquote(parts.password or "")}"\n')
        both = Path(authority.issue("localhost")).read_text()
        (place / "key.pem").write_text(both[both.index("-----BEGIN PRIVATE KEY") :])
        through = parts._replace(netloc=f"{parts.username}:{parts.password}@localhost:{port}").geturl()
        async with _running(place, through):
            yield Bouncer(through, authority, urllib.parse.urlsplit(through)._replace(path="/pgbouncer").geturl())


@contextlib.asynccontextmanager
async def bouncing_by(settings: Path, url: str) -> AsyncIterator[str]:
    """`url` through PgBouncer with a configuration file in which only addresses are replaced."""
    known = version()
    parts = urllib.parse.urlsplit(url)
    with tempfile.TemporaryDirectory(prefix="heliograph-pgbouncer-") as name, held_port() as port:
        place = Path(name)
        replaced = {
            r"^heliograph = host=.*$": f"* = host={parts.hostname} port={parts.port}",
            r"^listen_addr = .*$": "listen_addr = 127.0.0.1",
            r"^listen_port = .*$": f"listen_port = {port}",
            r"^auth_file = .*$": f"auth_file = {place / 'users'}",
        }
        text = settings.read_text()
        for pattern, line in replaced.items():
            text, count = re.subn(pattern, line, text, flags=re.MULTILINE)
            assert count == 1, pattern
        if known < (1, 21):
            text = re.sub(r"^max_prepared_statements.*\n", "", text, flags=re.MULTILINE)
        (place / "bouncer.ini").write_text(text)
        (place / "users").write_text(f'"{parts.username}" "{urllib.parse.unquote(parts.password or "")}"\n')
        through = parts._replace(netloc=f"{parts.username}:{parts.password}@localhost:{port}").geturl()
        async with _running(place, through):
            yield through


@contextlib.asynccontextmanager
async def _running(place: Path, through: str) -> AsyncIterator[None]:
    """PgBouncer with the files in `place`, once it accepts a connection to `through`."""
    assert PROGRAM is not None
    command = [PROGRAM, str(place / "bouncer.ini")]
    if os.geteuid() == 0:  # it refuses to run as root
        command += ["--user", "nobody"]
        for path in (place, *place.iterdir()):
            os.chown(path, pwd.getpwnam("nobody").pw_uid, -1)
    with (place / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
    try:
        async with asyncio.timeout(60):
            while True:
                assert process.returncode is None, (place / "log").read_text()
                try:
                    conn = await asyncpg.connect(through, statement_cache_size=0)
                except OSError:
                    await asyncio.sleep(0.02)
                else:
                    await conn.close()
                    break
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
