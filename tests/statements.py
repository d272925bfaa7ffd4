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

#: Statements in which a process records many requests at once, some time after it responded to them.
NOTED_LATER = frozenset({keyring.TOUCH, recording.COUNT, recording.STORE})


class Statement:
    """An executed statement. `values`: the message that bound them, as sent."""

    def __init__(self, text: str, values: bytes) -> None:
        self.text, self.values = text, values
        self.rows = 0

    def names(self, id: UUID) -> bool:
        """Whether one of the values is this id, or a list containing it."""
        text = str(id).encode()
        return id.bytes in self.values or len(text).to_bytes(4) + text in self.values


class StatementRecorder:
    """All statements sent over connections to one address; made by `recording_statements`."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._statements: list[Statement] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self) -> list[Statement]:
        """The statements since the last call."""
        found, self._statements = self._statements, []
        return found

    def lookups(self, id: UUID, *own: UUID) -> list[tuple[str, int]]:
        """The statements since `take` that looked for an id, with their rows. `own`: the organizations' ids; each
        statement must contain one of them. NOTED_LATER are not counted as look-ups."""
        found = [one for one in self.take() if one.text not in NOTED_LATER and one.names(id)]
        of_no_organization = [one.text for one in found if not any(map(one.names, own))]
        assert of_no_organization == [], of_no_organization
        return [(one.text, one.rows) for one in found]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(self._host, self._port)
        begun = await _begun(reader, server_reader, writer, server_writer)
        statements: dict[bytes, str] = {}
        open: deque[Statement] = deque()

        def ask(kind: bytes, body: bytes) -> None:
            if kind == b"P":
                name, text, _ = body.split(b"\0", 2)
                statements[name] = text.decode()
            elif kind == b"B":
                _, name, values = body.split(b"\0", 2)
                open.append(Statement(statements[name], values))
            elif kind == b"Q":
                open.append(Statement(body.rstrip(b"\0").decode(), b""))

        def answer(kind: bytes, body: bytes) -> None:
            if kind == b"D" and open:
                open[0].rows += 1
            elif (kind in (b"C", b"s", b"I") and open) or kind == b"Z":
                self._statements += [open.popleft()] if kind != b"Z" else open
                if kind == b"Z":
                    open.clear()

        if begun:
            for source, target, on_message in ((reader, server_writer, ask), (server_reader, writer, answer)):
                task = asyncio.create_task(_relay(source, target, on_message))
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
    """The first message of a session has no type; False: it was something else, or nothing."""
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


async def _relay(
    source: asyncio.StreamReader, target: asyncio.StreamWriter, on_message: Callable[[bytes, bytes], None]
) -> None:
    try:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while head := await source.readexactly(5):
                body = await source.readexactly(int.from_bytes(head[1:]) - 4)
                on_message(head[:1], body)
                if target.is_closing():
                    break
                target.write(head + body)
                await target.drain()
    finally:
        target.close()


@contextlib.asynccontextmanager
async def recording_statements(url: str) -> AsyncIterator[tuple[StatementRecorder, str]]:
    """Statements sent to the server of `url`, and a URL that leads through the recorder, without TLS."""
    parts = urllib.parse.urlsplit(url)
    made = StatementRecorder(parts.hostname or "127.0.0.1", parts.port or 5432)
    server = await asyncio.start_server(made._connected, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    credentials = parts.netloc.rpartition("@")[0]
    try:
        yield made, parts._replace(netloc=f"{credentials}@127.0.0.1:{port}").geturl()
    finally:
        server.close()
        await made._end()
