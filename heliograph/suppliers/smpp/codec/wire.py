"""The basis of the SMPP 3.4 codec: the Framer, command ids, TLV tags, and bodies read and written field by field.

The rule nobody may break: a wrong command_length ends the stream. After it, the next PDU cannot be found.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import msgspec

HEADER_LENGTH = 16
#: A length beyond this is garbage, and after one wrong length every later one is wrong too.
MAX_LENGTH = 70_000
RESPONSE = 0x8000_0000

HEADER = struct.Struct(">IIII")
U8 = struct.Struct("B")
U8x2 = struct.Struct("BB")
U8x3 = struct.Struct("BBB")
U8x5 = struct.Struct("BBBBB")
U32 = struct.Struct(">I")
TLV = struct.Struct(">HH")

#: Address fields, which many bodies contain.
SOURCE = "source_addr_ton:B source_addr_npi:B source_addr:c "
DEST = "dest_addr_ton:B dest_addr_npi:B destination_addr:c "

NO_TLVS: Mapping[int, bytes] = MappingProxyType({})

#: Names and kinds of a body's fields.
Layout = tuple[tuple[str, str], ...]


class Command:
    """command_id of each request; a response sets bit 31 (SMPP 3.4 §5.1.2.1)."""

    GENERIC_NACK = 0x80000000
    BIND_RECEIVER = 0x00000001
    BIND_TRANSMITTER = 0x00000002
    QUERY_SM = 0x00000003
    SUBMIT_SM = 0x00000004
    DELIVER_SM = 0x00000005
    UNBIND = 0x00000006
    REPLACE_SM = 0x00000007
    CANCEL_SM = 0x00000008
    BIND_TRANSCEIVER = 0x00000009
    OUTBIND = 0x0000000B
    ENQUIRE_LINK = 0x00000015
    SUBMIT_MULTI = 0x00000021
    ALERT_NOTIFICATION = 0x00000102
    DATA_SM = 0x00000103


class Tag:
    """TLV tags that are read or written here (SMPP 3.4 §5.3.2)."""

    ADDITIONAL_STATUS_INFO_TEXT = 0x001D
    RECEIPTED_MESSAGE_ID = 0x001E
    USER_MESSAGE_REFERENCE = 0x0204
    SAR_MSG_REF_NUM = 0x020C
    SAR_TOTAL_SEGMENTS = 0x020E
    SAR_SEGMENT_SEQNUM = 0x020F
    NETWORK_ERROR_CODE = 0x0423
    MESSAGE_PAYLOAD = 0x0424
    MESSAGE_STATE = 0x0427


class PduError(Exception):
    """A PDU that cannot be read or written. `status` is the command_status to answer with."""

    def __init__(self, text: str, *, status: int = 0x02, command: int = 0, sequence: int = 0) -> None:
        super().__init__(text)
        self.status = status
        self.command = command
        self.sequence = sequence


class Framer:
    """Cuts a byte stream into whole PDUs, however the reads were split.

    A command_length below 16 or above MAX_LENGTH sets `broken` as soon as its four octets have arrived: the PDUs before
    it are still returned, nothing after it ever is.
    """

    __slots__ = ("_buffer", "broken")

    def __init__(self) -> None:
        self._buffer = b""
        self.broken: PduError | None = None

    @property
    def pending(self) -> int:
        """Octets of an incomplete PDU whose rest is still to come."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        """Add data that was read; returns the PDUs that are now complete, header included."""
        if self.broken is not None:
            return []
        if self._buffer:
            data = self._buffer + data
        frames: list[bytes] = []
        start, size = 0, len(data)
        while size - start >= 4:
            length = U32.unpack_from(data, start)[0]
            if not HEADER_LENGTH <= length <= MAX_LENGTH:
                self.broken = PduError(f"command_length 0x{length:08X}")
                self._buffer = b""
                return frames
            if size - start < length:
                break
            frames.append(bytes(data[start : start + length]))
            start += length
        self._buffer = bytes(data[start:])
        return frames


class Pdu(msgspec.Struct, gc=False):
    """The base of all PDUs. `status` is 0 in requests; `layout` describes the body (see `read_fields`)."""

    command: ClassVar[int]
    layout: ClassVar[Layout] = ()

    sequence: int = 0
    status: int = 0

    def encode(self) -> bytes:
        """The PDU as bytes. Raises PduError if a value does not fit its field."""
        try:
            body = write_fields(self, self.layout)
            return HEADER.pack(HEADER_LENGTH + len(body), self.command, self.status, self.sequence) + body
        except (struct.error, UnicodeEncodeError, ValueError) as error:
            raise PduError(f"{type(self).__name__}: {error}") from None


def layout(fields: str) -> Layout:
    """`"message_id:c tlvs:t"` as a Layout."""
    return tuple((name, kind) for name, kind in (field.split(":") for field in fields.split()))


def c_string(value: str) -> bytes:
    """A C-octet string: Latin-1, ended by NUL. Raises ValueError for a value that contains one."""
    if "\0" in value:
        raise ValueError("NUL inside a C-octet string")
    return value.encode("latin-1") + b"\0"


def write_tlvs(tlvs: Mapping[int, bytes]) -> bytes:
    """Tag → value, in the given order, as octets."""
    return b"".join([TLV.pack(tag, len(value)) + value for tag, value in tlvs.items()])


def read_tlvs(frame: bytes, at: int, *, lenient: bool = False) -> Mapping[int, bytes]:
    """TLVs up to the end. One to three octets left over are padding that some SMSCs add.

    A TLV that is longer than its PDU raises PduError; if `lenient`, it ends the list, and counts only if it is the text
    itself, with the octets that are present.
    """
    size = len(frame)
    if size - at < 4:
        return NO_TLVS
    tlvs: dict[int, bytes] = {}
    while size - at >= 4:
        tag, length = TLV.unpack_from(frame, at)
        at += 4
        if at + length > size:
            if not lenient:
                raise PduError(f"TLV {tag:#06x} is longer than its PDU", status=0xC0)
            if tag == Tag.MESSAGE_PAYLOAD:
                tlvs.setdefault(tag, frame[at:])
            break
        tlvs.setdefault(tag, frame[at : at + length])
        at += length
    return tlvs


def read_fields(frame: bytes, layout: Layout, *, lenient: bool = False) -> dict[str, Any]:
    """The fields of a body, in wire order. Raises PduError, ValueError, IndexError or struct.error.

    Kinds: c C-octet string, B u8, s u8 length and octets, d destinations of submit_multi, u its refused ones, t TLVs.
    `lenient`: as for `read_tlvs`.
    """
    at = HEADER_LENGTH
    values: dict[str, Any] = {}
    for name, kind in layout:
        if kind == "c":
            values[name], at = _read_text(frame, at)
        elif kind == "B":
            values[name] = frame[at]
            at += 1
        elif kind == "s":
            values[name] = frame[at + 1 : at + 1 + frame[at]]
            if len(values[name]) < frame[at]:
                raise PduError("sm_length is longer than the PDU", status=0x01)
            at += 1 + frame[at]
        elif kind == "t":
            values[name] = read_tlvs(frame, at, lenient=lenient)
        elif kind == "d":
            values[name], at = _read_destinations(frame, at)
        else:
            values[name], at = _read_unsuccessful(frame, at)
    return values


def write_fields(pdu: Any, layout: Layout) -> bytes:
    """The body of a PDU, by its layout. Raises ValueError or struct.error if a value does not fit."""
    out = []
    for name, kind in layout:
        value = getattr(pdu, name)
        if kind == "c":
            out.append(c_string(value))
        elif kind == "B":
            out.append(U8.pack(value))
        elif kind == "s":
            out.append(U8.pack(len(value)) + value)
        elif kind == "t":
            out.append(write_tlvs(value))
        elif kind == "d":
            out.append(U8.pack(len(value)))
            for one in value:
                out.append(
                    b"\x02" + c_string(one)
                    if isinstance(one, str)
                    else b"\x01" + U8x2.pack(*one[:2]) + c_string(one[2])
                )
        else:
            out.append(U8.pack(len(value)))
            for ton, npi, address, status in value:
                out.append(U8x2.pack(ton, npi) + c_string(address) + U32.pack(status))
    return b"".join(out)


def _read_text(frame: bytes, at: int) -> tuple[str, int]:
    end = frame.index(0, at)
    return frame[at:end].decode("latin-1"), end + 1


def _read_destinations(frame: bytes, at: int) -> tuple[tuple[tuple[int, int, str] | str, ...], int]:
    found: list[tuple[int, int, str] | str] = []
    count = frame[at]
    at += 1
    for _ in range(count):
        flag = frame[at]
        if flag == 1:
            address, end = _read_text(frame, at + 3)
            found.append((frame[at + 1], frame[at + 2], address))
            at = end
        elif flag == 2:
            name, at = _read_text(frame, at + 1)
            found.append(name)
        else:
            raise PduError(f"dest_flag {flag}", status=0x40)
    return tuple(found), at


def _read_unsuccessful(frame: bytes, at: int) -> tuple[tuple[tuple[int, int, str, int], ...], int]:
    found = []
    count = frame[at]
    at += 1
    for _ in range(count):
        address, end = _read_text(frame, at + 2)
        found.append((frame[at], frame[at + 1], address, U32.unpack_from(frame, end)[0]))
        at = end + 4
    return tuple(found), at
