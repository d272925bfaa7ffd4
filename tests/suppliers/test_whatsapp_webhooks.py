"""Signature, handshake and every item of a webhook."""

from __future__ import annotations

import hashlib
import hmac
import json
from datetime import UTC, datetime
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pywa.utils import webhook_updates_validator

from heliograph.suppliers.whatsapp_cloud.callbacks import webhooks
from heliograph.suppliers.whatsapp_cloud.callbacks.items import (
    AccountItem,
    AlarmItem,
    CallItem,
    CapabilityItem,
    MessageItem,
    NumberItem,
    PoisonItem,
    StatusItem,
    TemplateItem,
    UnknownItem,
)
from heliograph.suppliers.whatsapp_cloud.callbacks.management import tier_of
from heliograph.suppliers.whatsapp_cloud.callbacks.webhooks import challenge, parse, verify_signature

WABA, NUMBER, USER = "900100200300400", "555000111222333", "MA.13490000000000000001"
SENT: dict[str, Any] = {
    "id": "wamid.A",
    "status": "sent",
    "timestamp": "1795162401",
    "recipient_id": "212600000017",
    "biz_opaque_callback_data": "5c1d0f0e-0f4f-4b9c-9d0e-6f7c4f5f2a10",
    "pricing": {"billable": True, "pricing_model": "PMP", "type": "regular", "category": "utility"},
}
TEXT: dict[str, Any] = {
    "from": "212600000017",
    "from_user_id": USER,
    "id": "wamid.B",
    "timestamp": "1795162455",
    "type": "text",
    "text": {"body": "D’accord, merci"},
    "context": {"from": "212520001234", "id": "wamid.A"},
}
AMAL = {"profile": {"name": "Amal Bén"}, "wa_id": "212600000017", "user_id": USER}


def envelope(*changes: dict[str, Any], time: Any = 1795162400) -> bytes:
    """As Meta writes it."""
    body = {"object": "whatsapp_business_account", "entry": [{"id": WABA, "time": time, "changes": list(changes)}]}
    return json.dumps(body).replace("/", "\\/").encode()


def value(**more: Any) -> dict[str, Any]:
    """A change of the field `messages`."""
    metadata = {"display_phone_number": "212520001234", "phone_number_id": NUMBER}
    return {"field": "messages", "value": {"messaging_product": "whatsapp", "metadata": metadata, **more}}


def message(**more: Any) -> MessageItem:
    """The item of one message."""
    plain = {name: inner for name, inner in TEXT.items() if name not in ("text", "context")}
    (item,) = parse(envelope(value(contacts=[AMAL], messages=[plain | more])))
    assert isinstance(item, MessageItem), item
    return item


def event(field: str, inner: dict[str, Any]) -> Any:
    """The item of one event."""
    (item,) = parse(envelope({"field": field, "value": inner}))
    return item


class TestSignature:
    raw = envelope(value(messages=[TEXT], contacts=[AMAL]))
    right = "sha256=" + hmac.new(b"secret", raw, hashlib.sha256).hexdigest()

    def test_right_and_during_a_rotation(self) -> None:
        assert b"\\u00e9" in self.raw
        assert verify_signature([b"secret"], self.raw, self.right)
        assert verify_signature([b"new", b"secret"], self.raw, self.right.encode())
        assert webhook_updates_validator(app_secret="secret", request_body=self.raw, x_hub_signature=self.right)

    @pytest.mark.parametrize(
        "header",
        [
            None,
            "",
            right.upper(),
            "sha256=" + right[7:].upper(),
            right[:-1],
            right + "0",
            right.removeprefix("sha256="),
            "sha1=" + right[7:],
            "é" * 71,
            b"\xff" * 71,
        ],
    )
    def test_wrong_headers(self, header: str | bytes | None) -> None:
        assert not verify_signature([b"secret"], self.raw, header)

    def test_wrong_secret_tampered_body_and_no_secret(self) -> None:
        assert not verify_signature([b"other"], self.raw, self.right)
        assert not verify_signature([b"secret"], self.raw[:-1] + b" ", self.right)
        assert not verify_signature([], self.raw, self.right)

    def test_handshake(self) -> None:
        query = {"hub.mode": "subscribe", "hub.verify_token": "token", "hub.challenge": "1158201444"}
        assert challenge(query, "token") == "1158201444"
        for wrong in ({"hub.mode": "x"}, {"hub.verify_token": "tokeń"}, {"hub.verify_token": ""}):
            assert challenge(query | wrong, "token") is None
        assert challenge(query | {"hub.verify_token": ""}, "") is None
        assert challenge({}, "token") is None


