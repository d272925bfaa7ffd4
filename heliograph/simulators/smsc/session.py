"""The connections of the SMSC simulator, and the accounts they are bound to.

An account is a system_id: waiting messages go to whichever of its sessions has room. The rule nobody may break: a
receipt is discarded only when a client answered it with 0 (or rejected it permanently); however else a session ends,
its unanswered receipts go back to the front of the queue.

It has over 400 lines because the sessions of an account share its queue.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from typing import Any

import msgspec

from heliograph.simulators.clock import VirtualClock
from heliograph.simulators.smsc.options import SmscOptions, checked, fates
from heliograph.simulators.smsc.records import Records
from heliograph.simulators.smsc.wire import ReceiptWriter, Submit, read_submit
from heliograph.suppliers.smpp.codec import pdu as codec
from heliograph.suppliers.smpp.codec.wire import HEADER, MAX_LENGTH, RESPONSE, Command, PduError

_SUBMIT_RESP = Command.SUBMIT_SM | RESPONSE
_RECEIPT_RESPONSES = frozenset({Command.DELIVER_SM | RESPONSE, Command.DATA_SM | RESPONSE})
_BINDS = frozenset({Command.BIND_RECEIVER, Command.BIND_TRANSMITTER, Command.BIND_TRANSCEIVER})
_SESSION_INIT_SECONDS = 30.0


class SmscState:
    """State shared by all sessions."""

    def __init__(self, options: SmscOptions) -> None:
        self.records = Records(options)
        self.accounts: dict[str, SmscAccount] = {}
        self.sessions: set[Session] = set()
        self.clock = VirtualClock(self.flush)
        #: Set while no connection is open.
        self.empty = asyncio.Event()
        self.empty.set()
        # A restarted simulator does not repeat ids of the previous one.
        self.ids = itertools.count(int(time.time()) * 100_000)
        self.configure(options)

    def configure(self, options: SmscOptions) -> None:
        self.options = checked(options)
        self.fate = fates(options)
        self.writer = ReceiptWriter(options)

    def account(self, system_id: str) -> SmscAccount:
        account = self.accounts.get(system_id)
        if account is None:
            account = self.accounts[system_id] = SmscAccount(self, system_id)
        return account

    def flush(self) -> None:
        """Send everything waiting that has somewhere to go."""
        for account in self.accounts.values():
            account.pump()
            account.flush()


class PendingDelivery(msgspec.Struct, gc=False):
    """A receipt or inbound message on its way to a client."""

    command: int
    body: bytes
    inbound: bool = False
    #: The preferred session; any other will do.
    session: Any = None
    sent_at: float = 0.0
    again: bool = False


class SmscAccount:
    """A system_id: its sessions, and the parcels waiting for one of them."""

    def __init__(self, hub: SmscState, system_id: str) -> None:
        self.hub = hub
        self.system_id = system_id
        self.sessions: list[Session] = []
        self.ready: deque[PendingDelivery] = deque()
        self._tokens = 0.0
        self._filled_at = 0.0

    def within_throughput(self, rate: float, now: float) -> bool:
        """Take one submit from a token bucket of this rate, which holds one second's worth."""
        self._tokens = min(max(rate, 1.0), self._tokens + (now - self._filled_at) * rate)
        self._filled_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def pump(self) -> None:
        """Hand waiting parcels to sessions, as far as their windows allow. `flush` puts them on the wire."""
        ready = self.ready
        if not ready or not self.sessions:
            return
        options = self.hub.options
        window = options.window or 1 << 30
        turning = options.other_bind and len(self.sessions) > 1
        counters = self.hub.records.counters
        now = self.sessions[0].loop.time()
        while ready:
            session: Session | None = ready[0].session
            if session is None or turning or not session.takes(window):
                session = next(
                    (one for one in self.sessions if one.takes(window) and not (turning and one is session)), session
                )
                if session is None or not session.takes(window):
                    return
            parcel = ready.popleft()
            parcel.sent_at = now
            if parcel.inbound:
                counters.inbound_sent += 1
            else:
                counters.receipts_sent += 1
            if parcel.again:
                counters.redelivered += 1
            session.out.append(HEADER.pack(16 + len(parcel.body), parcel.command, 0, session.number(parcel)))
            session.out.append(parcel.body)

    def flush(self) -> None:
        for session in self.sessions:
            session.flush()


