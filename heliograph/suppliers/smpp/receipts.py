"""Parses deliver_sm and data_sm: a receipt, or a message from a handset. Pure.

The classic receipt text (SMPP 3.4 appendix B) is "vendor specific", and vendors take advantage of that: fields are
missing, reordered, renamed; the id may be in a TLV, in another base, padded, in another case. `id_key` folds all of
that into one form, for the ids in submit_sm_resp and in receipts alike.

The rule nobody may break: nothing a handset can type becomes a receipt by itself. The esm_class, or TLVs that only an
SMSC writes, decide what a PDU is; its text does so only if the operator enabled `sniff`, and only as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import lru_cache

import msgspec

from heliograph.suppliers.contract import NO_WORD, Inbound, Receipt, ReceiptState
from heliograph.suppliers.message_ids import Base, id_key
from heliograph.suppliers.smpp.codec import texts
from heliograph.suppliers.smpp.codec.pdu import DataSm, DeliverSm, Tag

#: `stat:` as suppliers spell it → message_state (SMPP 3.4 §5.2.28; 0 and 9 are from 5.0).
STATE_OF_TEXT: dict[str, int] = {
    "SCHEDULED": 0,
    "ENROUTE": 1,
    "BUFFRED": 1,
    "BUFFERD": 1,
    "BUFFERED": 1,
    "DELIVRD": 2,
    "DELIVERD": 2,
    "DELIVERED": 2,
    "EXPIRD": 3,
    "EXPIRED": 3,
    "DELETED": 4,
    "CANCELED": 4,
    "CANCELLED": 4,
    "UNDELIV": 5,
    "UNDELIVRD": 5,
    "UNDELIVERD": 5,
    "UNDELIVERABLE": 5,
    "UNDELIVERED": 5,
    "FAILED": 5,
    "NACK": 5,
    "NOROUTE": 5,
    "BARRED": 5,
    "SYSERR": 5,
    "ACCEPTD": 6,
    "ACCEPTED": 6,
    "ACKED": 6,
    "UNKNOWN": 7,
    "REJECT": 8,
    "REJECTD": 8,
    "REJECTED": 8,
    "NOCRED": 8,  # the account's credit is used up: no delivery was attempted
    "SKIPPED": 9,
}
#: message_state → its spelling in appendix B, which `final_states` uses, and its meaning for us.
STATES: dict[int, tuple[str, ReceiptState]] = {
    0: ("SCHEDULED", ReceiptState.PENDING),
    1: ("ENROUTE", ReceiptState.PENDING),
    2: ("DELIVRD", ReceiptState.DELIVERED),
    3: ("EXPIRED", ReceiptState.EXPIRED),
    4: ("DELETED", ReceiptState.FAILED),
    5: ("UNDELIV", ReceiptState.UNDELIVERED),
    6: ("ACCEPTD", ReceiptState.PENDING),
    7: ("UNKNOWN", ReceiptState.UNKNOWN),
    8: ("REJECTD", ReceiptState.REJECTED),
    9: ("SKIPPED", ReceiptState.FAILED),
}


class ReceiptRules(msgspec.Struct, frozen=True, kw_only=True):
    """How one supplier writes receipts."""

    #: Number base of the id in the receipt's text.
    id_base: Base = "text"
    #: Number base of the id in the receipt's TLV; None: as in the text.
    tlv_id_base: Base | None = None
    #: stat (capitals) → its meaning at this supplier, such as {"ACCEPTD": "delivered"} where nothing follows it.
    final_states: Mapping[str, ReceiptState] = msgspec.field(default_factory=dict)
    #: Read a PDU that is not marked as a receipt as one if its text has all of a receipt's fields.
    sniff: bool = False
    #: What data_coding 0 means to the supplier.
    alphabet: texts.Alphabet = "gsm"
    #: Error codes that lie with the recipient, in addition to GSM's where a receipt marks them as GSM's.
    recipient_errors: Collection[str] = ()


def parse(pdu: DeliverSm | DataSm, raw: bytes, rules: ReceiptRules) -> Receipt | Inbound:
    """The receipt, or the inbound message, that a PDU carries. `raw` is kept as evidence. Never raises."""
    tlvs, esm_class = pdu.tlvs, pdu.esm_class
    elements, body = split_udh(pdu.payload) if esm_class & 0x40 else (_NO_ELEMENTS, pdu.payload)
    # 0x04 receipt, 0x20 intermediate notification: bits, not values, because some SMSCs send 0x44.
    marked = esm_class & 0x24 or (_MESSAGE_ID in tlvs and _STATE in tlvs)
    if not marked and not rules.sniff:
        return _inbound(pdu, elements, body, raw, rules.alphabet)
    text = texts.sixteen_bits(body) if _is_wide(body, pdu.data_coding) else body.decode("latin-1")
    if "\0" in text:  # before it, after it, or between its fields
        text = text.replace("\0", " ")
    if "\x11" in text:  # an underscore in GSM-7; everything else that ids consist of is as in ASCII
        text = text.replace("\x11", "_")
    written: str | None
    sub: str | None
    dlvrd: str | None
    usual = _USUAL.match(text)
    if usual is not None:
        # Without the dictionary of `scan`, which takes as long as finding the fields.
        written, sub, dlvrd, word, err = usual.group(1, 2, 3, 6, 7)
    else:
        fields = scan(text)
        if not marked and not fields.keys() >= _WHOLE:
            return _inbound(pdu, elements, body, raw, rules.alphabet)
        written, sub, dlvrd, err = fields.get("id"), fields.get("sub"), fields.get("dlvrd"), fields.get("err", "")
        word = fields.get("stat") or fields.get("status") or fields.get("state") or ""
        if not word and marked:
            word = _without_label(text, rules.final_states)

    keys: tuple[str, ...] = ()
    if written and (key := id_key(written, rules.id_base)):
        keys = (key,)
    state_tlv = error_tlv = reference_tlv = None
    if tlvs:
        from_tlv = tlvs.get(_MESSAGE_ID)
        # What follows a NUL is no part of it: some SMSCs send a whole buffer.
        if from_tlv and (
            key := id_key(from_tlv.partition(b"\0")[0].decode("latin-1"), rules.tlv_id_base or rules.id_base)
        ):
            keys = (key,) if key in keys else (key, *keys)
        state_tlv, error_tlv, reference_tlv = tlvs.get(_STATE), tlvs.get(_ERROR), tlvs.get(_REFERENCE)
    state, known = _state(state_tlv, word, rules.final_states)
    # An intermediate notification reports one failed attempt of several: only delivery is final.
    if esm_class & 0x24 == 0x20 and state is not _DELIVERED:
        state = _PENDING
    recipient, sender = pdu.source_addr.strip().removeprefix("+"), pdu.destination_addr.strip().removeprefix("+")
    if recipient and not recipient.isdigit() and sender.isdigit():
        recipient, sender = sender, recipient  # addresses left in the order of the submit
    error = _error(error_tlv, err)
    is_lost = state is not _DELIVERED and state is not _PENDING
    return Receipt(
        keys,
        state,
        recipient,
        sender,
        raw,
        error,
        _u16(reference_tlv),
        _count(sub),
        _count(dlvrd),
        "" if known else word.upper()[:_LONGEST_WORD] or NO_WORD,
        recipients=is_lost and (error in rules.recipient_errors or error in GSM_ERRORS),
    )


def scan(text: str) -> dict[str, str]:
    """The first occurrence of each field of a receipt's text, names in lower case. Stops at the user's own text."""
    usual = _USUAL.match(text)
    if usual is not None:
        return usual.groupdict()
    found: dict[str, str] = {}
    name, start = "", 0
    for match in _FIELD.finditer(text):
        if name and name not in found:
            found[name] = _value(name, text[start : match.start()])
        name = match[1].lower()
        if name == "text":
            return found
        name = _NAMES.get(name, name)
        start = match.end()
    if name and name not in found:
        found[name] = _value(name, text[start:])
    return found


def is_whole(text: str) -> bool:
    """Whether a text has all the fields of a receipt. Handsets can type one, so this proves nothing by itself."""
    return scan(text).keys() >= _WHOLE


def split_udh(payload: bytes) -> tuple[dict[int, bytes], bytes]:
    """Information elements, and the user data after them (3GPP 23.040 §9.2.3.24).

    A header whose lengths do not add up is not one: some SMSCs set the bit on plain text.
    """
    if not payload or payload[0] >= len(payload):
        return _NO_ELEMENTS, payload
    elements: dict[int, bytes] = {}
    at, end = 1, payload[0] + 1
    while at + 2 <= end and at + 2 + payload[at + 1] <= end:
        elements.setdefault(payload[at], payload[at + 2 : at + 2 + payload[at + 1]])
        at += 2 + payload[at + 1]
    if at != end:
        return _NO_ELEMENTS, payload
    return elements, payload[end:]


#: Network errors that lie with the recipient, as `_error` writes network_error_code (SMPP 3.4 §5.3.2.31: type 3 is
#: GSM), by 3GPP 29.002 §17.6.6: unknown, unidentified, absent (6 and 27), illegal subscriber or equipment, no SMS
#: subscription, calls barred, busy with another message.
GSM_ERRORS = frozenset(f"3:{code}" for code in (1, 5, 6, 9, 11, 12, 13, 27, 31))

# -- helpers -----------------------------------------------------------------------------------------------------------

# Without a space before it, a label is recognized after a digit, and `err` in lower case after a state in capitals.
_FIELD = re.compile(
    r"(?:^|(?<=[\s,;])|(?<=[0-9])(?!id|m)|(?-i:(?<=[A-Z])(?=err\s*:)))"
    r"(message id|msg id|id|sub|dlvrd|submit date|done date|status|state|stat|err|text)\s*:",
    re.I,
)
#: The exact form of appendix B, which most receipts have: takes a fifth of the time of the scan.
_USUAL = re.compile(
    r"id:(?P<id>[^\s,;:]+) sub:(?P<sub>[^\s,;:]+) dlvrd:(?P<dlvrd>[^\s,;:]+) submit date:(?P<submitted>[^\s,;:]+)"
    r" done date:(?P<done>[^\s,;:]+) stat:(?P<stat>[^\s,;:]+) err:(?P<err>[^\s,;:]*) text:",
    re.I,
)
# Local names: looking one up in its class takes as long as a TLV in its dictionary.
_DELIVERED, _PENDING = ReceiptState.DELIVERED, ReceiptState.PENDING
_MESSAGE_ID, _STATE = Tag.RECEIPTED_MESSAGE_ID, Tag.MESSAGE_STATE
_ERROR, _REFERENCE = Tag.NETWORK_ERROR_CODE, Tag.USER_MESSAGE_REFERENCE
#: States that are not final: another receipt may follow.
_NOT_FINAL = frozenset({ReceiptState.PENDING, ReceiptState.UNKNOWN})
_WHOLE = {"id", "submitted", "done", "stat", "err"}
_NAMES = {"message id": "id", "msg id": "id", "submit date": "submitted", "done date": "done"}
#: A word by itself, or after a label that does not end with a colon.
_WORD = re.compile(r"(?:^|(?<=[\s=]))[A-Za-z]+(?=[\s;,]|$)")
_USERS_TEXT = re.compile(r"(?:^|(?<=[\s,;0-9]))text\s*:", re.I)
#: Where a value ends: at white space, or at punctuation before another label (only some labels are known).
_END = re.compile(r"[,;]?(?:\s|$)|[,;][a-z_ ]+:", re.I)
#: A label with one octet per character, whatever the octets of the user's text after it.
_NARROW = re.compile(rb"(?:id|stat|state|status)\s*:", re.I)
#: Octets at the start of a receipt, which every supplier writes in ASCII.
_HEAD = 32
_LONGEST_WORD = 20
_NO_ELEMENTS: dict[int, bytes] = {}
INTERNATIONAL = 1
#: Information elements that name a national table (3GPP 23.040 §9.2.3.24.15 and .16).
_SINGLE_SHIFT, _LOCKING_SHIFT = 0x24, 0x25


def _value(name: str, text: str) -> str:
    """A field's value. Only dates contain spaces; in other fields, the text after a space is a vendor's own field."""
    text = text.strip()
    if name in ("submitted", "done"):
        return text.rstrip(",;")
    end = _END.search(text)
    return text[: end.start()] if end is not None else text


def _is_wide(body: bytes, data_coding: int) -> bool:
    """Whether a receipt's text has two octets per character. Some SMSCs repeat the data_coding of the original message,
    and others use the one their handsets read, so the octets say more than that field."""
    if data_coding != 8 and body.isascii() and b"\0" not in body:
        return False
    if body.startswith((b"\xfe\xff", b"\xff\xfe")):
        return True
    high = body[:_HEAD:2]
    if high.count(0) * 2 > len(high):
        return True
    return data_coding == 8 and not body.isascii() and _NARROW.search(body) is None


def _inbound(
    pdu: DeliverSm | DataSm, elements: Mapping[int, bytes], body: bytes, raw: bytes, alphabet: texts.Alphabet
) -> Inbound:
    concatenation = None
    if len(eight := elements.get(0x00, b"")) == 3:
        concatenation = (eight[0], eight[1], eight[2])
    elif len(sixteen := elements.get(0x08, b"")) == 4:
        concatenation = (sixteen[0] << 8 | sixteen[1], sixteen[2], sixteen[3])
    elif Tag.SAR_MSG_REF_NUM in pdu.tlvs:
        reference = int.from_bytes(pdu.tlvs[Tag.SAR_MSG_REF_NUM], "big")
        total, number = _octet(pdu.tlvs.get(Tag.SAR_TOTAL_SEGMENTS)), _octet(pdu.tlvs.get(Tag.SAR_SEGMENT_SEQNUM))
        if reference <= 0xFFFF:
            concatenation = (reference, total, number)
    # The only part of a text is the text: some SMSCs number every message.
    if concatenation is not None and (concatenation[1] < 2 or not 1 <= concatenation[2] <= concatenation[1]):
        concatenation = None
    locking, single = _language(elements.get(_LOCKING_SHIFT)), _language(elements.get(_SINGLE_SHIFT))
    form = texts.form(pdu.data_coding, locking, single)
    text = None if concatenation is not None else texts.read(body, form, alphabet)
    sender, recipient = pdu.source_addr.strip(), pdu.destination_addr.strip()  # some SMSCs fill them with spaces
    return Inbound(
        sender.removeprefix("+"),
        recipient.removeprefix("+"),
        text,
        raw,
        concatenation,
        _ton(sender, pdu.source_addr_ton),
        _ton(recipient, pdu.dest_addr_ton),
        *((body, form) if text is None else ()),
    )


def _ton(address: str, ton: int) -> int:
    """A plus sign is more reliable than the TON field."""
    return INTERNATIONAL if address.startswith("+") else ton


def _language(element: bytes | None) -> int:
    return element[0] if element is not None and len(element) == 1 else 0


def _without_label(text: str, final_states: Mapping[str, ReceiptState]) -> str:
    """The first word before the user's own text that is a state, for suppliers that omit `stat:`; else ""."""
    users = _USERS_TEXT.search(text)
    words = _WORD.findall(text, 0, users.start() if users else len(text))
    return next((word for word in words if word.upper() in STATE_OF_TEXT or word.upper() in final_states), "")


