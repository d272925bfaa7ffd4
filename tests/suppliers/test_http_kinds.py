"""Suppliers over HTTP, one by one: requests, answers, callbacks; and the parts of the generic kind."""

from __future__ import annotations

import base64
import json
import re
import string
from typing import Any, get_type_hints
from uuid import UUID
from xml.etree import ElementTree as xml

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.base.process.settings import SettingsError
from heliograph.base.sentences import english
from heliograph.suppliers import kinds
from heliograph.suppliers.contract import Receipt, ReceiptState, Scope, Submission, Verdict
from heliograph.suppliers.http import generic, multipart, references, templates
from heliograph.suppliers.http.by_name import africastalking, infobip, twilio, vonage
from heliograph.suppliers.http.kind import FORM, JSON, Answer, Callback, Message
from heliograph.suppliers.http.rulings import Ruling, by_status, outcome
from heliograph.suppliers.lookups import kinds as look_ups

MESSAGE = Message(
    to="258841234567",
    sender="ACME",
    text="Olá",
    encoding="gsm7",
    reference="r-1",
    callback="https://us.example/in/sms/x/y/receipts?ref=r-1",
    validity_seconds=90,
)


def least(kind: str) -> dict[str, Any]:
    """The settings without a default, and an API address if the kind has none."""
    fields = msgspec.structs.fields(kinds.SETTINGS[kind])
    required = {one.name: "acme" for one in fields if one.default is one.default_factory is msgspec.NODEFAULT}
    known = any(one.name == "base_url" and one.default for one in fields)
    return required if known and "base_url" not in required else required | {"base_url": "https://gateway.example"}


def settings(kind: str, **values: Any) -> Any:
    return kinds.settings_from(kind, least(kind) | values)


@pytest.mark.parametrize("name", kinds.HTTP)
@given(st.binary(max_size=200) | st.sampled_from([b"{}", b"[]", b"null", b'{"messages":[]}', b'{"messages":{}}', b"7"]))
def test_whatever_is_answered_has_an_outcome_and_is_never_taken_for_a_yes(name: str, body: bytes) -> None:
    kind = kinds.HTTP[name]
    for status in (200, 201, 202, 204, 302, 400, 401, 404, 429, 500, 503):
        found = kind.answer(
            settings(name, **({"id_at": "/id"} if name == "http" else {})), MESSAGE, Answer(status, body)
        )
        assert found.verdict is not Verdict.ACCEPTED
    callback = Callback("POST", "https://us.example/in/sms/x/y/receipts?ref=r", {}, body)
    for one in (kind.receipts, kind.inbound):
        assert isinstance(one(settings(name), callback), list)


#: JSON in other shapes than documented, under field names that suppliers use.
ODD = [
    b'{"messages":1,"results":1,"code":[],"data":{"messages":[{"error":{"code":{}}}]}}',
    b'{"results":true,"event":{"messageStatusUpdate":7,"moText":{}},"messages":{"0":{}}}',
    b'{"results":[null,7,[]],"event":{"messageStatusUpdate":[null],"moText":["x"]},"messages":[null,{"status":[]}]}',
    b"[" * 100_000,
    b'{"results":' * 50_000,
]


@pytest.mark.parametrize("name", kinds.HTTP)
@pytest.mark.parametrize("body", ODD)
def test_json_of_any_shape_is_read(name: str, body: bytes) -> None:
    """If a supplier's module failed on it, the callback would be read again every minute, for days."""
    kind = kinds.HTTP[name]
    for status in (200, 400):
        found = kind.answer(settings(name), MESSAGE, Answer(status, body))
        assert found.verdict is not Verdict.ACCEPTED or name == "http"
    callback = Callback("POST", "https://us.example/in/sms/x/y/receipts?ref=r", {}, body)
    for one in (kind.receipts, kind.inbound):
        assert isinstance(one(settings(name), callback), list)
    signed = settings(name, **({"signature_method": "sha256"} if name == "vonage" else {}))
    kind.is_genuine(signed, {"secret": "s", "signature_secret": "k"}, callback)


@pytest.mark.parametrize(
    ("address", "is_taken"),
    [("192.0.2.7", True), ("::ffff:192.0.2.7", True), ("198.51.100.1", False), ("2001:db8::1", False), ("", False)],
)
def test_callbacks_come_from_the_networks_that_were_named(address: str, is_taken: bool) -> None:
    """A dual-stack socket writes IPv4 addresses as ::ffff:…."""
    assert settings("vonage", callback_networks="192.0.2.0/24").takes_from(address) is is_taken
    assert settings("vonage").takes_from(address)


@pytest.mark.parametrize("name", kinds.HTTP)
def test_least_settings_are_enough_and_others_are_named(name: str) -> None:
    assert settings(name).base_url.startswith("https://")
    for wrong in ({"window": 0}, {"base_url": "gateway"}, {"country": "XX"}, {"callback_networks": "here"}, {"x": 1}):
        with pytest.raises(SettingsError, match=next(iter(wrong))):
            settings(name, **wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        *("https://h:99999", "https://h:x", "https://h:0", "https://u:p@h", "https://@h", "h.example", "https://h?a"),
        *("https://h/v1?", "https://h/#", "https://h /", "https://h/v 1", "https://h\t/"),
    ],
)
def test_an_address_that_nobody_can_be_asked_at_is_refused(wrong: str) -> None:
    with pytest.raises(SettingsError, match="base_url"):
        settings("infobip", base_url=wrong)
    with pytest.raises(SettingsError, match="base_url"):
        look_ups.settings_from("infobip", {"base_url": wrong, "price": "1", "currency": "USD"})


@pytest.mark.parametrize("name", kinds.HTTP)
def test_a_slash_at_the_end_of_the_address_is_not_doubled(name: str) -> None:
    plain, pasted = (settings(name, base_url=f"https://gateway.example/v2{end}") for end in ("", "/"))
    asked = [kinds.HTTP[name].request(one, {"secret": "s"}, MESSAGE).url for one in (plain, pasted)]
    assert asked[0] == asked[1]


