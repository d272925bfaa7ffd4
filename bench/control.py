"""Control protocol for reading a simulator's counters: a line with a word, answered by a line of JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec


class Control:
    """A connection to a simulator's control port."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._turn = asyncio.Lock()

    @classmethod
    async def connect(cls, port: int, *, within: float = 10.0) -> Control:
        """Connect, trying until it listens. TimeoutError after `within` seconds."""
        async with asyncio.timeout(within):
            while True:
                try:
                    return cls(*await asyncio.open_connection("127.0.0.1", port))
                except OSError:
                    await asyncio.sleep(0.02)

    async def ask(self, word: str) -> Any:
        """The answer to one word. ConnectionError if the simulator has ended."""
        async with self._turn:
            self._writer.write(word.encode() + b"\n")
            line = await self._reader.readline()
        if not line:
            raise ConnectionError(f"the simulator ended before it answered {word!r}")
        return msgspec.json.decode(line)

    def close(self) -> None:
        self._writer.close()


async def listen(port: int, answers: Mapping[str, Callable[[], Any]]) -> asyncio.Server:
    """Answer these words on a port of loopback."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(msgspec.json.encode(answers[line.decode().strip()]()) + b"\n")
        writer.close()

    return await asyncio.start_server(serve, "127.0.0.1", port)
