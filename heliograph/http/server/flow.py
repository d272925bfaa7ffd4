"""Flow control of a connection: each direction stops while its other end is full."""

from __future__ import annotations

import asyncio


class FlowControl:
    """Flow control of one transport."""

    __slots__ = ("_drained", "_reads", "_transport", "writes_paused")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._reads = True
        #: Whether data written now would wait for the client.
        self.writes_paused = False
        self._drained: asyncio.Future[None] | None = None

    def read(self, wanted: bool) -> None:
        """Start or stop reading."""
        if wanted != self._reads and not self._transport.is_closing():
            self._reads = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Writing can continue, or never will."""
        self.writes_paused = False
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    async def drain(self) -> None:
        """Wait until more can be written, or the connection has ended."""
        while self.writes_paused:
            if self._drained is None or self._drained.done():
                self._drained = asyncio.get_running_loop().create_future()
            await self._drained
