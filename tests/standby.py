"""A streaming standby of an embedded server, in a directory for one test."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import urllib.parse
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg

from heliograph.base.embedded.install import account_for, install_for
from heliograph.base.embedded.server import Embedded
from tests.embedded import until
from tests.ports import held_port

#: What a primary needs in addition to the test settings.
PRIMARY = {"wal_level": "replica", "max_wal_senders": "4", "synchronous_commit": "on"}


class Standby:
    """A running standby. `url`: the application's; `administrator`: the superuser's."""

    def __init__(self, url: str, administrator: str, command: list[str], spawn: dict[str, Any], log: Path) -> None:
        self.url, self.administrator = url, administrator
        self._command, self._spawn, self._log = command, spawn, log

    async def start(self) -> None:
        """Start it, and wait until it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, **self._spawn)
        answers = False
        while not answers:
            assert self._process.poll() is None, self._log.read_text()
            with contextlib.suppress(OSError, asyncpg.PostgresError):
                answers = bool(await self.ask("SELECT pg_is_in_recovery()"))
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        """Stop it at once."""
        self._process.send_signal(3)
        await until(lambda: self._process.poll() is not None)

    async def ask(self, query: str) -> Any:
        """Query one value, as the superuser."""
        conn = await asyncpg.connect(self.administrator)
        try:
            return await conn.fetchval(query)
        finally:
            await conn.close()


@contextlib.asynccontextmanager
async def following(server: Embedded, home: Path) -> AsyncIterator[Standby]:
    """A standby below `home` (a directory that every account may enter) of a running server with PRIMARY."""
    primary = urllib.parse.urlsplit(server.superuser_url)
    at = dict(urllib.parse.parse_qsl(primary.query))
    source = Path(at["host"]).parent
    home.mkdir(mode=0o711)
    account, data = account_for(home, source / "data"), home / "data"
    account.own(home)
    programs = install_for(home, account).binaries
    copied = subprocess.run(
        [
            *(programs / "pg_basebackup", "-D", data, "-R", "-X", "stream", "-c", "fast", "--no-sync"),
            *("-h", at["host"], "-p", at["port"], "-U", "postgres"),
        ],
        env={"PGPASSWORD": primary.password or ""},
        capture_output=True,
        text=True,
        cwd=home,
        **account.spawn(),
    )
    assert copied.returncode == 0, copied.stderr
    (home / "heliograph.conf").write_text((source / "heliograph.conf").read_text())
    with held_port() as port:
        changed = {"port": port, "unix_socket_directories": home, "logging_collector": "off", "hot_standby": "on"}
        command = [str(programs / "postgres"), "-D", str(data)]
        for name, value in changed.items():
            command += ["-c", f"{name}={value}"]
        parts = urllib.parse.urlsplit(server.url)
        url = parts._replace(netloc=f"{parts.username}:{parts.password}@127.0.0.1:{port}").geturl()
        query = urllib.parse.urlencode({"host": str(home), "port": port})
        administrator = f"postgresql://postgres:{primary.password}@/heliograph?{query}"
        spawn: dict[str, Any] = {"stdin": subprocess.DEVNULL, "cwd": "/", **account.spawn()}
        standby = Standby(url, administrator, command, spawn, home / "standby.log")
        await standby.start()
        try:
            yield standby
        finally:
            await standby.stop()