class Session(asyncio.Protocol):
    """One connection."""

    transport: asyncio.Transport

    def __init__(self, hub: SmscState, loop: asyncio.AbstractEventLoop) -> None:
        self.hub = hub
        self.loop = loop
        self.account: SmscAccount | None = None
        self.submits = self.receives = False
        self.pending: dict[int, PendingDelivery] = {}
        self.out: list[bytes] = []
        self._rest = b""
        self._sequence = 0
        self._count = 0
        self._paused = self._closing = False
        self._since = self._heard = self._asked = loop.time()

    # -- asyncio -------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.hub.records.counters.connections += 1
        self.hub.sessions.add(self)
        self.hub.empty.clear()

    def connection_lost(self, error: Exception | None) -> None:
        self._closing = True
        self.hub.sessions.discard(self)
        if not self.hub.sessions:
            self.hub.empty.set()
        account = self.account
        if account is None:
            return
        account.sessions.remove(self)
        for parcel in self.pending.values():
            parcel.again = True
        account.ready.extendleft(reversed(self.pending.values()))
        self.pending.clear()
        account.pump()
        account.flush()

    def pause_writing(self) -> None:
        # A client that does not read may not keep writing either: this bounds its memory.
        self._paused = True
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self._paused = False
        if not self._closing:
            self.transport.resume_reading()
            if self.account is not None:
                self.account.pump()
            self.flush()

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
            self._rest = b""
        now = self._heard = self.loop.time()
        unpack = HEADER.unpack_from
        at, size = 0, len(data)
        while size - at >= 16 and not self._closing:
            length, command, status, sequence = unpack(data, at)
            if not 16 <= length <= MAX_LENGTH:
                self._nack(0x02, 0)
                self.close()
                break
            end = at + length
            if end > size:
                break
            if command == Command.SUBMIT_SM:
                self._submit(data, at, end, sequence, now)
            elif command in _RECEIPT_RESPONSES:
                self._acknowledged(status, sequence)
            else:
                self._other(data[at:end], command, status, sequence)
            at = end
        if at < size and not self._closing:
            self._rest = data[at:]
        if self.account is not None:
            self.account.pump()
            self.account.flush()
        self.flush()

    # -- sending -------------------------------------------------------------------------------------------------------

    def takes(self, window: int) -> bool:
        """Whether a receipt can be sent here now."""
        return self.receives and not self._closing and not self._paused and len(self.pending) < window

    def number(self, parcel: PendingDelivery | None = None) -> int:
        """The next sequence number, under which `parcel` awaits its response."""
        self._sequence = self._sequence % 0x7FFFFFFF + 1
        if parcel is not None:
            self.pending[self._sequence] = parcel
        return self._sequence

    def flush(self) -> None:
        if self.out:
            if not self.transport.is_closing():
                self.transport.write(b"".join(self.out))
            self.out.clear()

    def close(self) -> None:
        self.flush()
        self._closing = True
        self.transport.close()

    def unbind(self) -> None:
        self.out.append(HEADER.pack(16, Command.UNBIND, 0, self.number()))

    def tick(self, now: float) -> None:
        """Close if never bound, send enquire_link if silent, and resend unanswered parcels."""
        options = self.hub.options
        if self.account is None:
            if now - self._since > _SESSION_INIT_SECONDS:
                self.close()
            return
        if options.enquire and now - max(self._heard, self._asked) > options.enquire:
            self._asked = now
            self.out.append(HEADER.pack(16, Command.ENQUIRE_LINK, 0, self.number()))
        late = []
        for sequence, parcel in self.pending.items():  # in sending order
            if now - parcel.sent_at < options.redeliver_after:
                break
            late.append(sequence)
        for sequence in late:
            self._again(self.pending.pop(sequence))

    # -- receiving -----------------------------------------------------------------------------------------------------

    def _submit(self, data: bytes, start: int, end: int, sequence: int, now: float) -> None:
        hub, account = self.hub, self.account
        counters, options = hub.records.counters, hub.options
        counters.submits += 1
        if options.deaf:
            return
        if account is None or not self.submits:
            self.out.append(HEADER.pack(16, _SUBMIT_RESP, 0x04, sequence))
            return
        self._count += 1
        submit = read_submit(data, start, end)
        status = submit.status
        fate = None
        if not status:
            if options.throughput and not account.within_throughput(options.throughput, now):
                status = 0x58
                counters.throttled += 1
            else:
                fate = hub.fate(submit.digits)
                status = fate.status
        if status or fate is None:
            counters.refused += 1
            if hub.records.wanted:
                hub.records.add(account.system_id, data[start:end], submit, status, "")
            self._answer(HEADER.pack(16, _SUBMIT_RESP, status, sequence), [], 0.0)
            return
        counters.accepted += 1
        answered_id, receipt_id = hub.writer.ids(next(hub.ids))
        if hub.records.wanted:
            hub.records.add(account.system_id, data[start:end], submit, 0, answered_id)

        parcels = []
        wanted = submit.registered_delivery & 3
        if (
            fate.stat
            and options.receipts
            and (wanted == 1 or (wanted == 2 and fate.stat != "DELIVRD") or (wanted == 3 and fate.stat == "DELIVRD"))
            and (submit.parts < 2 or self._reports(submit))
        ):
            command = Command.DELIVER_SM if options.by == "deliver_sm" else Command.DATA_SM
            write = hub.writer.write
            if fate.interim:
                parcels.append(
                    PendingDelivery(command, write(submit, receipt_id, "ACCEPTD", interim=True), False, self)
                )
            body = write(submit, receipt_id, fate.stat)
            parcels.append(PendingDelivery(command, body, False, self))
            if fate.twice:
                parcels.append(PendingDelivery(command, body, False, self))
        if fate.early and parcels:
            account.ready.extend(parcels)
            account.pump()
            account.flush()
            parcels = []
        dropped = fate.dropped or (options.drop_after and self._count % options.drop_after == 0)
        if dropped or not fate.answered:
            counters.swallowed += 1
            self._answer(b"", parcels, fate.wait)
        else:
            octets = answered_id.encode("latin-1") + b"\0"
            self._answer(HEADER.pack(16 + len(octets), _SUBMIT_RESP, 0, sequence) + octets, parcels, fate.wait)
        if dropped:
            self.close()
        elif self._count == options.unbind_after:
            self.unbind()

    def _reports(self, submit: Submit) -> bool:
        """Whether this segment of a long message gets a receipt of its own."""
        policy = self.hub.options.parts
        if policy == "all":
            return True
        return submit.part == (1 if policy == "first" else submit.parts)

    def _answer(self, answer: bytes, parcels: list[PendingDelivery], wait: float) -> None:
        latency = self.hub.options.latency
        if latency:
            self.hub.clock.put(latency, self._answer_now, answer, parcels, wait)
        else:
            self._answer_now(answer, parcels, wait)

    def _answer_now(self, answer: bytes, parcels: list[PendingDelivery], wait: float) -> None:
        if answer and not self._closing:
            self.out.append(answer)
        if not parcels or self.account is None:
            return
        wait += self.hub.options.receipt_delay
        if wait:
            self.hub.clock.put(wait, self.account.ready.extend, parcels)
        else:
            self.account.ready.extend(parcels)

    def _acknowledged(self, status: int, sequence: int) -> None:
        parcel = self.pending.pop(sequence, None)
        if parcel is None or self.account is None:
            return
        counters = self.hub.records.counters
        if status == 0:
            if parcel.inbound:
                counters.inbound_acked += 1
            else:
                counters.receipts_acked += 1
        elif status == 0x66:
            counters.discarded += 1
        else:
            self.hub.clock.put(self.hub.options.redeliver_after, self._again, parcel)

    def _again(self, parcel: PendingDelivery) -> None:
        if self.account is not None:
            parcel.again = True
            parcel.session = None
            self.account.ready.append(parcel)

    def _other(self, frame: bytes, command: int, status: int, sequence: int) -> None:
        counters, out = self.hub.records.counters, self.out
        if command in _BINDS:
            self._bind(frame, command, sequence)
        elif command == Command.GENERIC_NACK:
            counters.nacks += 1
            self._acknowledged(status or 0x08, sequence)
        elif command == Command.ENQUIRE_LINK:
            counters.enquire_links += 1
            if not self.hub.options.deaf:
                out.append(HEADER.pack(16, Command.ENQUIRE_LINK | RESPONSE, 0, sequence))
        elif self.hub.options.deaf:
            return
        elif command == Command.UNBIND:
            out.append(HEADER.pack(16, Command.UNBIND | RESPONSE, 0, sequence))
            self.close()
        elif command == Command.UNBIND | RESPONSE:
            self.close()
        elif not command & RESPONSE:
            self._nack(0x03, sequence)

    def _bind(self, frame: bytes, command: int, sequence: int) -> None:
        hub, options = self.hub, self.hub.options
        try:
            pdu = codec.decode(frame)
        except PduError as error:
            self._nack(error.status, sequence)
            return
        assert isinstance(pdu, codec.Bind)
        sessions = hub.account(pdu.system_id).sessions if pdu.system_id in options.systems else []
        if options.bind_status:
            status = options.bind_status
        elif self.account is not None or (options.max_binds and len(sessions) >= options.max_binds):
            status = 0x05
        elif pdu.system_id not in options.systems:
            status = 0x0F
        elif options.systems[pdu.system_id] != pdu.password:
            status = 0x0E
        else:
            status = 0
        if status:
            hub.records.counters.binds_refused += 1
            self.out.append(HEADER.pack(16, command | RESPONSE, status, sequence))
            if self.account is None:
                self.close()
            return
        hub.records.counters.binds += 1
        self.account = hub.account(pdu.system_id)
        self.submits = command != Command.BIND_RECEIVER
        self.receives = command != Command.BIND_TRANSMITTER
        body = b"heliograph-smsc\0\x02\x10\x00\x01\x34"  # sc_interface_version 3.4
        self.out.append(HEADER.pack(16 + len(body), command | RESPONSE, 0, sequence) + body)
        self.flush()  # before any waiting receipts
        self.account.sessions.append(self)

    def _nack(self, status: int, sequence: int) -> None:
        self.hub.records.counters.nacks += 1
        self.out.append(HEADER.pack(16, Command.GENERIC_NACK, status, sequence))