def test_what_each_asks_for() -> None:
    asked = {name: kinds.HTTP[name].request(settings(name), {"secret": "s"}, MESSAGE) for name in kinds.HTTP}
    assert b"to=%2B258841234567" in asked["africastalking"].body
    assert asked["africastalking"].headers["apiKey"] == "s"
    assert json.loads(asked["clickatell"].body)["messages"][0]["to"] == "258841234567"
    one = json.loads(asked["infobip"].body)["messages"][0]
    assert one["destinations"] == [{"to": "258841234567", "messageId": "r-1"}]
    assert one["options"]["validityPeriod"] == {"amount": 1, "timeUnit": "MINUTES"}
    assert asked["twilio"].url == "https://api.twilio.com/2010-04-01/Accounts/acme/Messages.json"
    assert b"ValidityPeriod=90" in asked["twilio"].body
    assert b"ttl=90000" in asked["vonage"].body
    assert b"type=text" in asked["vonage"].body
    assert all("s" not in one.url.partition("//")[2].split("/")[1:] for one in asked.values())


@pytest.mark.parametrize(
    ("body", "verdict", "scope"),
    [
        # github.com/medic/medic-docs#112: no recipients for a sender that is not theirs
        ({"Message": "InvalidSenderId", "Recipients": []}, Verdict.REFUSED, Scope.SENDER),
        ({"Recipients": [{"statusCode": 405, "messageId": "None"}]}, Verdict.UNREACHABLE, Scope.ACCOUNT),
        ({"Recipients": [{"statusCode": 406, "messageId": "None"}]}, Verdict.REFUSED, Scope.MESSAGE),
        ({"Recipients": [{"statusCode": 999, "messageId": "None"}]}, Verdict.UNKNOWN, Scope.ACCOUNT),
        ({"Recipients": [{"statusCode": 101, "messageId": "ATXid_1"}]}, Verdict.ACCEPTED, Scope.ACCOUNT),
    ],
)
def test_africas_talking_says_in_the_body_how_it_went(body: Any, verdict: Verdict, scope: Scope) -> None:
    answer = Answer(201, msgspec.json.encode({"SMSMessageData": body}))
    found = africastalking.answer(settings("africastalking"), MESSAGE, answer)
    assert (found.verdict, found.scope) == (verdict, scope)
    # Somebody who answered STOP to the supplier's number is on the supplier's list.
    assert found.opted_out == ('statusCode": 406' in json.dumps(body))


def test_a_failed_number_has_no_id() -> None:
    one = {"statusCode": 101, "messageId": "None"}
    answer = Answer(201, msgspec.json.encode({"SMSMessageData": {"Recipients": [one]}}))
    (part,) = africastalking.answer(settings("africastalking"), MESSAGE, answer).parts
    assert part.supplier_message_id is None


def test_infobip_delivered_to_the_operator_is_not_delivered() -> None:
    results = [{"messageId": str(number), "to": "1", "status": {"groupId": 3, "id": number}} for number in (2, 5)] + [
        {"messageId": "x", "status": {"groupId": 4, "id": 999}}
    ]
    callback = Callback("POST", "https://us.example/", {}, msgspec.json.encode({"results": results}))
    found = infobip.KIND.receipts(settings("infobip"), callback)
    assert [one.state for one in found] == [ReceiptState.PENDING, ReceiptState.DELIVERED, ReceiptState.EXPIRED]


def test_twilio_signs_the_address_with_the_port_or_without() -> None:
    # The example in Twilio's documentation of webhook security, with its token and signature.
    url = "https://mycompany.com/myapp.php?foo=1&bar=2"
    body = b"CallSid=CA1234567890ABCDE&Caller=%2B14158675309&Digits=1234&From=%2B14158675309&To=%2B18005551212"
    signed = Callback("POST", url, {"x-twilio-signature": "RSOYDt4T1cUTdK1PDd93/VVr8B8="}, body)
    assert twilio.is_genuine(settings("twilio"), {"secret": "12345"}, signed)
    assert twilio.is_genuine(settings("twilio"), {"secret": "x", "auth_token": "12345"}, signed)
    with_port = msgspec.structs.replace(signed, url=url.replace("mycompany.com", "mycompany.com:443"))
    assert twilio.is_genuine(settings("twilio"), {"secret": "12345"}, with_port)
    for other in (
        msgspec.structs.replace(signed, body=body + b"&x=1"),
        msgspec.structs.replace(signed, url=url + "3"),
        msgspec.structs.replace(signed, headers={}),
    ):
        assert not twilio.is_genuine(settings("twilio"), {"secret": "12345"}, other)


def test_vonage_takes_nothing_unsigned_once_it_signs() -> None:
    callback = Callback("POST", "https://us.example/", {}, b"messageId=1&status=delivered")
    assert vonage.is_genuine(settings("vonage"), {"secret": "s"}, callback)
    signing = settings("vonage", signature_method="sha256")
    assert not vonage.is_genuine(signing, {"secret": "s"}, callback)
    assert not vonage.is_genuine(signing, {"secret": "s", "signature_secret": "k"}, callback)


@pytest.mark.parametrize(
    ("code", "verdict", "scope", "alarm"),
    [
        (21606, Verdict.REFUSED, Scope.SENDER, False),
        (21659, Verdict.REFUSED, Scope.SENDER, False),
        (21660, Verdict.REFUSED, Scope.SENDER, False),
        (21661, Verdict.REFUSED, Scope.SENDER, False),
        (21701, Verdict.UNREACHABLE, Scope.ACCOUNT, True),
        (20003, Verdict.UNREACHABLE, Scope.ACCOUNT, True),
        (21612, Verdict.REFUSED, Scope.MESSAGE, False),
        (21408, Verdict.REFUSED, Scope.MESSAGE, False),
    ],
)
def test_twilio_says_whether_it_is_the_sender_or_the_account(
    code: int, verdict: Verdict, scope: Scope, alarm: bool
) -> None:
    """A number that has left the account is not tried there with each message."""
    body = b'{"code": %d, "message": "no", "status": 400}' % code
    found = twilio.answer(settings("twilio"), MESSAGE, Answer(400, body))
    assert (found.verdict, found.scope, found.alarm) == (verdict, scope, alarm)
    assert found.failover == (verdict is Verdict.REFUSED)


