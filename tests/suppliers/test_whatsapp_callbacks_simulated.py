"""Callbacks of the simulated Graph API, as they come over the wire, read item by item."""

from __future__ import annotations

from collections import Counter

import pytest

from heliograph.suppliers.whatsapp_cloud.bodies import text_body
from heliograph.suppliers.whatsapp_cloud.callbacks.items import (
    OPENING,
    AccountItem,
    AlarmItem,
    CapabilityItem,
    Item,
    MessageItem,
    NumberItem,
    PoisonItem,
    StatusItem,
    TemplateItem,
    UnknownItem,
)
from heliograph.suppliers.whatsapp_cloud.callbacks.webhooks import parse, verify_signature
from heliograph.suppliers.whatsapp_cloud.credential import credential
from heliograph.suppliers.whatsapp_cloud.graph import CloudClient
from tests.suppliers.graph_peer import NUMBER, SECRET, TOKEN, USER, WABA, Hook
from tests.suppliers.graph_peer import graph as connected

KINDS = {
    "text": "text",
    "button": "button",
    "button_reply": "interactive",
    "list_reply": "interactive",
    "flow_reply": "interactive",
    "image": "image",
    "video": "video",
    "audio": "audio",
    "document": "document",
    "sticker": "sticker",
    "location": "location",
    "contacts": "contacts",
    "order": "order",
    "reaction": "reaction",
    "unreaction": "reaction",
    "number_change": "system",
    "identity_change": "system",
    "edit": "edit",
    "revoke": "revoke",
    "unsupported": "unsupported",
}


def items(hook: Hook) -> list[Item]:
    """Of every callback whose signature is right."""
    return [
        item
        for body, headers in hook.callbacks
        if verify_signature([SECRET.encode()], body, headers.get("x-hub-signature-256"))
        for item in parse(body)
    ]


@pytest.mark.parametrize("version", ["v23.0", "v25.0"])
async def test_statuses_bind_to_our_id(version: str) -> None:
    async with connected(webhook_version=version) as (graph, _, hook):
        client = CloudClient(graph.base_url)
        graph.inbound(USER, "Bonjour, é/\u2019")
        wamids = []
        failing = "+88810000000001"
        graph.inbound(failing)
        for n in range(3):
            graph.inbound(f"+2126000{n}5550")
            outcome = await client.send(
                NUMBER,
                credential(TOKEN, SECRET.encode()),
                text_body(to=f"+2126000{n}5550", text="t", opaque=f"our-{n}"),
            )
            wamids.append(outcome.wamid)
        outcome = await client.send(
            NUMBER, credential(TOKEN, SECRET.encode()), text_body(to=failing, text="t", opaque="our-failed")
        )
        await graph.settle()
        await client.close()
    found = items(hook)
    statuses = [one for one in found if isinstance(one, StatusItem)]
    assert not any(isinstance(one, PoisonItem | UnknownItem) for one in found)
    assert {one.wamid: one.opaque for one in statuses if one.wamid in wamids} == dict(
        zip(wamids, ["our-0", "our-1", "our-2"], strict=True)
    )
    assert {(one.waba_id, one.phone_number_id) for one in statuses} == {(WABA, NUMBER)}
    assert any(one.pricing is not None and one.pricing.type for one in statuses)
    assert all(one.status != "failed" for one in statuses if one.wamid in wamids)
    (failed,) = [one for one in statuses if one.status == "failed" and one.opaque == "our-failed"]
    assert failed.errors[0].code == 131026
    (message,) = [one for one in found if isinstance(one, MessageItem) and one.sender == USER[1:]]
    assert (message.text, message.opens_window) == ("Bonjour, é/\u2019", True)


async def test_every_kind_of_message_is_read() -> None:
    async with connected() as (graph, _, hook):
        wamids = {kind: graph.inbound(USER, kind=kind, quotes="wamid.Q", new_number="212600000099") for kind in KINDS}
        graph.inbound(user_id="MA.13490000000000000001", username="amal", referral=True)
        graph.inbound(USER, group="g-1")
        await graph.settle()
        assert hook.callbacks
    found = items(hook)
    assert {type(one) for one in found} == {MessageItem}
    messages = {one.wamid: one for one in found if isinstance(one, MessageItem)}
    assert len(messages) == len(KINDS) + 2
    for kind, wamid in wamids.items():
        message = messages.pop(wamid)
        assert (message.type, message.opens_window) == (KINDS[kind], KINDS[kind] in OPENING), kind
        assert (message.sender, message.phone_number_id) == (USER[1:], NUMBER), kind
        assert bool(message.new_sender) is (kind == "number_change"), kind
    hidden, group = sorted(messages.values(), key=lambda one: one.group)
    assert (hidden.sender, hidden.user_id) == (None, "MA.13490000000000000001")
    assert hidden.referral == {"sourceType": "ad", "headline": "Chat with us", "body": "Hello", "mediaType": "image"}
    assert (group.group, group.opens_window) == (True, False)


async def test_events_alarms_and_wrong_signatures() -> None:
    async with connected() as (graph, _, hook):
        graph.template_event("order_shipped", "PAUSED")
        graph.template_event("order_shipped", "quality", value="YELLOW")
        graph.template_event("order_shipped", "category_notice", value="MARKETING")
        graph.template_event("order_shipped", "category", value="MARKETING")
        graph.number_event("THROUGHPUT_UPGRADE")
        graph.account_event("ACCOUNT_RESTRICTION")
        graph.account_event("DISABLED_UPDATE")
        graph.account_event("capability")
        graph.alarm(130429)
        await graph.settle()
        right = items(hook)
        hook.callbacks.clear()
        for signature in ("wrong_secret", "missing", "upper", "truncated", "unprefixed", "tampered"):
            graph.configure(signature=signature)
            graph.inbound(USER, signature)
            await graph.settle()
        assert hook.callbacks
        assert items(hook) == []
    kinds = Counter(type(one) for one in right)
    assert kinds == {TemplateItem: 4, NumberItem: 1, AccountItem: 2, CapabilityItem: 1, AlarmItem: 1}
    templates = {(one.kind, one.future_category): one for one in right if isinstance(one, TemplateItem)}
    assert templates.keys() == {("status", None), ("quality", None), ("category", "MARKETING"), ("category", None)}
    assert templates["category", "MARKETING"].category == "UTILITY"
    assert templates["category", None].category == "MARKETING"
    assert templates["status", None].event == "PAUSED"
