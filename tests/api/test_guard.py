"""What every operation has in common: the order of checks, the envelope, the headers."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

import aiohttp
import msgspec
import pytest

from heliograph.accounts import organizations, rate_limits
from heliograph.accounts.api_keys import lifecycle, spelling
from heliograph.accounts.api_keys.keyring import Keyring
from heliograph.api.door.guard import Guard
from heliograph.api.door.limits import AnonymousLimiter, Limiter
from heliograph.api.door.operation import Services
from heliograph.api.door.reading import PATTERNS, UUID_FORM
from heliograph.api.routes import OPERATIONS
from heliograph.audit.failures import Failures
from heliograph.base.crypto import derive_key
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7_text
from heliograph.base.process.settings import Settings
from heliograph.http.turns import FOR_SENDS
from heliograph.requests import Log
from heliograph.sms.arrivals import FAILURES as SMS_FAILURES
from heliograph.whatsapp.status import FAILURES as WHATSAPP_FAILURES
from tests.processes import until_true
from tests.rate_windows import hold_windows, seconds_left

from .conftest import Api, Tenant, make_tenant, running

SEND = {"to": "+258841234567", "message": "Hello"}
NOBODY = "019c8f5e-0000-7000-8000-000000000000"
UNKNOWN = spelling.new_secret("live")
BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


def code_of(body: Any) -> str:
    assert body["success"] is False
    assert set(body["error"]) == {"code", "message", "details", "requestId", "docsUrl"}
    assert body["error"]["message"]
    code: str = body["error"]["code"]
    return code


async def test_paths_and_methods_come_before_the_key(api: Api) -> None:
    for path in ("/nothing", "/sms", "/sms/send/", "/webhooks/a/b", "/%00", "/sms%2Fsend%ff"):
        status, headers, body = await api.ask("POST", path, json=SEND)
        assert (status, code_of(body)) == (404, "not_found"), path
        assert headers["x-request-id"]
    status, headers, body = await api.ask("PUT", "/webhooks")
    assert (status, code_of(body), headers["allow"]) == (405, "method_not_allowed", "GET, HEAD, POST")
    status, headers, body = await api.ask("OPTIONS", "/sms/send")
    assert (status, code_of(body), headers["allow"]) == (405, "method_not_allowed", "POST")
    async with api.session.get(api.base_url + "/elsewhere") as answer:
        assert (answer.status, code_of(await answer.json())) == (404, "not_found")


NO_KEYS: list[dict[str, str]] = [
    {},
    {"x-api-key": ""},
    {"x-api-key": "hg_live_nonsense"},
    {"x-api-key": UNKNOWN},
    {"Authorization": f"Bearer {UNKNOWN}"},
    {"Authorization": "Basic dXNlcjpwYXNz"},
    {"Authorization": "Bearer"},
    {"x-api-key": UNKNOWN[:-1] + "é"},
]


async def test_a_missing_or_wrong_key_is_401(api: Api) -> None:
    for headers in NO_KEYS:
        status, answered, body = await api.ask("POST", "/sms/send", data=b"not json", headers=headers)
        assert (status, code_of(body)) == (401, "unauthorized"), headers
        assert answered["www-authenticate"] == "Bearer"
        assert "X-RateLimit-Limit" not in answered


async def test_both_header_forms_are_taken_and_must_agree(api: Api, tenant: Tenant) -> None:
    bearer = {"Authorization": f"bearer {tenant.secret}"}
    assert (await api.ask("GET", "/webhooks", headers=bearer))[0] == 200
    assert (await api.ask("GET", "/webhooks", headers=tenant.headers | bearer))[0] == 200
    different, basic = "name different API keys", {"Authorization": "Basic dXNlcjpwYXNz"}
    for headers, said in (
        (bearer | {"x-api-key": UNKNOWN}, different),
        ([("x-api-key", tenant.secret), ("x-api-key", UNKNOWN)], different),
        (
            [
                ("x-api-key", UNKNOWN),
                ("x-api-key", tenant.secret),
                ("idempotency-key", "a"),
                ("idempotency-key", "b"),
            ],
            different,
        ),
        # Whoever is behind a proxy that adds its own is told what is wrong with a good key.
        (tenant.headers | basic, "Authorization is not `Bearer` and an API key"),
        (basic, "Authorization is not `Bearer` and an API key"),
    ):
        status, _, body = await api.ask("GET", "/webhooks", headers=headers)
        assert (status, code_of(body), said in body["error"]["message"]) == (401, "unauthorized", True), headers


async def test_the_order_of_checks(database_url: str, pool: Pool) -> None:
    reader = await make_tenant(pool, profile="read_only")
    full = await make_tenant(pool)
    too_large = b"x" * 600
    async with running(database_url, rate_sms_send=3, max_body_bytes=500) as api:

        async def post(tenant: Tenant, **options: Any) -> tuple[int, str, Any]:
            headers = tenant.headers | options.pop("headers", {})
            status, answered, body = await api.ask("POST", "/sms/send", headers=headers, **options)
            return status, code_of(body), answered

        # Scope before size; a 403 has the rate headers as well.
        status, code, headers = await post(reader, data=too_large)
        assert (status, code) == (403, "api_key_scope_required")
        assert headers["X-RateLimit-Remaining"] == "2"
        # Size before media type before JSON before fields before the idempotency key.
        assert (await post(full, data=too_large))[:2] == (413, "payload_too_large")
        await hold_windows(pool)
        assert (await post(full, data=b"{"))[:2] == (415, "unsupported_media_type")
        typed = {"Content-Type": "application/json"}
        status, code, headers = await post(full, data=b"{", headers=typed)
        assert (status, code, headers["X-RateLimit-Remaining"]) == (400, "invalid_json", "0")
        # The fourth of three: rate before size.
        left = await seconds_left(pool)
        status, code, headers = await post(full, data=too_large)
        assert (status, code) == (429, "rate_limit_exceeded")
        assert headers["X-RateLimit-Remaining"] == "0"
        assert 1 <= int(headers["Retry-After"]) <= left
        # Scope before rate.
        for _ in range(4):
            assert (await post(reader, data=b""))[:2] == (403, "api_key_scope_required")
        # Buckets are separate.
        assert (await api.ask("GET", "/webhooks", headers=full.headers))[0] == 200


async def test_a_429_says_which_bucket_and_how_long(database_url: str, pool: Pool, tenant: Tenant) -> None:
    async with running(database_url, rate_reads=1) as api:
        await api.ask("GET", "/webhooks", headers=tenant.headers)
        await hold_windows(pool)
        _, headers, body = await api.ask("GET", "/webhooks", headers=tenant.headers)
    assert body["error"]["details"] == {
        "bucket": "minute",
        "limit": "reads",
        "retryAfterSeconds": int(headers["Retry-After"]),
    }


async def test_a_request_id_is_echoed_if_it_is_one(api: Api) -> None:
    for given, echoed in [
        ("abc-DEF_1.2", True),
        ("x" * 128, True),
        ("x" * 129, False),
        ("with space", False),
        ("é", False),
        ("", False),
    ]:
        _, headers, _ = await api.ask("GET", "/health", headers={"X-Request-Id": given})
        assert (headers["x-request-id"] == given) is echoed
        assert headers["x-request-id"]


MEDIA_TYPES = [
    ("application/json", 400),
    ("application/json; charset=utf-8", 400),
    ('Application/JSON;charset="UTF-8"', 400),
    ("application/json ; charset=utf8 ;", 400),
    ("application/json; foo=bar", 400),
    ('application/json;profile="https://x.example/a;b, \\"c\\"" ; charset=UTF-8; q=1', 400),
    ("application/json;;", 400),
    ("application/json; charset=latin-1", 415),
    ('application/json; foo=bar; Charset="latin-1"', 415),
    ("application/json; charset=utf-8; charset=latin-1", 415),
    ("application/json; charset=utf-8x", 415),
    ("application/json; foo", 415),
    ('application/json; foo="bar', 415),
    ("application/json foo=bar", 415),
    ("application/jsonx", 415),
    ("text/plain", 415),
    ("application/x-www-form-urlencoded", 415),
    ("", 415),
]


async def test_media_types(api: Api, tenant: Tenant) -> None:
    for kind, status in MEDIA_TYPES:
        headers = tenant.headers | {"Content-Type": kind}
        assert (await api.ask("POST", "/sms/send", data=b"{}", headers=headers))[0] == status, kind


async def test_a_compressed_body_is_refused(api: Api, tenant: Tenant) -> None:
    headers = tenant.headers | {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    assert (await api.ask("POST", "/sms/send", data=b"{}", headers=headers))[0] == 415


NO_USE = [
    (b"", "invalid_json"),
    (b"\xef\xbb\xbf{}", "invalid_json"),
    (b'{"to":"\xff"}', "invalid_json"),
    (b'{"to":"+258841234567","message":"\xed\xa0\x80"}', "invalid_json"),
    (b'{"to":"+258841234567","message":"\\ud800"}', "validation_error"),
    (b'{"to":"+258841234567","message":"\\udc00x"}', "validation_error"),
    (b'{"to":"+258841234567","message":"\\ud83d\\ude00","more":"\\ud800","and":NaN}', "invalid_json"),
    (b'{"to":"+258841234567","message":"\\ud800","message":"a"}', "invalid_json"),
    (b'{"to":"+258841234567","message":"\\ud800"', "invalid_json"),
    (b"[" * 100_000 + b'"\\ud800"', "invalid_json"),
    (b'{"to":"+258841234567","message":"a","message":"b"}', "invalid_json"),
    (b'{"to":"+258841234567","message":"a","mess\\u0061ge":"b"}', "invalid_json"),
    (b'{"to":"+258841234567", "message" \n:"a",\t"message"\r:"a"}', "invalid_json"),
    (b'{"to":NaN}', "invalid_json"),
    (b'{"to":-Infinity}', "invalid_json"),
    (b"[" * 100_000, "invalid_json"),
    (b'{"to":' * 40_000, "invalid_json"),
    (b"[" * 100_000 + b"]" * 100_000, "invalid_json"),
    (b'{"to":1, garbage', "invalid_json"),
    (b'{"to":"+258841234567","message":"a"} {}', "invalid_json"),
    (b"[]", "validation_error"),
    (b"null", "validation_error"),
    (b'"text"', "validation_error"),
    (b'{"to":1e400}', "validation_error"),
    (b'{"to":' + b"9" * 20_000 + b"}", "validation_error"),
    (b'{"validitySeconds":' + b"9" * 5_000 + b',"to":"+258841234567","message":"a"}', "validation_error"),
    (b'{"validitySeconds":1e400,"to":"+258841234567","message":"a"}', "validation_error"),
    (b'{"to":"+258841234567","message":"a\\u0000b"}', "validation_error"),
    (b'{"to":"+258841234567","message":"a","senderName":"\\u0000"}', "validation_error"),
    (b'{"\\u0000":1}', "validation_error"),
]


async def test_bodies_that_are_no_use(api: Api, tenant: Tenant) -> None:
    headers = tenant.headers | {"Content-Type": "application/json", "Idempotency-Key": "k"}
    for body, code in NO_USE:
        status, answered, answer = await api.ask("POST", "/sms/send", data=body, headers=headers)
        assert (status, code_of(answer)) == (400, code), body[:80]
        assert answered["X-RateLimit-Limit"]


# Half of a surrogate pair is valid JSON if escaped: what is wrong is the field, as with NUL.
HALVES = [
    (b'{"to":"+258841234567","message":"a\\ud800b"}', "message"),
    (b'{"to":"+258841234567","message":"a","clientReference":"\\uDE00\\uD83D"}', "clientReference"),
    (b'{"to":1,"message":"\\udfff"}', "message"),
    (b'{"to":"+258841234567","template":{"parameters":["\\ud83d\\ude00","\\ud83d"]}}', "template.parameters[1]"),
    (b'{"\\ud800":1}', "\ufffd"),
    (b'{"a":[[{"b\\ud800":1}]]}', "a[0][0].b\ufffd"),
    (b'"\\ud800"', "body"),
]


async def test_half_of_a_surrogate_pair_is_the_fault_of_its_field(api: Api, tenant: Tenant) -> None:
    headers = tenant.headers | {"Content-Type": "application/json", "Idempotency-Key": "k"}
    for body, field in HALVES:
        status, _, answer = await api.ask("POST", "/sms/send", data=body, headers=headers)
        assert (status, code_of(answer)) == (400, "validation_error"), body
        wrong = [(each["field"], each["issue"]) for each in answer["error"]["details"]["fields"]]
        assert wrong == [(field, "surrogate")], body


async def test_a_long_name_above_many_values_costs_what_it_weighs(api: Api, tenant: Tenant) -> None:
    headers = tenant.headers | {"Content-Type": "application/json", "Idempotency-Key": "k"}
    name, values = b"n" * 100_000, b"1," * 75_000
    began = time.process_time()  # how long it takes depends on the machine's other load
    status, _, answer = await api.ask(
        "POST", "/sms/send", data=b'{"%b":[%b"\\ud800"]}' % (name, values), headers=headers
    )
    assert (status, answer["error"]["details"]["fields"][0]["issue"]) == (400, "surrogate")
    assert time.process_time() - began < 2


async def test_a_limit_is_written_in_digits(api: Api, tenant: Tenant) -> None:
    for text in ("1.0", "1e2", "0.5e1", "1.5", "%2B5", "0x5", "05", " 5", "5 ", ""):
        status, _, answer = await api.ask("GET", f"/contacts?limit={text}", headers=tenant.headers)
        assert (status, code_of(answer)) == (400, "validation_error"), text
        assert answer["error"]["details"]["fields"][0]["field"] == "limit"
    assert (await api.ask("GET", "/contacts?limit=200", headers=tenant.headers))[0] == 200


WRONG_FIELDS: list[tuple[dict[str, Any], str, str]] = [
    ({"to": None}, "to", "type"),
    ({"to": "abc"}, "to", "pattern"),
    ({"to": "+258841234567\n"}, "to", "pattern"),
    ({"to": "+0123456789"}, "to", "pattern"),
    ({"to": "+210123456789"}, "to", "pattern"),
    ({"to": "٢٥٨٨٤١٢٣٤٥٦٧"}, "to", "pattern"),
    ({"message": ""}, "message", "length"),
    ({"message": "x" * 1601}, "message", "length"),
    ({"message": "щ" * 1600}, "message", "too_many_segments"),
    ({"message": ["a"]}, "message", "type"),
    ({"senderId": "x"}, "senderId", "format"),
    ({"clientReference": "x" * 256}, "clientReference", "length"),
    ({"validitySeconds": 59}, "validitySeconds", "range"),
    ({"validitySeconds": 259_201}, "validitySeconds", "range"),
    ({"validitySeconds": "60"}, "validitySeconds", "type"),
    ({"sendAt": "2026-01-01T00:00:00"}, "sendAt", "format"),
    ({"sendAt": "2020-01-01T00:00:00Z"}, "sendAt", "range"),
    ({"sendAt": "2099-01-01T00:00:00Z"}, "sendAt", "range"),
    ({"deliveryGuarantee": "exactly_once"}, "deliveryGuarantee", "enum"),
    ({"extra": 1}, "extra", "unknown"),
    ({"sender_id": "x"}, "sender_id", "unknown"),
]


async def test_a_wrong_field_is_named(api: Api, tenant: Tenant) -> None:
    headers = tenant.headers | {"Idempotency-Key": "k"}
    for change, field, issue in WRONG_FIELDS:
        status, _, body = await api.ask("POST", "/sms/send", json=SEND | change, headers=headers)
        assert (status, code_of(body)) == (400, "validation_error"), change
        (named,) = body["error"]["details"]["fields"]
        assert (named["field"], named["issue"]) == (field, issue), named
        assert named["message"]


async def test_all_wrong_fields_of_a_body_are_named(api: Api, tenant: Tenant) -> None:
    headers = tenant.headers | {"Idempotency-Key": "k"}
    template = {"type": "template", "to": 7, "template": {"name": "a", "langauge": "en"}, "phoneNumber": "x"}
    for path, wrong, named in (
        (
            "/sms/send",
            {"message": 7, "sendAt": "tomorrow", "validitySeconds": 5, "extra": 1, "more": 2},
            {"to", "message", "sendAt", "validitySeconds", "extra", "more"},
        ),
        (
            "/whatsapp/messages",
            template,
            {"to", "phoneNumberId", "phoneNumber", "template.langauge"}
            | {f"template.{name}" for name in ("language", "category", "parameters")},
        ),
        (
            "/whatsapp/messages",
            {
                "type": "template",
                "to": "+258841234567",
                "phoneNumberId": NOBODY,
                "template": {"name": 1, "language": 2},
            },
            {f"template.{name}" for name in ("name", "language", "category", "parameters")},
        ),
        ("/whatsapp/messages", {"type": "text", "to": 7, "text": {"body": ""}}, {"to", "text.body", "phoneNumberId"}),
        # What says which fields there are is wrong itself.
        ("/whatsapp/messages", {"type": "image", "to": 7}, {"type"}),
        (
            "/webhooks",
            {"url": 7, "subscribed_events": [1], "description": 2},
            {"url", "subscribed_events[0]", "description"},
        ),
        (
            "/webhooks",
            {"url": "nowhere", "subscribed_events": ["message.delivered"], "description": "x\u202e"},
            {"url", "description"},
        ),
        (
            "/webhooks",
            {"url": "nowhere", "subscribed_events": ["message.lost"], "description": "x\u202e"},
            {"url", "subscribed_events", "description"},
        ),
        (
            f"PATCH /webhooks/{NOBODY}",
            {"url": "nowhere", "subscribed_events": ["message.lost"], "description": "x\u202e"},
            {"url", "subscribed_events", "description"},
        ),
        (
            "/campaigns",
            {"name": 7, "message_template": "", "recipients": "x"},
            {"name", "message_template", "recipients"},
        ),
        (
            "/campaigns",
            {"name": " ", "message_template": "{{nickname}}", "audience_tags": ["a"], "recipients": ["1"]},
            {"name", "message_template", "audience_tags", "recipients"},
        ),
        (
            "/campaigns",
            {"name": " ", "content": "{{nickname}}", "audienceTags": ["a"], "recipients": ["1"]},
            {"name", "content", "audienceTags", "recipients"},
        ),
        (
            "/campaigns",
            {"name": "a", "message_template": "\u200b \u2060", "audience_tags": ["\u200b"]},
            {"message_template", "audience_tags"},
        ),
        ("/sms/texts", {"name": "\u200b", "body": "\u200b"}, {"name", "body"}),
        ("/contacts", {"name": " ", "phone": "+2100000000", "tags": ["a", "\u0001"]}, {"name", "phone", "tags"}),
        ("/contacts", {"tags": ["\u0001"]}, {"name", "phone", "tags"}),
        ("/contacts", {"firstName": " ", "phoneNumber": "nobody there"}, {"firstName", "phoneNumber"}),
        (
            "/contacts",
            {"name": "Ana", "firstName": "Eva", "phone": "+258841234567", "phoneNumber": "+258841234568"},
            {"name", "phoneNumber"},
        ),
        (
            "/campaigns",
            {"name": " ", "message_template": "a", "content": "b", "audience_tags": ["a"], "audienceTags": ["b"]},
            {"name", "message_template", "audience_tags"},
        ),
        ("/campaigns", {"name": " ", "recipients": ["+258841234567"]}, {"name", "message_template"}),
        (
            "/exports",
            {"kind": "opt_outs", "format": "csv", "dateFrom": "2026-01-01T00:00:00Z", "tag": "vip"}
            | {"dateTo": "2026-01-02T00:00:00Z"},
            {"dateFrom", "dateTo", "tag"},
        ),
        (
            f"PATCH /contacts/{NOBODY}",
            {"firstName": "Ana", "phone": "nobody there", "tags": ["\u0001"]},
            {"lastName", "phone", "tags"},
        ),
        (
            f"PATCH /contacts/{NOBODY}",
            {"name": "Ana", "firstName": "Eva", "lastName": None, "phone": "+258841234567"}
            | {"phoneNumber": "+258841234568"},
            {"name", "phoneNumber"},
        ),
        (
            "PATCH /account/settings",
            {"quietHours": "25:00-07:00", "notices": {"moon.full": ["bell"]}},
            {"quietHours", "notices.moon.full"},
        ),
        ("/sms/send", [], {"body"}),
        ("/sms/send", {str(n): n for n in range(100)}, None),
    ):
        method, _, target = path.rpartition(" ")
        status, _, body = await api.ask(method or "POST", target, json=wrong, headers=headers)
        assert (status, code_of(body)) == (400, "validation_error"), wrong
        fields = body["error"]["details"]["fields"]
        assert body["error"]["message"] == fields[0]["message"]
        listed = [one["field"] for one in fields]
        assert len(listed) == len(set(listed)) <= 21, wrong
        assert named is None or named == set(listed), (wrong, fields)


async def test_all_wrong_fields_are_named_if_one_is_a_number_out_of_range(api: Api, tenant: Tenant) -> None:
    headers = tenant.headers | {"Idempotency-Key": "k", "Content-Type": "application/json"}
    for body, wrong in {
        b'{"to":7,"validitySeconds":1e999}': {"to", "message", "validitySeconds"},
        b'{"validitySeconds":-1e999,"message":7,"to":"a"}': {"message", "validitySeconds"},
        b'{"to":7,"message":"a","validitySeconds":%b}' % (b"9" * 5_000): {"to", "validitySeconds"},
        b'{"to":7,"message":"a","extra":1e999}': {"to", "extra"},
    }.items():
        status, _, refused = await api.ask("POST", "/sms/send", data=body, headers=headers)
        assert (status, code_of(refused)) == (400, "validation_error")
        assert {one["field"] for one in refused["error"]["details"]["fields"]} == wrong
    for body in (
        b'{"to":7,"validitySeconds":1e999,}',
        b'{"validitySeconds":1e999,"to":1,"to":2}',
        b'{"to":1e999,"a":NaN}',
        b'{"validitySeconds":1e999,"to":"\xed\xa0\x80"}',
    ):
        status, _, refused = await api.ask("POST", "/sms/send", data=body, headers=headers)
        assert (status, code_of(refused)) == (400, "invalid_json"), body


async def test_what_takes_a_few_words_says_which(api: Api, tenant: Tenant) -> None:
    headers = tenant.headers | {"Idempotency-Key": "k"}
    _, _, body = await api.ask("POST", "/sms/send", json=SEND | {"deliveryGuarantee": "exactly_once"}, headers=headers)
    assert body["error"]["message"] == "`deliveryGuarantee` must be one of `at_least_once`, `at_most_once`"
    _, _, body = await api.ask("POST", "/whatsapp/messages", json={"type": "image"}, headers=headers)
    assert body["error"]["message"] == "`type` must be one of `template`, `text`"
    _, _, body = await api.ask("GET", "/whatsapp/conversations?status=OPEN", headers=headers)
    assert body["error"]["message"] == "`status` must be one of `closed`, `open`"


async def test_a_field_that_is_spelled_otherwise_is_meant(api: Api, tenant: Tenant) -> None:
    headers = tenant.headers | {"Idempotency-Key": "k"}
    template = {"type": "template", "to": "+258841234567", "template": {"name": "a", "langauge": "en"}}
    asked = {
        ("/sms/send", "sender_id"): (SEND | {"sender_id": "x"}, "; did you mean `senderId`?"),
        ("/sms/send", "recipient"): (SEND | {"recipient": "x"}, ""),
        ("/campaigns", "messageTemplate"): (
            {"name": "a", "messageTemplate": "b"},
            "; did you mean `message_template`?",
        ),
        ("/whatsapp/messages", "template.langauge"): (template, "; did you mean `template.language`?"),
    }
    for (path, field), (wrong, hint) in asked.items():
        _, _, body = await api.ask("POST", path, json=wrong, headers=headers)
        assert body["error"]["message"] == f"`{field}` is not a field of this operation{hint}"
    mixed = {"type": "text", "to": "+258841234567", "text": {"body": "a"}, "template": {"name": "a"}}
    _, _, body = await api.ask("POST", "/whatsapp/messages", json=mixed, headers=headers)
    assert body["error"]["message"] == "`template` does not go with this `type`"


async def test_what_is_wrong_is_said_in_words_of_json(api: Api, tenant: Tenant) -> None:
    """Not in the words of the library that parses it: its floats, its patterns, and the standards it knows by
    number."""
    headers = tenant.headers | {"Idempotency-Key": "k"}
    a_time = "must be a time with its zone, such as `2026-03-01T12:00:00Z`"
    said = {
        "validitySeconds": {59: "must be at least 60", 259_201: "must be at most 259200"}
        | {60.5: "must be an integer", "300": "must be a number or null, not a string"},
        "message": {"": "must not be empty", "x" * 1_601: "must have at most 1600 characters"}
        | {7: "must be a string, not an integer", None: "must be a string, not null"},
        "sendAt": {"2027-01-01": a_time, "2027-01-01T00:00:00": a_time},
        "senderId": {"x": "must be a UUID"},
    }
    for field, values in said.items():
        for value, text in values.items():
            _, _, body = await api.ask("POST", "/sms/send", json=SEND | {field: value}, headers=headers)
            assert body["error"]["message"] == f"`{field}` {text}", value
    for path, field in (("/contacts?id=x", "id"), ("/api-keys/x", "apiKeyId")):
        _, _, body = await api.ask("DELETE", path, headers=headers)
        assert body["error"]["details"]["fields"] == [
            {"field": field, "issue": "format", "message": f"`{field}` must be a UUID"}
        ]
    for value in ("2027-01-01", "1798761600", "x"):
        _, _, body = await api.ask("GET", f"/sms/messages?dateFrom={value}", headers=headers)
        assert body["error"]["message"] == f"`dateFrom` {a_time}"


async def test_patterns_are_said_in_words(api: Api, tenant: Tenant) -> None:
    for path in ("/sms/messages", "/whatsapp/messages", "/traffic"):
        for wrong in ("mz", "UK"):  # GB is the code of the United Kingdom
            _, _, body = await api.ask("GET", f"{path}?country={wrong}", headers=tenant.headers)
            assert body["error"]["message"] == "`country` must be the code of a country, such as `MZ`"
    for path, words in (("/sms/messages", SMS_FAILURES), ("/whatsapp/messages", WHATSAPP_FAILURES)):
        _, _, body = await api.ask("GET", f"{path}?failureCode=unreachable", headers=tenant.headers)
        listed = ", ".join(f"`{word}`" for word in words)
        assert body["error"]["message"] == f"`failureCode` must be one of {listed}"
    for path, given, name in (
        ("/sms/texts", {"name": "a\tb", "message": "c"}, "name"),
        ("/opt-outs", {"recipient": "+258841234567", "reason": "a\nb"}, "reason"),
    ):
        _, _, body = await api.ask("POST", path, json=given, headers=tenant.headers)
        assert body["error"]["message"] == f"`{name}` must not contain control characters"


def test_every_pattern_of_a_request_has_its_words() -> None:
    def patterns(kind: Any) -> set[str]:
        """Of a type of msgspec's and all types within it."""
        if isinstance(kind, msgspec.inspect.StrType):
            return {kind.pattern} - {None}
        within = [getattr(kind, name, None) for name in ("type", "item_type", "key_type", "value_type")]
        within += [*getattr(kind, "types", ()), *(field.type for field in getattr(kind, "fields", ()))]
        return {pattern for one in within if isinstance(one, msgspec.inspect.Type) for pattern in patterns(one)}

    asked = [kind for one in OPERATIONS for kind in (one.request, one.query) if kind is not None]
    used = {pattern for kind in asked for pattern in patterns(msgspec.inspect.type_info(kind))}
    assert used == {*PATTERNS, UUID_FORM}


