"""A small SMSC for tests: it follows instructions, on a real socket, and records what it reads."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from heliograph.http.resolver import Lookup
from heliograph.suppliers.contract import Inbound, LostUntil, Outcome, Receipt, Submission, never_lost
from heliograph.suppliers.smpp.codec import pdu as p
from heliograph.suppliers.smpp.connector import SmppConnector
from heliograph.suppliers.smpp.settings import settings_from


class Line(asyncio.Protocol):
    """One connection of the peer."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.framer = p.Framer()
        self.bound: p.Bind | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.peer.lines.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.peer.lines.remove(self)

    def data_received(self, data: bytes) -> None:
        for frame in self.framer.feed(data):
            pdu = p.decode(frame)
            self.peer.read.append(pdu)
            self.peer.answer(self, pdu)

    def send(self, *pdus: p.Pdu) -> None:
        if not self.transport.is_closing():
            self.transport.write(b"".join(pdu.encode() for pdu in pdus))


class Peer:
    """Answers binds with `bind_status` and submits with `submit_status`; `on_submit(line, pdu)` replaces the latter."""

    def __init__(self, on_submit: Callable[[Line, p.SubmitSm], None] | None = None) -> None:
        self.bind_status = 0
        self.submit_status = 0
        self.on_submit = on_submit or self.accept
        self.silent = False
        self.read: list[p.Pdu] = []
        self.lines: list[Line] = []
        self.ids = 0
        self.binds = 0

    async def start(self, tls: ssl.SSLContext | None = None, port: int = 0) -> Peer:
        self.server = await asyncio.get_running_loop().create_server(lambda: Line(self), "127.0.0.1", port, ssl=tls)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        self.server.close()
        for line in list(self.lines):
            line.transport.abort()

    def answer(self, line: Line, pdu: p.Pdu) -> None:
        if self.silent:
            return
        if isinstance(pdu, p.Bind):
            self.binds += 1
            kind = {cls.command: cls for cls in (p.BindTransceiverResp, p.BindTransmitterResp, p.BindReceiverResp)}
            line.send(kind[pdu.command | p.RESPONSE](pdu.sequence, self.bind_status, "peer"))
            line.bound = pdu if self.bind_status == 0 else None
        elif isinstance(pdu, p.SubmitSm):
            self.on_submit(line, pdu)
        elif isinstance(pdu, p.EnquireLink):
            line.send(p.EnquireLinkResp(pdu.sequence))
        elif isinstance(pdu, p.Unbind):
            line.send(p.UnbindResp(pdu.sequence))
            line.transport.close()

    def accept(self, line: Line, pdu: p.SubmitSm) -> None:
        if self.submit_status:
            line.send(p.SubmitSmResp(pdu.sequence, self.submit_status))
            return
        self.ids += 1
        line.send(p.SubmitSmResp(pdu.sequence, 0, f"id{self.ids}"))

    def got(self, kind: type[p.Pdu]) -> list[Any]:
        return [pdu for pdu in self.read if isinstance(pdu, kind)]


class PeerAccount:
    """A connector, and everything it reported."""

    def __init__(
        self,
        port: int,
        *,
        sessions: int = 1,
        secret: str = "secret",
        late: float = 0.0,
        lost_until: LostUntil = never_lost,
        lookup: Lookup | None = None,
        **settings: Any,
    ) -> None:
        self.outcomes: list[tuple[Submission, Outcome]] = []
        self.receipts: list[Receipt] = []
        self.inbound: list[Inbound] = []
        self.batches: list[int] = []
        self.broken: Exception | None = None
        self.gate: asyncio.Event | None = None
        values = {"host": "127.0.0.1", "port": port, "system_id": "esme", "tls": False, "reconnect_seconds": 0.02}
        self.connector = SmppConnector(
            settings_from(values | settings),
            secret,
            lambda submission, outcome: self.outcomes.append((submission, outcome)),
            self.take_receipts,
            self.take_inbound,
            sessions=sessions,
            late=late,
            lost_until=lost_until,
            lookup=lookup,
        )

    async def take_receipts(self, receipts: Sequence[Receipt]) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if self.broken is not None:
            raise self.broken
        self.batches.append(len(receipts))
        self.receipts += receipts

    async def take_inbound(self, inbound: Sequence[Inbound]) -> None:
        self.inbound += inbound

    async def start(self, *, bound: int = 1) -> PeerAccount:
        await self.connector.start()
        await until(lambda: self.connector.health().sessions == bound)
        return self

    def submit(self, count: int = 1, **changed: Any) -> list[Submission]:
        made = [submission(**changed) for _ in range(count)]
        for one in made:
            self.connector.submit(one)
        return made

    async def ended(self, count: int = 1) -> list[Outcome]:
        """The outcomes, once there are this many."""
        await until(lambda: len(self.outcomes) >= count)
        return [outcome for _, outcome in self.outcomes]


def submission(**changed: Any) -> Submission:
    fields: dict[str, Any] = {
        "message_id": uuid4(),
        "attempt": 1,
        "to": "258841234567",
        "sender": "ACME",
        "text": "Hello",
        "encoding": "gsm7",
        "reference": 0x1234,
    }
    # Segments chosen by a test stand for a text that is split there.
    if "segments" in changed:
        changed["cut"] = changed.pop("segments")
    return Submission(**(fields | changed))


async def until(condition: Callable[[], Any], seconds: float = 120.0) -> None:
    """Wait for a condition; fails if it is not met in time."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not condition():
        assert loop.time() < end, "the condition did not come"
        await asyncio.sleep(0.002)
