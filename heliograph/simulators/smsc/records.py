"""What the SMSC simulator remembers: counters, and, if the options ask for it, the submits themselves.

The ledger has one line for each submit read, including refused ones, so that another process can look for duplicates
after a crash: time, source, destination, user_message_reference, digest of the user data, message id, status and
system_id, separated by tabs. The rule nobody may break: it contains no message text.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import Mapping

import msgspec

from heliograph.simulators.ledger import Ledger
from heliograph.simulators.smsc.options import SmscOptions
from heliograph.simulators.smsc.wire import Submit
from heliograph.suppliers.smpp.codec import pdu as codec
from heliograph.suppliers.smpp.codec import texts
from heliograph.suppliers.smpp.codec.wire import NO_TLVS, PduError

_LEDGER_SECONDS = 0.05


class Counters(msgspec.Struct):
    """Counters since the simulator was created."""

    connections: int = 0
    binds: int = 0
    binds_refused: int = 0
    submits: int = 0
    accepted: int = 0
    refused: int = 0
    throttled: int = 0
    swallowed: int = 0
    receipts_sent: int = 0
    receipts_acked: int = 0
    inbound_sent: int = 0
    inbound_acked: int = 0
    #: Receipts and inbound messages that had to be sent again.
    redelivered: int = 0
    #: Receipts and inbound messages that the client rejected permanently (0x66).
    discarded: int = 0
    enquire_links: int = 0
    nacks: int = 0


class SubmittedMessage(msgspec.Struct, frozen=True):
    """A submit as kept for inspection."""

    #: Unix time.
    at: float
    system_id: str
    message_id: str
    #: The command_status it was or would have been answered with.
    status: int
    source: str
    destination: str
    esm_class: int
    data_coding: int
    #: User data, including its header.
    body: bytes
    reference: int | None
    part: int
    parts: int
    tlvs: Mapping[int, bytes]
    pdu: codec.Pdu

    @property
    def text(self) -> str | None:
        """The text a handset would show for this part."""
        body = self.body[self.body[0] + 1 :] if self.esm_class & 0x40 else self.body
        return texts.decode(body, self.data_coding)


class Records:
    """The submits that are kept, counted or written to the ledger."""

    def __init__(self, options: SmscOptions) -> None:
        self.counters = Counters()
        self.received: deque[SubmittedMessage] = deque(maxlen=options.keep)
        self.destinations: dict[str, int] = {}
        #: Whether `add` does anything.
        self.wanted = bool(options.keep or options.count_destinations or options.ledger)
        self._options = options
        self._ledger: Ledger | None = None
        self._lines: list[str] = []

    def open(self) -> None:
        """Open the ledger. Raises OSError if it cannot be written."""
        if self._options.ledger:
            self._ledger = Ledger(self._options.ledger)

    def close(self) -> None:
        """Write the pending lines and close the ledger. Raises OSError if some could not be written."""
        self._write()
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            ledger.close()

    def add(self, system_id: str, frame: bytes, submit: Submit, status: int, message_id: str) -> None:
        """Remember a submit. `frame` is its entire PDU."""
        source = submit.source[2:-1].decode("latin-1")
        destination = submit.digits.decode("latin-1")
        if self._options.count_destinations:
            self.destinations[destination] = self.destinations.get(destination, 0) + 1
        if self._ledger is not None:
            digest = hashlib.blake2b(submit.body, digest_size=8).hexdigest()
            reference = "" if submit.reference is None else str(submit.reference)
            line = (f"{time.time():.3f}", source, destination, reference, digest, message_id, f"{status:#x}", system_id)
            self._lines.append("\t".join(one.replace("\t", " ").replace("\n", " ") for one in line) + "\n")
            if len(self._lines) == 1:
                asyncio.get_running_loop().call_later(_LEDGER_SECONDS, self._write)
        if self._options.keep:
            try:
                pdu = codec.decode(frame)
            except PduError:
                pdu = codec.SubmitSm()
            self.received.append(
                SubmittedMessage(
                    at=time.time(),
                    system_id=system_id,
                    message_id=message_id,
                    status=status,
                    source=source,
                    destination=destination,
                    esm_class=submit.esm_class,
                    data_coding=submit.data_coding,
                    body=submit.body,
                    reference=submit.reference,
                    part=submit.part,
                    parts=submit.parts,
                    tlvs=getattr(pdu, "tlvs", NO_TLVS),
                    pdu=pdu,
                )
            )

    def _write(self) -> None:
        if self._lines and self._ledger is not None:
            self._ledger.write(self._lines)
        self._lines.clear()
