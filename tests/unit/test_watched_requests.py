"""Requests to a watched HTTP supplier show no secret, no text and no whole number."""

from __future__ import annotations

import urllib.parse
from typing import Any

import pytest

from heliograph.http import answers as http
from heliograph.http.answers import Failure
from heliograph.suppliers import kinds
from heliograph.suppliers.contract import LAST
from heliograph.suppliers.http.kind import Message, Request
from heliograph.suppliers.http.watching import ExchangeRecorder, shown

SECRET, TEXT, TO = "xyz zy&1/2", "Your code is 4711", "258841234567"
MESSAGE = Message(TO, "+258849999999", TEXT, "gsm7", "reference1", "https://sms.example.com/in/sms/x/geheim?ref=1")
ANSWER = http.Answer(201, b'{"id": 1}', None, 0.0125)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://api.example.net/v1/messages", "/v1/messages"),
        ("https://api.example.net", "/"),
        ("https://user:pass@api.example.net/a", "/a"),
        (f"https://x.example/send?to={TO}&text=Your+code+is+4711", "/send?to=…4567&text=(17)"),
        (f"https://x.example/{TO}/{urllib.parse.quote(TEXT)}/send", "/…4567/(17)/send"),
        (f"https://x.example/{urllib.parse.quote(SECRET, safe='')}/send", "/(10)/send"),
        ("https://x.example/prefix-Your%20code%20is%204711", "/(24)"),
        ("https://x.example/send?pin=4711&empty=&a%20b=1", "/send?pin=(4)&empty=(0)&?=(1)"),
        ("https://x.example/2010-04-01/Accounts/ACab/Messages.json", "/2010-04-01/Accounts/ACab/Messages.json"),
        ("https://x.example/Hello/say", "/(5)/say"),
    ],
)
def test_an_address_shows_names_and_lengths(url: str, said: str) -> None:
    assert shown(url, [SECRET, TEXT, "Hello"]) == said


def test_a_request_and_its_answer_belong_together() -> None:
    tap, heard = ExchangeRecorder([SECRET]), []
    first = tap.asked(Request("https://x.example/send", b"12345"), [MESSAGE], heard.append)
    second = tap.asked(Request("https://x.example/many", method="PUT"), [MESSAGE, MESSAGE], heard.append)
    second(Failure("timeout", "no answer", 5.0))
    first(ANSWER)
    assert [type(one) for one in heard] == [Failure, http.Answer]
    assert [(one.is_sent, one.command, one.sequence, one.status, one.fields) for one in tap.take()] == [
        (True, "POST", 1, "", {"address": "/send", "octets": 5}),
        (True, "PUT", 2, "", {"address": "/many", "octets": 0, "messages": 2}),
        (False, "PUT", 2, "timeout", {"milliseconds": 5000}),
        (False, "POST", 1, "201", {"milliseconds": 12, "octets": 9}),
    ]
    assert tap.take() == []
    for _ in range(LAST + 5):
        tap.asked(Request("https://x.example/send"), [MESSAGE], heard.append)
    assert len(tap.take()) == LAST


@pytest.mark.parametrize("name", kinds.HTTP)
def test_no_supplier_there_is_shows_a_secret_a_text_or_a_number(name: str) -> None:
    kind = kinds.HTTP[name]
    required = [one.name for one in kinds.fields(name) if one.required]
    values: dict[str, Any] = dict.fromkeys(required, "acme") | {"base_url": "https://x.example"}
    if name == kinds.GENERIC:
        values["path"] = (
            "/{{secret}}/{{to}}/{{text}}?to={{to}}&text={{text}}&from={{from}}&key={{secret}}&c={{callback}}"
        )
    secrets = dict.fromkeys(["secret", *kind.secrets], SECRET)
    request = kind.request(kinds.settings_from(name, values), secrets, MESSAGE)
    told = shown(request.url, [*secrets.values(), TEXT])
    for hidden in (SECRET, urllib.parse.quote(SECRET, safe=""), "4711", TO, "49999999", "geheim", "x.example"):
        assert hidden not in told, (hidden, told)
