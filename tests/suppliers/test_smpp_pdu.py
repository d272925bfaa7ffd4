"""The codec: compared with two independent ones, round trips, and garbage."""

from __future__ import annotations

import struct
from io import BytesIO

import msgspec
import pytest
import smpplib.command
import smpplib.smpp
from hypothesis import given
from hypothesis import strategies as st
from smpp.pdu import operations, pdu_types
from smpp.pdu.pdu_encoding import PDUEncoder

from heliograph.suppliers.smpp.codec import pdu as p
from heliograph.suppliers.smpp.codec.pdu import Framer, PduError, Tag, decode

texts = st.text(st.characters(min_codepoint=1, max_codepoint=255), max_size=21)
octets = st.integers(0, 255)
sequences = st.integers(1, 0x7FFFFFFF)
tlvs = st.dictionaries(st.integers(0, 0xFFFF), st.binary(max_size=40), max_size=4)


def strategy(kind: type[p.Pdu]) -> st.SearchStrategy[p.Pdu]:
    """PDUs of a kind with random values for every field, by its name and type."""
    hints = {field.name: str(field.type) for field in msgspec.structs.fields(kind)}
    fields = {name: drawn(name, hint) for name, hint in hints.items() if name not in ("sequence", "status")}
    fields["sequence"] = sequences
    return st.builds(kind, **fields)


def drawn(name: str, hint: str) -> st.SearchStrategy:
    if name == "tlvs":
        return tlvs
    if name == "short_message":
        return st.binary(max_size=254)
    if name == "destinations":
        return st.lists(st.one_of(texts, st.tuples(octets, octets, texts)), max_size=4).map(tuple)
    if name == "unsuccessful":
        return st.lists(st.tuples(octets, octets, texts, st.integers(0, 0xFFFFFFFF)), max_size=4).map(tuple)
    return texts if "str" in hint else octets


KINDS = [kind for kind in vars(p).values() if isinstance(kind, type) and "command" in vars(kind) and kind is not p.Pdu]


def error_of(frame: bytes) -> PduError | None:
    try:
        decode(frame)
    except PduError as error:
        return error
    return None


def test_every_command_of_the_protocol_is_there() -> None:
    requests = {value for name, value in vars(p.Command).items() if name.isupper()}
    unanswered = {p.Command.GENERIC_NACK, p.Command.OUTBIND, p.Command.ALERT_NOTIFICATION}
    responses = {value | p.RESPONSE for value in requests - unanswered}
    assert {kind.command for kind in KINDS} == requests | responses


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_is_written_is_read(kind: type[p.Pdu]) -> None:
    @given(strategy(kind))
    def check(pdu: p.Pdu) -> None:
        assert decode(pdu.encode()) == pdu

    check()


@given(st.sampled_from(KINDS), octets, st.binary(max_size=120))
def test_garbage_in_a_body_raises_only_the_codecs_own_error(kind: type[p.Pdu], status: int, body: bytes) -> None:
    error = error_of(struct.pack(">IIII", 16 + len(body), kind.command, status, 7) + body)
    assert error is None or (error.command, error.sequence) == (kind.command, 7)
    assert error is None or error.status


@given(st.binary(max_size=200))
def test_garbage_in_a_frame_raises_only_the_codecs_own_error(frame: bytes) -> None:
    error_of(frame)


@given(st.data())
def test_a_cut_request_raises_only_the_codecs_own_error(data: st.DataObject) -> None:
    whole = data.draw(strategy(data.draw(st.sampled_from([p.SubmitSm, p.DeliverSm, p.DataSm, p.SubmitMulti])))).encode()
    error = error_of(whole[: data.draw(st.integers(16, len(whole)))])
    assert error is None or error.status in (0x01, 0x02, 0x40, 0xC0)


# -- independent oracles -------------------------------------------------------------------------------------------


def submit(**changed: object) -> p.SubmitSm:
    fields: dict = {
        "sequence": 4711,
        "source_addr_ton": 5,
        "source_addr": "ACME",
        "dest_addr_ton": 1,
        "dest_addr_npi": 1,
        "destination_addr": "258841234567",
        "registered_delivery": 1,
        "short_message": b"Hello",
    }
    return p.SubmitSm(**(fields | changed))


