"""PDUs of a watched supplier never show a number, a text or a password."""

from __future__ import annotations

import random
import string

import msgspec
import pytest

from heliograph.suppliers.contract import LAST
from heliograph.suppliers.smpp.codec import pdu as p
from heliograph.suppliers.smpp.codec.pdu import Tag
from heliograph.suppliers.smpp.watching import PduRecorder, masked


def _shown(pdu: p.Pdu) -> str:
    tap = PduRecorder()
    tap(pdu, True)
    return msgspec.json.encode(tap.take()).decode()


@pytest.mark.parametrize("seed", range(200))
def test_no_number_text_or_password_is_ever_shown(seed: int) -> None:
    dice = random.Random(seed)

    def word(letters: str, least: int, most: int) -> str:
        return "".join(dice.choices(letters, k=dice.randint(least, most)))

    to, sender = word(string.digits, 8, 15), dice.choice(("", "+")) + word(string.digits, 8, 15)
    # Letters that occur in no field's name, so that a match is the text.
    text, password = word("äöüßéQXZ", 6, 60), word("QXZJÑ", 6, 8)
    body = text.encode("latin-1")
    in_payload = dice.random() < 0.5
    tlvs = {Tag.ADDITIONAL_STATUS_INFO_TEXT: body, 0x1501: body, Tag.NETWORK_ERROR_CODE: body}
    tlvs |= {Tag.MESSAGE_PAYLOAD: body} if in_payload else {}
    for kind in (p.SubmitSm, p.DeliverSm):
        pdu = kind(
            1,
            service_type=password[:5],
            source_addr=sender,
            destination_addr=to,
            data_coding=dice.randrange(256),
            short_message=b"" if in_payload else body,
            tlvs=tlvs,
        )
        said = _shown(pdu)
        assert f"…{to[-4:]}" in said
        for secret in (to, sender, text, body.hex().upper(), password[:5]):
            assert secret not in said
        assert masked(pdu)["octets"] == len(body)
    data = p.DataSm(1, source_addr=sender, destination_addr=to, tlvs=tlvs | {Tag.MESSAGE_PAYLOAD: body})
    bind = p.BindTransceiver(1, system_id="acme", password=password, system_type=password[:5])
    answer = p.SubmitSmResp(1, 0x58, "id1", tlvs)
    rare = p.CancelSm(1, source_addr=sender, destination_addr=to)
    for said in map(_shown, (data, bind, answer, rare)):
        for secret in (to, sender, text, body.hex().upper(), password, password[:5]):
            assert secret not in said


def test_what_helps_is_shown() -> None:
    tap = PduRecorder()
    tap(p.BindTransceiver(1, system_id="acme", password="geheim"), True)
    tap(
        p.SubmitSm(2, source_addr="ACME", destination_addr="+258 84 123 4567", data_coding=8, short_message=b"ab"), True
    )
    tap(p.SubmitSmResp(2, 0x58, "188b2c"), False)
    tap(p.DeliverSm(3, source_addr="1234", esm_class=4, tlvs={Tag.RECEIPTED_MESSAGE_ID: b"42\0", 0x1501: b"a"}), False)
    bind, submit, answer, receipt = tap.take()
    assert (bind.command, bind.is_sent, bind.fields) == ("bind_transceiver", True, {"system_id": "acme"})
    assert (submit.command, submit.sequence, submit.status) == ("submit_sm", 2, "")
    assert submit.fields == {
        "source_addr": "ACME",
        "destination_addr": "…4567",
        "esm_class": "0x00",
        "registered_delivery": "0x00",
        "data_coding": "0x08",
        "octets": 2,
    }
    assert (answer.command, answer.is_sent, answer.fields) == ("submit_sm_resp", False, {"message_id": "188b2c"})
    assert answer.status == "0x00000058 ESME_RTHROTTLED"
    assert (receipt.fields["source_addr"], receipt.fields["receipted_message_id"]) == ("1234", "42")
    assert receipt.fields["other_tlvs"] == "0x1501"
    assert tap.take() == []


def test_only_the_last_are_kept() -> None:
    tap = PduRecorder()
    for sequence in range(LAST + 50):
        tap(p.EnquireLink(sequence), True)
    assert [one.sequence for one in tap.take()] == list(range(50, LAST + 50))
