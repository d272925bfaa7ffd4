"""Reconstructs the requests an account was sent for a message: each submit_sm with its fields and octets. Pure.

A sequence number belongs to a session and is not stored: its four octets are "??". The rule nobody may break: unless
`whole`, fields show only the last digits of a phone number, and only the length of a text.
"""

from __future__ import annotations

from typing import Any

from heliograph.suppliers.contract import RebuiltRequest, Submission
from heliograph.suppliers.smpp.attempt import Attempt
from heliograph.suppliers.smpp.codec.pdu import PduError, SubmitSm, Tag
from heliograph.suppliers.smpp.codec.wire import HEADER_LENGTH
from heliograph.suppliers.smpp.settings import SmppSettings
from heliograph.suppliers.smpp.submits import UDHI, Builder
from heliograph.suppliers.smpp.watching import address, plain

#: TLVs with nothing of a text or a customer in them, with their names in SMPP 3.4 §5.3.2.
_TLVS = {
    Tag.USER_MESSAGE_REFERENCE: "user_message_reference",
    Tag.SAR_MSG_REF_NUM: "sar_msg_ref_num",
    Tag.SAR_TOTAL_SEGMENTS: "sar_total_segments",
    Tag.SAR_SEGMENT_SEQNUM: "sar_segment_seqnum",
}


def submits(settings: SmppSettings, submission: Submission) -> list[RebuiltRequest]:
    """The PDUs of one attempt, in order; none if it cannot be encoded, since nothing was sent then."""
    attempt = Attempt(submission)
    try:
        attempt.load(Builder(settings).build(submission))
        return [
            RebuiltRequest(number, attempt.total, fields(pdu), fields(pdu, whole=True), _octets(pdu.encode()))
            for number, pdu in zip(attempt.numbers, attempt.pdus, strict=True)
        ]
    except PduError:
        return []


def fields(pdu: SubmitSm, *, whole: bool = False) -> dict[str, Any]:
    """Its fields in wire order, without empty ones. `whole`: with phone numbers, the text's octets, and the TLVs that
    an operator added."""
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
    """In hex, except for the last field of the header."""
    known = HEADER_LENGTH - 4
    return " ".join((written[:known].hex(" "), "?? ?? ?? ??", written[HEADER_LENGTH:].hex(" ")))