def test_a_plain_submit_equals_smpp_pdu3() -> None:
    theirs = operations.SubmitSM(
        seqNum=4711,
        source_addr_ton=pdu_types.AddrTon.ALPHANUMERIC,
        source_addr_npi=pdu_types.AddrNpi.UNKNOWN,
        source_addr=b"ACME",
        dest_addr_ton=pdu_types.AddrTon.INTERNATIONAL,
        dest_addr_npi=pdu_types.AddrNpi.ISDN,
        destination_addr=b"258841234567",
        esm_class=pdu_types.EsmClass(pdu_types.EsmClassMode.DEFAULT, pdu_types.EsmClassType.DEFAULT),
        protocol_id=0,
        priority_flag=pdu_types.PriorityFlag.LEVEL_0,
        registered_delivery=pdu_types.RegisteredDelivery(
            pdu_types.RegisteredDeliveryReceipt.SMSC_DELIVERY_RECEIPT_REQUESTED
        ),
        replace_if_present_flag=pdu_types.ReplaceIfPresentFlag.DO_NOT_REPLACE,
        data_coding=pdu_types.DataCoding(schemeData=pdu_types.DataCodingDefault.SMSC_DEFAULT_ALPHABET),
        sm_default_msg_id=0,
        short_message=b"Hello",
    )
    assert submit().encode() == PDUEncoder().encode(theirs)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (
            p.BindTransceiver(1, system_id="esme", password="secret", system_type=""),
            operations.BindTransceiver(
                seqNum=1,
                system_id=b"esme",
                password=b"secret",
                system_type=b"",
                address_range=b"",
                interface_version=0x34,
            ),
        ),
        (
            p.BindTransmitter(2, system_id="esme", password="secret", addr_ton=1, addr_npi=1),
            operations.BindTransmitter(
                seqNum=2,
                system_id=b"esme",
                password=b"secret",
                system_type=b"",
                address_range=b"",
                interface_version=0x34,
                addr_ton=pdu_types.AddrTon.INTERNATIONAL,
                addr_npi=pdu_types.AddrNpi.ISDN,
            ),
        ),
        (p.EnquireLink(3), operations.EnquireLink(seqNum=3)),
        (p.EnquireLinkResp(3), operations.EnquireLinkResp(seqNum=3)),
        (p.Unbind(4), operations.Unbind(seqNum=4)),
        (p.UnbindResp(4), operations.UnbindResp(seqNum=4)),
        (p.SubmitSmResp(5, message_id="33d7f963"), operations.SubmitSMResp(seqNum=5, message_id=b"33d7f963")),
        (
            p.SubmitSmResp(5, status=0x58),
            operations.SubmitSMResp(seqNum=5, status=pdu_types.CommandStatus.ESME_RTHROTTLED),
        ),
        (
            p.GenericNack(6, status=0x02),
            operations.GenericNack(seqNum=6, status=pdu_types.CommandStatus.ESME_RINVCMDLEN),
        ),
    ],
    ids=lambda pdu: type(pdu).__name__,
)
def test_other_pdus_equal_smpp_pdu3(ours: p.Pdu, theirs: object) -> None:
    wire = PDUEncoder().encode(theirs)
    assert ours.encode() == wire
    assert decode(wire) == ours


@given(
    address=st.text("0123456789", min_size=1, max_size=15),
    text=st.binary(max_size=160),
    reference=st.integers(0, 0xFFFF),
    coding=st.sampled_from([0, 8]),
)
def test_smpplib_reads_what_we_write_and_writes_what_we_read(
    address: str, text: bytes, reference: int, coding: int
) -> None:
    ours = submit(
        destination_addr=address,
        short_message=text,
        data_coding=coding,
        tlvs={Tag.USER_MESSAGE_REFERENCE: reference.to_bytes(2, "big")},
    )
    theirs = smpplib.smpp.make_pdu(
        "submit_sm",
        client=Sequence(),
        source_addr_ton=5,
        source_addr="ACME",
        dest_addr_ton=1,
        dest_addr_npi=1,
        destination_addr=address,
        registered_delivery=1,
        data_coding=coding,
        short_message=text,
        user_message_reference=reference,
    )
    assert theirs.generate() == ours.encode()
    read = smpplib.smpp.parse_pdu(ours.encode(), client=Sequence(), allow_unknown_opt_params=True)
    assert (read.sequence, read.destination_addr, read.user_message_reference) == (4711, address.encode(), reference)
    assert (read.short_message or b"") == text


class Sequence:
    """What smpplib asks of its client while it writes a PDU."""

    sequence_generator = None

    def next_sequence(self) -> int:
        return 4711