def test_twilio_has_a_text_of_which_a_part_arrived_neither_delivered_nor_failed() -> None:
    body = b"MessageSid=SM1&MessageStatus=partially_delivered&To=%2B258841234567&From=ACME"
    (one,) = twilio.KIND.receipts(settings("twilio"), Callback("POST", "https://us.example/", {}, body))
    assert (one.state, one.unknown_word) == (ReceiptState.PENDING, "")


@pytest.mark.parametrize(
    ("said", "asked"), [("", ""), ("&OptOutType=STOP", "stop"), ("&OptOutType=START", "start"), ("&OptOutType=NEW", "")]
)
def test_twilio_says_what_it_took_a_message_for(said: str, asked: str) -> None:
    """The words of Advanced Opt-Out are known to it alone."""
    body = f"MessageSid=SM1&From=%2B258841234567&To=%2B258800001234&Body=Sluta{said}".encode()
    (one,) = twilio.KIND.inbound(settings("twilio"), Callback("POST", "https://us.example/", {}, body))
    assert (one.text, one.asked) == ("Sluta", asked)


def test_whose_affair_an_error_is() -> None:
    named = {"africastalking": "UserDoesNotExist", "infobip": "27", "twilio": "30005", "vonage": "3"}
    for name, kind in kinds.HTTP.items():
        own = settings(name, recipient_errors=["E7"])
        for error, expected in ((named.get(name, "E7"), True), ("E7", True), ("E8", False), ("", False)):
            lost = Receipt(("1",), ReceiptState.UNDELIVERED, "258841234567", "", b"", error)
            assert kind.blamed(own, lost).recipients is expected, (name, error)
            arrived = msgspec.structs.replace(lost, state=ReceiptState.DELIVERED)
            assert not kind.blamed(own, arrived).recipients


def test_parts_that_vonage_does_not_join_say_where_they_belong() -> None:
    body = b"msisdn=258841234567&to=1234&text=a&messageId=1&concat=true&concat-ref=7&concat-total=2&concat-part="
    for part, place in ((b"1", (7, 2, 1)), (b"2", (7, 2, 2)), (b"3", None), (b"x", None)):
        (one,) = vonage.KIND.inbound(settings("vonage"), Callback("POST", "https://us.example/", {}, body + part))
        assert one.concatenation == place


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'\xef\xbb\xbf{"text":"hi"}', "hi"),
        (b'\xef\xbb\xbf\xef\xbb\xbf{"text":"hi"}', "hi"),
        (b"\xef\xbb\xbftext=hi", "hi"),
        (b"\xef\xbb\xbftext=Ol\xe1", "Olá"),
        (b'\xef\xbb\xbf{"text":"Ol\xe1"}', "Olá"),
        (b'{"text":"Yes\r\n\tI do"}', "Yes\r\n\tI do"),
        (b'{"text":"S\xed\nyes \\ud83d"}', "Sí\nyes \ufffd"),
        (b'{"text":"hi"}\n\0', "hi"),
        ('{"text":"Olá"}'.encode("latin-1"), "Olá"),
        (rb'{"text":"a\ud83d"}', "a\ufffd"),
        (rb'{"text":"\ude00 \ud83d\ude00 \\ud83d"}', "\ufffd 😀 \\ud83d"),
        (b"text=Ol%E1", "Olá"),
        (b"text=5%80", "5€"),
        (b'{"text":"5\x80"}', "5€"),
        (b'{"text":"5\x81"}', "5\x81"),
        ("text=Olá".encode("latin-1"), "Olá"),
        ("text=Olá".encode(), "Olá"),
    ],
)
def test_texts_as_gateways_write_them(body: bytes, text: str) -> None:
    """A byte order mark before JSON or a form, another charset, half a character, a line break that is not escaped:
    each used to lose the whole callback, after a 200."""
    callback = Callback("POST", "https://us.example/", {}, body)
    assert callback.fields["text"] == text
    place = "/text" if b"{" in body else "form:text"
    assert templates.Found(body).text(place) == text
    signing = settings("vonage", signature_method="sha256")
    assert not vonage.is_genuine(signing, {"secret": "s", "signature_secret": "k"}, callback)


#: As PHP's cURL writes an array.
MULTIPART = (
    b'--------x1\r\nContent-Disposition: form-data; name="id"\r\n\r\n00A1\r\n'
    b"--------x1\r\nContent-Disposition: form-data; filename=a; name=note\r\nContent-Type: text/plain\r\n\r\n"
    b"a\r\n--b\r\n\r\nc\r\n"
    b'--------x1\r\nContent-Disposition: form-data; name="text"\r\n\r\nOl\xe1 & at\xe9 j\xe1\r\n'
    b'--------x1\r\nContent-Disposition: form-data; name="from"\r\n\r\n+258841230106\r\n'
    b'--------x1\r\nContent-Disposition: form-data; name="to"\r\n\r\n\r\n'
    b"--------x1--\r\n"
)


@pytest.mark.parametrize("kind", ["multipart/form-data; boundary=------x1", 'Multipart/Form-Data; boundary="------x1"'])
def test_a_form_may_have_several_parts(kind: str) -> None:
    """Of a gateway in PHP: neither its receipts nor handsets' messages were read."""
    callback = Callback("POST", "https://x/?ref=1", {"content-type": kind}, MULTIPART)
    fields = {"id": "00A1", "note": "a\r\n--b\r\n\r\nc", "text": "Olá & até já", "from": "+258841230106", "to": ""}
    assert (callback.form, callback.fields) == (fields, {"ref": "1"} | fields)
    settings = {"base_url": "https://x.example", "body": '{"t":"{{text}}"}', "receipt_id_at": "form:id"}
    places = {"inbound_from_at": "form:from", "inbound_text_at": "form:text"}
    there = kinds.settings_from("http", settings | places)
    (receipt,) = kinds.HTTP["http"].receipts(there, callback)
    (message,) = kinds.HTTP["http"].inbound(there, callback)
    assert (receipt.keys, message.sender, message.text) == (("a1",), "258841230106", "Olá & até já")


