"""The bytes of the SMSC simulator: submits in, receipts out. Pure and straight-line code, because a benchmark must
never be measuring it.

The rule nobody may break: it reads with code of its own rather than with the connector's codec, so that a mistake in
that codec is not matched by the same mistake here.
"""

from __future__ import annotations

import struct
import time

import msgspec

from heliograph.simulators.smsc.options import IdForm, SmscOptions
from heliograph.suppliers.smpp.codec.wire import TLV, Tag

#: message_state and `err` that go with each `stat` (SMPP 3.4 §5.2.28 and Appendix B).
STATES = {
    "DELIVRD": (2, "000"),
    "EXPIRED": (3, "006"),
    "DELETED": (4, "000"),
    "UNDELIV": (5, "001"),
    "ACCEPTD": (6, "000"),
    "UNKNOWN": (7, "000"),
    "REJECTD": (8, "009"),
    "ENROUTE": (1, "000"),
}
_SEPTETS = frozenset({0x00, 0x01, 0x03, 0x10, 0x11, 0x12, 0x13, 0xF0, 0xF1, 0xF2, 0xF3})
_U16 = struct.Struct(">H")


class Submit(msgspec.Struct, gc=False):
    """The parts of a submit_sm that the simulator uses."""

    #: command_status that describes what is wrong with it, or 0.
    status: int
    #: TON, NPI, address and its NUL, as received: a receipt returns them swapped.
    source: bytes = b""
    destination: bytes = b""
    esm_class: int = 0
    registered_delivery: int = 0
    data_coding: int = 0
    #: User data, including its header, from short_message or message_payload.
    body: bytes = b""
    reference: int | None = None
    part: int = 1
    parts: int = 1

    @property
    def digits(self) -> bytes:
        """The destination address only."""
        return self.destination[2:-1]


def read_submit(data: bytes, start: int, end: int) -> Submit:
    """Read a submit_sm (SMPP 3.4 §4.4.1) whose PDU, header included, is `data[start:end]`. Never raises."""
    index = data.index
    try:
        source = index(0, start + 16, end) + 1
        destination = index(0, source + 2, end) + 1
        at = index(0, destination + 2, end) + 1
        tail = index(0, index(0, at + 3, end) + 1, end) + 1
        length = data[tail + 4]
        after = tail + 5 + length
        if after > end:
            return Submit(0x01)
        esm_class = data[at]
        data_coding = data[tail + 2]
        body = data[tail + 5 : after]
    except (ValueError, IndexError):
        return Submit(0x02)
    submit = Submit(
        0,
        data[source:destination],
        data[destination:at],
        esm_class,
        data[tail],
        data_coding,
        body,
    )
    payload = False
    while after < end:
        if end - after < 4:
            submit.status = 0xC0
            return submit
        tag, length = TLV.unpack_from(data, after)
        after += 4 + length
        if after > end:
            submit.status = 0xC0
            return submit
        value = data[after - length : after]
        if tag == Tag.USER_MESSAGE_REFERENCE and length == 2:
            submit.reference = _U16.unpack(value)[0]
        elif tag == Tag.MESSAGE_PAYLOAD:
            if body:  # never both (SMPP 3.4 §4.4.1)
                submit.status = 0xC1
            submit.body, payload = value, True
        elif tag == Tag.SAR_TOTAL_SEGMENTS and length == 1:
            submit.parts = value[0]
        elif tag == Tag.SAR_SEGMENT_SEQNUM and length == 1:
            submit.part = value[0]
    header = 0
    if esm_class & 0x40:
        body = submit.body
        header = body[0] + 1 if body else 0
        if header < 2 or header > len(body):
            submit.status = 0x01
        elif body[1] == 0 and header >= 6:
            submit.parts, submit.part = body[4], body[5]
        elif body[1] == 8 and header >= 7:
            submit.parts, submit.part = body[5], body[6]
    elif submit.parts > 1:
        header = 6  # the SMSC builds the header from the SAR TLVs
    if not payload:
        # 140 octets of user data (3GPP 23.040): a header takes up space in septets too.
        room = 160 - (8 * header + 6) // 7 if data_coding in _SEPTETS else 140 - header
        if len(body) - (header if esm_class & 0x40 else 0) > room:
            submit.status = 0x01
    if not submit.digits.isdigit() or len(submit.digits) > 20:
        submit.status = 0x0B
    elif submit.source[0] == 5 and len(submit.source) > 14:  # eleven characters, TON, NPI and NUL
        submit.status = 0x0A
    return submit


class ReceiptWriter:
    """Writes ids and receipts as the options say."""

    def __init__(self, options: SmscOptions) -> None:
        self._options = options
        self._minute = 0
        self._date = ""
        self._plain_id = (
            not (options.constant_id or options.empty_id)
            and options.resp_base == options.dlr_base == "dec"
            and not (options.resp_padding or options.dlr_padding)
        )

    def ids(self, number: int) -> tuple[str, str]:
        """A message's id as written in the response, and as written in its receipt."""
        if self._plain_id:
            text = str(number)
            return text, text
        options = self._options
        if options.empty_id:
            return "", ""
        if options.constant_id:
            return options.constant_id, options.constant_id
        receipt = _written(number, options.dlr_base, options.dlr_padding)
        return _written(
            number, options.resp_base, options.resp_padding
        ), receipt.upper() if options.dlr_upper else receipt

    def write(self, submit: Submit, id: str, stat: str, *, interim: bool = False) -> bytes:
        """The body of the receipt's PDU."""
        options = self._options
        state, error = STATES.get(stat.upper(), (7, "000"))
        text = tlvs = b""
        if options.form != "tlv":
            minute = int(time.time()) // 60
            if minute != self._minute:
                self._minute = minute
                self._date = time.strftime("%y%m%d%H%M", time.gmtime())
            parts = submit.parts if options.parts == "summary" else 1
            quoted = submit.body[:20] if submit.esm_class & 0x40 == 0 and submit.data_coding == 0 else b""
            named = f"id:{id} " if id else ""
            delivered = parts if state == 2 else 0
            text = (
                f"{named}sub:{parts:03d} dlvrd:{delivered:03d} submit date:{self._date} done date:{self._date} "
                f"stat:{stat} err:{error} text:"
            ).encode("latin-1") + quoted
        if options.form != "text":
            if id:
                octets = id.encode("latin-1") + b"\0"
                tlvs = TLV.pack(Tag.RECEIPTED_MESSAGE_ID, len(octets)) + octets
            tlvs += b"\x04\x27\x00\x01" + bytes((state,))
        if options.echo_reference and submit.reference is not None:
            tlvs += TLV.pack(Tag.USER_MESSAGE_REFERENCE, 2) + _U16.pack(submit.reference)
        esm_class = 0x20 if interim else 0x04
        if options.by == "data_sm":
            if text:
                tlvs += TLV.pack(Tag.MESSAGE_PAYLOAD, len(text)) + text
            return b"".join((b"\0", submit.destination, submit.source, bytes((esm_class, 0, 0)), tlvs))
        return b"".join(
            (
                b"\0",
                submit.destination,
                submit.source,
                b"\x20\0\0\0\0\0\0\0\0" if interim else b"\x04\0\0\0\0\0\0\0\0",
                bytes((len(text),)),
                text,
                tlvs,
            )
        )


def _written(number: int, form: IdForm, width: int) -> str:
    if form == "hex":
        return f"{number:0{width}x}"
    if form == "dec":
        return f"{number:0{width}d}"
    return f"hg-{number:x}".rjust(width, "0")