def test_smpp_pdu3_reads_a_receipt_of_ours() -> None:
    receipt = p.DeliverSm(
        4711,
        source_addr_ton=1,
        source_addr_npi=1,
        source_addr="258841234567",
        destination_addr="ACME",
        esm_class=4,
        short_message=b"id:1 stat:DELIVRD",
        tlvs={Tag.RECEIPTED_MESSAGE_ID: b"33d7f963\0", Tag.MESSAGE_STATE: b"\x02", 0x1400: b"vendor"},
    )
    theirs = PDUEncoder().decode(BytesIO(receipt.encode()))
    assert theirs.params["receipted_message_id"] == b"33d7f963"
    assert theirs.params["message_state"] == pdu_types.MessageState.DELIVERED


# -- leniency and limits -------------------------------------------------------------------------------------------


def frame(command: int, status: int, body: bytes) -> bytes:
    return struct.pack(">IIII", 16 + len(body), command, status, 9) + body


@pytest.mark.parametrize("kind", [p.SubmitSmResp, p.DataSmResp, p.DeliverSmResp])
@pytest.mark.parametrize(
    ("body", "message_id"), [(b"", None), (b"\0", ""), (b"abc\0", "abc"), (b"abc", "abc"), (b"abc\0\0", "abc")]
)
def test_a_response_body_may_be_absent_a_nul_or_complete(
    kind: type[p.MessageResponse], body: bytes, message_id: str | None
) -> None:
    assert decode(frame(kind.command, 0x45, body)) == kind(9, 0x45, message_id)


@pytest.mark.parametrize(("body", "system_id"), [(b"", None), (b"\0", ""), (b"smsc\0\x02\x10\x00\x01\x34", "smsc")])
def test_a_bind_response_may_be_absent_a_nul_or_complete(body: bytes, system_id: str | None) -> None:
    read = decode(frame(p.BindTransceiverResp.command, 0x0E, body))
    assert isinstance(read, p.BindTransceiverResp)
    assert read.system_id == system_id


def test_unknown_and_vendor_tlvs_are_kept_and_the_first_of_two_wins() -> None:
    wire = bytearray(submit().encode())
    wire += bytes.fromhex("14000003616263") + bytes.fromhex("7fff0000") + bytes.fromhex("1400000164")
    wire[:4] = len(wire).to_bytes(4, "big")
    read = decode(bytes(wire))
    assert isinstance(read, p.SubmitSm)
    assert read.tlvs == {0x1400: b"abc", 0x7FFF: b""}


def test_an_unknown_command_is_answered_with_rinvcmdid() -> None:
    with pytest.raises(PduError) as caught:
        decode(frame(0x0000_0A0A, 0, b""))
    assert (caught.value.status, caught.value.sequence) == (0x03, 9)


def test_sm_length_beyond_the_pdu_is_answered_with_rinvmsglen() -> None:
    wire = bytearray(submit().encode())
    wire[-6] = 200
    with pytest.raises(PduError) as caught:
        decode(bytes(wire))
    assert (caught.value.status, caught.value.sequence) == (0x01, 4711)


@pytest.mark.parametrize(
    "changed",
    [
        {"source_addr": "A\0B"},
        {"source_addr": "Ж"},
        {"short_message": b"x" * 256},
        {"esm_class": 256},
        {"tlvs": {0x424: b"x" * 70_000}},
    ],
)
def test_a_value_that_does_not_fit_is_the_codecs_own_error(changed: dict) -> None:
    with pytest.raises(PduError):
        submit(**changed).encode()


def test_a_password_is_not_in_a_repr() -> None:
    for pdu in (p.BindTransceiver(1, system_id="esme", password="hunter2"), p.Outbind(1, password="hunter2")):
        assert "hunter2" not in f"{pdu!r} {pdu}"


# -- framing -------------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=60), max_size=6), st.data())
def test_framing_does_not_depend_on_how_the_stream_was_cut(bodies: list[bytes], data: st.DataObject) -> None:
    frames = [frame(0x15, 0, body) for body in bodies]
    stream = b"".join(frames)
    framer, read, at = Framer(), [], 0
    while at < len(stream):
        size = data.draw(st.integers(1, 40))
        read += framer.feed(stream[at : at + size])
        at += size
    assert read == frames
    assert framer.pending == 0
    assert Framer().feed(stream) == frames


@pytest.mark.parametrize("length", [0, 15, 70_001, 0xFFFFFFFF])
def test_a_wrong_length_is_known_at_its_fourth_octet_and_ends_the_stream(length: int) -> None:
    good = p.EnquireLink(1).encode()
    framer = Framer()
    wrong = length.to_bytes(4, "big")
    assert framer.feed(good + wrong[:3]) == [good]
    assert framer.broken is None
    assert framer.feed(wrong[3:]) == []
    assert isinstance(framer.broken, PduError)
    assert framer.feed(good) == []
