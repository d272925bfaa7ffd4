"""A TLS tunnel for PostgreSQL's own programs: the ones that we ship are built without TLS.

If our connection to a database is encrypted, a program is given a Unix socket in a directory that only this user can
enter. Whatever passes through it is forwarded over connections like ours: to the same host and address, with the same
TLS context, and so with its authorities, client certificate and key. No program needs the URL's files or the password
of the key.

The rule nobody may break: what we encrypt never leaves this machine unencrypted, whichever program sends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import ssl
import tempfile
import urllib.parse
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
from asyncpg.connect_utils import SSLNegotiation

from heliograph.base.database import url as urls
from heliograph.base.database.url import KeepAlive
from heliograph.base.embedded import files
from heliograph.base.embedded.install import PostgresError
from heliograph.base.network.connecting import Raw, connect, watch_over

#: A client's request for TLS, and the server's "yes" (PostgreSQL's manual, "Message Formats").
SSL_REQUEST, YES = (8).to_bytes(4) + (80877103).to_bytes(4), b"S"
#: How a server requests SCRAM authentication (AuthenticationSASL, likewise), and the method with channel binding.
AUTHENTICATION, SASL, BOUND = b"R", (10).to_bytes(4), b"SCRAM-SHA-256-PLUS\0"
#: The name of a server's socket in its directory.
SOCKET, PORT = ".s.PGSQL.5432", 5432
CHUNK = 65_536


class TlsServer(msgspec.Struct, frozen=True):
    """A server reached over TLS: its address, and whom to connect as."""

    family: int
    address: Any
    name: str
    context: ssl.SSLContext
    #: Whether the TLS handshake begins at once, without an SSLRequest.
    is_direct: bool
    user: str
    password: str
    database: str
    settings: Mapping[str, str]
    keep_alive: KeepAlive


@contextlib.asynccontextmanager
async def for_programs(url: str) -> AsyncIterator[tuple[str, str]]:
    """The URL through which PostgreSQL's programs can reach the database meanwhile, without its password, and the
    password: other users of a machine can see command lines. Raises PostgresError."""
    try:
        connection = await connect(url)
    except (OSError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise PostgresError(f"cannot connect to {urls.shown(url)}: {error}") from None
    try:
        far = _far(connection, urls.parse(url).keep_alive)
    finally:
        await connection.close(timeout=5)
    if far is None:
        yield urls.for_programs(url)
        return
    place = Path(tempfile.mkdtemp(prefix="heliograph-", dir=files.place_for_sockets()))  # 0700
    carried: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        carried.add(task)
        try:
            await _carry(far, reader, writer)
        finally:
            carried.discard(task)

    try:
        server = await asyncio.start_unix_server(accept, place / SOCKET)
        try:
            yield _local(far, place), far.password
        finally:
            server.close()
            for task in tuple(carried):
                task.cancel()
            await asyncio.gather(*carried, return_exceptions=True)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _far(connection: Raw, keep_alive: KeepAlive) -> TlsServer | None:
    """The other end of a connection; None: it is not encrypted. The password may come from a file that the URL does not
    name."""
    transport, params = connection._transport, connection._params  # type: ignore[attr-defined]
    if transport.get_extra_info("ssl_object") is None:
        return None
    return TlsServer(
        transport.get_extra_info("socket").family,
        transport.get_extra_info("peername"),
        connection._addr[0],  # type: ignore[attr-defined]
        params.ssl,
        params.ssl_negotiation is SSLNegotiation.direct,
        params.user,
        params.password or "",
        params.database,
        params.server_settings or {},
        keep_alive,
    )


def _local(far: TlsServer, place: Path) -> str:
    options = [far.settings["options"]] if "options" in far.settings else []
    for name, value in far.settings.items():
        if name != "options":
            escaped = value.replace("\\", "\\\\").replace(" ", "\\ ")
            options.append(f"-c {name}={escaped}")
    query = {"host": str(place), "port": str(PORT)} | ({"options": " ".join(options)} if options else {})
    user, database = (urllib.parse.quote(one, safe="") for one in (far.user, far.database))
    return f"postgresql://{user}@/{database}?{urllib.parse.urlencode(query, quote_via=urllib.parse.quote)}"


async def _carry(far: TlsServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Forward one connection until either end closes it. If the server cannot be reached, the program's is closed."""
    try:
        far_reader, far_writer = await _connected(far)
        try:
            ways = (_pass_on(reader, far_writer), _answer(far_reader, writer))
            tasks = [asyncio.create_task(way) for way in ways]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            far_writer.close()
    except OSError:
        pass
    finally:
        writer.close()


async def _connected(far: TlsServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop, sock = asyncio.get_running_loop(), socket.socket(far.family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        # Without a sign of life the program would wait for ever, and whoever takes backups every night with it.
        watch_over(sock, far.keep_alive)
        await loop.sock_connect(sock, far.address)
        if not far.is_direct:
            await loop.sock_sendall(sock, SSL_REQUEST)
            # One byte and no more: anything that came with it in the clear would be taken for encrypted data.
            if await loop.sock_recv(sock, 1) != YES:
                raise ConnectionError("the server does not support TLS")
        return await asyncio.open_connection(sock=sock, ssl=far.context, server_hostname=far.name)
    except BaseException:
        sock.close()
        raise


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(CHUNK):
        writer.write(chunk)
        await writer.drain()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Forward what the server sends, without its offer of channel binding: a program that sees no TLS takes the offer
    for an attack. Our own connections do without channel binding too."""
    kind = b""
    while kind != AUTHENTICATION:
        kind, length = await reader.readexactly(1), int.from_bytes(await reader.readexactly(4)) - 4
        if length > CHUNK:
            raise ConnectionError("the server does not speak PostgreSQL's protocol")
        said = await reader.readexactly(length)
        if kind == AUTHENTICATION and said.startswith(SASL):
            said = said.replace(BOUND, b"", 1)
        writer.write(kind + (4 + len(said)).to_bytes(4) + said)
        await writer.drain()
    await _pass_on(reader, writer)
