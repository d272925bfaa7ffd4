"""Keeps the last PDUs of an account while an operator watches it, with the fields that may be shown.

The rule nobody may break: only the fields listed here are shown. A number is cut to its last four digits, a text is
reduced to its length and data_coding, and a password is never read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from heliograph.base import phones
from heliograph.base.database import clock
from heliograph.suppliers.contract import LAST, Exchange, WireActivity
from heliograph.suppliers.smpp.codec import pdu as p
from heliograph.suppliers.smpp.codec.pdu import Pdu, Tag
from heliograph.suppliers.smpp.codec.statuses import name_of
from heliograph.suppliers.smpp.session import Session

#: Maximum length of the texts that are shown unchanged: ids of messages, names of accounts and senders (SMPP 3.4 §5.2).
MOST = 65
#: An address with this many digits or more is a number, and masked; shorter ones are short codes.
NUMBER = 5
#: TLVs whose value is shown; others are shown by tag only.
_TLVS = {
    Tag.RECEIPTED_MESSAGE_ID: "receipted_message_id",
    Tag.MESSAGE_STATE: "message_state",
    Tag.NETWORK_ERROR_CODE: "network_error_code",
    Tag.SAR_MSG_REF_NUM: "sar_msg_ref_num",
    Tag.SAR_TOTAL_SEGMENTS: "sar_total_segments",
    Tag.SAR_SEGMENT_SEQNUM: "sar_segment_seqnum",
}


class PduRecorder:
    """Called with each PDU of an account's sessions; keeps the last ones until they are taken."""

    def __init__(self) -> None:
        self._last: deque[tuple[datetime, Pdu, bool]] = deque(maxlen=LAST)

    def __call__(self, pdu: Pdu, is_sent: bool) -> None:
        self._last.append((clock.now(), pdu, is_sent))

    def take(self) -> list[Exchange]:
        """Exchanges since the last call, oldest first, at most LAST."""
        taken = list(self._last)
        self._last.clear()
        return [
            Exchange(
                at=at,
                is_sent=is_sent,
                command=_COMMANDS.get(pdu.command, f"0x{pdu.command:08X}"),
                sequence=pdu.sequence,
                status=f"0x{pdu.status:08X} {name_of(pdu.status)}" if pdu.status else "",
                fields=masked(pdu),
            )
            for at, pdu, is_sent in taken
        ]


class SessionActivity:
    """When the last PDU of each connection was first seen. Sessions record no time for it, so it costs them nothing."""

    def __init__(self) -> None:
        self._known: dict[Session, tuple[bytes, datetime | None, bytes, datetime | None]] = {}

    def look(self, sessions: Iterable[Iterable[Session]]) -> list[WireActivity]:
        """The wires of these sessions; the two connections of a pair make one."""
        now, known = clock.now(), self._known
        self._known = {}
        wires = []
        for connections in sessions:
            sent: list[tuple[datetime, str]] = []
            received: list[tuple[datetime, str]] = []
            for one in connections:
                last = known.get(one, (b"", None, b"", None))
                sent_at = last[1] if one.sent == last[0] else now
                received_at = last[3] if one.received == last[2] else now
                self._known[one] = (one.sent, sent_at, one.received, received_at)
                if sent_at is not None:
                    sent.append((sent_at, _command(one.sent)))
                if received_at is not None:
                    received.append((received_at, _command(one.received)))
            out, back = max(sent, default=(None, "")), max(received, default=(None, ""))
            waiting = sum(one.pending for one in connections)
            wires.append(WireActivity(waiting, out[1], out[0], back[1], back[0]))
        return wires


def _command(header: bytes) -> str:
    command = int.from_bytes(header[4:8], "big")
    return _COMMANDS.get(command, f"0x{command:08X}")


def masked(pdu: Pdu) -> dict[str, Any]:
    """The fields of a PDU that may be shown, in order, without empty ones."""
    found: dict[str, Any] = {}
    if isinstance(pdu, p.Bind | p.BindResponse):
        found["system_id"] = plain(pdu.system_id or "")
    elif isinstance(pdu, p.MessageResponse):
        found["message_id"] = plain(pdu.message_id or "")
    elif isinstance(pdu, p.SubmitSm | p.DeliverSm | p.DataSm):
        found |= {
            "source_addr": address(pdu.source_addr),
            "destination_addr": address(pdu.destination_addr),
            "esm_class": f"0x{pdu.esm_class:02X}",
            "registered_delivery": f"0x{pdu.registered_delivery:02X}",
            "data_coding": f"0x{pdu.data_coding:02X}",
            "octets": len(pdu.payload),
        }
    tlvs = getattr(pdu, "tlvs", {})
    found |= {name: _value(tag, tlvs[tag]) for tag, name in _TLVS.items() if tag in tlvs}
    found["other_tlvs"] = " ".join(f"0x{tag:04X}" for tag in tlvs if tag not in _TLVS)
    return {name: value for name, value in found.items() if value != ""}


def address(text: str) -> str:
    """A number as its last four digits; a short code or name unchanged."""
    digits = "".join(one for one in text if one.isdigit())
    return phones.masked(digits) if len(digits) >= NUMBER else plain(text)


def plain(text: str) -> str:
    """The peer's text, made printable and cut to MOST characters."""
    return "".join(one if one.isprintable() else "·" for one in text[:MOST])


def _value(tag: int, value: bytes) -> str:
    if tag == Tag.RECEIPTED_MESSAGE_ID:
        return plain(value.rstrip(b"\0").decode("latin-1"))
    # A number has at most four octets (§5.3.2); a longer value is not one, and not shown.
    return f"0x{value.hex().upper()}" if len(value) <= 4 else f"({len(value)})"


_REQUESTS = {value: name.lower() for name, value in vars(p.Command).items() if not name.startswith("_")}
_COMMANDS = {value | p.RESPONSE: f"{name}_resp" for value, name in _REQUESTS.items()} | _REQUESTS