async def test_what_a_refusal_says_is_one_line(api: Api, tenant: Tenant) -> None:
    headers = tenant.headers | {"Idempotency-Key": "k", "Content-Type": "application/json"}
    _, _, body = await api.ask("POST", "/sms/send", data=b"{", headers=headers)
    assert body["error"]["message"].startswith("The body is not valid JSON")
    assert "\n" not in body["error"]["message"]


MISTAKES = [
    (b"", "it is empty"),
    (b'{"to": "+258841234567",\n "message": "\xc3\xa9",}', "trailing comma in object at line 2, column 17"),
    (b"{'to': '+258841234567'}", "a name must be in double quotes at line 1, column 2"),
    (b'{"to": "+258841234567", "message": "Hello"', "it ends before it is complete"),
    (b'{"to": "+258841234567", "message": "caf\xe9"}', "it is not UTF-8"),
    (b"\xef\xbb\xbf{}", "it begins with a byte order mark; it must be UTF-8 without one"),
    (b'{"to": "+258841234567", "message": "a", "message": "a"}', "a name is given twice in an object"),
    (b"[" * 100_000, "it is nested too deeply"),
]


async def test_the_mistake_in_what_is_not_json_is_named_with_its_place(api: Api, tenant: Tenant) -> None:
    headers = tenant.headers | {"Idempotency-Key": "k", "Content-Type": "application/json"}
    for sent, said in MISTAKES:
        _, _, body = await api.ask("POST", "/sms/send", data=sent, headers=headers)
        assert body["error"]["message"] == f"The body is not valid JSON (RFC 8259): {said}."


