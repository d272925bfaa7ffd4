"""An SMSC that speaks SMPP 3.4: for `heliograph up`, `heliograph simulate smsc`, tests and benchmarks.

It takes submits, answers them and sends receipts, as well or as badly as `SmscOptions` says. It keeps what it could
not deliver: a receipt that is not answered with 0, or whose connection is lost, is sent again on the next session of
the same system_id, as real SMSCs do. The rule nobody may break: it is never the bottleneck. There is no task and no
timer per message: a chunk of submits is read in one go, and its responses and receipts leave in one write.

    Smsc ── SmscState (shared by sessions) ── SmscAccount (a system_id: what waits for it) ── Session (a connection)
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from heliograph.simulators.smsc.options import SmscOptions
from heliograph.simulators.smsc.records import Counters, SubmittedMessage
from heliograph.simulators.smsc.session import PendingDelivery, Session, SmscState
from heliograph.sms.accepting import encoding
from heliograph.suppliers.smpp.codec import pdu as codec
from heliograph.suppliers.smpp.codec.wire import NO_TLVS, Command

__all__ = ["Counters", "Smsc", "SmscOptions", "SubmittedMessage", "run"]

_TICK_SECONDS = 0.25


class Smsc:
    """One simulator. It can be stopped and restarted on the same port without losing what is waiting."""

    def __init__(self, options: SmscOptions | None = None) -> None:
        #: The port it listens on; 0 before the first start.
        self.port = 0
        self._hub = SmscState(options or SmscOptions(port=0))
        self._server: asyncio.Server | None = None
        self._ticker: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen. Raises OSError if the port is in use or a file cannot be read."""
        hub, options = self._hub, self._hub.options
        context = None
        if options.tls_certificate:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(options.tls_certificate, options.tls_key or None)
        hub.records.open()
        loop = asyncio.get_running_loop()
        hub.clock.open(loop)
        self._server = await loop.create_server(
            lambda: Session(hub, loop),
            options.host,
            self.port or options.port,
            ssl=context,
            backlog=256,
            reuse_port=options.shared,
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self._ticker = loop.create_task(self._tick())

    async def stop(self) -> None:
        """Close every connection at once, as a power cut would. Messages waiting for a client are kept."""
        if self._server is None or self._ticker is None:
            return
        self._server.close()
        self._server = None
        self._ticker.cancel()
        await asyncio.gather(self._ticker, return_exceptions=True)
        self.drop()
        await self._hub.empty.wait()
        self._hub.clock.close()
        self._hub.records.close()

    def configure(self, **changes: Any) -> None:
        """Change options while it runs. Address, TLS, and what is kept, counted or logged stay fixed."""
        self._hub.configure(msgspec.structs.replace(self._hub.options, **changes))
        self._hub.flush()

    def hasten(self) -> None:
        """Do everything scheduled now: responses, receipts and redeliveries."""
        self._hub.clock.hasten()

    @property
    def options(self) -> SmscOptions:
        """The current options."""
        return self._hub.options

    @property
    def counters(self) -> Counters:
        """The counters so far; they keep counting."""
        return self._hub.records.counters

    @property
    def received(self) -> deque[SubmittedMessage]:
        """The latest submits, if `keep` is set."""
        return self._hub.records.received

    @property
    def destinations(self) -> dict[str, int]:
        """Submits by destination, one for each segment, if `count_destinations` is set."""
        return self._hub.records.destinations

    @property
    def waiting(self) -> int:
        """Receipts and inbound messages not acknowledged by a client, sent or not; delayed ones do not count."""
        return sum(len(account.ready) for account in self._hub.accounts.values()) + sum(
            len(session.pending) for session in self._hub.sessions
        )

    @property
    def bound(self) -> int:
        """Number of bound sessions."""
        return sum(session.account is not None for session in self._hub.sessions)

    def send_inbound(
        self,
        source: str,
        destination: str,
        text: str = "",
        *,
        system_id: str = "",
        body: bytes | None = None,
        data_coding: int | None = None,
        esm_class: int = 0,
        tlvs: Mapping[int, bytes] = NO_TLVS,
    ) -> int:
        """Send a message from a handset; returns the number of its parts.

        `text` is encoded and split, with an 8-bit reference; or `body` is sent unchanged, in `data_coding`. Without
        `system_id` it goes to the first one bound, or to the first in the options.
        """
        bound = (one for one, account in self._hub.accounts.items() if account.sessions)
        account = self._hub.account(system_id or next(bound, next(iter(self.options.systems))))
        bodies: tuple[bytes, ...]
        if body is not None:
            bodies = (body,)
        else:
            encoded = encoding.encode(text)
            bodies = encoded.segments
            if data_coding is None:
                data_coding = 0 if encoded.encoding == "gsm7" else 8
            if len(bodies) > 1:
                esm_class |= 0x40
                head = bytes((5, 0, 3, next(self._hub.ids) & 0xFF, len(bodies)))
                bodies = tuple(head + bytes((part,)) + one for part, one in enumerate(bodies, 1))
        for one in bodies:
            pdu = codec.DeliverSm(
                source_addr_ton=1,
                source_addr_npi=1,
                source_addr=source.lstrip("+"),
                dest_addr_ton=1,
                dest_addr_npi=1,
                destination_addr=destination.lstrip("+"),
                esm_class=esm_class,
                data_coding=data_coding or 0,
                short_message=one,
                tlvs=tlvs,
            )
            account.ready.append(PendingDelivery(Command.DELIVER_SM, pdu.encode()[16:], True))
        self._hub.flush()
        return len(bodies)

    def send_raw(self, data: bytes) -> None:
        """Write raw bytes to every connection."""
        for session in list(self._hub.sessions):
            session.transport.write(data)

    def unbind(self) -> None:
        """Send unbind to every client. A session closes once its client has answered."""
        for session in list(self._hub.sessions):
            session.unbind()
            session.flush()

    def drop(self) -> None:
        """Cut every connection."""
        for session in list(self._hub.sessions):
            session.transport.abort()

    async def _tick(self) -> None:
        """Handle timeouts, a few times a second."""
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            now = asyncio.get_running_loop().time()
            for session in list(self._hub.sessions):
                session.tick(now)
            self._hub.flush()


async def run(options: SmscOptions, *, ready: Callable[[Smsc], None] | None = None) -> None:
    """Run a simulator until cancelled; `ready` is called once it listens."""
    smsc = Smsc(options)
    await smsc.start()
    try:
        if ready is not None:
            ready(smsc)
        await asyncio.Event().wait()
    finally:
        await smsc.stop()