class TestStatuses:
    def test_sent(self) -> None:
        (item,) = parse(envelope(value(contacts=[AMAL], statuses=[SENT])))
        assert isinstance(item, StatusItem)
        assert (item.waba_id, item.phone_number_id, item.wamid, item.status) == (WABA, NUMBER, "wamid.A", "sent")
        assert item.at == datetime.fromtimestamp(1795162401, UTC)
        assert (item.recipient, item.user_id, item.opaque) == ("212600000017", USER, SENT["biz_opaque_callback_data"])
        assert item.pricing is not None
        assert (item.pricing.type, item.pricing.category) == ("regular", "utility")
        assert (item.pricing.billable, item.pricing.model) == (True, "PMP")
        assert (item.free_entry, item.errors, item.group) == (False, (), False)

    def test_failed(self) -> None:
        error = {"code": 131047, "title": "Re-engagement", "error_data": {"details": "older than 24 hours"}}
        bare = {"code": "131026", "message": "no", "error_data": "a bare string"}
        (item,) = parse(envelope(value(statuses=[SENT | {"status": "failed", "errors": [error, bare, 7]}])))
        assert isinstance(item, StatusItem)
        assert [(one.code, one.title, one.details) for one in item.errors] == [
            (131047, "Re-engagement", "older than 24 hours"),
            (131026, "no", "a bare string"),
        ]

    @pytest.mark.parametrize(
        "more",
        [
            {"pricing": {"type": "free_entry_point", "category": "utility"}},
            {"pricing": {"category": "referral_conversion", "pricing_model": "CBP"}},
            {"conversation": {"id": "c", "origin": {"type": "referral_conversion"}}},
        ],
    )
    def test_free_entry_points(self, more: dict[str, Any]) -> None:
        (item,) = parse(envelope(value(statuses=[SENT | more])))
        assert isinstance(item, StatusItem)
        assert item.free_entry

    def test_both_spellings_of_a_category(self) -> None:
        for name in ("authentication_international", "authentication-international", "AUTHENTICATION-INTERNATIONAL"):
            (item,) = parse(envelope(value(statuses=[SENT | {"pricing": {"category": name}}])))
            assert isinstance(item, StatusItem)
            assert item.pricing is not None
            assert item.pricing.category == "authentication-international"

    @pytest.mark.parametrize("written", ["1795162401", 1795162401, 1795162401000, "1795162401000", "1795162401.0"])
    def test_times(self, written: Any) -> None:
        (item,) = parse(envelope(value(statuses=[SENT | {"timestamp": written}])))
        assert isinstance(item, StatusItem)
        assert item.at == datetime.fromtimestamp(1795162401, UTC)

    @pytest.mark.parametrize("written", [None, "yesterday", -5, True, {}, "nan", "inf", "1e999", "-inf"])
    def test_without_a_time_the_entry_s_own(self, written: Any) -> None:
        (item,) = parse(envelope(value(statuses=[SENT | {"timestamp": written}])))
        assert isinstance(item, StatusItem)
        assert item.at == datetime.fromtimestamp(1795162400, UTC)
        (item,) = parse(envelope(value(statuses=[SENT | {"timestamp": written}]), time=None))
        assert isinstance(item, PoisonItem)

    def test_unknown_status_group_and_hidden_number(self) -> None:
        plain = {name: inner for name, inner in SENT.items() if name != "recipient_id"}
        odd = plain | {"status": "warmed", "recipient_type": "group", "recipient_user_id": USER}
        (item,) = parse(envelope(value(statuses=[odd])))
        assert isinstance(item, StatusItem)
        assert (item.status, item.group, item.recipient, item.user_id) == ("warmed", True, None, USER)

    def test_odd_optional_fields_cost_only_themselves(self) -> None:
        (item,) = parse(envelope(value(statuses=[SENT | {"pricing": "PMP", "conversation": [], "errors": {}}])))
        assert isinstance(item, StatusItem)
        assert (item.pricing, item.errors, item.opaque) == (None, (), SENT["biz_opaque_callback_data"])


