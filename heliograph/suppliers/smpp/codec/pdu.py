"""The SMPP 3.4 codec: PDUs to bytes and back, for both sides. Pure; `Framer` cuts the byte stream for it.

A PDU is a mutable struct, because a session gives it its sequence number just before it is encoded. C-octet strings
are `str` in Latin-1, which loses nothing; user data and TLV values are `bytes`. TLVs are a mapping of tag to value:
unknown and vendor tags are kept, and the first value of a repeated tag wins.

The rule nobody may break: bytes from a peer raise PduError and nothing else, and the response body to a PDU of ours is
never a reason to raise. With an error status it may be absent, a lone NUL or complete, and a refused request must end.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

from heliograph.suppliers.smpp.codec.rare import (
    AlertNotification,
    CancelSm,
    CancelSmResp,
    Outbind,
    QuerySm,
    QuerySmResp,
    ReplaceSm,
    ReplaceSmResp,
    SubmitMulti,
    SubmitMultiResp,
)
from heliograph.suppliers.smpp.codec.wire import (
    DEST,
    HEADER,
    HEADER_LENGTH,
    MAX_LENGTH,
    NO_TLVS,
    RESPONSE,
    SOURCE,
    Command,
    Framer,
    Pdu,
    PduError,
    Tag,
    U8x2,
    U8x3,
    U8x5,
    c_string,
    layout,
    read_fields,
    read_tlvs,
    write_tlvs,
)

__all__ = [
    "MAX_LENGTH", "NO_TLVS", "RESPONSE", "AlertNotification", "CancelSm", "CancelSmResp", "Command", "Framer",
    "Outbind", "Pdu", "PduError", "QuerySm", "QuerySmResp", "ReplaceSm", "ReplaceSmResp", "SubmitMulti",
    "SubmitMultiResp", "Tag", "decode",
]  # fmt: skip


class Bind(Pdu, gc=False):
    """One of the three binds (SMPP 3.4 §4.1). Its repr omits the password."""

    layout = layout("system_id:c password:c system_type:c interface_version:B addr_ton:B addr_npi:B address_range:c")

    system_id: str = ""
    password: str = ""
    system_type: str = ""
    interface_version: int = 0x34
    addr_ton: int = 0
    addr_npi: int = 0
    address_range: str = ""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(sequence={self.sequence}, system_id={self.system_id!r})"


class BindReceiver(Bind, gc=False):
    command = Command.BIND_RECEIVER


class BindTransmitter(Bind, gc=False):
    command = Command.BIND_TRANSMITTER


class BindTransceiver(Bind, gc=False):
    command = Command.BIND_TRANSCEIVER


class BindResponse(Pdu, gc=False):
    """`system_id` is None when the body is absent."""

    system_id: str | None = None
    tlvs: Mapping[int, bytes] = NO_TLVS

    def encode(self) -> bytes:
        return _encode_response(self, self.system_id)


class BindReceiverResp(BindResponse, gc=False):
    command = Command.BIND_RECEIVER | RESPONSE


class BindTransmitterResp(BindResponse, gc=False):
    command = Command.BIND_TRANSMITTER | RESPONSE


class BindTransceiverResp(BindResponse, gc=False):
    command = Command.BIND_TRANSCEIVER | RESPONSE


class Unbind(Pdu, gc=False):
    command = Command.UNBIND


class UnbindResp(Pdu, gc=False):
    command = Command.UNBIND | RESPONSE


class EnquireLink(Pdu, gc=False):
    command = Command.ENQUIRE_LINK


class EnquireLinkResp(Pdu, gc=False):
    command = Command.ENQUIRE_LINK | RESPONSE


class GenericNack(Pdu, gc=False):
    command = Command.GENERIC_NACK


class ShortMessage(Pdu, gc=False):
    """submit_sm and deliver_sm, which share a layout (SMPP 3.4 §4.4.1, §4.6.1)."""

    service_type: str = ""
    source_addr_ton: int = 0
    source_addr_npi: int = 0
    source_addr: str = ""
    dest_addr_ton: int = 0
    dest_addr_npi: int = 0
    destination_addr: str = ""
    esm_class: int = 0
    protocol_id: int = 0
    priority_flag: int = 0
    schedule_delivery_time: str = ""
    validity_period: str = ""
    registered_delivery: int = 0
    replace_if_present_flag: int = 0
    data_coding: int = 0
    sm_default_msg_id: int = 0
    short_message: bytes = b""
    tlvs: Mapping[int, bytes] = NO_TLVS

    def encode(self) -> bytes:
        message = self.short_message
        try:
            body = b"".join(
                (
                    c_string(self.service_type),
                    U8x2.pack(self.source_addr_ton, self.source_addr_npi),
                    c_string(self.source_addr),
                    U8x2.pack(self.dest_addr_ton, self.dest_addr_npi),
                    c_string(self.destination_addr),
                    U8x3.pack(self.esm_class, self.protocol_id, self.priority_flag),
                    c_string(self.schedule_delivery_time) if self.schedule_delivery_time else b"\0",
                    c_string(self.validity_period) if self.validity_period else b"\0",
                    U8x5.pack(
                        self.registered_delivery,
                        self.replace_if_present_flag,
                        self.data_coding,
                        self.sm_default_msg_id,
                        len(message),
                    ),
                    message,
                    write_tlvs(self.tlvs) if self.tlvs else b"",
                )
            )
            return HEADER.pack(HEADER_LENGTH + len(body), self.command, self.status, self.sequence) + body
        except (struct.error, UnicodeEncodeError, ValueError) as error:
            raise PduError(f"{type(self).__name__}: {error}") from None

    @property
    def payload(self) -> bytes:
        """User data with its header, from whichever of the two fields contains it."""
        return self.short_message or self.tlvs.get(Tag.MESSAGE_PAYLOAD, b"")


class SubmitSm(ShortMessage, gc=False):
    command = Command.SUBMIT_SM


class DeliverSm(ShortMessage, gc=False):
    command = Command.DELIVER_SM


class DataSm(Pdu, gc=False):
    """data_sm (SMPP 3.4 §4.7.1): its text is always in message_payload."""

    command = Command.DATA_SM
    layout = layout("service_type:c " + SOURCE + DEST + "esm_class:B registered_delivery:B data_coding:B tlvs:t")

    service_type: str = ""
    source_addr_ton: int = 0
    source_addr_npi: int = 0
    source_addr: str = ""
    dest_addr_ton: int = 0
    dest_addr_npi: int = 0
    destination_addr: str = ""
    esm_class: int = 0
    registered_delivery: int = 0
    data_coding: int = 0
    tlvs: Mapping[int, bytes] = NO_TLVS

    @property
    def payload(self) -> bytes:
        """User data with its header."""
        return self.tlvs.get(Tag.MESSAGE_PAYLOAD, b"")


class MessageResponse(Pdu, gc=False):
    """An answer that carries a message_id; None when the body is absent, "" when it is a lone NUL."""

    message_id: str | None = None
    tlvs: Mapping[int, bytes] = NO_TLVS

    def encode(self) -> bytes:
        return _encode_response(self, self.message_id)


class SubmitSmResp(MessageResponse, gc=False):
    command = Command.SUBMIT_SM | RESPONSE


class DeliverSmResp(MessageResponse, gc=False):
    """Its message_id must be empty (SMPP 3.4 §4.6.2): one NUL unless set otherwise."""

    command = Command.DELIVER_SM | RESPONSE

    message_id: str | None = ""


class DataSmResp(MessageResponse, gc=False):
    command = Command.DATA_SM | RESPONSE


def decode(frame: bytes) -> Pdu:
    """Decode one whole PDU from the Framer. Raises PduError, with its sequence and the status to answer with."""
    try:
        _, command, status, sequence = HEADER.unpack_from(frame)
    except struct.error:
        raise PduError("shorter than a header") from None
    decoder = _DECODERS.get(command)
    if decoder is None:
        raise PduError(f"command_id {command:#010x}", status=0x03, command=command, sequence=sequence)
    try:
        return decoder(frame, sequence, status)
    except (IndexError, ValueError, struct.error):
        raise PduError("body too short", status=0x02, command=command, sequence=sequence) from None
    except PduError as error:
        error.command, error.sequence = command, sequence
        raise


# -- helpers -----------------------------------------------------------------------------------------------------------

Decoder = Callable[[bytes, int, int], Pdu]


def _encode_response(pdu: BindResponse | MessageResponse, text: str | None) -> bytes:
    try:
        tlvs = write_tlvs(pdu.tlvs) if pdu.tlvs else b""
        body = b"" if text is None and not tlvs else c_string(text or "") + tlvs
        return HEADER.pack(HEADER_LENGTH + len(body), pdu.command, pdu.status, pdu.sequence) + body
    except (struct.error, UnicodeEncodeError, ValueError) as error:
        raise PduError(f"{type(pdu).__name__}: {error}") from None


def _read_short_message(kind: type[ShortMessage]) -> Decoder:
    lenient = kind in _FROM_SUPPLIERS

    def decode_short_message(frame: bytes, sequence: int, status: int) -> Pdu:
        index = frame.index
        end = index(0, 16)
        service_type = frame[16:end].decode("latin-1")
        source = end + 3
        end = index(0, source)
        source_addr = frame[source:end].decode("latin-1")
        dest = end + 3
        end = index(0, dest)
        destination_addr = frame[dest:end].decode("latin-1")
        at = end + 4
        end = index(0, at)
        schedule = frame[at:end].decode("latin-1") if end > at else ""
        start = end + 1
        end = index(0, start)
        validity = frame[start:end].decode("latin-1") if end > start else ""
        message = end + 6
        after = message + frame[end + 5]
        if after > len(frame):
            if not lenient:
                raise PduError("sm_length is longer than the PDU", status=0x01)
            after = len(frame)
        return kind(
            sequence,
            status,
            service_type,
            frame[source - 2],
            frame[source - 1],
            source_addr,
            frame[dest - 2],
            frame[dest - 1],
            destination_addr,
            frame[at - 3],
            frame[at - 2],
            frame[at - 1],
            schedule,
            validity,
            frame[end + 1],
            frame[end + 2],
            frame[end + 3],
            frame[end + 4],
            frame[message:after],
            NO_TLVS if after == len(frame) else read_tlvs(frame, after, lenient=lenient),
        )

    return decode_short_message


def _read_response(kind: type[MessageResponse] | type[BindResponse]) -> Decoder:
    def decode_response(frame: bytes, sequence: int, status: int) -> Pdu:
        if len(frame) == HEADER_LENGTH:
            return kind(sequence, status, None)
        end = frame.find(b"\0", HEADER_LENGTH)
        if end < 0:
            end = len(frame)
        text = frame[HEADER_LENGTH:end].decode("latin-1")
        return kind(
            sequence, status, text, NO_TLVS if end + 1 >= len(frame) else read_tlvs(frame, end + 1, lenient=True)
        )

    return decode_response


def _read_by_layout(kind: type[Pdu]) -> Decoder:
    def decode_fields(frame: bytes, sequence: int, status: int) -> Pdu:
        if status and len(frame) == HEADER_LENGTH:
            return kind(sequence, status)
        return kind(sequence, status, **read_fields(frame, kind.layout, lenient=kind in _FROM_SUPPLIERS))

    return decode_fields


def _read_header_only(kind: type[Pdu]) -> Decoder:
    def decode_header(frame: bytes, sequence: int, status: int) -> Pdu:
        return kind(sequence, status)

    return decode_header


_RESPONSES: tuple[type[BindResponse] | type[MessageResponse], ...] = (
    BindReceiverResp,
    BindTransmitterResp,
    BindTransceiverResp,
    SubmitSmResp,
    DeliverSmResp,
    DataSmResp,
)
_BY_LAYOUT: tuple[type[Pdu], ...] = (
    BindReceiver,
    BindTransmitter,
    BindTransceiver,
    DataSm,
    Outbind,
    QuerySm,
    QuerySmResp,
    ReplaceSm,
    CancelSm,
    SubmitMulti,
    SubmitMultiResp,
    AlertNotification,
)
_HEADER_ONLY: tuple[type[Pdu], ...] = (
    Unbind,
    UnbindResp,
    EnquireLink,
    EnquireLinkResp,
    GenericNack,
    ReplaceSmResp,
    CancelSmResp,
)
# A receipt or a handset's message matters more than a wrong length in it, or an unreadable TLV after it.
_FROM_SUPPLIERS = (DeliverSm, DataSm)
_DECODERS: dict[int, Decoder] = {
    **{kind.command: _read_short_message(kind) for kind in (SubmitSm, DeliverSm)},
    **{kind.command: _read_response(kind) for kind in _RESPONSES},
    **{kind.command: _read_by_layout(kind) for kind in _BY_LAYOUT},
    **{kind.command: _read_header_only(kind) for kind in _HEADER_ONLY},
}