def test_a_form_of_several_parts_is_read_in_linear_time_or_not_at_all() -> None:
    kind = "multipart/form-data; boundary=x"
    part = b'--x\r\nContent-Disposition: form-data; name="n%d"\r\n\r\nv\r\n'
    for count, read in ((200, 200), (201, 0), (10_000, 0)):
        assert len(multipart.fields(b"".join(part % n for n in range(count)) + b"--x--", kind) or {}) == read
    assert multipart.fields(b"--x\r\n" + b" name=" * 200_000 + b"\r\n\r\nv\r\n--x--", kind) == {}
    assert multipart.fields(b"--x\r\n\r\nv", kind) == {}
    assert multipart.fields(b"", kind) == multipart.fields(MULTIPART, "multipart/form-data") == {}
    assert multipart.fields(b"id=1", "application/x-www-form-urlencoded") is None


def test_an_answer_behind_a_mark_is_an_answer() -> None:
    answer = Answer(201, b'\xef\xbb\xbf{"sid":"SM1","status":"queued"}')
    assert twilio.answer(settings("twilio"), MESSAGE, answer).verdict is Verdict.ACCEPTED


def test_one_odd_report_costs_none_of_the_others() -> None:
    good = {"messageId": "a", "to": "1", "status": {"groupId": 3, "id": 5}}
    odd = [{"messageId": "b", "status": {"id": one, "groupId": one}} for one in ([1], {"x": 1}, True, 5.5, "5")]
    callback = Callback("POST", "https://us.example/", {}, msgspec.json.encode({"results": [*odd, good]}))
    found = infobip.KIND.receipts(settings("infobip"), callback)
    assert [one.state for one in found] == [ReceiptState.UNKNOWN] * 4 + [ReceiptState.DELIVERED] * 2


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("clickatell", {"messages": [{"accepted": False, "error": {"code": "25"}}]}),
        ("africastalking", {"SMSMessageData": {"Recipients": [{"statusCode": "403", "messageId": "None"}]}}),
        ("infobip", {"messages": [{"messageId": "r-1", "status": {"id": "51", "groupId": "5"}}]}),
    ],
)
def test_a_code_may_be_written_as_a_text(name: str, body: Any) -> None:
    found = kinds.HTTP[name].answer(settings(name), MESSAGE, Answer(200, msgspec.json.encode(body)))
    assert (found.verdict, found.failover) == (Verdict.REFUSED, False)
    true = json.loads(json.dumps(body).replace('"25"', "true").replace('"403"', "true").replace('"51"', "true"))
    known = kinds.HTTP[name].answer(settings(name), MESSAGE, Answer(200, msgspec.json.encode(true)))
    assert known.verdict is Verdict.UNKNOWN or name == "infobip"


def test_each_part_that_vonage_took_is_known_by_its_id() -> None:
    """Each part has a receipt: those of all but the last used to match nothing, and a part that failed before the last
    one arrived was not counted."""
    body = {"messages": [{"status": "0", "message-id": f"m{n}"} for n in range(3)]}
    found = vonage.answer(settings("vonage"), MESSAGE, Answer(200, msgspec.json.encode(body)))
    assert [(one.number, one.supplier_message_id) for one in found.parts] == [(1, "m0"), (2, "m1"), (3, "m2")]
    assert (found.verdict, found.total) == (Verdict.ACCEPTED, 3)


TEXT = st.text(st.characters(blacklist_categories=["Cs"]), max_size=80)


@pytest.mark.parametrize("kind", ["text/json", "application/json; charset=utf-8", "application/hal+json"])
def test_every_json_is_escaped_and_nothing_else_is_mixed_with_a_text(kind: str) -> None:
    body = '{"to":"{{to}}","text":"{{text}}"}'
    message = msgspec.structs.replace(MESSAGE, text='x","to":"1900123')
    asked = generic.KIND.request(settings("http", body=body, content_type=kind), {"secret": "s"}, message)
    assert json.loads(asked.body) == {"to": message.to, "text": message.text}
    with pytest.raises(SettingsError, match="content_type"):
        settings("http", body="to={{to}}&text={{text}}", content_type="text/plain")
    alone = settings("http", body="{{text}}", content_type="text/plain", path="/{{to}}")
    assert generic.KIND.request(alone, {"secret": "s"}, message).body == message.text.encode()


def test_old_gateways_take_what_is_not_gsm_in_hex() -> None:
    path = "/bulksms/bulksms?type={{coding}}&destination={{to}}&message={{text}}"
    known = settings("http", method="GET", path=path, ucs2_text="hex")
    for encoding, text, written in (
        ("gsm7", "Olá", "type=0&destination=258841234567&message=Ol%C3%A1"),
        ("ucs2", "Ж😀", "type=2&destination=258841234567&message=0416D83DDE00"),
    ):
        message = msgspec.structs.replace(MESSAGE, encoding=encoding, text=text)
        asked = generic.KIND.request(known, {"secret": "s"}, message)
        assert asked.url == f"https://gateway.example/bulksms/bulksms?{written}"


def test_a_page_without_a_code_is_no_yes() -> None:
    known = settings("http", code_at="/code", codes={"200": "accepted", "503": "later"})
    for status, body, verdict in (
        (200, b'{"code":200}', Verdict.ACCEPTED),
        (200, b"<html>Log in</html>", Verdict.UNKNOWN),
        (200, b"", Verdict.UNKNOWN),
        (503, b"", Verdict.BUSY),
    ):
        assert generic.answer(known, MESSAGE, Answer(status, body)).verdict is verdict, body


