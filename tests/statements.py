"""The statements sent to the database and the number of rows returned, read from the wire (protocol 3)."""

from __future__ import annotations

import asyncio
import contextlib
import urllib.parse
from collections import deque
from collections.abc import AsyncIterator, Callable
from uuid import UUID

from heliograph.accounts.api_keys import keyring
from heliograph.requests import recording
from tests.wire import SSL_REQUEST

#: What a process writes down about many requests at once, some time after it answered them, whoever asked.
NOTED_LATER = frozenset({keyring.TOUCH, recording.COUNT, recording.STORE})


class Asked:
    """A statement that was executed. `values`: the message that bound them, as it went over the wire."""

    def __init__(self, statement: str, values: bytes) -> None:
        self.statement, self.values = statement, values
        self.rows = 0

    def names(self, id: UUID) -> bool:
        """Whether one of the values is this id, or a list with it."""
        text = str(id).encode()
        return id.bytes in self.values or len(text).to_bytes(4) + text in self.values


class Overheard:
    """All that was asked over connections to one address; made by `overheard`."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._asked: list[Asked] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def taken(self) -> list[Asked]:
        """What was asked since this was last called."""
        found, self._asked = self._asked, []
        return found

    def looked_up(self, id: UUID, *own: UUID) -> list[tuple[str, int]]:
        """The statements since `taken` that looked for an id, with the rows that they returned. `own`: who looks for
        it; each statement names one of them. What is NOTED_LATER is no look-up."""
        found = [one for one in self.taken() if one.statement not in NOTED_LATER and one.names(id)]
        of_nobody = [one.statement for one in found if not any(map(one.names, own))]
        assert of_nobody == [], of_nobody
        return [(one.statement, one.rows) for one in found]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(self._host, self._port)
        begun = await _begun(reader, server_reader, writer, server_writer)
        statements: dict[bytes, str] = {}
        open: deque[Asked] = deque()

        def ask(kind: bytes, body: bytes) -> None:
            if kind == b"P":
                name, text, _ = body.split(b"\0", 2)
                statements[name] = text.decode()
            elif kind == b"B":
                _, name, values = body.split(b"\0", 2)
                open.append(Asked(statements[name], values))
            elif kind == b"Q":
                open.append(Asked(body.rstrip(b"\0").decode(), b""))

        def answer(kind: bytes, body: bytes) -> None:
            if kind == b"D" and open:
                open[0].rows += 1
            elif (kind in (b"C", b"s", b"I") and open) or kind == b"Z":
                self._asked += [open.popleft()] if kind != b"Z" else open
                if kind == b"Z":
                    open.clear()

        if begun:
            for source, target, heard in ((reader, server_writer, ask), (server_reader, writer, answer)):
                task = asyncio.create_task(_passed_on(source, target, heard))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _end(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _begun(
    reader: asyncio.StreamReader,
    server_reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    server_writer: asyncio.StreamWriter,
) -> bool:
    """The first message of a session names no kind; False: it was something else, or nothing."""
    try:
        first = await reader.readexactly(8)
        if first == SSL_REQUEST:
            writer.write(b"N")
            first = await reader.readexactly(8)
        server_writer.write(first + await reader.readexactly(int.from_bytes(first[:4]) - 8))
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()
        server_writer.close()
        return False
    return True


async def _passed_on(
    source: asyncio.StreamReader, target: asyncio.StreamWriter, heard: Callable[[bytes, bytes], None]
) -> None:
    try:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while head := await source.readexactly(5):
                body = await source.readexactly(int.from_bytes(head[1:]) - 4)
                heard(head[:1], body)
                if target.is_closing():
                    break
                target.write(head + body)
                await target.drain()
    finally:
        target.close()


@contextlib.asynccontextmanager
async def overheard(url: str) -> AsyncIterator[tuple[Overheard, str]]:
    """What is asked of the server of `url`, and the URL that leads through it, without TLS."""
    parts = urllib.parse.urlsplit(url)
    made = Overheard(parts.hostname or "127.0.0.1", parts.port or 5432)
    server = await asyncio.start_server(made._connected, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    credentials = parts.netloc.rpartition("@")[0]
    try:
        yield made, parts._replace(netloc=f"{credentials}@127.0.0.1:{port}").geturl()
    finally:
        server.close()
        await made._end()