def _state(tlv: bytes | None, word: str, final_states: Mapping[str, ReceiptState]) -> tuple[ReceiptState, bool]:
    """The state from the TLV, or else from the text, and whether it is known. A final state in the text replaces one in
    the TLV that is not: some SMSCs fill the TLV with the state that the message had before."""
    if tlv and (number := _octet(tlv)) in STATES:
        state = _meaning(number, final_states)
        if state in _NOT_FINAL:
            written = _written(word.upper(), final_states)
            state = written if written is not None and written not in _NOT_FINAL else state
        return state, True
    written = _written(word.upper(), final_states) or (None if word else final_states.get(NO_WORD.upper()))
    return (ReceiptState.UNKNOWN, False) if written is None else (written, True)


def _written(text: str, final_states: Mapping[str, ReceiptState]) -> ReceiptState | None:
    """The meaning of a word in the text, in capitals; None: it is not known."""
    if text in final_states:
        return final_states[text]
    number = STATE_OF_TEXT.get(text)
    return None if number is None else _meaning(number, final_states)


def _meaning(number: int, final_states: Mapping[str, ReceiptState]) -> ReceiptState:
    spelling, state = STATES[number]
    return final_states.get(spelling, state) if final_states else state


def _error(tlv: bytes | None, text: str) -> str:
    """The network's error code: type:code from the TLV, unless it is three ASCII digits; else `err` in the text."""
    if not tlv or len(tlv) != 3:
        return text
    if tlv.isdigit():
        return tlv.decode("ascii")
    return f"{tlv[0]}:{tlv[1] << 8 | tlv[2]}"


def _octet(value: bytes | None) -> int:
    """The number, below 256, in a TLV; 0: it is absent. Some SMSCs write it in two or four octets."""
    return (value.lstrip(b"\0") or b"\0")[0] if value else 0


def _u16(value: bytes | None) -> int | None:
    return int.from_bytes(value, "big") if value is not None and len(value) == 2 else None


@lru_cache(maxsize=256)
def _count(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else None