@given(TEXT)
def test_no_text_ends_the_string_that_it_stands_in(text: str) -> None:
    filled = templates.fill('{"text":"{{text}}","to":"{{to}}"}', {"text": text, "to": "1"}, JSON)
    assert json.loads(filled) == {"text": text, "to": "1"}
    form = templates.fill("a={{text}}&b=2", {"text": text}, FORM)
    assert Callback("POST", "https://us.example/", {}, form.encode()).form == {"a": text, "b": "2"}
    url = templates.fill_url("/send?a={{text}}&b=2", {"text": text})
    assert Callback("GET", f"https://us.example{url}", {}, b"").query == {"a": text, "b": "2"}
    assert not {"\r", "\n", "\0"} & set(templates.fill_header("Bearer {{text}}", {"text": text}))


@given(st.text(string.printable + "é€😀", max_size=60).filter(lambda text: not set(text) & set("\r\x0b\x0c")))
def test_no_text_ends_the_element_that_it_stands_in(text: str) -> None:
    filled = templates.fill('<a b="{{text}}">{{text}}</a>', {"text": text}, "application/xml")
    assert (xml.fromstring(filled).text or "") == text  # noqa: S314 - it is ours


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("/data/0/id", "7"),
        ("/data/1/id", ""),
        ("/a~1b", "slash"),
        ("/ok", "true"),
        ("header:X-Id", "h"),
        ("query:ref", "r"),
        ("regex:id=([a-z]+)", ""),
        ('regex:"id":([0-9]+)', "7"),
        ("status", "201"),
        ("", ""),
    ],
)
def test_places(place: str, text: str) -> None:
    body = b'{"data":[{"id":7}],"a/b":"slash","ok":true}'
    assert templates.Found(body, {"x-id": "h"}, "https://us.example/?ref=r", 201).text(place) == text


@pytest.mark.parametrize("wrong", ["id", "form:", "regex:(", "regex:id", "regex:(a)(b)", "json:/id"])
def test_places_that_are_none(wrong: str) -> None:
    with pytest.raises(SettingsError, match="id_at"):
        settings("http", id_at=wrong)


def test_a_template_names_what_there_is() -> None:
    with pytest.raises(SettingsError, match="body"):
        settings("http", body="{{recipient}}")
    with pytest.raises(SettingsError, match="headers"):
        settings("http", headers={"X": "a\nb"})


@pytest.mark.parametrize(
    "names",
    [
        *(["content-type"], ["Content-Type"], ["Host", "content-length"], ["user-agent"], ["Accept-Encoding"]),
        ["authorization"],
    ],
)
def test_no_header_is_written_twice(names: list[str]) -> None:
    verb = "is" if len(names) == 1 else "are"
    with pytest.raises(SettingsError, match=f"^headers must not contain {', '.join(names)}, which {verb} always sent"):
        settings("http", headers=dict.fromkeys(names, "x"), body='{"text":"{{text}}"}', basic_user="us")
    settings("http", headers={"Authorization": "Bearer {{secret}}"}, body='{"text":"{{text}}"}')
    known = settings("http", method="GET", path="/?text={{text}}", headers={"content-type": "text/plain"})
    assert generic.KIND.request(known, {"secret": "s"}, MESSAGE).headers == {"content-type": "text/plain"}


@pytest.mark.parametrize("charset", ["ISO-8859-1", ' "windows-1252"'])
def test_a_body_says_no_charset_that_it_is_not_in(charset: str) -> None:
    """Accents would arrive garbled on handsets, and still be charged."""
    with pytest.raises(SettingsError, match="content_type"):
        settings("http", content_type=f"{FORM}; charset={charset}", body="text={{text}}")
    settings("http", content_type=f"{FORM};charset=utf-8", body="text={{text}}")


def test_a_body_is_json_also_for_a_message_without_a_validity() -> None:
    body = '{"to":{{to}},"text":"{{text}}","ttl":{{validity_minutes}}}'
    for wrong in ({"body": body}, {"body": '{"text":{{text}}}'}, {"body": "to={{to}}&text={{text}}"}):
        with pytest.raises(SettingsError, match="body"):
            settings("http", **wrong)
    known = settings("http", body=body, validity_seconds=7200)
    for said, minutes in ((None, 120), (90, 1)):
        message = msgspec.structs.replace(MESSAGE, validity_seconds=said)
        asked = generic.KIND.request(known, {"secret": "s"}, message)
        assert json.loads(asked.body) == {"to": 258841234567, "text": "Olá", "ttl": minutes}
    settings("http", body="to={{to}}&ttl={{validity_minutes}}", content_type=FORM)


def test_a_generic_answer_without_its_id_may_have_been_taken() -> None:
    known = settings("http", id_at="/id", code_at="/code", codes={"0": "accepted", "17": "no_credit"})
    for status, body, verdict in (
        (200, b'{"id":"a","code":0}', Verdict.ACCEPTED),
        (200, b'{"code":0}', Verdict.UNKNOWN),
        (200, b'{"code":99,"id":"a"}', Verdict.UNKNOWN),
        (200, b'{"code":17}', Verdict.UNREACHABLE),
        (500, b"", Verdict.UNKNOWN),
        (404, b"", Verdict.UNREACHABLE),
    ):
        assert generic.answer(known, MESSAGE, Answer(status, body)).verdict is verdict, body


