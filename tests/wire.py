"""A proxy to the database that can hang (stop passing bytes, without an error), refuse connections, lose the answer to
a statement, or speak TLS."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import urllib.parse
from collections.abc import AsyncIterator, Callable

from heliograph.base.database.pool import Pool, open_pool
from tests.ports import held_port

#: The first message of a client that wants TLS (protocol 3, SSLRequest).
SSL_REQUEST = (8).to_bytes(4) + (80877103).to_bytes(4)
#: How a server without TLS asks for a password (protocol 3, AuthenticationSASL), and how one with TLS does.
SASL = b"R" + (23).to_bytes(4) + (10).to_bytes(4) + b"SCRAM-SHA-256\0\0"
SASL_OVER_TLS = b"R" + (42).to_bytes(4) + (10).to_bytes(4) + b"SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0"


#: How a transaction ends, for `end_at` and `lose_answer`.
COMMIT = b"COMMIT"


class Wire:
    """Forwards connections on a port of its own to a server; made by `wire`. Nobody else has the port on any
    address."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        self._host, self._port, self._tls = host, port, tls
        self._to_server, self._to_client = asyncio.Event(), asyncio.Event()
        self._refusal = ""
        self._word = b""
        self._unanswered = b""
        self._tasks: set[asyncio.Task[None]] = set()
        self.thaw()
        self.port = 0
        #: The number of connections so far, and of encrypted ones.
        self.made = self.encrypted = 0

    def freeze(self, *, answers_only: bool = False) -> None:
        """Pass nothing on, neither bytes nor a connection's end, or only requests. New connections are accepted, as by
        a kernel, but get no response."""
        self._to_client.clear()
        if not answers_only:
            self._to_server.clear()

    def thaw(self) -> None:
        """Pass everything on, including what was held up."""
        self._to_client.set()
        self._to_server.set()

    async def refuse(self, sqlstate: str) -> None:
        """Close every connection, and answer new ones with this error; "" passes them on again."""
        self._refusal = sqlstate
        if sqlstate:
            await self._end()

    def end_at(self, word: bytes) -> None:
        """Close the next connection that sends this, before it reaches the server."""
        self._word = word

    def lose_answer(self, word: bytes) -> None:
        """Close the next connection that sends this, after it has reached the server and before the answer arrives."""
        self._unanswered = word

    async def _refused(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The message of a server that refuses a session (protocol 3, ErrorResponse)."""
        if await reader.readexactly(8) == SSL_REQUEST:
            writer.write(b"N")
            await reader.readexactly(8)
        fields = b"SFATAL\0VFATAL\0C%s\0Mno session can begin\0\0" % self._refusal.encode()
        writer.write(b"E" + (4 + len(fields)).to_bytes(4) + fields)
        writer.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.made += 1
        if self._refusal:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._refused(reader, writer)
            return
        await self._to_server.wait()
        server_reader, server_writer = await asyncio.open_connection(self._host, self._port)
        first, asked = b"", SASL_OVER_TLS if writer.get_extra_info("ssl_object") else SASL
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            first = await reader.readexactly(8)
        if first == SSL_REQUEST and self._tls is None:
            # Even if the server speaks TLS: the bytes must be legible here.
            writer.write(b"N")
            first = b""
        elif first == SSL_REQUEST:
            writer.write(b"S")
            try:
                await writer.start_tls(self._tls)
            except (ssl.SSLError, ConnectionError):  # it does not trust us
                server_writer.close()
                return
            self.encrypted += 1
            first, asked = b"", SASL_OVER_TLS
        server_writer.write(first)
        cut = asyncio.Event()
        for gate, source, target, ends, asks in (
            (self._to_server, reader, server_writer, lambda said: self._ends(said, cut), SASL),
            (self._to_client, server_reader, writer, lambda _: cut.is_set(), asked),
        ):
            task = asyncio.create_task(_pump(gate, source, target, ends, asks))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _ends(self, said: bytes, cut: asyncio.Event) -> bool:
        if self._unanswered and self._unanswered in said:
            self._unanswered = b""
            cut.set()
        found = bool(self._word) and self._word in said
        if found:
            self._word = b""
        return found

    async def _end(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _pump(
    gate: asyncio.Event,
    source: asyncio.StreamReader,
    target: asyncio.StreamWriter,
    ends: Callable[[bytes], bool],
    asks: bytes,
) -> None:
    """Until one side closes, or `ends` accepts a message; `asks`: how the server asks for a password."""
    try:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65536):
                await gate.wait()
                if ends(data) or target.is_closing():
                    break
                target.write(data.replace(SASL, asks))
                await target.drain()
            await gate.wait()  # nor that this end has closed the connection
    finally:
        target.close()


@contextlib.asynccontextmanager
async def wire(url: str, *, tls: ssl.SSLContext | None = None, direct: bool = False) -> AsyncIterator[tuple[Wire, str]]:
    """A proxy to the server of `url`, and the URL that leads through it; `tls`: it accepts encrypted connections;
    `direct`: they start with TLS, without asking first."""
    parts = urllib.parse.urlsplit(url)
    made = Wire(parts.hostname or "127.0.0.1", parts.port or 5432, None if direct else tls)
    credentials = parts.netloc.rpartition("@")[0]
    with held_port() as made.port:
        server = await asyncio.start_server(made._connected, "127.0.0.1", made.port, ssl=tls if direct else None)
        try:
            yield made, parts._replace(netloc=f"{credentials}@127.0.0.1:{made.port}").geturl()
        finally:
            server.close()
            await made._end()


@contextlib.asynccontextmanager
async def wired_pool(url: str) -> AsyncIterator[tuple[Wire, Pool]]:
    """A pool whose connections lead through a wire."""
    async with wire(url) as (line, through):
        pool = await open_pool(through, size=4)
        try:
            yield line, pool
        finally:
            pool.terminate()