async def test_a_number_in_a_query_is_not_called_a_string(api: Api, tenant: Tenant) -> None:
    for given in ("abc", "1.5"):
        _, _, body = await api.ask("GET", f"/contacts?limit={given}", headers=tenant.headers)
        assert body["error"]["message"] == "`limit` must be an integer"


async def test_what_is_wrong_with_a_parameter_is_said_in_words_of_a_query(api: Api, tenant: Tenant) -> None:
    a_time = "a time with its zone, such as `2026-03-01T12:00:00Z`"
    for given, said in (
        ("notWrittenDays=x", "`notWrittenDays` must be an integer"),
        ("deliveredBefore=1764547200", f"`deliveredBefore` must be {a_time}"),
        ("deliveredBefore=999999999999999", f"`deliveredBefore` must be {a_time}"),
        ("tag=%20", "`tag` must have 1 to 64 characters"),
    ):
        status, _, body = await api.ask("GET", f"/contacts?{given}", headers=tenant.headers)
        assert (status, body["error"]["message"]) == (400, said)


async def test_an_empty_parameter_is_refused_by_every_operation(api: Api, tenant: Tenant) -> None:
    for each in OPERATIONS:
        for field in msgspec.structs.fields(each.query) if each.query else ():
            path = re.sub(r"\{\w+\}", str(tenant.id), each.path)
            status, _, body = await api.ask(each.method, f"{path}?{field.encode_name}=", headers=tenant.headers)
            assert status == 400, (each.id, field.encode_name)
            hint = "" if field.required else ": leave it out"
            wrong = {"issue": "length", "message": f"`{field.encode_name}` must not be empty{hint}"}
            assert body["error"]["details"]["fields"] == [{"field": field.encode_name} | wrong], each.id