@pytest.mark.parametrize(
    ("answered", "reported"),
    [
        ("5D1A3C7E-90AB-4CDE-8F01-23456789ABCD", "5d1a3c7e90ab4cde8f0123456789abcd"),
        ("00B8BE19", "b8be19"),
        ("ABC-1", "abc-1"),
        ("0" * 8 + "a" * 24 + "-1-00Af-41234567", "0" * 8 + "A" * 24 + "-1-00AF-41234567"),  # our reference
    ],
)
def test_a_gateway_may_write_an_id_otherwise_in_receipts(answered: str, reported: str) -> None:
    known = settings("http", id_at="/id", receipt_id_at="query:id", receipt_state_at="query:state")
    found = generic.answer(known, MESSAGE, Answer(200, b'{"id":"%s"}' % answered.encode()))
    address = f"https://us.example/in/sms/x/y/receipts?id={reported}&state=ok"
    (receipt,) = generic.receipts(known, Callback("GET", address, {}, b""))
    assert receipt.keys == (found.parts[0].supplier_message_id,)
    if "-1-" in answered:
        receipt = references.completed(receipt, address)
        assert (receipt.reference, receipt.recipient) == (0xAF, "41234567")


@pytest.mark.parametrize(
    ("id_at", "body", "whole", "cut"),
    [
        ("regex:^OK: ([0-9]+)", b"OK: 123456", "123456", None),
        ("regex:^OK: ([0-9]+)", b"OK: 123456\n", "123456", "123456"),
        ("form:id", b"code=0&id=123456", "123456", None),
        ("form:id", b"id=123456&code=0", "123456", "123456"),
        ("form:id", b"\xef\xbb\xbfid=123456&code=0", "123456", "123456"),
        ("regex:^OK: ([0-9]+)", b"\xef\xbb\xbfOK: 123456", "123456", None),
        ("/", b"123456", "123456", None),
        ("/", b'"123456"', "123456", "123456"),
        ("/id", b'{"id":"123456"}', "123456", "123456"),
        ("/id", b'{"id":"123456"', None, None),
    ],
)
def test_what_the_end_of_an_answer_may_have_cut_in_two_is_not_an_id(
    id_at: str, body: bytes, whole: str | None, cut: str | None
) -> None:
    """With half an id, the message used to count as accepted, and no receipt ever matched it."""
    known = settings("http", id_at=id_at)
    for is_cut, id in ((False, whole), (True, cut)):
        found = generic.answer(known, MESSAGE, Answer(200, body, is_cut=is_cut))
        assert found.verdict is (Verdict.UNKNOWN if id is None else Verdict.ACCEPTED)
        assert [part.supplier_message_id for part in found.parts] == ([] if id is None else [id])


@pytest.mark.parametrize(
    ("status", "body", "code", "detail"),
    [
        (200, b'{"code":99,"id":"a"}', "99", "`codes` does not have this code"),
        (200, b"<html>", "200", "no code in the answer"),
        (200, b'{"code":99,"why":"closed"}', "99", "closed"),
        (400, b'{"code":"E17","why":"bad"}', "HTTP 400 E17", "bad"),
        (400, b"<html>", "HTTP 400", ""),
    ],
)
def test_operators_see_the_code_that_the_settings_do_not_have(status: int, body: bytes, code: str, detail: str) -> None:
    """With the HTTP status alone, nobody could write it into `codes`."""
    known = settings("http", id_at="/id", code_at="/code", detail_at="/why", codes={"0": "accepted"})
    found = generic.answer(known, MESSAGE, Answer(status, body))
    assert (found.code, found.detail) == (code, detail)


def test_what_is_said_of_an_answer_is_said_in_the_operators_language() -> None:
    body = b'{"messages":[{"status":"0","message-id":"a"},{"status":"5","error-text":"%s"}]}' % (b"x" * 300)
    for found, words in (
        (generic.answer(settings("http", id_at="/id"), MESSAGE, Answer(200, b"{}")), "no id in the answer"),
        (vonage.answer(settings("vonage"), MESSAGE, Answer(200, body)), "part %(part)s of %(parts)s: %(why)s"),
    ):
        assert english(found.detail) == words
        assert len(found.detail) < 250


def test_generic_callbacks_by_password_and_by_signature() -> None:
    callback = Callback("POST", "https://us.example/", {"x-sig": "sha256=" + SIGNED}, b"hello")
    known = settings("http", signature_header="X-Sig")
    assert generic.is_genuine(known, {"secret": "s", "signature_secret": "k"}, callback)
    assert not generic.is_genuine(known, {"secret": "s", "signature_secret": "other"}, callback)
    assert not generic.is_genuine(known, {"secret": "s"}, callback)
    # .NET writes hex in capitals by default.
    for prefix in ("", "SHA256="):
        capitals = msgspec.structs.replace(callback, headers={"x-sig": prefix + SIGNED.upper()})
        assert generic.is_genuine(known, {"secret": "s", "signature_secret": "k"}, capitals)
    # Base64 is case-sensitive; the name of the algorithm is not.
    packed = msgspec.structs.replace(known, signature_encoding="base64")
    digits = base64.b64encode(bytes.fromhex(SIGNED)).decode()
    for written, is_taken in ((f"SHA256={digits}", True), (digits.upper(), False)):
        signed = msgspec.structs.replace(callback, headers={"x-sig": written})
        assert generic.is_genuine(packed, {"secret": "s", "signature_secret": "k"}, signed) is is_taken
    named = settings("http", callback_user="us")
    assert not generic.is_genuine(named, {"secret": "s", "callback_password": "p"}, callback)
    right = msgspec.structs.replace(callback, headers={"authorization": "Basic dXM6cA=="})
    assert generic.is_genuine(named, {"secret": "s", "callback_password": "p"}, right)


def test_generic_callbacks_by_a_token() -> None:
    known = settings("http", token_header="Auth-Token")
    callback = Callback("POST", "https://us.example/", {"auth-token": "t"}, b"hello")
    assert generic.headers(known) == {"auth-token"}
    assert generic.is_genuine(known, {"secret": "s", "callback_token": "t"}, callback)
    for secrets, headers in (
        ({"callback_token": "T"}, {"auth-token": "t"}),
        ({"callback_token": "t"}, {}),
        ({}, {"auth-token": ""}),
        ({}, {}),
    ):
        assert not generic.is_genuine(
            known, {"secret": "s"} | secrets, msgspec.structs.replace(callback, headers=headers)
        )