class TestMessages:
    def test_text(self) -> None:
        item = message(text=TEXT["text"], context=TEXT["context"])
        assert (item.sender, item.user_id) == ("212600000017", USER)
        assert (item.text, item.content) == ("D’accord, merci", {"body": "D’accord, merci"})
        assert (item.opens_window, item.referral, item.group) == (True, None, False)
        assert (item.quoted, item.is_forwarded, item.profile_name) == (TEXT["context"]["id"], False, "Amal Bén")

    @pytest.mark.parametrize(
        ("type", "inner", "text", "content", "opens"),
        [
            ("button", {"payload": "P", "text": "Oui"}, "Oui", {"text": "Oui", "payload": "P"}, True),
            (
                "interactive",
                {"type": "button_reply", "button_reply": {"id": "1", "title": "Oui"}},
                "Oui",
                {"kind": "button_reply", "id": "1", "title": "Oui"},
                True,
            ),
            (
                "interactive",
                {"type": "list_reply", "list_reply": {"id": "1", "title": "T", "description": "D"}},
                "T",
                {"kind": "list_reply", "id": "1", "title": "T", "description": "D"},
                True,
            ),
            (
                "interactive",
                {"type": "nfm_reply", "nfm_reply": {"name": "flow", "body": "Sent", "response_json": "{}"}},
                "Sent",
                {"kind": "nfm_reply", "name": "flow", "body": "Sent", "response": "{}"},
                True,
            ),
            ("interactive", {"type": "new_kind"}, None, {}, True),
            (
                "image",
                {"id": "77", "mime_type": "image/jpeg", "sha256": "x", "url": "https://x", "caption": "Voilà"},
                "Voilà",
                {"mimeType": "image/jpeg", "caption": "Voilà"},
                True,
            ),
            (
                "audio",
                {"id": "7", "mime_type": "audio/ogg", "voice": True},
                None,
                {"mimeType": "audio/ogg", "voice": True},
                True,
            ),
            (
                "location",
                {"latitude": 1.5, "longitude": 2, "name": "N"},
                None,
                {"latitude": 1.5, "longitude": 2, "name": "N"},
                True,
            ),
            (
                "contacts",
                [{"name": {"formatted_name": "B"}, "phones": [{"phone": "+1 2", "wa_id": "12"}]}],
                None,
                {"contacts": [{"name": "B", "phones": ["+1 2"]}]},
                True,
            ),
            (
                "order",
                {"catalog_id": "9", "text": "svp", "product_items": [{"product_retailer_id": "s", "quantity": 2}]},
                "svp",
                {"text": "svp", "items": [{"productId": "s", "quantity": 2}]},
                True,
            ),
            ("reaction", {"message_id": "wamid.Q", "emoji": "👍"}, None, {"emoji": "👍"}, False),
            ("reaction", {"message_id": "wamid.Q"}, None, {"emoji": None}, False),
            (
                "edit",
                {"original_message_id": "wamid.Q", "message": {"text": {"body": "new"}}},
                "new",
                {"body": "new"},
                False,
            ),
            (
                "edit",
                {
                    "original_message_id": "wamid.Q",
                    "message": {"type": "image", "image": {"id": "1", "caption": "new"}},
                },
                "new",
                {"body": "new"},
                False,
            ),
            ("revoke", {"original_message_id": "wamid.Q"}, None, {}, False),
            ("unsupported", None, None, {}, False),
            ("hologram", {"id": "1"}, None, {}, False),
        ],
    )
    def test_types(self, type: str, inner: Any, text: str | None, content: dict[str, Any], opens: bool) -> None:
        item = message(**{"type": type, type: inner})
        assert (item.type, item.text, item.content, item.opens_window) == (type, text, content, opens)
        assert item.quoted == ("wamid.Q" if type in ("reaction", "edit", "revoke") else None)

    def test_a_number_that_changed_has_no_contacts(self) -> None:
        inner = {"type": "user_changed_number", "body": "changed", "wa_id": "212600000099"}
        (item,) = parse(envelope(value(messages=[TEXT | {"type": "system", "system": inner}])))
        assert isinstance(item, MessageItem)
        assert (item.new_sender, item.opens_window) == ("212600000099", False)
        assert item.content == {"kind": "user_changed_number", "body": "changed"}

    @pytest.mark.parametrize(
        ("told", "by", "old"),
        [
            ({"previous_user_id": "MA.1"}, "MA.2", "MA.1"),
            ({"previous_user_id": "MA.1", "body": "User A changed from MA.3 to MA.2"}, None, "MA.1"),
            ({"body": "User A changed from MA.1 to MA.2"}, "MA.2", "MA.1"),
            ({"body": "User A changed from MA.1 to MA.2"}, None, "MA.1"),
            ({"body": "User A changed from MA.9 to B changed from MA.1 to MA.2"}, None, "MA.1"),
            ({"body": "User A changed"}, "MA.1", "MA.1"),
            ({"body": "User A changed"}, "MA.2", "MA.2"),
        ],
    )
    def test_the_user_id_that_changed_is_the_old_one(self, told: dict[str, str], by: str | None, old: str) -> None:
        """Notices may come from the new one."""
        inner = {"type": "user_changed_user_id", "user_id": "MA.2", **told}
        item = message(**{"type": "system", "from": None, "from_user_id": by, "system": inner})
        assert (item.user_id, item.new_user_id) == (old, "MA.2")
        number = inner | {"type": "user_changed_number", "wa_id": "212600000099", "previous_user_id": "MA.1"}
        item = message(type="system", from_user_id=by, system=number)
        assert (item.user_id, item.new_user_id, item.new_sender) == ("MA.1", "MA.2", "212600000099")

    @pytest.mark.parametrize("by", ["212600000017", "212600000099", None])
    def test_a_number_that_changed_is_read_in_its_older_form(self, by: str | None) -> None:
        """Under this name the new number was overlooked, so a STOP from the old one did not apply to it."""
        inner = {"type": "customer_changed_number", "body": "changed", "new_wa_id": "212600000099"}
        item = message(**{"type": "system", "from": by, "system": inner | {"customer": "212600000017"}})
        assert (item.sender, item.new_sender) == ("212600000017", "212600000099")

    @pytest.mark.parametrize("kind", [[], {}, ["user_changed_number"], 7, None])
    def test_a_notice_of_a_kind_that_is_no_word_is_kept(self, kind: Any) -> None:
        item = message(type="system", system={"type": kind, "body": "changed"})
        assert (item.new_sender, item.content["body"]) == (None, "changed")

    def test_hidden_number_referral_group_and_errors(self) -> None:
        item = message(**{"from": None, "text": {"body": "x"}, "referral": {"source_type": "ad"}})
        assert (item.sender, item.user_id, item.referral) == (None, USER, {"sourceType": "ad"})
        assert [message(referral=one).referral for one in (None, {})] == [None, {}]
        item = message(**{"from": USER, "from_user_id": None, "group_id": "g", "text": {"body": "x"}})
        assert (item.sender, item.user_id, item.group, item.opens_window) == (None, USER, True, False)
        item = message(type="unsupported", errors=[{"code": 131051, "title": "unknown"}])
        assert (item.type, item.text) == ("unsupported", None)

    def test_whose_name_it_is(self) -> None:
        others = [{"profile": {"name": "B"}, "wa_id": "33600000000"}, AMAL]
        second = TEXT | {"id": "wamid.C", "from": "33600000000", "from_user_id": None}
        items = list(parse(envelope(value(contacts=others, messages=[TEXT, second]))))
        assert [(one.sender, one.user_id) for one in items if isinstance(one, MessageItem)] == [
            ("212600000017", USER),
            ("33600000000", None),
        ]

    def test_what_postgresql_cannot_store_is_taken_out(self) -> None:
        item = message(text={"body": "a\0b\ud83dc"})
        assert item.text == "ab?c"
        # As in the response to a send, whose wamid it names.
        assert message(id="wamid.a\0b").wamid == "wamid.ab"