async def test_a_name_that_stands_twice_is_no_json_whatever_else_is_wrong(api: Api, tenant: Tenant) -> None:
    headers = tenant.headers | {"Idempotency-Key": "k", "Content-Type": "application/json"}
    status, _, body = await api.ask("POST", "/whatsapp/messages", data=b'{"type":1,"type":"text"}', headers=headers)
    assert (status, code_of(body)) == (400, "invalid_json")


async def test_a_name_that_stands_twice_in_an_object_inside_is_no_json(api: Api, tenant: Tenant) -> None:
    headers = tenant.headers | {"Content-Type": "application/json"}
    start = b'{"type":"text","to":"+258841234567","phoneNumberId":"%s","text":{"body":' % str(tenant.id).encode()
    for text, code in (
        (b'"a","body":"b"', "invalid_json"),
        (b'"a","previewUrl":false,"body":"b"', "invalid_json"),
        # Texts may hold what looks like a name, and "body" may be one: what counts is the number in each object.
        (b'"it says \\"body\\": 10:30","body":"b"', "invalid_json"),
        (b'"it says \\"body\\": 10:30"', "validation_error"),
        (b'"\\u0022body\\u0022: \\":","previewUrl":false', "validation_error"),
    ):
        status, _, body = await api.ask("POST", "/whatsapp/messages", data=start + text + b"}}", headers=headers)
        assert (status, code_of(body)) == (400, code), text