def test_a_gateway_may_hand_over_long_texts_in_parts() -> None:
    places = {f"inbound_{name}_at": f"query:{name}" for name in ("from", "to", "text", "reference", "total", "part")}
    for query, place in (
        ("reference=65543&total=2&part=1", (7, 2, 1)),
        ("reference=7&total=2&part=3", None),
        ("reference=7&total=1&part=1", None),
        ("total=2&part=1", None),
        ("", None),
    ):
        callback = Callback("GET", f"https://us.example/?from=258841234567&to=1234&text=a&{query}", {}, b"")
        (one,) = generic.inbound(settings("http", **places), callback)
        assert (one.text, one.concatenation) == ("a", place)
    with pytest.raises(SettingsError, match="inbound_reference_at"):
        settings("http", inbound_total_at="query:total")


def test_a_plus_that_was_not_escaped_is_none_the_less_one() -> None:
    """The plus arrives as a space: a STOP from a number with a space in front used to opt nobody out."""
    url = "https://us.example/?from=+258841234567&to=+25882000&text=+STOP+&ref=r-1"
    query = Callback("GET", url, {}, b"")
    places = {f"inbound_{name}_at": f"query:{name}" for name in ("from", "to", "text")}
    (one,) = generic.inbound(settings("http", **places), query)
    assert (one.sender, one.sender_ton, one.recipient, one.text) == ("258841234567", 1, "25882000", " STOP ")
    (receipt,) = generic.receipts(settings("http", receipt_recipient_at="query:from"), query)
    assert receipt.recipient == "258841234567"
    for name, body in (
        ("africastalking", b"from=+258841234567&text=a&to=1"),
        ("vonage", b"msisdn=+258841234567&text=a"),
    ):
        (one,) = kinds.HTTP[name].inbound(settings(name), Callback("POST", "https://us.example/", {}, body))
        assert (one.sender, one.sender_ton) == ("258841234567", 1)
    # And with a space after it, too.
    query = Callback("GET", url.replace("258841234567", "258841234567%20").replace("25882000", "25882000+"), {}, b"")
    (one,) = generic.inbound(settings("http", **places), query)
    assert (one.sender, one.sender_ton, one.recipient) == ("258841234567", 1, "25882000")
    (receipt,) = generic.receipts(settings("http", receipt_recipient_at="query:from"), query)
    form = Callback("POST", "https://us.example/", {}, b"id=a&phoneNumber=+258841234567+&status=Success")
    (other,) = kinds.HTTP["africastalking"].receipts(settings("africastalking"), form)
    assert (receipt.recipient, other.recipient) == ("258841234567", "258841234567")
    # A number with spaces only around it is as it was.
    for written in (b'"841234567 "', b'"  841234567"', b"841234567"):
        callback = Callback("POST", "https://us.example/", {}, b'{"from":%s,"text":"a"}' % written)
        (one,) = generic.inbound(settings("http", inbound_from_at="/from", inbound_text_at="/text"), callback)
        assert (one.sender, one.sender_ton) == ("841234567", 0)


@pytest.mark.parametrize(
    ("written", "sender", "ton"),
    [
        ("+1 (415) 555-0123", "14155550123", 1),
        ("1-415-555-0123", "14155550123", 0),
        (" 258 84 123 4567", "258841234567", 1),  # an unescaped plus
        ("84.123\u00a04567 ", "841234567", 0),
        ("Banco 24-7", "Banco 24-7", 0),
        ("( )", "( )", 0),
    ],
)
def test_a_number_is_read_without_the_separators_in_it(written: str, sender: str, ton: int) -> None:
    """A STOP from such a number used to opt nobody out, and a receipt for it matched nothing."""
    callback = Callback("POST", "https://us.example/?ref=r-1", {}, msgspec.json.encode({"from": written, "text": "a"}))
    (one,) = generic.inbound(settings("http", inbound_from_at="/from", inbound_text_at="/text"), callback)
    assert (one.sender, one.sender_ton) == (sender, ton)
    (receipt,) = generic.receipts(settings("http", receipt_recipient_at="/from"), callback)
    assert receipt.recipient == sender


#: HMAC-SHA256 of "hello" under "k", by openssl.
SIGNED = "406e4b43f87095aa86ca6299d25e875921fefa180f02043bb29bec5681c0c2d0"


def test_a_reference_says_all_that_a_receipt_is_matched_by() -> None:
    submission = Submission(UUID(int=7), 3, "258841234567", "ACME", "hi", "gsm7", 0xBEEF)
    told = references.written(submission)
    empty = Receipt((told,), ReceiptState.DELIVERED, "", "", b"")
    address = "https://us.example/in/sms/1/x/receipts"
    found = references.completed(empty, address)
    assert (found.recipient, found.reference) == ("41234567", 0xBEEF)
    named = Receipt(("id",), ReceiptState.DELIVERED, "258849999999", "", b"")
    # Suppliers put additional text after it, or before it.
    for query in (f"?ref={told}", f"?ref={told}&status=1", f"?ref={told}?status=1", f"?status=1&ref={told}"):
        found = references.completed(named, address + query)
        assert (found.recipient, found.reference) == ("258849999999", 0xBEEF)
    for query in ("", "?ref=1", f"?preref={told}", "?ref=", f"?ref=x{told}", f"?ref={told}x"):
        assert references.completed(named, address + query) == named


@pytest.mark.parametrize("mark", ["&", "?"])
def test_a_gateway_may_append_its_parameters_as_if_the_address_had_none(mark: str) -> None:
    """With a second question mark, its first parameter was read as part of our reference: receipts matched nothing."""
    told = references.written(Submission(UUID(int=7), 3, "258841234567", "ACME", "hi", "gsm7", 0xBEEF))
    callback = Callback("GET", f"https://us.example/receipts?ref={told}{mark}status=1&text=a?ref=b", {}, b"")
    known = settings("http", receipt_state_at="query:status", receipt_states={"1": "delivered"})
    (one,) = generic.receipts(known, callback)
    assert (one.keys, one.state) == ((told,), ReceiptState.DELIVERED)
    assert callback.query == {"ref": told, "status": "1", "text": "a?ref=b"}