class TestCalls:
    def test_only_that_a_user_called_and_when_is_read(self) -> None:
        call = {"id": "wacid.1", "event": "connect", "from": "212600000017", "timestamp": "1795162455"}
        some = [{**call, "from": None}, "call", call, {**call, "event": "ringing"}]
        body = {"metadata": {"phone_number_id": "555000111222333"}, "calls": some}
        raw = json.dumps({"entry": [{"id": "1", "changes": [{"field": "calls", "value": body}]}]}).encode()
        bad, worse, good = parse(raw)
        assert (type(bad), type(worse), type(good)) == (PoisonItem, PoisonItem, CallItem)
        assert isinstance(good, CallItem)
        assert (good.sender, good.at) == ("212600000017", datetime.fromtimestamp(1795162455, UTC))
        assert list(parse(raw.replace(b'"calls": [', b'"calls": 7, "x": ['))) == []


class TestEvents:
    big = 9_007_199_254_740_993
    common: ClassVar[dict[str, Any]] = {
        "message_template_id": big,
        "message_template_name": "order_shipped",
        "message_template_language": "en-US",
    }

    def test_template_status(self) -> None:
        more = {"event": "PAUSED", "message_template_category": "UTILITY", "reason": None}
        info = {"other_info": {"title": "FIRST_PAUSE", "description": "Quality too low"}}
        item = event("message_template_status_update", self.common | more | info)
        assert isinstance(item, TemplateItem)
        assert (item.kind, item.template_id, item.name) == ("status", "9007199254740993", "order_shipped")
        assert (item.language, item.event, item.category) == ("en_US", "PAUSED", "UTILITY")
        assert (item.reason, item.pause) == (None, "FIRST_PAUSE")
        assert item.at == datetime.fromtimestamp(1795162400, UTC)

    def test_quality(self) -> None:
        more = {"previous_quality_score": "GREEN", "new_quality_score": "YELLOW"}
        item = event("message_template_quality_update", self.common | more)
        assert (item.kind, item.previous_quality, item.quality) == ("quality", "GREEN", "YELLOW")

    def test_an_advance_notice_is_not_the_change(self) -> None:
        item = event(
            "template_category_update", self.common | {"new_category": "UTILITY", "correct_category": "MARKETING"}
        )
        assert (item.category, item.future_category, item.previous_category) == ("UTILITY", "MARKETING", None)
        item = event(
            "template_category_update", self.common | {"previous_category": "UTILITY", "new_category": "MARKETING"}
        )
        assert (item.category, item.future_category, item.previous_category) == ("MARKETING", None, "UTILITY")

    def test_number(self) -> None:
        inner = {"display_phone_number": "+212 520-001234", "event": "THROUGHPUT_UPGRADE", "current_limit": "TIER_1K"}
        item = event("phone_number_quality_update", inner)
        assert isinstance(item, NumberItem)
        assert (item.digits, item.event) == ("212520001234", "THROUGHPUT_UPGRADE")
        assert item.tier == tier_of(1000)
        item = event("phone_number_quality_update", inner | {"max_daily_conversations_per_business": "TIER_UNLIMITED"})
        assert item.tier == tier_of(-1)

    def test_capability(self) -> None:
        inner = {"max_daily_conversations_per_business": 2000, "max_phone_numbers_per_waba": 25}
        item = event("business_capability_update", inner)
        assert isinstance(item, CapabilityItem)
        assert (item.tier.name, item.tier.limit, item.max_numbers) == ("TIER_2K", 2000, 25)

    @pytest.mark.parametrize(
        ("written", "name", "limit"),
        [
            (250, "TIER_250", 250),
            ("TIER_10K", "TIER_10K", 10_000),
            ("100000", "TIER_100K", 100_000),
            ("-1", "TIER_UNLIMITED", None),
            ("unlimited", "TIER_UNLIMITED", None),
            ("TIER_NOT_SET", "unknown", None),
            (None, "unknown", None),
            (True, "unknown", None),
            (10**30, "unknown", None),
        ],
    )
    def test_tiers(self, written: Any, name: str, limit: int | None) -> None:
        assert (tier_of(written).name, tier_of(written).limit) == (name, limit)

    def test_account(self) -> None:
        info = [{"restriction_type": "RESTRICTED_BIZ_INITIATED_MESSAGING", "expiration": 1795766400}, "x"]
        item = event("account_update", {"event": "ACCOUNT_RESTRICTION", "restriction_info": info})
        assert isinstance(item, AccountItem)
        assert item.restrictions[0].type == "RESTRICTED_BIZ_INITIATED_MESSAGING"
        assert item.restrictions[0].until == datetime.fromtimestamp(1795766400, UTC)
        ban = {"waba_ban_state": "SCHEDULE_FOR_DISABLE", "waba_ban_date": "November 27, 2026"}
        item = event("account_update", {"event": "DISABLED_UPDATE", "ban_info": ban})
        assert (item.ban_state, item.ban_date) == ("SCHEDULE_FOR_DISABLE", "November 27, 2026")

    def test_a_partner_s_event_names_the_account_inside(self) -> None:
        item = event("account_update", {"event": "PARTNER_REMOVED", "waba_info": {"waba_id": "42"}})
        assert (item.waba_id, item.portfolio_id) == ("42", WABA)

    def test_the_same_event_has_the_same_fingerprint(self) -> None:
        one = event("account_update", {"event": "X", "a": 1})
        assert one.fingerprint == event("account_update", {"a": 1, "event": "X"}).fingerprint
        assert one.fingerprint != event("account_update", {"a": 2, "event": "X"}).fingerprint

    def test_alarms_and_unknown_fields(self) -> None:
        (item,) = parse(envelope(value(errors=[{"code": 130429, "title": "Rate limit hit"}])))
        assert isinstance(item, AlarmItem)
        assert (item.phone_number_id, item.errors[0].code) == (NUMBER, 130429)
        assert event("user_preferences", {}) == UnknownItem(field="user_preferences", waba_id=WABA)
        (item,) = parse(b'{"object":"page","entry":[{"id":"1"}]}')
        assert item == UnknownItem(field="object page")


