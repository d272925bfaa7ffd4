"""What an account was given of a message, written again: each submit_sm with its fields and its octets. Pure.

A sequence number belongs to a session, and is kept nowhere: its four octets are "??". The rule nobody may break: fields
that are not `whole` show of a phone number its last digits, and of a text its length.
"""

from __future__ import annotations

from typing import Any

from heliograph.suppliers.contract import Rebuilt, Submission
from heliograph.suppliers.smpp.attempt import Attempt
from heliograph.suppliers.smpp.codec.pdu import PduError, SubmitSm, Tag
from heliograph.suppliers.smpp.codec.wire import HEADER_LENGTH
from heliograph.suppliers.smpp.settings import SmppSettings
from heliograph.suppliers.smpp.submits import UDHI, Builder
from heliograph.suppliers.smpp.watching import address, plain

#: TLVs that hold nothing of a text and of a customer, by their names in SMPP 3.4 §5.3.2.
_TLVS = {
    Tag.USER_MESSAGE_REFERENCE: "user_message_reference",
    Tag.SAR_MSG_REF_NUM: "sar_msg_ref_num",
    Tag.SAR_TOTAL_SEGMENTS: "sar_total_segments",
    Tag.SAR_SEGMENT_SEQNUM: "sar_segment_seqnum",
}


def submits(settings: SmppSettings, submission: Submission) -> list[Rebuilt]:
    """The PDUs of one attempt, in their order; none if it cannot be written, when nothing was sent either."""
    attempt = Attempt(submission)
    try:
        attempt.load(Builder(settings).build(submission))
        return [
            Rebuilt(number, attempt.total, fields(pdu), fields(pdu, whole=True), _octets(pdu.encode()))
            for number, pdu in zip(attempt.numbers, attempt.pdus, strict=True)
        ]
    except PduError:
        return []


def fields(pdu: SubmitSm, *, whole: bool = False) -> dict[str, Any]:
    """Its fields in their order on the wire; those that are empty are left out. `whole`: with phone numbers, with the
    text's octets, and with what an operator added."""
    shown = plain if whole else address
    data, payload = pdu.short_message, pdu.tlvs.get(Tag.MESSAGE_PAYLOAD, b"")
    header = data[: data[0] + 1] if pdu.esm_class & UDHI and data else b""
    found: dict[str, Any] = {
        "service_type": plain(pdu.service_type),
        "source_addr_ton": pdu.source_addr_ton,
        "source_addr_npi": pdu.source_addr_npi,
        "source_addr": shown(pdu.source_addr),
        "dest_addr_ton": pdu.dest_addr_ton,
        "dest_addr_npi": pdu.dest_addr_npi,
        "destination_addr": shown(pdu.destination_addr),
        "esm_class": f"0x{pdu.esm_class:02X}",
        "protocol_id": pdu.protocol_id,
        "priority_flag": pdu.priority_flag,
        "validity_period": pdu.validity_period,
        "registered_delivery": f"0x{pdu.registered_delivery:02X}",
        "data_coding": f"0x{pdu.data_coding:02X}",
        "sm_length": len(data),
        "udh": header.hex(),
        "short_message": data[len(header) :].hex() if whole else f"({len(data) - len(header)})" if data else "",
        "message_payload": payload.hex() if whole else f"({len(payload)})" if payload else "",
    }
    for tag, value in pdu.tlvs.items():
        if tag in _TLVS:
            found[_TLVS[tag]] = f"0x{value.hex().upper()}"
        elif tag != Tag.MESSAGE_PAYLOAD:
            found[f"0x{tag:04X}"] = value.hex() if whole else f"({len(value)})"
    return {name: value for name, value in found.items() if value != ""}


def _octets(written: bytes) -> str:
    """In hex, but for the last field of the header."""
    known = HEADER_LENGTH - 4
    return " ".join((written[:known].hex(" "), "?? ?? ?? ??", written[HEADER_LENGTH:].hex(" ")))