async def test_a_missing_field_is_named(api: Api, tenant: Tenant) -> None:
    headers = tenant.headers | {"Idempotency-Key": "k"}
    _, _, body = await api.ask("POST", "/sms/send", json={"to": "+258841234567"}, headers=headers)
    assert body["error"]["details"]["fields"] == [
        {"field": "message", "issue": "required", "message": "`message` is required"}
    ]


async def test_the_idempotency_key_of_a_send_is_needed_and_checked(api: Api, tenant: Tenant) -> None:
    for value in [None, "", "x" * 256, "tab\there", "ключ"]:
        headers = tenant.headers if value is None else tenant.headers | {"Idempotency-Key": value}
        status, _, body = await api.ask("POST", "/sms/send", json=SEND, headers=headers)
        assert (status, code_of(body)) == (400, "validation_error"), value
        assert body["error"]["details"]["fields"][0]["field"] == "Idempotency-Key"


async def test_two_different_idempotency_keys_are_none(api: Api, tenant: Tenant) -> None:
    headers = [*tenant.headers.items(), ("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    status, _, body = await api.ask("POST", "/sms/send", json=SEND, headers=headers)
    assert status == 400
    (field,) = body["error"]["details"]["fields"]
    assert (field["field"], "once" in field["message"]) == ("Idempotency-Key", True)


async def test_revocation_holds_within_a_second(api: Api, tenant: Tenant, pool: Pool) -> None:
    assert (await api.ask("GET", "/webhooks", headers=tenant.headers))[0] == 200
    async with pool.acquire() as conn:
        await lifecycle.revoke(conn, tenant.actor, id=tenant.key_id)
        revoked = time.monotonic()
        asked = time.monotonic()
        while (await api.ask("GET", "/webhooks", headers=tenant.headers))[0] == 200:
            assert asked - revoked < 1.0
            asked = time.monotonic()
    assert (await api.ask("GET", "/webhooks", headers=tenant.headers))[0] == 401


async def test_an_organization_that_asks_for_very_much_at_once_waits_for_itself(
    api: Api, tenant: Tenant, pool: Pool, key: Callable[[], str]
) -> None:
    """It used to take all connections to the database: three of four requests of everybody else, sends too, got 503."""
    other = await make_tenant(pool)
    async with pool.acquire() as conn, conn.transaction():
        ended, _ = await lifecycle.issue(conn, tenant.actor, name="ended", profile="sms")
    async with pool.acquire() as conn, conn.transaction():
        await conn.execute("SELECT FROM organizations WHERE id = $1 FOR NO KEY UPDATE", tenant.id)
        asked = [
            asyncio.create_task(api.ask("DELETE", f"/api-keys/{ended.id}", headers=tenant.headers)) for _ in range(40)
        ]

        async def are_blocked() -> bool:
            return await pool.fetchval(BLOCKED) >= 4

        await until_true(are_blocked)
        for _ in range(3):
            assert (await api.ask("GET", "/account", headers=other.headers))[0] == 200
        status, _, _ = await api.ask("POST", "/sms/send", json=SEND, headers=other.headers | {"idempotency-key": key()})
        assert status == 202
    assert {status for status, _, _ in await asyncio.gather(*asked)} == {200}


async def test_messages_are_accepted_while_requests_of_several_organizations_wait_for_a_table(
    api: Api, tenant: Tenant, pool: Pool, key: Callable[[], str]
) -> None:
    """As while somebody runs VACUUM FULL: each had half of the connections, and two of them all."""
    loud = [await make_tenant(pool) for _ in range(3)]
    async with pool.acquire() as conn, conn.transaction():
        await conn.execute("LOCK TABLE contacts")
        asked = [
            asyncio.create_task(api.ask("GET", "/contacts", headers=one.headers)) for one in loud for _ in range(10)
        ]

        async def are_blocked() -> bool:
            return await pool.fetchval(BLOCKED) >= Settings().database_pool - FOR_SENDS

        await until_true(are_blocked)
        for _ in range(3):
            headers = tenant.headers | {"idempotency-key": key()}
            assert (await api.ask("POST", "/sms/send", json=SEND, headers=headers))[0] == 202
    assert {status for status, _, _ in await asyncio.gather(*asked)} == {200}


async def test_a_suspended_organization_may_look_but_not_change(api: Api, tenant: Tenant, pool: Pool) -> None:
    async with pool.acquire() as conn:
        await organizations.set_state(conn, id=tenant.id, state="suspended")
    assert (await api.ask("GET", "/webhooks", headers=tenant.headers))[0] == 200
    headers = tenant.headers | {"Idempotency-Key": "k"}
    hook = {"url": "https://example.com/h", "subscribed_events": ["message.sent"]}
    for path, body in (("/sms/send", SEND), ("/webhooks", hook)):
        status, _, answer = await api.ask("POST", path, json=body, headers=headers)
        assert (status, code_of(answer)) == (403, "organization_suspended")


def test_what_a_suspended_organization_may_still_do_is_what_it_may_on_the_dashboard() -> None:
    assert {each.id for each in OPERATIONS if each.while_stopped} == {
        "addOptOut",
        "cancelCampaign",
        "cancelSmsMessage",
        "createExport",
        "disableWebhook",
        "pauseCampaign",
        "revokeApiKey",
        "stopExport",
    }


@pytest.mark.parametrize("state", sorted(organizations.STOPPED))
async def test_a_suspended_organization_ends_access_and_stops_what_would_go_on(
    api: Api, tenant: Tenant, pool: Pool, state: str
) -> None:
    async def ask(method: str, path: str, body: Any = None) -> tuple[int, Any]:
        options = {} if body is None else {"json": body}
        headers = tenant.headers | {"Idempotency-Key": uuid7_text()}
        status, _, answer = await api.ask(method, path, headers=headers, **options)
        return status, answer

    _, leaked = await ask("POST", "/api-keys", {"name": "leaked", "profile": "read_only"})
    hook = {"url": "https://example.com/h", "subscribed_events": ["message.sent"]}
    _, hooked = await ask("POST", "/webhooks", hook)
    text = {"name": "c", "message_template": "hi", "recipients": ["+258841234567"]}
    campaigns = [(await ask("POST", "/campaigns", text))[1]["campaign"]["id"] for _ in range(2)]
    _, sent = await ask("POST", "/sms/send", SEND)
    async with pool.acquire() as conn:
        await organizations.set_state(conn, id=tenant.id, state=state)

    async def is_known() -> bool:  # keys are known as they were at most a second ago
        return (await ask("POST", f"/campaigns/{campaigns[1]}/resume"))[0] == 403

    await until_true(is_known)
    endpoint = f"/webhooks/{hooked['webhookEndpoint']['id']}"
    status, answer = await ask("PATCH", endpoint, {"description": "mine"})
    assert (status, code_of(answer)) == (403, "organization_suspended")
    status, answer = await ask("DELETE", f"/api-keys/{leaked['apiKey']['id']}")
    assert (status, answer["apiKey"]["status"]) == (200, "revoked")
    status, answer = await ask("DELETE", endpoint)
    assert (status, answer["webhookEndpoint"]["status"]) == (200, "disabled")
    status, answer = await ask("DELETE", f"/campaigns/{campaigns[0]}")
    assert (status, answer["campaign"]["status"]) == (200, "canceled")
    status, answer = await ask("POST", f"/campaigns/{campaigns[1]}/pause")
    assert (status, code_of(answer)) == (409, "campaign_not_pausable")  # no worker has staged it yet
    status, answer = await ask("DELETE", f"/sms/messages/{sent['message']['id']}")
    assert (status, answer["message"]["status"]) == (200, "canceled")
    assert (await ask("POST", "/opt-outs", {"recipient": "+258841234567"}))[0] == 201
    status, answer = await ask("POST", "/exports", {"kind": "contacts"})
    assert status == 202
    status, answer = await ask("DELETE", f"/exports/{answer['export']['id']}")
    assert (status, answer["export"]["status"]) == (200, "stopped")


async def test_failures_are_limited_by_address_but_a_good_key_passes(
    database_url: str, pool: Pool, tenant: Tenant
) -> None:
    async with running(database_url, rate_failures=3) as api:
        statuses = []
        for _ in range(5):
            statuses.append((await api.ask("GET", "/webhooks"))[0])
            await hold_windows(pool)
        assert statuses == [401, 401, 401, 429, 429]
        status, headers, body = await api.ask("GET", "/webhooks", headers={"x-api-key": UNKNOWN})
        assert (status, code_of(body)) == (429, "rate_limit_exceeded")
        assert int(headers["Retry-After"]) >= 1
        assert (headers["X-RateLimit-Limit"], headers["X-RateLimit-Remaining"]) == ("3", "0")
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:00\.000Z", headers["X-RateLimit-Reset"])
        assert (await api.ask("GET", "/webhooks", headers=tenant.headers))[0] == 200


async def test_a_rate_limit_of_its_own_holds_everywhere_and_is_given_back(
    database_url: str, pool: Pool, tenant: Tenant
) -> None:
    other = await make_tenant(pool)

    async def limit(reads: int | None) -> None:
        async with pool.acquire() as conn:
            await rate_limits.change(conn, organization_id=tenant.id, limits={"reads": reads})

    async def is_told(api: Api, limit: str) -> bool:
        answered = (await api.ask("GET", "/webhooks", headers=tenant.headers))[1]
        return bool(answered["X-RateLimit-Limit"] == limit)

    # Requests while a change spreads are far fewer than a hundred million.
    async with (
        running(database_url, rate_reads=100_000_000) as one,
        running(database_url, rate_reads=100_000_000) as two,
    ):
        for api in (one, two):
            assert (await api.ask("GET", "/webhooks", headers=tenant.headers))[0] == 200
        await limit(5)
        for api in (one, two):
            await until_true(partial(is_told, api, "5"))
        # Eleven requests exceed the limits of two minutes with five each.
        answers = [await (one, two)[turn % 2].ask("GET", "/webhooks", headers=tenant.headers) for turn in range(11)]
        assert {status for status, _, _ in answers} <= {200, 429}
        refused = [(headers, body) for status, headers, body in answers if status == 429]
        assert refused
        for headers, body in refused:
            assert (code_of(body), body["error"]["details"]["limit"]) == ("rate_limit_exceeded", "reads")
            assert (headers["X-RateLimit-Limit"], headers["X-RateLimit-Remaining"]) == ("5", "0")
        for api in (one, two):
            status, headers, _ = await api.ask("GET", "/webhooks", headers=other.headers)
            assert (status, headers["X-RateLimit-Limit"]) == (200, "100000000"), "nobody else's"
        await limit(None)
        for api in (one, two):
            await until_true(partial(is_told, api, "100000000"))
            assert (await api.ask("GET", "/webhooks", headers=tenant.headers))[0] == 200, "in this very minute"


async def test_sends_count_against_a_limit_of_their_own(api: Api, pool: Pool, tenant: Tenant) -> None:
    async with pool.acquire() as conn:
        await rate_limits.change(conn, organization_id=tenant.id, limits={"sms_send": 2})
    answers = [
        await api.ask("POST", "/sms/send", json=SEND, headers=tenant.headers | {"Idempotency-Key": str(number)})
        for number in range(5)
    ]
    assert {headers["X-RateLimit-Limit"] for _, headers, _ in answers} == {"2"}
    statuses = [status for status, _, _ in answers]
    # If the minute ends meanwhile, there are two more.
    assert statuses[:1] == [202]
    assert set(statuses) == {202, 429}
    assert await pool.fetchval("SELECT count(*) FROM messages") == statuses.count(202) <= 4
    assert (await api.ask("GET", "/webhooks", headers=tenant.headers))[1]["X-RateLimit-Limit"] == "3000"


class Counting:
    """A pool that counts its uses."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        if name in ("acquire", "fetch", "fetchrow", "fetchval", "execute"):
            self.asked += 1
        return getattr(self._pool, name)


async def test_guesses_while_an_address_is_locked_out_cost_no_query(pool: Pool, tenant: Tenant) -> None:
    counting: Any = Counting(pool)
    settings = Settings(rate_failures=3)
    limiter, nothing = Limiter(pool, settings), cast(Any, None)
    services = Services(
        pool=nothing,
        readers=nothing,
        settings=settings,
        keyring=Keyring(counting),
        limiter=limiter,
        strangers=AnonymousLimiter(1),
        log=Log(pool),
        failures=Failures(pool),
        health=nothing,
        acceptor=nothing,
        whatsapp=nothing,
        webhook_rules=nothing,
        answer_key=derive_key("", "tests"),
        cursor_key=derive_key("", "tests"),
        document=nothing,
    )
    guard = Guard(OPERATIONS, services)
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def guess(secret: str, address: str = "192.0.2.1") -> int:
        headers = [(b"x-api-key", secret.encode())]
        scope = {"method": "GET", "path": "/v1/webhooks", "headers": headers, "query_string": b""}
        await guard(scope | {"client": (address, 1)}, nothing, send)
        status: int = sent[-2]["status"]
        return status

    # If the minute ends meanwhile, there are enough for the next one.
    statuses = [await guess(spelling.new_secret("live")) for _ in range(7)]
    assert set(statuses) == {401, 429}
    if statuses[-1] == 429:
        before = counting.asked
        assert {await guess(spelling.new_secret("live")) for _ in range(50)} <= {401, 429}
        assert counting.asked <= before + 5
    assert await guess(spelling.new_secret("live"), "192.0.2.2") == 401


async def test_requests_that_need_no_key_are_bounded_by_address(database_url: str, tenant: Tenant) -> None:
    async with running(database_url, rate_unauthenticated=4) as api:
        paths = ["/", "/openapi.json", "/nothing"] * 4
        answers = [await api.ask("GET", path) for path in paths]
        assert [status for status, _, _ in answers] == [200, 200, 404, 200] + [429] * 8
        _, headers, body = answers[-1]
        assert (code_of(body), body["error"]["details"]["limit"]) == ("rate_limit_exceeded", "unauthenticated")
        assert (headers["X-RateLimit-Limit"], headers["X-RateLimit-Remaining"]) == ("4", "0")
        assert 1 <= int(headers["Retry-After"]) <= 60
        async with api.session.get(api.base_url + "/docs") as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (429, "rate_limit_exceeded")
        # Load balancers may poll as often as they like, and keys have limits of their own.
        for path in ("/livez", "/readyz", "/v1/health"):
            async with api.session.get(api.base_url + path) as answer:
                assert answer.status == 200
        assert (await api.ask("GET", "/webhooks", headers=tenant.headers))[0] == 200
        connector = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))
        async with aiohttp.ClientSession(connector=connector) as session, session.get(api.base_url + "/v1/") as answer:
            assert answer.status == 200


async def test_without_the_database_nothing_is_accepted(
    database_url: str, pool: Pool, tenant: Tenant, as_administrator: Callable[[str], Awaitable[None]]
) -> None:
    async with running(database_url) as api:
        headers = tenant.headers | {"Idempotency-Key": "k"}
        assert (await api.ask("POST", "/sms/send", json=SEND, headers=headers))[0] == 202
        name = await pool.fetchval("SELECT current_database()")
        await as_administrator(f'ALTER DATABASE "{name}" CONNECTION LIMIT 0')
        await as_administrator(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE backend_type = 'client backend' AND datname = current_database() AND pid <> pg_backend_pid()"
        )
        for _ in range(3):
            status, answered, body = await api.ask("POST", "/sms/send", json=SEND, headers=headers)
            assert (status, code_of(body)) == (503, "service_unavailable")
            assert answered["Retry-After"] == "1"
        status, _, body = await api.ask("GET", "/health")
        assert (status, body["status"], body["checks"]["database"]) == (200, "degraded", "down")
        await as_administrator(f'ALTER DATABASE "{name}" CONNECTION LIMIT -1')

        async def is_back() -> bool:
            """The process checks the database from time to time while it is down."""
            status, answered, _ = await api.ask("POST", "/sms/send", json=SEND, headers=headers)
            return (status, answered.get("x-idempotency-status")) == (202, "replayed")

        await until_true(is_back)
