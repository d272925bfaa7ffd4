"""Receipts as real suppliers write them, and handsets' messages that look like one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.suppliers.contract import Inbound, Receipt, ReceiptState
from heliograph.suppliers.message_ids import id_key
from heliograph.suppliers.smpp.codec import texts
from heliograph.suppliers.smpp.codec.pdu import DataSm, DeliverSm, Tag, decode
from heliograph.suppliers.smpp.receipts import STATE_OF_TEXT, ReceiptRules, parse, scan, split_udh

CLASSIC = (
    b"id:1526758174 sub:001 dlvrd:001 submit date:1701240904 done date:1701240904 stat:DELIVRD err:000 text:hellow"
)


def deliver(text: bytes = b"", tlvs: dict[int, bytes] | None = None, esm_class: int = 4, **more: object) -> DeliverSm:
    fields: dict = {"source_addr": "258841234567", "destination_addr": "ACME"} | more
    return DeliverSm(1, esm_class=esm_class, short_message=text, tlvs=tlvs or {}, **fields)


def receipt(pdu: DeliverSm | DataSm, **rules: object) -> Receipt:
    read = parse(pdu, b"raw", ReceiptRules(**rules))
    assert isinstance(read, Receipt), read
    return read


def inbound(pdu: DeliverSm | DataSm, **rules: object) -> Inbound:
    read = parse(pdu, b"raw", ReceiptRules(**rules))
    assert isinstance(read, Inbound), read
    return read


TEXTS = [
    # label, text, keys, state, error
    ("classic", CLASSIC, ("1526758174",), "delivered", "000"),
    (
        "no sub and dlvrd",
        b"id:1526758174 submit date:1701240904 done date:1701240904 stat:DELIVRD err:000 text:hellow",
        ("1526758174",),
        "delivered",
        "000",
    ),
    (
        "capitals",
        b"ID:00b8be19 SUB:001 DLVRD:000 SUBMIT DATE:2001010000 DONE DATE:2001010000 STAT:undeliv ERR:75 TEXT:-PROFILE",
        ("b8be19",),
        "undelivered",
        "75",
    ),
    (
        "spaces after colons, a full word, and a user's text that imitates fields",
        b"id: 42 sub: 001 stat:DELIVERED err:  text:id:99 stat:UNDELIV",
        ("42",),
        "delivered",
        "",
    ),
    ("no stat but in the user's text", b"id:5 sub:001 err:000 text:stat:UNDELIV", ("5",), "unknown", "000"),
    ("unmapped stat", b"id:8 stat:XYZZY12 err:1", ("8",), "unknown", "1"),
    ("reordered", b"stat:EXPIRED err:27 id:77", ("77",), "expired", "27"),
    (
        "dates of 12 and 14 digits",
        CLASSIC.replace(b"1701240904", b"20170124090401", 1),
        ("1526758174",),
        "delivered",
        "000",
    ),
    ("quotes", CLASSIC.replace(b"1526758174", b'"1526758174"'), ("1526758174",), "delivered", "000"),
    ("apostrophes, and a blank", b"id: '00B8BE19' sub:001 stat:DELIVRD err:0", ("b8be19",), "delivered", "0"),
    ("quotes around nothing", b'id:"" stat:DELIVRD err:0', (), "delivered", "0"),
    ("an underscore in GSM-7", CLASSIC.replace(b"1526758174", b"mt\x111a"), ("mt_1a",), "delivered", "000"),
    ("message id", b"message id:9 stat:REJECTD err:", ("9",), "rejected", ""),
    ("first of two", b"id:1 id:2 stat:DELIVRD stat:UNDELIV", ("1",), "delivered", ""),
    ("more fields than known", b"id:1 mcc:643 stat:ACCEPTD err:0 vendor:x", ("1",), "pending", "0"),
    ("22 digits", b"id:04062581461644996000241 stat:DELIVRD", ("4062581461644996000241",), "delivered", ""),
    ("an empty id", b"id: stat:DELIVRD err:000", (), "delivered", "000"),
    ("no id", b"stat:DELIVRD", (), "delivered", ""),
    ("nothing", b"", (), "unknown", ""),
    ("barred", b"id:5 stat:BARRED err:13", ("5",), "undelivered", "13"),
    ("no credit", b"id:5 stat:NOCRED err:1", ("5",), "rejected", "1"),
    ("a system's error", b"id:5 stat:SYSERR err:8", ("5",), "undelivered", "8"),
    ("misspelt", b"id:5 stat:UNDELIVRD err:1", ("5",), "undelivered", "1"),
    ("shortened", b"id:5 stat:REJECT err:1", ("5",), "rejected", "1"),
    ("a NUL in front", b"\0" + CLASSIC, ("1526758174",), "delivered", "000"),
    ("NULs for blanks", CLASSIC.replace(b" ", b"\0"), ("1526758174",), "delivered", "000"),
    ("a NUL behind the id", b"id:42\0 stat:DELIVRD err:000", ("42",), "delivered", "000"),
    ("no label", CLASSIC.replace(b"stat:", b""), ("1526758174",), "delivered", "000"),
    ("a label without a colon", b"id:5 stat UNDELIV err:1", ("5",), "undelivered", "1"),
    ("a label of its own", b"id:5 status:UNDELIV err:1", ("5",), "undelivered", "1"),
    ("a state for an id", b"id:FAILED sub:001 err:0", ("failed",), "unknown", "0"),
    ("commas", CLASSIC.replace(b" ", b",").replace(b",date", b" date"), ("1526758174",), "delivered", "000"),
    ("commas and blanks", b"id:5, sub:001, stat:UNDELIV, err:001, text:", ("5",), "undelivered", "001"),
    ("semicolons", b"id:5;mcc:643;done date:2601010000;stat:DELIVRD;err:0;text:id:9", ("5",), "delivered", "0"),
    ("a comma in an id", b"id:5,77 stat:DELIVRD err:0", ("5,77",), "delivered", "0"),
    ("a comma behind all", b"id:5,stat:EXPIRED,", ("5",), "expired", ""),
    (
        "no spaces behind dates and states",
        b"id:42 sub:001 dlvrd:000 submit date:2611281330done date:2611281331stat:UNDELIVerr:006text:stat:DELIVRD",
        ("42",),
        "undelivered",
        "006",
    ),
    (
        "no spaces",
        b"id:42sub:001dlvrd:001submit date:2611281330done date:2611281331stat:DELIVRD",
        ("42",),
        "delivered",
        "",
    ),
    ("a label inside another", b"id:5 substat:1 context:0 stat:DELIVRD networkerr:7 err:0", ("5",), "delivered", "0"),
    ("no label, and a state in the user's text", b"id:5 err:1 text: DELIVRD", ("5",), "unknown", "1"),
]


@pytest.mark.parametrize(("label", "text", "keys", "state", "error"), TEXTS, ids=[row[0] for row in TEXTS])
def test_texts(label: str, text: bytes, keys: tuple[str, ...], state: str, error: str) -> None:
    read = receipt(deliver(text))
    assert (read.keys, read.state, read.error) == (keys, state, error)
    assert (read.recipient, read.sender, read.raw) == ("258841234567", "ACME", b"raw")


values = st.text("abc:019 stxid\n,;", max_size=8)


@given(values, values, values)
def test_the_usual_form_is_read_as_every_other(id: str, stat: str, err: str) -> None:
    usual = f"id:{id} sub:001 dlvrd:001 submit date:1 done date:2 stat:{stat} err:{err} text:hi"
    assert scan(usual) == scan(" " + usual)


words = st.sampled_from(["DELIVRD", "delivrd", "UNDELIV", "ENROUTE", "UNKNOWN", "ACCEPTD", "WHAT"])
tags = st.dictionaries(
    st.sampled_from([Tag.RECEIPTED_MESSAGE_ID, Tag.MESSAGE_STATE, Tag.NETWORK_ERROR_CODE, Tag.USER_MESSAGE_REFERENCE]),
    st.sampled_from([b"", b"\2", b"\1", b"\7", b"\x0b", b"0042\0", b"a", b"\3\0\x06", b"007", b"\1\2"]),
)
rules = st.sampled_from(
    [
        {},
        {"id_base": "hex", "tlv_id_base": "dec"},
        {"final_states": {"ACCEPTD": ReceiptState.DELIVERED, "WHAT": ReceiptState.FAILED}, "recipient_errors": ["7"]},
        {"sniff": True},
    ]
)


@given(
    values | st.sampled_from(["0042", "a"]), words, values | st.just("7"), tags, st.sampled_from([0, 4, 0x20]), rules
)
def test_a_receipt_in_the_usual_form_means_what_any_other_means(
    id: str, stat: str, err: str, tlvs: dict[int, bytes], esm_class: int, rules: dict[str, object]
) -> None:
    usual = f"id:{id} sub:001 dlvrd:x submit date:1 done date:2 stat:{stat} err:{err} text:hi"
    one, other = (
        parse(deliver(text.encode(), tlvs, esm_class), b"", ReceiptRules(**rules)) for text in (usual, " " + usual)
    )
    if isinstance(one, Inbound):
        assert isinstance(other, Inbound)
    else:
        assert one == other


@pytest.mark.parametrize("data_coding", [0, 1, 3, 8, 0x18, 0xF5])
@pytest.mark.parametrize(
    ("mark", "codec"), [("", "ascii"), ("", "utf-16-be"), ("\ufeff", "utf-16-be"), ("\ufeff", "utf-16-le")]
)
def test_a_receipts_octets_say_how_wide_it_is(mark: str, codec: str, data_coding: int) -> None:
    """Some repeat the data_coding of the original message and write ASCII; others write UCS-2 and declare 0."""
    read = receipt(deliver((mark + CLASSIC.decode()).encode(codec)[:240], data_coding=data_coding))
    assert (read.keys, read.state, read.error) == (("1526758174",), "delivered", "000")


def test_a_wide_receipt_may_end_in_another_script() -> None:
    text = "id:5 stat:DELIVRD err:0 text:" + "Ответ" * 30
    assert receipt(deliver(text.encode("utf-16-be"), data_coding=8)).keys == ("5",)


@pytest.mark.parametrize("codec", ["latin-1", "utf-8", "utf-16-be"])
@pytest.mark.parametrize("text", ["Olá, João", "Ação: 2", "é"])
def test_an_accent_in_the_users_text_makes_no_receipt_wide(text: str, codec: str) -> None:
    """Of an SMSC that repeats the data_coding of the original message, and its text in whatever octets."""
    read = receipt(deliver(CLASSIC[:-6] + text.encode(codec), data_coding=8))
    assert (read.keys, read.state, read.error) == (("1526758174",), "delivered", "000")


def test_counts_of_segments() -> None:
    read = receipt(deliver(b"id:1 sub:003 dlvrd:002 stat:DELIVRD"))
    assert (read.submitted, read.delivered) == (3, 2)
    read = receipt(deliver(b"id:1 sub:?? stat:DELIVRD"))
    assert (read.submitted, read.delivered) == (None, None)


def test_a_receipt_in_tlvs_only() -> None:
    read = receipt(deliver(tlvs={Tag.RECEIPTED_MESSAGE_ID: b"33d7f963\0", Tag.MESSAGE_STATE: b"\x02"}))
    assert (read.keys, read.state) == (("33d7f963",), "delivered")
    read = receipt(deliver(tlvs={Tag.RECEIPTED_MESSAGE_ID: b"33D7F963", Tag.MESSAGE_STATE: b"\x05"}))
    assert (read.keys, read.state) == (("33d7f963",), "undelivered")


@pytest.mark.parametrize("state", [b"\x02", b"\0\x02", b"\0\0\0\x02", b"\x02\0"])
@pytest.mark.parametrize("id", [b"33d7f963", b"33D7F963\0", b"33d7f963\0\0", b"33d7f963\0\xfe\x017\0"])
def test_tlvs_of_unusual_lengths_say_the_same(id: bytes, state: bytes) -> None:
    """A state of two octets was read as its first one, SCHEDULED, and no id had anything after its NUL."""
    read = receipt(deliver(tlvs={Tag.RECEIPTED_MESSAGE_ID: id, Tag.MESSAGE_STATE: state}))
    assert (read.keys, read.state) == (("33d7f963",), "delivered")


def test_an_id_in_a_tlv_with_its_state_in_the_text() -> None:
    read = receipt(deliver(b"stat:EXPIRED err:", {Tag.RECEIPTED_MESSAGE_ID: b"77\0"}))
    assert (read.keys, read.state) == (("77",), "expired")


def test_of_two_ids_the_one_in_the_tlv_comes_first() -> None:
    assert receipt(deliver(CLASSIC, {Tag.RECEIPTED_MESSAGE_ID: b"33d7f963\0"})).keys == ("33d7f963", "1526758174")
    assert receipt(deliver(CLASSIC, {Tag.RECEIPTED_MESSAGE_ID: b"01526758174\0"})).keys == ("1526758174",)


def test_tlv_and_text_may_use_different_bases() -> None:
    pdu = deliver(b"id:0870928761 stat:DELIVRD", {Tag.RECEIPTED_MESSAGE_ID: b"33E95179"})
    assert receipt(pdu, id_base="dec", tlv_id_base="hex").keys == ("870928761",)


@pytest.mark.parametrize(
    ("tlv", "error"),
    [(b"\x03\x00\x1b", "3:27"), (b"011", "011"), (b"", "7"), (b"\x03", "7"), (b"\x08\x01\x02", "8:258")],
)
def test_network_error_code(tlv: bytes, error: str) -> None:
    assert receipt(deliver(b"id:1 stat:UNDELIV err:7", {Tag.NETWORK_ERROR_CODE: tlv})).error == error


def test_the_reference_is_echoed() -> None:
    assert receipt(deliver(CLASSIC, {Tag.USER_MESSAGE_REFERENCE: b"\x12\x34"})).reference == 0x1234
    assert receipt(deliver(CLASSIC, {Tag.USER_MESSAGE_REFERENCE: b"\x34"})).reference is None


@pytest.mark.parametrize("esm_class", [0x04, 0x44, 0x24, 0x84])
def test_the_receipt_bit_counts_not_the_value(esm_class: int) -> None:
    assert receipt(deliver(CLASSIC, esm_class=esm_class)).keys == ("1526758174",)


def test_a_receipt_with_a_user_data_header() -> None:
    assert receipt(deliver(b"\x05\x00\x03\x01\x02\x01" + CLASSIC, esm_class=0x44)).keys == ("1526758174",)


def test_an_intermediate_notification_ends_nothing_but_delivery() -> None:
    assert receipt(deliver(b"id:1 stat:UNDELIV err:6", esm_class=0x20)).state is ReceiptState.PENDING
    assert receipt(deliver(b"id:1 stat:DELIVRD err:0", esm_class=0x20)).state is ReceiptState.DELIVERED


def test_text_in_message_payload_and_in_data_sm() -> None:
    assert receipt(deliver(tlvs={Tag.MESSAGE_PAYLOAD: CLASSIC})).keys == ("1526758174",)
    data = DataSm(1, source_addr="+258841234567", esm_class=4, tlvs={Tag.MESSAGE_PAYLOAD: CLASSIC})
    assert receipt(data).keys == ("1526758174",)
    assert receipt(data).recipient == "258841234567"


def test_a_receipt_in_ucs2() -> None:
    pdu = deliver(CLASSIC.decode().encode("utf-16-be"), data_coding=8)
    assert (receipt(pdu).keys, receipt(pdu).state) == (("1526758174",), "delivered")


def test_addresses_left_as_in_the_submit_are_turned_round_when_that_is_certain() -> None:
    read = receipt(deliver(CLASSIC, source_addr="ACME", destination_addr="+258841234567"))
    assert (read.recipient, read.sender) == ("258841234567", "ACME")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (b"id:8 stat:Xyzzy12 err:1", "XYZZY12"),
        (b"id:8 stat:" + b"a" * 90, "A" * 20),
        (b"id:8 err:1", "(none)"),
        (b"id:8 stat:UNKNOWN err:1", ""),
        (CLASSIC, ""),
    ],
)
def test_a_word_that_nobody_knows_is_named(text: bytes, word: str) -> None:
    assert receipt(deliver(text)).unknown_word == word
    # The TLV's value counts, whatever the text says.
    assert receipt(deliver(text, {Tag.MESSAGE_STATE: b"\x02"})).unknown_word == ""
    assert receipt(deliver(text), final_states={"XYZZY12": ReceiptState.FAILED}).unknown_word in ("", word)


def test_a_setting_may_say_what_no_state_means() -> None:
    states = {"(NONE)": ReceiptState.DELIVERED}
    read = receipt(deliver(b"id:8 err:000"), final_states=states)
    assert (read.state, read.unknown_word) == ("delivered", "")
    assert receipt(deliver(b"id:8 stat:XYZZY err:000"), final_states=states).state == "unknown"
    assert receipt(deliver(b"id:8", {Tag.MESSAGE_STATE: b"\x01"}), final_states=states).state == "pending"


def test_without_a_source_address_the_sender_is_not_taken_for_the_recipient() -> None:
    read = receipt(deliver(CLASSIC, source_addr="", destination_addr="12345"))
    assert (read.recipient, read.sender) == ("", "12345")


@pytest.mark.parametrize("kind", [DeliverSm, DataSm])
@pytest.mark.parametrize("rest", [b"\x14\x01\xff\xff", b"\x14\x01\x00\x05ab", b"\x14", b"\x14\x01\x00"])
def test_a_bad_tlv_at_the_end_loses_nothing_in_front_of_it(kind: type[DeliverSm | DataSm], rest: bytes) -> None:
    fields: dict = {"source_addr": "258841234567", "esm_class": 4}
    tlvs = {Tag.RECEIPTED_MESSAGE_ID: b"77\0", Tag.MESSAGE_STATE: b"\x02"}
    frame = kind(9, tlvs=tlvs, **fields).encode() + rest
    read = decode(len(frame).to_bytes(4, "big") + frame[4:])
    assert isinstance(read, kind)
    assert (receipt(read).keys, receipt(read).state) == (("77",), "delivered")


def test_a_text_that_ends_too_early_is_read_as_far_as_it_goes() -> None:
    frame = deliver(tlvs={Tag.MESSAGE_PAYLOAD: CLASSIC}).encode()[:-3]
    read = decode(len(frame).to_bytes(4, "big") + frame[4:])
    assert isinstance(read, DeliverSm)
    assert receipt(read).keys == ("1526758174",)


@pytest.mark.parametrize("more", [1, 20])
def test_a_text_that_ends_before_its_length_is_read_as_far_as_it_goes(more: int) -> None:
    """Some SMSCs count a NUL that they do not send. Such receipts and messages were refused for good."""
    for text, esm_class in ((CLASSIC, 4), (b"STOP", 0)):
        frame = deliver(text, esm_class=esm_class).encode()
        at = len(frame) - len(text) - 1
        assert frame[at] == len(text)
        read = decode(frame[:at] + bytes((len(text) + more,)) + frame[at + 1 :])
        assert isinstance(read, DeliverSm)
        assert read.short_message == text
        found = parse(read, b"raw", ReceiptRules())
        assert found.keys == ("1526758174",) if isinstance(found, Receipt) else found.text == "STOP"


def test_the_operator_says_which_states_are_final() -> None:
    accepted = {"ACCEPTD": ReceiptState.DELIVERED}
    assert receipt(deliver(b"id:1 stat:ACCEPTD")).state is ReceiptState.PENDING
    assert receipt(deliver(b"id:1 stat:ACCEPTD"), final_states=accepted).state is ReceiptState.DELIVERED
    assert receipt(deliver(b"id:1 stat:accepted"), final_states=accepted).state is ReceiptState.DELIVERED
    by_tlv = deliver(tlvs={Tag.RECEIPTED_MESSAGE_ID: b"1", Tag.MESSAGE_STATE: b"\x06"})
    assert receipt(by_tlv, final_states=accepted).state is ReceiptState.DELIVERED
    lost = {"LOST": ReceiptState.FAILED}
    assert receipt(deliver(b"id:1 stat:LOST"), final_states=lost).state is ReceiptState.FAILED
    assert receipt(deliver(b"id:1 stat:UNDELIV"), final_states={"NACK": ReceiptState.REJECTED}).state == "undelivered"


@pytest.mark.parametrize(
    ("tlv", "text", "state"),
    [
        (1, b"id:1 stat:DELIVRD err:000", "delivered"),
        (6, b"id:1 stat:UNDELIV err:006", "undelivered"),
        (7, b"id:1 stat:EXPIRED err:000", "expired"),
        (1, b"id:1 stat:LOST err:000", "failed"),
        (2, b"id:1 stat:ENROUTE err:000", "delivered"),
        (5, b"id:1 stat:DELIVRD err:000", "undelivered"),
        (1, b"id:1 stat:ACCEPTD err:000", "pending"),
        (1, b"id:1 stat:UNKNOWN err:000", "pending"),
        (1, b"id:1 err:000 text:DELIVRD", "pending"),
    ],
)
def test_where_tlv_and_text_differ_a_final_state_counts(tlv: int, text: bytes, state: str) -> None:
    read = receipt(deliver(text, {Tag.MESSAGE_STATE: bytes((tlv,))}), final_states={"LOST": ReceiptState.FAILED})
    assert (read.state, read.unknown_word) == (state, "")


@pytest.mark.parametrize("stat", STATE_OF_TEXT)
def test_every_spelling_has_a_state(stat: str) -> None:
    state = receipt(deliver(f"id:1 stat:{stat} err:000".encode())).state
    assert (state is ReceiptState.UNKNOWN) == (stat == "UNKNOWN")


@pytest.mark.parametrize(
    ("error", "tlv", "own", "is_recipients"),
    [
        ("001", None, (), False),  # every supplier has its own meaning of 001
        ("001", None, ("001",), True),
        ("000", b"\x03\x00\x1b", (), True),  # GSM: absent subscriber
        ("000", b"\x03\x00\x22", (), False),  # GSM: system failure
        ("000", b"\x02\x00\x1b", (), False),  # IS-95
    ],
)
def test_whose_affair_an_error_is(error: str, tlv: bytes | None, own: tuple[str, ...], is_recipients: bool) -> None:
    for stat, counts in (("UNDELIV", True), ("DELIVRD", False), ("ENROUTE", False)):
        text = CLASSIC.replace(b"DELIVRD", stat.encode()).replace(b"err:000", f"err:{error}".encode())
        tlvs = {} if tlv is None else {Tag.NETWORK_ERROR_CODE: tlv}
        assert receipt(deliver(text, tlvs), recipient_errors=own).recipients is (is_recipients and counts)


# -- what a handset sends ----------------------------------------------------------------------------------------------


def test_what_a_handset_types_is_a_message() -> None:
    read = inbound(deliver(b"Your parcel id:5 is here", esm_class=0))
    assert (read.text, read.sender, read.recipient) == ("Your parcel id:5 is here", "258841234567", "ACME")
    assert inbound(deliver(CLASSIC, esm_class=0)).text == CLASSIC.decode()


def test_sniffing_takes_only_a_whole_receipt() -> None:
    assert receipt(deliver(CLASSIC, esm_class=0), sniff=True).keys == ("1526758174",)
    assert inbound(deliver(b"id:5 stat:DELIVRD", esm_class=0), sniff=True).text == "id:5 stat:DELIVRD"


def test_tlvs_that_only_an_smsc_writes_make_a_receipt() -> None:
    tlvs = {Tag.RECEIPTED_MESSAGE_ID: b"7", Tag.MESSAGE_STATE: b"\x02"}
    assert receipt(deliver(tlvs=tlvs, esm_class=0)).keys == ("7",)


@pytest.mark.parametrize("esm_class", [0x08, 0x10, 0x18])
def test_acknowledgements_by_a_handset_are_messages(esm_class: int) -> None:
    inbound(deliver(b"ok", esm_class=esm_class))


@pytest.mark.parametrize(
    ("pdu", "body", "concatenation"),
    [
        (deliver(b"\x05\x00\x03\x07\x02\x01Hi", esm_class=0x40), b"Hi", (7, 2, 1)),
        (deliver(b"\x06\x08\x04\x12\x34\x03\x02Hi", esm_class=0x40), b"Hi", (0x1234, 3, 2)),
        (deliver(b"\x08\x24\x01\x03\x00\x03\x07\x02\x02Hi", esm_class=0x40), b"Hi", (7, 2, 2)),
        (deliver(b"\x03\x24\x01\x01Hi", esm_class=0x40), b"Hi", None),
        (deliver(b"Hi there", esm_class=0x40), b"Hi there", None),
        (deliver(b"\x05\x00\x03\x07\x02\x09Hi", esm_class=0x40), b"Hi", None),
        (deliver(b"\x05\x00\x03\x07\x01\x01Hi", esm_class=0x40), b"Hi", None),
        (deliver(b"Hi", {0x020C: b"\0\x09", 0x020E: b"\x02", 0x020F: b"\x01"}, 0), b"Hi", (9, 2, 1)),
        (deliver(b"Hi", {0x020C: b"\x09", 0x020E: b"\x02", 0x020F: b"\x01"}, 0), b"Hi", (9, 2, 1)),
        (deliver(b"Hi", {0x020C: b"\0\x09", 0x020E: b"\0\x02", 0x020F: b"\0\x01"}, 0), b"Hi", (9, 2, 1)),
        (deliver(b"Hi", {0x020C: b"\0\0\0\x09", 0x020E: b"\x02", 0x020F: b"\x01"}, 0), b"Hi", (9, 2, 1)),
        (deliver(b"Hi", {0x020C: b"\1\0\0\x09", 0x020E: b"\x02", 0x020F: b"\x01"}, 0), b"Hi", None),
        (deliver(b"Hi", {0x020C: b"\0\x09"}, 0), b"Hi", None),
        (deliver(b"Hi", {0x020C: b"\0\x09", 0x020E: b"\x01", 0x020F: b"\x01"}, 0), b"Hi", None),
        (DataSm(1, tlvs={Tag.MESSAGE_PAYLOAD: b"Hi"}), b"Hi", None),
    ],
)
def test_parts_of_a_message(pdu: DeliverSm, body: bytes, concatenation: tuple[int, int, int] | None) -> None:
    read = inbound(pdu)
    whole = read.text.encode() if read.text is not None else read.body
    assert (whole, read.concatenation, read.text is None) == (body, concatenation, concatenation is not None)


# -- ids ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answered", "base", "receipted", "receipt_base"),
    [
        ("33E95179", "hex", "870928761", "dec"),
        ("39f99dd5", "hex", "0972660181", "dec"),
        ("00B8BE19", "text", "B8BE19", "text"),
        ("1101C1-C9D03D-F000", "text", "1101c1-c9d03d-f000", "text"),
        ("04062581461644996000241", "text", "4062581461644996000241", "text"),
        ("ffffffffffffffffffff", "hex", "1208925819614629174706175", "dec"),
        (" 7\0", "text", "0007", "text"),
        ("0", "text", "000", "text"),
        ("1101C1-C9D03D-F000", "text", "'1101c1-c9d03d-f000'", "text"),
        ("0B5C2F1E-77aa-4d0e-9a31-00c0ffee0001", "text", '"0b5c2f1e77aa4d0e9a3100c0ffee0001"', "text"),
        ("33E95179", "hex", '"870928761"', "dec"),
        ("not-hex", "hex", "NOT-HEX", "dec"),
        ("0B5C2F1E-77aa-4d0e-9a31-00c0ffee0001", "text", "0b5c2f1e77aa4d0e9a3100c0ffee0001", "text"),
        ("0b5c2f1e77aa4d0e9a3100c0ffee0001", "hex", "0B5C2F1E-77AA-4D0E-9A31-00C0FFEE0001", "hex"),
    ],
)
def test_keys_of_one_id(answered: str, base: str, receipted: str, receipt_base: str) -> None:
    assert id_key(answered, base) == id_key(receipted, receipt_base) != ""


def test_no_id_has_no_key() -> None:
    assert [id_key(raw, base) for raw in ("", " ", "\0") for base in ("text", "hex", "dec")] == [""] * 9


@given(st.integers(0, 1 << 200), st.integers(0, 4), st.booleans())
def test_hex_and_decimal_meet(number: int, zeros: int, capitals: bool) -> None:
    written = "0" * zeros + f"{number:x}"
    assert id_key(written.upper() if capitals else written, "hex") == id_key(str(number), "dec")


@given(st.text(), st.sampled_from(["text", "hex", "dec"]))
def test_a_key_never_raises(raw: str, base: str) -> None:
    id_key(raw, base)


@given(
    st.binary(max_size=80),
    octets := st.integers(0, 255),
    octets,
    st.booleans(),
    st.dictionaries(
        st.sampled_from([0x001E, 0x0427, 0x0423, 0x0204, 0x020C, 0x020E, 0x020F, 0x0424]), st.binary(max_size=6)
    ),
)
def test_no_bytes_make_parsing_raise(text: bytes, esm_class: int, coding: int, sniff: bool, tlvs: dict) -> None:
    read = parse(deliver(text, tlvs, esm_class, data_coding=coding), b"", ReceiptRules(sniff=sniff))
    assert isinstance(read, Receipt if esm_class & 0x24 else Receipt | Inbound)


@given(st.binary(max_size=60))
def test_a_user_data_header_is_taken_off_whole_or_not_at_all(payload: bytes) -> None:
    elements, rest = split_udh(payload)
    assert payload.endswith(rest)
    assert elements or rest == payload or payload[:1] == b"\0"


@pytest.mark.parametrize(
    ("source", "ton", "sender", "sender_ton"),
    [("841234567", 2, "841234567", 2), ("+258841234567", 0, "258841234567", 1), ("258841234567", 1, "258841234567", 1)],
)
def test_the_type_of_a_number_is_kept(source: str, ton: int, sender: str, sender_ton: int) -> None:
    pdu = deliver(b"STOP", esm_class=0, source_addr=source, source_addr_ton=ton, dest_addr_ton=3)
    read = inbound(pdu)
    assert (read.sender, read.sender_ton, read.recipient_ton) == (sender, sender_ton, 3)


def test_spaces_that_fill_an_address_are_not_part_of_it() -> None:
    filled = {"source_addr": "+258841234567    ", "destination_addr": "1234  "}
    read = inbound(deliver(b"STOP", esm_class=0, source_addr_ton=0, **filled))
    assert (read.sender, read.sender_ton, read.recipient) == ("258841234567", 1, "1234")
    told = receipt(deliver(b"id:1 stat:DELIVRD", **filled))
    assert (told.recipient, told.sender) == ("258841234567", "1234")


@pytest.mark.parametrize(
    ("header", "shifts", "concatenation"),
    [
        ("03240103", (0, 3), None),
        ("03250101", (1, 0), None),
        ("06240103250103", (3, 3), None),
        ("080003070201240103", (0, 3), (7, 2, 1)),
        ("0424020303", (0, 0), None),
    ],
)
def test_national_tables_stand_in_the_header(
    header: str, shifts: tuple[int, int], concatenation: tuple[int, int, int] | None
) -> None:
    read = inbound(deliver(bytes.fromhex(header) + b"Amanh\x1b{", esm_class=0x40))
    assert read.concatenation == concatenation
    if concatenation is None:
        assert read.text == texts.decode(b"Amanh\x1b{", 0, locking=shifts[0], single=shifts[1])
    else:
        # A part is decoded with the others: a character may be split between two.
        assert (read.text, read.body, read.form) == (None, b"Amanh\x1b{", texts.form(0, *shifts))


@pytest.mark.parametrize(
    ("data_coding", "alphabet", "body", "text"),
    [
        (8, "gsm", "STOP ё\0".encode("utf-16-be"), "STOP ё"),
        (8, "gsm", "a\0b\0\0".encode("utf-16-be"), "a\ufffdb"),
        (1, "gsm", b"STOP\0", "STOP"),
        (3, "gsm", b"STOP\0", "STOP"),
        (0, "latin1", b"STOP\0", "STOP"),
        (0, "gsm", b"a\0", "a@"),
    ],
)
def test_nuls_behind_a_text_are_no_part_of_it(data_coding: int, alphabet: str, body: bytes, text: str) -> None:
    assert inbound(deliver(body, esm_class=0, data_coding=data_coding), alphabet=alphabet).text == text


@pytest.mark.parametrize("data_coding", [0x08, 0x18, 0xE0])
@pytest.mark.parametrize("mark", ["", "fffe", "feff"])
def test_a_byte_order_mark_says_which_octet_comes_first_and_is_not_part_of_the_text(
    data_coding: int, mark: str
) -> None:
    codec = "utf-16-le" if mark == "fffe" else "utf-16-be"
    body = bytes.fromhex(mark) + "Não, stop 😀".encode(codec)
    assert inbound(deliver(body, esm_class=0, data_coding=data_coding)).text == "Não, stop 😀"


def test_what_is_no_text_stays_as_octets() -> None:
    read = inbound(deliver(b"\x01\x02", esm_class=0, data_coding=4))
    assert (read.text, read.body, read.form) == (None, b"\x01\x02", "4/0/0")
    assert inbound(deliver(b"a\xe7\xe3o", esm_class=0), alphabet="latin1").text == "ação"


@pytest.mark.parametrize("data_coding", [0x02, 0x04, 0x14, 0x44, 0xF4, 0xF6])
@pytest.mark.parametrize(("body", "text"), [(b"STOP\r\n", "STOP\r\n"), (b"STOP\x00", None), (b"", None)])
def test_eight_bit_data_is_text_if_it_is_all_printable(data_coding: int, body: bytes, text: str | None) -> None:
    assert inbound(deliver(body, esm_class=0, data_coding=data_coding)).text == text


@pytest.mark.parametrize("data_coding", [0x09, 0x0B, 0x0F, 0x20, 0x80, 0xBF])
@pytest.mark.parametrize(("body", "text"), [(b"STOP", "STOP"), (b"\x00S\x00T", None), (b"", None)])
def test_a_reserved_coding_is_text_if_it_is_all_printable(data_coding: int, body: bytes, text: str | None) -> None:
    """A STOP with such a number opted nobody out."""
    assert inbound(deliver(body, esm_class=0, data_coding=data_coding)).text == text


@pytest.mark.parametrize("data_coding", [0x00, 0x10, 0xF0])
@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("Arrêt à 5\r\n".encode("latin-1"), "Arrêt à 5\r\n"),
        ("Arrêt à 5 €".encode(), "Arrêt à 5 €"),
        ("5 €".encode("cp1252"), "5 €"),
        (b"caf\x05 \xe9", "café \ufffd"),  # with a character that has this octet in GSM-7 only
        (b"a\x00\xe9", "a@\ufffd"),
    ],
)
def test_the_default_alphabet_may_be_another_than_the_suppliers(data_coding: int, body: bytes, text: str) -> None:
    """GSM-7 has no octets above 0x7F: letters with accents were lost, and ARRÊT opted nobody out."""
    assert inbound(deliver(body, esm_class=0, data_coding=data_coding)).text == text
