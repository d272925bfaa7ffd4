"""An independent client with the Graph API simulator: pywa sends to it, reads from it, and parses its callbacks.

pywa shares no code with either side of ours. It reads only the first item of a callback, so each comes alone, and it
swallows what it cannot parse, so the test counts that the right handler ran exactly once.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import httpx
import pytest
from pywa import WhatsApp, errors, handlers
from pywa.types import Message, MessageStatus
from pywa.types.templates import (
    AuthenticationBody,
    BodyText,
    CopyCodeOTPButton,
    HeaderText,
    TemplateCategory,
    TemplateLanguage,
    TemplateStatus,
    URLButton,
)
from pywa.types.templates import Template as ForeignTemplate
from pywa.utils import webhook_updates_validator

from heliograph.simulators.graph.simulator import GraphSimulator
from tests.suppliers.graph_peer import NUMBER, SECRET, TOKEN, USER, WABA, Hook, graph, until


class Here(httpx.BaseTransport):
    """Requests meant for Meta go to the simulator."""

    def __init__(self, port: int) -> None:
        self._port, self._inner = port, httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        assert (request.url.scheme, request.url.host) == ("https", "graph.facebook.com")
        request.url = request.url.copy_with(scheme="http", host="127.0.0.1", port=self._port)
        return self._inner.handle_request(request)

    def close(self) -> None:
        self._inner.close()


def foreign(simulator: GraphSimulator, token: str = TOKEN) -> WhatsApp:
    return WhatsApp(
        phone_id=NUMBER,
        waba_id=WABA,
        token=token,
        session=httpx.Client(transport=Here(simulator.port)),
        app_secret=SECRET,
        server=None,
        filter_updates=False,
        skip_duplicate_updates=False,
    )


async def test_it_sends() -> None:
    async with graph() as (simulator, _, hook):
        client = foreign(simulator)

        def send() -> list[str]:
            sent = [
                client.send_template(
                    to=USER[1:],
                    name="order_shipped",
                    language=TemplateLanguage.FRENCH,
                    params=[
                        HeaderText.params("CMD-4471"),
                        BodyText.params("Amal", "jeudi 14h"),
                        URLButton.params(url_variable="t/1", index=0),
                    ],
                    tracker="ours-1",
                ),
                client.send_template(
                    to=USER,
                    name="delivery_update",
                    language=TemplateLanguage.ENGLISH,
                    params=[BodyText.params(customer_name="Amal", parcel="P-1", day="Thursday")],
                ),
                client.send_template(
                    to=USER,
                    name="login_code",
                    language=TemplateLanguage.ENGLISH,
                    params=[AuthenticationBody.params(otp="481920"), CopyCodeOTPButton.params(otp="481920")],
                ),
                client.send_template(
                    to=USER,
                    name="appointment_reminder",
                    language=TemplateLanguage.ENGLISH,
                    params=[BodyText.params("Amal", "Thursday")],
                ),
            ]
            return [one.id for one in sent]

        wamids = await asyncio.to_thread(send)
        await until(lambda: all(len(hook.statuses(wamid)) == 3 for wamid in wamids))
        assert [one.template for one in simulator.sends_to(USER)] == [
            "order_shipped",
            "delivery_update",
            "login_code",
            "appointment_reminder",
        ]
        assert {one.get("biz_opaque_callback_data") for one in hook.items("statuses")} == {"ours-1", None}
        # pywa sometimes sends types in capitals, and an integer index.
        components = simulator.requests[0].body["template"]["components"]
        assert [(one["type"], one.get("index")) for one in components] == [
            ("HEADER", None),
            ("BODY", None),
            ("button", 0),
        ]

        simulator.inbound(USER, "Bonjour")
        await until(lambda: hook.items("messages"))
        inbound = hook.items("messages")[0]["id"]
        sent = await asyncio.to_thread(client.send_message, to=USER, text="Oui", reply_to_message_id=inbound)
        await until(lambda: hook.statuses(sent.id) == ["sent", "delivered", "read"])
        assert (await asyncio.to_thread(client.mark_message_as_read, message_id=inbound)).success


async def test_it_knows_the_errors() -> None:
    async with graph(webhook_url="", window_refusal="sync") as (simulator, _, _):
        client = foreign(simulator)

        async def fails(error: type[Exception], used: WhatsApp = client) -> errors.WhatsAppError:
            with pytest.raises(error) as raised:
                await asyncio.to_thread(used.send_message, to=USER, text="Bonjour")
            assert isinstance(raised.value, errors.WhatsAppError)
            return raised.value

        assert (await fails(errors.ReEngagementMessage)).code == 131047
        simulator.inbound(USER)
        for code, error in (
            (131056, errors.TooManyMessages),
            (130429, errors.RateLimitHit),
            (131031, errors.AccountLocked),
            (131026, errors.MessageUndeliverable),
            (131000, errors.WhatsAppError),
        ):
            simulator.script(USER, {"refuse": code})
            raised = await fails(error)
            assert (raised.code, raised.fbtrace_id is not None) == (code, True)
        assert (await fails(errors.WhatsAppError, foreign(simulator, "nonsense"))).code == 190
        simulator.set_token(TOKEN, state="expired")
        assert (await fails(errors.WhatsAppError)).subcode == 463
        simulator.set_token(TOKEN, state="valid")
        simulator.fault("html", status=502)
        assert (await fails(errors.WhatsAppError)).code == 502


async def test_it_reads() -> None:
    async with graph(webhook_url="", review_delay=3600.0) as (simulator, _, _):
        client = foreign(simulator)
        simulator.add_number("901", "+33155000001")

        def read() -> Any:
            return (
                list(client.get_templates()),
                list(client.get_business_phone_numbers()),
                client.get_business_phone_number(),
            )

        templates, numbers, number = await asyncio.to_thread(read)
        assert [one.name for one in templates] == [
            "order_shipped",
            "appointment_reminder",
            "delivery_update",
            "login_code",
        ]
        assert {one.status for one in templates} == {TemplateStatus.APPROVED}
        assert {one.id for one in numbers} == {NUMBER, "901"}
        assert (number.display_phone_number, number.quality_rating) == ("+1 555-000-1000", "GREEN")

        created = await asyncio.to_thread(
            client.create_template,
            ForeignTemplate(
                name="parcel_waits",
                language=TemplateLanguage.FRENCH,
                category=TemplateCategory.UTILITY,
                components=[BodyText("Bonjour {{1}}, votre colis attend.", "Amal")],
            ),
        )
        assert simulator.world.template_of("parcel_waits").status == "PENDING"
        await simulator.advance(3601)
        details = await asyncio.to_thread(client.get_template, created.id)
        assert (details.name, details.status) == ("parcel_waits", TemplateStatus.APPROVED)
        assert (await asyncio.to_thread(client.delete_template, template_name="parcel_waits")).success
        assert len(list((await asyncio.to_thread(read))[0])) == 4


HANDLERS = [
    handlers.MessageHandler,
    handlers.MessageStatusHandler,
    handlers.CallbackButtonHandler,
    handlers.CallbackSelectionHandler,
    handlers.FlowCompletionHandler,
    handlers.PhoneNumberChangeHandler,
    handlers.IdentityChangeHandler,
    handlers.EditedMessageHandler,
    handlers.DeletedMessageHandler,
    handlers.TemplateStatusUpdateHandler,
    handlers.TemplateCategoryUpdateHandler,
    handlers.TemplateQualityUpdateHandler,
    handlers.AccountUpdateHandler,
    handlers.RawUpdateHandler,
]


def understood(simulator: GraphSimulator, hook: Hook) -> list[tuple[str, Any]]:
    """What pywa made of each callback: the handler that ran, and its update. Each must be signed correctly."""
    client = foreign(simulator)
    ran: list[tuple[str, Any]] = []
    for kind in HANDLERS:
        client.add_handlers(kind(lambda _, update, name=kind.__name__: ran.append((name, update))))
    for body, headers in hook.callbacks:
        header = headers["x-hub-signature-256"]
        assert webhook_updates_validator(app_secret=SECRET, request_body=body, x_hub_signature=header)
        assert client.webhook_update_validator(body, header) is None
        assert client.webhook_update_handler(body) == ("ok", 200)
    raw = [update for name, update in ran if name == "RawUpdateHandler"]
    assert len(raw) == len(hook.callbacks)
    return [(name, update) for name, update in ran if name != "RawUpdateHandler"]


async def test_it_understands_statuses() -> None:
    async with graph(batch=1, concurrency=1) as (simulator, client, hook):
        endings = ("0000", "0001", "0002", "9003", "9013", "9016")
        for ending in endings:
            await client.remind(f"+8881000000{ending}", biz_opaque_callback_data=ending)
        await simulator.settle()
        ran = await asyncio.to_thread(understood, simulator, hook)
        assert {name for name, _ in ran} == {"MessageStatusHandler"}
        assert len(ran) == len(hook.items("statuses")) == simulator.counters.statuses
        by_ending: dict[str, list[MessageStatus]] = {}
        for _, update in ran:
            by_ending.setdefault(update.tracker, []).append(update)
        assert [one.status.value for one in by_ending["0000"]] == ["sent", "delivered", "read"]
        assert by_ending["0000"][0].pricing is not None
        assert by_ending["0000"][0].pricing.category.value == "utility"
        (failed,) = by_ending["0001"]
        assert isinstance(failed.error, errors.MessageUndeliverable)
        assert by_ending["9016"][0].conversation is not None


KINDS = {
    "text": "MessageHandler",
    "button": "CallbackButtonHandler",
    "button_reply": "CallbackButtonHandler",
    "list_reply": "CallbackSelectionHandler",
    "flow_reply": "FlowCompletionHandler",
    "image": "MessageHandler",
    "video": "MessageHandler",
    "audio": "MessageHandler",
    "document": "MessageHandler",
    "sticker": "MessageHandler",
    "location": "MessageHandler",
    "contacts": "MessageHandler",
    "order": "MessageHandler",
    "reaction": "MessageHandler",
    "unreaction": "MessageHandler",
    "unsupported": "MessageHandler",
    "number_change": "PhoneNumberChangeHandler",
    "identity_change": "IdentityChangeHandler",
    "edit": "EditedMessageHandler",
    "revoke": "DeletedMessageHandler",
}


@pytest.mark.parametrize("kind", KINDS)
async def test_it_understands_inbound_messages(kind: str) -> None:
    async with graph(batch=1, concurrency=1) as (simulator, client, hook):
        quoted = await client.remind()
        await simulator.settle()
        hook.callbacks.clear()
        wamid = simulator.inbound(
            USER, "D’accord", kind=kind, quotes=quoted, name="Amal Bén", new_number="+212600000099"
        )
        await simulator.settle()
        ((name, update),) = await asyncio.to_thread(understood, simulator, hook)
        assert name == KINDS[kind]
        if kind not in ("edit",):
            assert update.id == wamid
        if kind == "text":
            assert (update.text, update.from_user.name, update.from_user.wa_id) == ("D’accord", "Amal Bén", USER[1:])
            assert update.reply_to_message.id == quoted
        if kind == "number_change":
            assert (update.old_wa_id, update.new_wa_id) == (USER[1:], "212600000099")


async def test_it_understands_odd_senders_and_times() -> None:
    async with graph(batch=1, concurrency=1) as (simulator, _, hook):
        simulator.inbound(user_id="MA.13490000000000000001", username="amal")
        simulator.inbound(USER, ago=86_400)
        simulator.inbound(USER, ago=-86_400)
        simulator.inbound(USER, referral=True)
        simulator.inbound(USER, forwarded=True)
        simulator.inbound(USER, group="120363040000000000@g.us")
        await simulator.settle()
        updates = [update for name, update in await asyncio.to_thread(understood, simulator, hook)]
        assert all(isinstance(one, Message) for one in updates)
        nameless, yesterday, tomorrow, referred, forwarded, grouped = updates
        assert (nameless.from_user.wa_id, nameless.from_user.bsuid) == (None, "MA.13490000000000000001")
        assert (tomorrow.timestamp - yesterday.timestamp).days in (1, 2)
        assert referred.referral.source_type.lower() == "ad"
        assert forwarded.forwarded
        assert grouped.raw["entry"][0]["changes"][0]["value"]["messages"][0]["group_id"]


async def test_it_understands_management_events() -> None:
    async with graph(batch=1, concurrency=1) as (simulator, _, hook):
        for event in ("PAUSED", "APPROVED", "REJECTED", "PENDING", "DISABLED", "FLAGGED", "REINSTATED", "IN_APPEAL"):
            simulator.template_event("order_shipped", event, reason="INVALID_FORMAT" if event == "REJECTED" else "NONE")
        simulator.template_event("order_shipped", "quality", value="YELLOW")
        simulator.template_event("order_shipped", "category_notice", value="MARKETING")
        simulator.template_event("order_shipped", "category", value="MARKETING")
        simulator.account_event("ACCOUNT_RESTRICTION")
        simulator.account_event("DISABLED_UPDATE", value="SCHEDULE_FOR_DISABLE")
        simulator.account_event("ACCOUNT_VIOLATION", value="SCAM")
        await simulator.settle()
        ran = await asyncio.to_thread(understood, simulator, hook)
        assert Counter(name for name, _ in ran) == {
            "TemplateStatusUpdateHandler": 8,
            "TemplateQualityUpdateHandler": 1,
            "TemplateCategoryUpdateHandler": 2,
            "AccountUpdateHandler": 3,
        }
        paused = ran[0][1]
        assert (paused.new_status.value, paused.other_info.title) == ("PAUSED", "FIRST_PAUSE")
        notice, done = (update for name, update in ran if name == "TemplateCategoryUpdateHandler")
        assert (notice.new_category.value, notice.correct_category.value) == ("UTILITY", "MARKETING")
        assert (done.previous_category.value, done.new_category.value) == ("UTILITY", "MARKETING")

        hook.callbacks.clear()
        simulator.number_event("THROUGHPUT_UPGRADE")  # it has no handler for the rest, only the raw update
        simulator.account_event("capability", value=2000)
        simulator.account_event("capability", value="TIER_10K")
        simulator.alarm(130429)
        await simulator.settle()
        assert await asyncio.to_thread(understood, simulator, hook) == []
        fields = [json.loads(body)["entry"][0]["changes"][0]["field"] for body, _ in hook.callbacks]
        assert fields == ["phone_number_quality_update", *["business_capability_update"] * 2, "messages"]