class TestPoison:
    @pytest.mark.parametrize(
        "poison",
        [
            7,
            None,
            "text",
            [],
            {},
            {"id": "wamid.P"},
            {"id": 5, "status": "sent"},
            SENT | {"id": ""},
            {"id": "wamid.P", "status": "sent", "timestamp": {}, "recipient_id": []},
        ],
    )
    def test_one_status_among_many(self, poison: Any) -> None:
        statuses = [SENT | {"id": f"wamid.{n}"} for n in range(999)]
        items = list(parse(envelope(value(statuses=[*statuses[:500], poison, *statuses[500:]]), time=None)))
        assert [one.wamid for one in items if isinstance(one, StatusItem)] == [f"wamid.{n}" for n in range(999)]
        (bad,) = [one for one in items if isinstance(one, PoisonItem)]
        assert json.loads(bad.raw) == poison
        assert bad.waba_id == WABA

    @pytest.mark.parametrize("poison", [7, None, {}, TEXT | {"id": None}, TEXT | {"from": None, "from_user_id": None}])
    def test_one_message_among_many(self, poison: Any) -> None:
        items = list(parse(envelope(value(messages=[TEXT, poison, TEXT | {"id": "wamid.C"}]))))
        assert [type(one) for one in items] == [MessageItem, PoisonItem, MessageItem]

    def test_at_every_depth(self) -> None:
        good = value(statuses=[SENT])
        entry = {"id": WABA, "changes": [good]}
        bodies: list[Any] = [
            {"entry": [7, entry]},
            {"entry": [{"id": WABA, "changes": "x"}, entry]},
            {"entry": [{"id": WABA, "changes": ["x", good]}]},
            {"entry": [{"id": WABA, "changes": [{"field": "messages"}, good]}]},
            {"entry": [{"id": WABA, "changes": [{"field": "messages", "value": []}, good]}]},
            {"entry": [{"id": WABA, "changes": [value(statuses={}), good]}]},
            {"entry": [{"id": WABA, "changes": [value(statuses=[SENT], metadata=4), good]}]},
            {"entry": [{"id": WABA, "changes": [{"field": "message_template_status_update", "value": {}}, good]}]},
        ]
        for body in bodies:
            items = list(parse(json.dumps(body).encode()))
            assert sum(isinstance(one, StatusItem) for one in items) == 1, body
            assert sum(isinstance(one, PoisonItem) for one in items) >= 1, body

    @pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"\xff", b"null", b"[" * 100_000, b'{"entry":1}'])
    def test_a_body_that_is_none(self, raw: bytes) -> None:
        (item,) = parse(raw)
        assert isinstance(item, PoisonItem)
        assert item.raw == raw

    def test_very_many_items_are_read_up_to_a_number_and_the_body_is_kept(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The fields of a shape used to be analyzed again for each item with another shape: 60 kB took seconds."""
        found: list[Any] = []
        fields = msgspec.structs.fields
        monkeypatch.setattr(msgspec.structs, "fields", lambda shape: found.append(shape) or fields(shape))
        monkeypatch.setattr(webhooks, "MOST", 100)
        webhooks._fields.cache_clear()
        raw = envelope(value(statuses=[SENT | {"pricing": 1}] * 50 + [{}] * 60))
        items = list(parse(raw))
        assert [type(one) for one in items] == [StatusItem] * 50 + [PoisonItem] * 51
        assert isinstance(items[-1], PoisonItem)
        assert (items[-1].raw, items[-1].reason) == (raw, "body: more than 100 items")
        assert len(found) == len(set(found))

    def test_very_many_good_statuses_are_read_up_to_the_same_number(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(webhooks, "MOST", 3)
        whole, more = value(statuses=[SENT] * 2), value(statuses=[SENT] * 1)
        assert [type(one) for one in parse(envelope(whole, more))] == [StatusItem] * 3
        items = list(parse(envelope(whole, whole)))
        assert [type(one) for one in items] == [StatusItem] * 3 + [PoisonItem]

    def test_names_of_values_stay_out_of_the_reason(self) -> None:
        (item,) = parse(envelope(value(messages=[TEXT | {"id": None, "text": {"body": "private"}}])))
        assert isinstance(item, PoisonItem)
        assert "private" not in item.reason


_anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=8,
)


def _bent(original: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(sorted(original)), _anything, max_size=3).map(lambda odd: original | odd)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])  # of a busy machine
@given(st.lists(_bent(SENT), max_size=2), st.lists(_bent(TEXT), max_size=2), _bent(AMAL), st.binary(max_size=30))
def test_nothing_raises_and_the_good_ones_survive(
    statuses: list[Any], messages: list[Any], contact: Any, noise: bytes
) -> None:
    change = value(statuses=[*statuses, SENT | {"id": "wamid.good"}], messages=messages, contacts=[contact])
    items = list(parse(envelope(change)))
    assert len(items) == len(statuses) + len(messages) + 1
    assert any(isinstance(one, StatusItem) and one.wamid == "wamid.good" for one in items)
    for one in items:
        msgspec.json.encode(one)
        assert "\0" not in str(getattr(one, "text", ""))
    list(parse(noise))


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])  # of a busy machine
@given(
    st.lists(_bent(SENT) | st.just(SENT), max_size=3),
    st.none() | st.lists(_bent(AMAL) | st.just(AMAL), max_size=2),
    st.sampled_from((1795162400, "1795162400", None, "soon")),
)
def test_statuses_are_read_alike_whatever_else_is_in_the_body(statuses: list[Any], contacts: Any, time: Any) -> None:
    """A body with nothing but statuses of the expected shape is read in one pass."""
    change = value(statuses=statuses, contacts=contacts)
    *items, other = parse(envelope(change, {"field": "new", "value": {}}, time=time))
    assert other == UnknownItem(field="new", waba_id=WABA)
    assert list(parse(envelope(change, time=time))) == items