@pytest.mark.parametrize("name", kinds.HTTP)
def test_who_asks_for_the_request_elsewhere_has_not_got_the_message(name: str) -> None:
    kind, known = kinds.HTTP[name], settings(name)
    for status in (301, 307, 308):
        found = kind.answer(known, MESSAGE, Answer(status, b""))
        assert (found.verdict, found.code) == (Verdict.UNREACHABLE, f"HTTP {status}")
        assert (found.alarm, found.scope) == (True, Scope.ACCOUNT)
    for status in (302, 303):
        assert kind.answer(known, MESSAGE, Answer(status, b"")).verdict is Verdict.UNKNOWN


def test_only_what_the_account_is_told_alarms() -> None:
    for ruling in Ruling:
        found = outcome(ruling, id="x")
        assert found.alarm == (ruling in (Ruling.NO_CREDIT, Ruling.CONFIG))
        assert found.total == 1
    assert by_status(Answer(429, b"", 7.0)).retry_after == 7.0
    assert by_status(Answer(429, b"")).counts is False


@pytest.mark.parametrize(
    ("name", "values", "body"),
    [
        ("infobip", {}, b'{"results":[{"messageId":"1","to":"258861234567","mccMnc":"64303","status":{"id":5}}]}'),
        ("vonage", {}, b"messageId=1&status=delivered&msisdn=258861234567&to=ACME&network-code=64303"),
        ("africastalking", {}, b"id=1&status=Success&phoneNumber=%2B258861234567&networkCode=64303"),
        (
            "http",
            {
                "receipt_id_at": "/id",
                "receipt_state_at": "/s",
                "receipt_states": {"ok": "delivered"},
                "receipt_recipient_at": "/to",
                "receipt_network_at": "/net",
            },
            b'{"id":"1","s":"ok","to":"258861234567","net":64303}',
        ),
    ],
)
def test_a_receipt_names_the_network(name: str, values: dict[str, Any], body: bytes) -> None:
    callback = Callback("POST", "https://us.example/in/sms/x/y/receipts?ref=r", {}, body)
    (receipt,) = kinds.HTTP[name].receipts(settings(name, **values), callback)
    assert (receipt.recipient, receipt.network) == ("258861234567", "64303")


@pytest.mark.parametrize(
    ("name", "values", "state", "word"),
    [
        ("clickatell", {}, "unknown", "(none)"),
        ("http", {"receipt_state_at": "/state"}, "unknown", "(none)"),
        ("http", {}, "unknown", "(none)"),
        ("http", {"receipt_states": {"(none)": "delivered"}}, "delivered", ""),
    ],
)
def test_a_receipt_without_a_state_is_named_and_may_be_given_a_meaning(
    name: str, values: dict[str, Any], state: str, word: str
) -> None:
    body = b'{"status":"DELIVRD","event":{"messageStatusUpdate":[{"messageId":"1"}]}}'
    callback = Callback("POST", "https://us.example/in/sms/x/y/receipts?ref=r", {}, body)
    (receipt,) = kinds.HTTP[name].receipts(settings(name, **values), callback)
    assert (receipt.state, receipt.unknown_word) == (state, word)


LIST = {
    "body": '{"key":"{{secret}}","messages":[{{items}}]}',
    "item": '{"to":"{{to_plus}}","text":"{{text}}"}',
    "items_at": "/results",
    "id_at": "/id",
    "code_at": "/code",
    "codes": {"ok": "accepted", "bad": "refused"},
    "batch": 50,
}


def test_a_list_by_configuration_alone() -> None:
    kind, ours = kinds.HTTP["http"], settings("http", **LIST)
    assert kind.batch is not None
    some = [msgspec.structs.replace(MESSAGE, to=f"25884000000{n}", text=f'{n} "{{{{items}}}}"') for n in range(3)]
    asked = kind.batch.request(ours, {"secret": 's"'}, some)
    assert json.loads(asked.body) == {
        "key": 's"',
        "messages": [{"to": f"+{one.to}", "text": one.text} for one in some],
    }
    assert (
        kind.request(ours, {"secret": 's"'}, some[0]).body == kind.batch.request(ours, {"secret": 's"'}, some[:1]).body
    )
    body = b'{"results":[{"code":"ok","id":1},{"code":"bad"},{"code":"ok"}]}'
    found = kind.batch.answer(ours, some, Answer(200, body))
    assert [one.verdict for one in found] == [Verdict.ACCEPTED, Verdict.REFUSED, Verdict.UNKNOWN]
    assert found[0].parts[0].supplier_message_id == "1"
    for answer, verdict in (
        (Answer(200, b'{"results":[]}'), Verdict.UNKNOWN),
        (Answer(200, b"<html>"), Verdict.UNKNOWN),
        (Answer(429, b"{}"), Verdict.BUSY),
        (Answer(401, b"{}"), Verdict.UNREACHABLE),
    ):
        assert [one.verdict for one in kind.batch.answer(ours, some, answer)] == [verdict] * 3


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"item": ""}, "body"),
        ({"item": "", "body": "{}"}, "batch"),
        ({"items_at": ""}, "items_at"),
        ({"body": "{}"}, "body"),
        ({"path": "/send/{{to}}"}, "item"),
        ({"batch": 0}, "batch"),
        ({"batch": 101}, "batch"),
        ({"item": "{{nobody}}"}, "item"),
    ],
)
def test_a_list_that_cannot_be_written_is_refused(changed: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        settings("http", **LIST | changed)


def test_the_form_of_an_http_account_names_all_placeholders() -> None:
    (meaning,) = get_type_hints(generic.Settings, include_extras=True)["path"].__metadata__
    assert {name.strip("{}") for name in re.findall(r"\{\{\w+\}\}", meaning)} == generic.NAMES
