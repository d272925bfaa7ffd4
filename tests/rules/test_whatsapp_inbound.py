"""Callbacks on a real database: each item is applied once, to its own organization, whatever else is in the batch."""

from __future__ import annotations

import asyncio
import math
import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from heliograph.base.crypto import derive_key, unseal
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool, open_pool
from heliograph.consent import optouts
from heliograph.suppliers.whatsapp_cloud.callbacks import webhooks
from heliograph.suppliers.whatsapp_cloud.callbacks.items import Item
from heliograph.whatsapp.callbacks import intake
from heliograph.whatsapp.callbacks.dead_letters import ANY_AWAITED, NEWEST, context, list_all
from heliograph.whatsapp.callbacks.intake import KIND
from heliograph.whatsapp.callbacks.processing import inbox
from heliograph.whatsapp.callbacks.processing.inbox import Inbox
from heliograph.whatsapp.callbacks.processing.retries import retry, retry_awaited
from heliograph.whatsapp.money.rates import RateBook
from tests.rules.callback_factories import Change, Meta, ago, batch, call, message, status, wamid
from tests.rules.dispatching_whatsapp import Bench, accept_all, row_of, status_of
from tests.rules.dispatching_whatsapp import wamid as wamid_of
from tests.rules.factories import TO, endpoint, sender
from tests.rules.whatsapp_factories import KEY, Made, account, check_wallets, conversation, made, make_app
from tests.rules.whatsapp_factories import message as outbound
from tests.rules.whatsapp_factories import number as new_number


@pytest.fixture
async def acme(pool: Pool) -> Made:
    return await made(pool)


@pytest.fixture
def meta(pool: Pool) -> Meta:
    return Meta(pool)


async def event_data(pool: Pool, kind: str = "message.received") -> list[Any]:
    """`data` of the events of a kind, in order."""
    rows = await pool.fetch("SELECT data FROM events WHERE kind = $1 ORDER BY id", kind)
    return [msgspec.json.decode(row["data"]) for row in rows]


async def dead_letters(pool: Pool) -> list[tuple[str, bytes]]:
    """(reason, item) of dead letters, in order."""
    rows = await pool.fetch("SELECT id, reason, body FROM whatsapp_dead_letters ORDER BY id")
    return [(row["reason"], unseal(KEY, row["body"], context(row["id"]))) for row in rows]


async def opted_out(pool: Pool, made: Made, phone: str = TO) -> bool:
    async with pool.acquire() as conn:
        return bool(await optouts.current(conn, {(made.organization_id, phone)}))


async def nothing_waits(pool: Pool) -> None:
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_callbacks") == 0
    assert await pool.fetchval("SELECT count(*) FROM queue WHERE kind = $1", KIND) == 0


#: As if others held accounts locked for longer than a statement may wait.
LOCKED_ACCOUNTS = """
CREATE FUNCTION wait_in_vain() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'canceling statement due to statement timeout' USING ERRCODE = 'query_canceled';
END $$;
CREATE TRIGGER waits BEFORE UPDATE ON whatsapp_accounts FOR EACH ROW EXECUTE FUNCTION wait_in_vain();
"""


# -- messages ----------------------------------------------------------------------------------------------------------


async def test_a_message_is_stored_noted_and_told(pool: Pool, acme: Made, meta: Meta) -> None:
    await endpoint(pool, acme.actor, "message.received")
    at = ago(minutes=5)
    await meta.say(acme, message(acme, "D’accord, merci", at, id="wamid.A"))
    row = await pool.fetchrow("SELECT * FROM whatsapp_messages")
    assert row is not None
    assert (row["organization_id"], row["number_id"]) == (acme.organization_id, acme.number_id)
    assert (row["direction"], row["type"], row["status"], row["mode"]) == ("inbound", "text", "delivered", "live")
    assert (row["recipient"], row["delivered_at"], row["charge"]) == (TO, at, "none")
    content = await pool.fetchval("SELECT content FROM whatsapp_messages WHERE id = $1", row["id"])
    assert msgspec.json.decode(content) == {"type": "text", "body": "D’accord, merci", "profileName": "Amal Bén"}
    (event,) = await event_data(pool)
    received_at = event["message"].pop("receivedAt")
    assert datetime.fromisoformat(received_at) > at
    assert event == {
        "message": {
            "id": str(row["id"]),
            "channel": "whatsapp",
            "type": "text",
            "conversationId": str(row["conversation_id"]),
            "phoneNumberId": str(acme.number_id),
            "from": TO,
            "to": "+" + acme.digits,
            "text": "D’accord, merci",
            "truncated": False,
            "segments": None,
            "missingSegments": None,
            "keyword": None,
        }
    }
    assert meta.deliveries == 1
    assert await pool.fetchval("SELECT count(*) FROM queue WHERE kind = 'webhook'") == 1
    assert await pool.fetchval("SELECT last_callback_at FROM whatsapp_numbers") is not None
    await nothing_waits(pool)


async def test_the_same_message_again_and_again_is_one(pool: Pool, acme: Made, meta: Meta) -> None:
    again = message(acme, id="wamid.A")
    await meta.say(acme, again, again)
    await meta.say(acme, message(acme), again)
    await asyncio.gather(*(worker.post(acme, again) for worker in [Meta(pool)] * 10))
    await asyncio.gather(*(worker.work() for worker in (meta, Meta(pool), Meta(pool))))
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_messages") == 2
    assert len(await event_data(pool)) == 2
    await nothing_waits(pool)


async def test_a_message_that_comes_again_is_known_by_the_day_on_which_it_was_written(
    pool: Pool, acme: Made, meta: Meta
) -> None:
    """Its id is stored under that day, which may be in another month than its repetition."""
    old = message(acme, id="wamid.A", at=clock.now() - timedelta(days=35))
    for _ in range(2):
        await meta.say(acme, old)
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_messages") == 1
    row = await pool.fetchrow("SELECT born_on, created_at::date - born_on AS days FROM whatsapp_wamids")
    assert row is not None
    assert row["days"] in (34, 35, 36)


async def test_one_wamid_at_two_numbers_is_two_messages(pool: Pool, acme: Made, meta: Meta) -> None:
    other = await made(pool, app=acme.app)
    await meta.say(acme, message(acme, id="wamid.A"), message(other, id="wamid.A"))
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_messages") == 2


async def test_what_is_no_text_is_told_by_its_type(pool: Pool, acme: Made, meta: Meta) -> None:
    await meta.say(
        acme,
        message(acme, type="image", image={"id": "1", "mime_type": "image/jpeg", "caption": "Look"}, at=ago(hours=3)),
        message(acme, type="location", location={"latitude": 1.5, "longitude": 2}, at=ago(hours=2)),
        message(acme, type="hologram", hologram={"id": "secret"}, at=ago(hours=1)),
    )
    shown = [(one["message"]["type"], one["message"]["text"]) for one in await event_data(pool)]
    assert shown == [("image", "Look"), ("location", None), ("hologram", None)]
    contents = await pool.fetch("SELECT content FROM whatsapp_messages ORDER BY id")
    assert msgspec.json.decode(contents[1][0]) == {
        "type": "location",
        "latitude": 1.5,
        "longitude": 2,
        "profileName": "Amal Bén",
    }
    assert msgspec.json.decode(contents[2][0]) == {"type": "hologram", "profileName": "Amal Bén"}


async def test_a_long_text_is_cut_in_the_event_alone(pool: Pool, acme: Made, meta: Meta) -> None:
    await meta.say(acme, message(acme, "\x01" * 4096))
    (event,) = await event_data(pool)
    assert (len(event["message"]["text"]), event["message"]["truncated"]) == (3000, True)
    assert await pool.fetchval("SELECT octet_length(data) FROM events") < 20_000
    content = await pool.fetchval("SELECT content FROM whatsapp_messages")
    assert len(msgspec.json.decode(content)["body"]) == 4096


async def test_groups_are_left_out(pool: Pool, acme: Made, meta: Meta) -> None:
    await meta.say(acme, message(acme, group_id="1"), message(acme))
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_messages") == 1


# -- words -------------------------------------------------------------------------------------------------------------


async def test_stop_and_start_are_obeyed_and_nothing_is_sent(pool: Pool, acme: Made, meta: Meta) -> None:
    await meta.say(acme, message(acme, "Stop.", ago(hours=2)))
    assert await opted_out(pool, acme)
    (event,) = await event_data(pool, "contact.opted_out")
    assert (event["contact"]["phone"], event["contact"]["keyword"]) == (TO, "stop")
    await meta.say(acme, message(acme, "START", ago(hours=1)))
    assert not await opted_out(pool, acme)
    assert [one["message"]["keyword"] for one in await event_data(pool)] == ["stop", "start"]
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_messages WHERE direction = 'outbound'") == 0
    assert await pool.fetchval("SELECT count(*) FROM automatic_replies") == 0


async def test_a_button_says_a_word_too_and_organizations_have_their_own(pool: Pool, acme: Made, meta: Meta) -> None:
    await pool.execute("UPDATE organizations SET opt_out_words = '{Baja}'")
    other = "+258841234568"
    await meta.say(
        acme,
        message(acme, type="button", button={"text": "Stop promotions", "payload": "x"}),
        message(acme, "¡baja!", by=other),
    )
    assert await opted_out(pool, acme)
    assert await opted_out(pool, acme, other)


async def test_a_message_that_is_corrected_to_a_word_says_it(pool: Pool, acme: Made, meta: Meta) -> None:
    def corrected(text: str, hours: float) -> Change:
        edit = {"original_message_id": "wamid.THEIRS", "message": {"type": "text", "text": {"body": text}}}
        return message(acme, type="edit", at=ago(hours=hours), edit=edit)

    await meta.say(acme, message(acme, "STPO", ago(hours=5), id="wamid.THEIRS"), corrected("STOP", 4))
    assert await opted_out(pool, acme)
    assert [one["message"]["keyword"] for one in await event_data(pool)] == [None, "stop"]
    # Someone who corrects a keyword to another one has still sent it.
    await meta.say(acme, corrected("stop by tomorrow", 3))
    assert await opted_out(pool, acme)
    await meta.say(acme, corrected("START", 2))
    assert not await opted_out(pool, acme)


async def test_stop_with_the_name_of_the_number_or_of_a_sender_is_obeyed(pool: Pool, acme: Made, meta: Meta) -> None:
    await pool.execute("UPDATE whatsapp_numbers SET verified_name = 'Boutique Amal'")
    await sender(pool, acme.actor, "AMAL")
    other, third = "+258841234568", "+258841234569"
    await meta.say(
        acme,
        message(acme, "Stop Boutique Amal"),
        message(acme, "STOP AMAL", by=other),
        message(acme, "stop the boutique", by=third),
    )
    assert [await opted_out(pool, acme, who) for who in (TO, other, third)] == [True, True, False]


async def test_words_within_a_sentence_or_for_help_do_nothing(pool: Pool, acme: Made, meta: Meta) -> None:
    await meta.say(
        acme,
        message(acme, "please stop by"),
        message(acme, "help"),
        message(acme, type="image", image={"caption": "stop"}),
        message(acme, "yes"),
    )
    assert {one["message"]["keyword"] for one in await event_data(pool)} == {None}
    assert await pool.fetchval("SELECT count(*) FROM opt_outs") == 0


async def test_a_late_start_does_not_undo_what_an_operator_did_since(pool: Pool, acme: Made, meta: Meta) -> None:
    async with pool.acquire() as conn:
        await optouts.add(conn, acme.actor, phone=TO)
    await meta.say(acme, message(acme, "start", ago(hours=1)))
    assert await opted_out(pool, acme)
    await meta.say(acme, message(acme, "start", clock.now() + timedelta(hours=1)))
    assert not await opted_out(pool, acme)


# -- statuses ----------------------------------------------------------------------------------------------------------


async def test_a_status_moves_its_message_with_money_and_event(pool: Pool, acme: Made, meta: Meta) -> None:
    id = await outbound(pool, acme, queued=False)
    pricing = {"billable": True, "pricing_model": "PMP", "type": "regular", "category": "utility"}
    await meta.say(acme, status(acme, "wamid.A", "delivered", biz_opaque_callback_data=str(id), pricing=pricing))
    assert await pool.fetchval("SELECT status FROM whatsapp_messages") == "delivered"
    await check_wallets(pool, [acme.organization_id])
    assert await pool.fetchval("SELECT consumed FROM wallets") == 10_000
    assert len(await event_data(pool, "message.delivered")) == 1
    await meta.say(acme, *[status(acme, "wamid.A", "delivered")] * 50)
    assert await pool.fetchval("SELECT consumed FROM wallets") == 10_000
    assert len(await event_data(pool, "message.delivered")) == 1


async def test_what_meta_does_not_bill_is_free_whatever_else_it_says(pool: Pool, acme: Made, meta: Meta) -> None:
    for more in ({}, {"category": "utility"}, {"type": "free_customer_service", "category": "service"}):
        id = await outbound(pool, acme, queued=False)
        pricing = {"billable": False, "pricing_model": "CBP", **more}
        await meta.say(acme, status(acme, wamid(), "delivered", biz_opaque_callback_data=str(id), pricing=pricing))
        row = await row_of(pool, id)
        assert (row["status"], row["charge"], row["consumed"]) == ("delivered", "consumed", 0)
    await check_wallets(pool, [acme.organization_id])


async def test_sent_and_read_are_told_to_those_who_asked(pool: Pool, acme: Made, meta: Meta) -> None:
    other = await made(pool, app=acme.app)
    await endpoint(pool, acme.actor, "message.sent", "message.read")
    for one in (acme, other):
        id = await outbound(pool, one, queued=False)
        for word in ("sent", "read"):
            await meta.say(one, status(one, f"wamid.{id}", word, biz_opaque_callback_data=str(id)))
    kinds = await pool.fetch("SELECT organization_id, kind FROM events WHERE kind IN ('message.sent', 'message.read')")
    assert {tuple(row) for row in kinds} == {
        (acme.organization_id, "message.sent"),
        (acme.organization_id, "message.read"),
    }


async def test_a_failure_says_more_than_its_message_once_however_often_it_comes(
    pool: Pool, acme: Made, meta: Meta
) -> None:
    """131047 closes the window, and 131042 holds the account, as of its time."""
    said = ago(hours=2)
    await conversation(pool, acme, opened=timedelta(hours=3))
    closed, unpaid = [await outbound(pool, acme, type="text", age=timedelta(hours=3), queued=False) for _ in range(2)]

    def failed(id: UUID, code: int) -> Change:
        more = {"biz_opaque_callback_data": str(id), "errors": [{"code": code, "title": "x"}]}
        return status(acme, f"wamid.{id}", "failed", said, **more)

    await meta.say(acme, failed(closed, 131047), failed(unpaid, 131042))
    assert await pool.fetchval("SELECT expires_at FROM whatsapp_conversations") == said
    held = "SELECT held_until FROM whatsapp_accounts"
    assert await pool.fetchval(held) == said + timedelta(minutes=10)
    await pool.execute("UPDATE whatsapp_accounts SET held_until = NULL")
    at = ago(hours=1)
    await meta.say(acme, message(acme, "hello", at))
    await meta.say(acme, failed(closed, 131047), failed(unpaid, 131042))
    assert await pool.fetchval("SELECT expires_at FROM whatsapp_conversations") == at + timedelta(days=1)
    assert await pool.fetchval(held) is None


async def test_an_error_without_a_code_holds_nobody(pool: Pool, meta: Meta, acme: Made) -> None:
    """0 means that the credential is invalid; a missing or unreadable code says nothing about it."""
    errors: list[dict[str, Any]] = [{"title": "something"}, {"code": None}, {"code": "a lot"}, {"code": True}, {}]
    ids = [await outbound(pool, acme, status="queued", queued=False) for _ in errors]
    await meta.say(
        acme,
        *(
            status(acme, wamid(), "failed", errors=[error], biz_opaque_callback_data=str(id))
            for id, error in zip(ids, errors, strict=True)
        ),
    )
    rows = await pool.fetch("SELECT status, failure_code FROM whatsapp_messages")
    assert {tuple(row) for row in rows} == {("failed", "unknown")}
    account = await pool.fetchrow("SELECT credential_status, held_until FROM whatsapp_accounts")
    assert tuple(account) == ("ok", None)
    known = await outbound(pool, acme, status="queued", queued=False)
    await meta.say(acme, status(acme, wamid(), "failed", errors=[{"code": 190}], biz_opaque_callback_data=str(known)))
    assert await pool.fetchval("SELECT credential_status FROM whatsapp_accounts") == "invalid"


# -- whose it is -------------------------------------------------------------------------------------------------------


async def test_two_organizations_on_one_app_never_cross(pool: Pool, acme: Made, meta: Meta) -> None:
    other = await made(pool, app=acme.app)
    id = await outbound(pool, other, queued=False)
    await meta.say(
        acme,
        message(acme, "mine"),
        message(other, "theirs"),
        # The account of one with the number of the other, both ways, and a status with the other's message.
        message(acme, "crossed", graph_id=other.graph_id),
        message(other, "crossed", graph_id=acme.graph_id),
        status(acme, "wamid.X", "delivered", graph_id=other.graph_id, biz_opaque_callback_data=str(id)),
        status(acme, "wamid.Y", "delivered", biz_opaque_callback_data=str(id)),
    )
    rows = await pool.fetch("SELECT organization_id, number_id FROM whatsapp_messages WHERE direction = 'inbound'")
    assert {tuple(row) for row in rows} == {(one.organization_id, one.number_id) for one in (acme, other)}
    assert await pool.fetchval("SELECT status FROM whatsapp_messages WHERE id = $1", id) == "accepted"
    assert {one["message"]["text"] for one in await event_data(pool)} == {"mine", "theirs"}


async def moved(pool: Pool, acme: Made, *, graph_id: str, organization_id: UUID | None = None) -> Made:
    """The number has moved to another account, perhaps of another organization, where it is a different number."""
    whose = organization_id or acme.organization_id
    account_id, waba_id = await account(pool, whose, acme.app)
    await pool.execute("UPDATE whatsapp_numbers SET state = 'removed' WHERE id = $1", acme.number_id)
    number_id, known, _ = await new_number(pool, whose, account_id)
    await pool.execute(
        "UPDATE whatsapp_numbers SET graph_id = $2, digits = $3 WHERE id = $1",
        number_id,
        graph_id or known,
        acme.digits,
    )
    return msgspec.structs.replace(
        acme, account_id=account_id, waba_id=waba_id, number_id=number_id, graph_id=graph_id or known
    )


@pytest.mark.parametrize("opaque", [True, False])
@pytest.mark.parametrize("same_id", [True, False])
async def test_a_number_that_moved_to_another_account_still_hears_of_what_it_sent_before(
    pool: Pool, opaque: bool, same_id: bool
) -> None:
    """Meta reports it under the new account, with or without our id, in any order."""
    acme, meta = await made(pool), Meta(pool)
    bench = await Bench(pool).start()
    id = await outbound(pool, acme)
    await bench.round()
    theirs = await pool.fetchval("SELECT wamid FROM whatsapp_wamids WHERE message_id = $1", id)
    new = await moved(pool, acme, graph_id=acme.graph_id if same_id else "")
    ours = {"biz_opaque_callback_data": str(id)} if opaque else {}
    await meta.say(new, status(new, theirs, "delivered", **ours))
    assert await status_of(pool, id) == ("delivered", None, "consumed")
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_early_statuses") == 0
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_wamids") == 1
    # It may also be late about what was sent through the new one.
    await pool.execute("UPDATE whatsapp_numbers SET state = 'removed' WHERE id = $1", new.number_id)
    await pool.execute("UPDATE whatsapp_numbers SET state = 'active' WHERE id = $1", acme.number_id)
    await meta.say(acme, status(acme, theirs, "read", **ours))
    assert (await status_of(pool, id))[0] == "read"


@pytest.mark.parametrize("graph_id", ["", "555"])
@pytest.mark.parametrize("opaque", [True, False])
async def test_a_number_that_moved_hears_of_what_it_sent_before_its_new_account_was_read(
    pool: Pool, acme: Made, meta: Meta, graph_id: str, opaque: bool
) -> None:
    """What had been delivered in these minutes stayed sent, until it expired and cost nothing."""
    bench = await Bench(pool).start()
    id = await outbound(pool, acme)
    await bench.round()
    theirs = await pool.fetchval("SELECT wamid FROM whatsapp_wamids WHERE message_id = $1", id)
    account_id, waba_id = await account(pool, acme.organization_id, acme.app)
    await pool.execute("UPDATE whatsapp_accounts SET numbers_at = now() + interval '10 minutes'")
    new = msgspec.structs.replace(acme, waba_id=waba_id)
    ours = {"biz_opaque_callback_data": str(id)} if opaque else {}
    stranger = status(new, "wamid.Z", "delivered", graph_id="777", biz_opaque_callback_data=str(id))
    stranger[2]["metadata"]["display_phone_number"] = "25884999"
    await meta.say(new, stranger)
    assert (await row_of(pool, id))["status"] == "accepted"
    soon = "SELECT numbers_at < now() + interval '2 minutes' FROM whatsapp_accounts WHERE id = $1"
    assert not await pool.fetchval(soon, account_id)
    await meta.say(new, status(new, theirs, "delivered", graph_id=graph_id, **ours))
    assert await status_of(pool, id) == ("delivered", None, "consumed")
    assert await pool.fetchval(soon, account_id)


async def test_a_number_says_nothing_under_an_account_of_another_app_that_does_not_have_it(
    pool: Pool, acme: Made, meta: Meta
) -> None:
    id = await outbound(pool, acme, queued=False)
    app = await make_app(pool)
    _, waba_id = await account(pool, acme.organization_id, app)
    new = msgspec.structs.replace(acme, app=app, waba_id=waba_id)
    await meta.say(new, status(new, "wamid.Y", "delivered", biz_opaque_callback_data=str(id)))
    assert (await row_of(pool, id))["status"] == "accepted"


async def test_a_number_that_moved_before_its_send_was_answered_hears_of_it_without_our_id(pool: Pool) -> None:
    acme, meta = await made(pool), Meta(pool)
    bench = await Bench(pool).start()
    bench.only.script = lambda submission: None
    id = await outbound(pool, acme)
    await bench.round()
    new = await moved(pool, acme, graph_id=acme.graph_id)
    await meta.say(new, status(new, wamid_of(id), "delivered"))
    assert (await status_of(pool, id))[0] == "queued"
    bench.answer(bench.only.submitted[0], accept_all(bench.only.submitted[0]))
    await bench.settle()
    assert await status_of(pool, id) == ("delivered", None, "consumed")
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_early_statuses") == 0


async def test_a_number_that_went_to_another_organization_says_nothing_of_what_it_sent_before(pool: Pool) -> None:
    acme, meta = await made(pool), Meta(pool)
    other = await made(pool, app=acme.app)
    id = await outbound(pool, acme, queued=False)
    new = await moved(pool, acme, graph_id=acme.graph_id, organization_id=other.organization_id)
    await meta.say(new, status(new, "wamid.Y", "delivered", biz_opaque_callback_data=str(id)))
    assert (await row_of(pool, id))["status"] == "accepted"


@pytest.mark.parametrize("what", ["templates", "user_changed_number", "customer_changed_number"])
async def test_many_changes_of_one_app_do_not_delay_what_users_write_to_another(
    pool: Pool, acme: Made, meta: Meta, what: str
) -> None:
    """Thousands of templates may change at once; after an outage of ours, users' new numbers arrive together."""
    other = await made(pool, app=await make_app(pool))
    changed = {"message_template_id": 1, "message_template_name": "none_such", "message_template_language": "en"}
    for n in range(40):
        value = changed | {"previous_quality_score": "GREEN", "new_quality_score": "YELLOW"}
        moved = {"type": what, "body": "changed", "wa_id": f"2588412{n:05}"}
        template = (acme.waba_id, "message_template_quality_update", value)
        user = message(acme, type="system", by=f"+2588411{n:05}", system=moved)
        await meta.post(acme, template if what == "templates" else user)
    await meta.post(other, message(other, "is anybody there?"))
    await meta.inbox.round()
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_messages WHERE type = 'text'") == 1
    weight = intake.HEAVY + (what != "templates")
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_callbacks") == 40 - math.ceil(inbox.ITEMS / weight)
    await meta.work()
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_callbacks") == 0


async def test_statuses_are_taken_by_the_hundred(pool: Pool, acme: Made, meta: Meta) -> None:
    for _ in range(60):
        await meta.post(acme, status(acme, wamid(), "sent"), status(acme, wamid(), "read"))
        await meta.post(acme, message(acme, "hello"))
    assert await meta.inbox.round() == 120


async def test_an_account_of_another_app_is_out_of_reach(pool: Pool, acme: Made, meta: Meta) -> None:
    stranger = await made(pool, app=await make_app(pool))
    await meta.say(acme, message(stranger), message(acme))
    rows = await pool.fetch("SELECT organization_id FROM whatsapp_messages")
    assert [row[0] for row in rows] == [acme.organization_id]
    assert await dead_letters(pool) == []


async def test_what_nobody_knows_is_dropped_but_a_users_message_to_a_new_number_is_kept(
    pool: Pool, acme: Made, meta: Meta
) -> None:
    strange: list[Change] = [
        ("404", "messages", message(acme)[2]),
        (acme.waba_id, "never_heard_of_it", {"a": 1}),
        (acme.waba_id, "account_update", {"event": "NEVER_HEARD_OF_IT"}),
        status(acme, "wamid.A", "levitated"),
        status(acme, "wamid.B", "sent", graph_id="404"),
        message(acme, "to a new number", graph_id="404"),
    ]
    await meta.say(acme, *strange, message(acme))
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_messages") == 1
    ((reason, kept),) = await dead_letters(pool)
    assert reason == "unknown number"
    assert b"to a new number" in kept
    assert b"to a new number" not in (await pool.fetchval("SELECT body FROM whatsapp_dead_letters"))
    await nothing_waits(pool)


async def test_a_call_to_a_new_number_opens_the_window_once_a_reading_has_found_it(
    pool: Pool, acme: Made, meta: Meta
) -> None:
    at = ago(minutes=2)
    change = call(acme, at)
    change[2]["metadata"].update(phone_number_id="777", display_phone_number="258849990000")
    await meta.say(acme, change)
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_conversations") == 0
    await pool.execute("UPDATE whatsapp_dead_letters SET received_at = received_at - interval '2 minutes'")
    new, *_ = await new_number(pool, acme.organization_id, acme.account_id)
    await pool.execute("UPDATE whatsapp_numbers SET graph_id = '777' WHERE id = $1", new)
    async with pool.acquire() as conn, conn.transaction():
        await retry_awaited(conn, KEY, RateBook(pool))
    rows = await pool.fetch("SELECT number_id, expires_at FROM whatsapp_conversations")
    assert [tuple(row) for row in rows] == [(new, at + timedelta(days=1))]
    assert await dead_letters(pool) == []


async def test_an_account_that_is_locked_holds_no_deliveries_up(
    pool: Pool, acme: Made, meta: Meta, as_owner: Callable[[str], Awaitable[None]]
) -> None:
    """An unknown number causes its account to be read again, after the batch is committed."""
    await endpoint(pool, acme.actor, "message.received")
    await as_owner(LOCKED_ACCOUNTS)
    with capture_logs() as logs:
        await meta.say(acme, message(acme, graph_id="404"), message(acme))
    assert meta.deliveries == 1
    said = [one["event"] for one in logs]
    assert "sync of unknown numbers not started" in said
    assert "callbacks failed" not in said
    await nothing_waits(pool)


async def test_what_a_removed_number_sent_is_still_reported_on(pool: Pool, acme: Made, meta: Meta) -> None:
    """Otherwise its money would be reserved for a month, and then released for a message that was delivered."""
    id = await outbound(pool, acme, queued=False)
    await pool.execute("UPDATE whatsapp_numbers SET state = 'removed'")
    await meta.say(acme, status(acme, f"wamid.{id}", "delivered", biz_opaque_callback_data=str(id)), message(acme))
    rows = await pool.fetch("SELECT id, status, charge FROM whatsapp_messages")
    assert [tuple(row) for row in rows] == [(id, "delivered", "consumed")]
    ((reason, _),) = await dead_letters(pool)
    assert reason == "unknown number"


async def test_a_message_to_a_new_number_takes_effect_once_a_reading_has_found_it(
    pool: Pool, acme: Made, meta: Meta
) -> None:
    """Nobody has to retry it: a STOP that waits for an operator would be a STOP that is ignored."""
    later = "now() + interval '10 minutes'"
    await pool.execute(f"UPDATE whatsapp_accounts SET numbers_at = {later}, mirror_at = {later}")
    strange = message(acme, "to somebody else's", ago(minutes=2), graph_id="888")
    await meta.say(acme, message(acme, "STOP", ago(minutes=2), graph_id="777"), strange)
    soon = "SELECT greatest(numbers_at, mirror_at) < now() + interval '2 minutes' FROM whatsapp_accounts"
    assert await pool.fetchval(soon)
    await pool.execute("UPDATE whatsapp_dead_letters SET received_at = received_at - interval '2 minutes'")
    awaited = f"SELECT {ANY_AWAITED}"
    await pool.execute("UPDATE whatsapp_numbers SET changed_at = now() - interval '3 minutes'")
    assert not await pool.fetchval(awaited)
    new, *_ = await new_number(pool, acme.organization_id, acme.account_id)
    await pool.execute("UPDATE whatsapp_numbers SET graph_id = '777' WHERE id = $1", new)
    assert await pool.fetchval(awaited)
    for _ in range(2):
        async with pool.acquire() as conn, conn.transaction():
            await retry_awaited(conn, KEY, RateBook(pool))
        assert await opted_out(pool, acme)
        assert [one["message"]["text"] for one in await event_data(pool)] == ["STOP"]
        assert len(await dead_letters(pool)) == 1
    await pool.execute("UPDATE whatsapp_numbers SET changed_at = now() - interval '2 minutes'")
    assert not await pool.fetchval(awaited)


async def test_a_locked_row_keeps_no_other_messages_to_new_numbers_from_taking_effect(
    pool: Pool, database_url: str, acme: Made, meta: Meta
) -> None:
    """Everybody's STOP to a new number was ignored if it waited for half a minute each time: they are retried for a
    minute after a reading."""
    other = await made(pool)
    for who, graph_id in ((acme, "777"), (other, "888")):
        for text in ("STOP", "more"):
            await meta.say(who, message(who, text, ago(minutes=2), graph_id=graph_id))
        new, *_ = await new_number(pool, who.organization_id, who.account_id)
        await pool.execute("UPDATE whatsapp_numbers SET graph_id = $2 WHERE id = $1", new, graph_id)
    await pool.execute("UPDATE whatsapp_dead_letters SET received_at = received_at - interval '2 minutes'")
    hasty = await open_pool(database_url, size=2, statement=2.0)
    try:
        async with pool.acquire() as open_session, open_session.transaction():
            await open_session.execute(
                "INSERT INTO opt_outs (organization_id, recipient, since, source) VALUES ($1, $2, now(), 'test')",
                acme.organization_id,
                TO,
            )
            async with hasty.acquire() as conn, conn.transaction():
                await retry_awaited(conn, KEY, RateBook(pool))
            assert await opted_out(pool, other)
            assert len(await dead_letters(pool)) == 2
    finally:
        hasty.terminate()
    async with pool.acquire() as conn, conn.transaction():
        await retry_awaited(conn, KEY, RateBook(pool))
    assert await dead_letters(pool) == []


async def test_what_users_write_counts_under_the_other_id_of_a_number_that_was_added_again(
    pool: Pool, acme: Made, meta: Meta
) -> None:
    """A STOP was kept for a reading that never found its number, as Meta delivers what was written before for days."""
    await pool.execute("UPDATE whatsapp_accounts SET numbers_at = now() + interval '10 minutes'")
    await meta.say(acme, message(acme, "STOP", ago(hours=3), graph_id="554", digits=acme.digits))
    called = call(acme, ago(hours=2))
    called[2]["metadata"]["phone_number_id"] = "554"
    await meta.say(acme, called)
    assert await opted_out(pool, acme)
    assert await pool.fetchval("SELECT number_id FROM whatsapp_messages WHERE direction = 'inbound'") == acme.number_id
    assert await pool.fetchval("SELECT expires_at > now() + interval '21 hours' FROM whatsapp_conversations")
    assert await dead_letters(pool) == []
    # It may also be the id that the number has now.
    assert await pool.fetchval("SELECT numbers_at < now() + interval '2 minutes' FROM whatsapp_accounts")
    # Only an active number of the same account is meant.
    await meta.say(acme, message(acme, "START", graph_id="554", digits="258849990001"))
    await pool.execute("UPDATE whatsapp_numbers SET state = 'removed'")
    await meta.say(acme, message(acme, "START", graph_id="554", digits=acme.digits))
    assert await opted_out(pool, acme)
    assert len(await dead_letters(pool)) == 2


@pytest.mark.parametrize("what", ["message", "call", "status"])
async def test_an_account_is_read_whose_number_is_named_by_another_id(
    pool: Pool, acme: Made, meta: Meta, what: str
) -> None:
    """After a call or a status, it was read only when its turn came, and its number sent under the id that was gone."""
    id, removed, _ = await new_number(pool, acme.organization_id, acme.account_id)
    await pool.execute("UPDATE whatsapp_numbers SET state = 'removed' WHERE id = $1", id)
    for graph_id in (acme.graph_id, "554", *([removed] if what == "status" else [])):
        await pool.execute("UPDATE whatsapp_accounts SET numbers_at = now() + interval '10 minutes'")
        said = {
            "message": message(acme, graph_id=graph_id, digits=acme.digits),
            "call": call(acme, ago(hours=2)),
            "status": status(acme, "wamid.1", "sent", graph_id=graph_id),
        }[what]
        said[2]["metadata"]["phone_number_id"] = graph_id
        await meta.say(acme, said)
        is_soon = await pool.fetchval("SELECT numbers_at < now() + interval '2 minutes' FROM whatsapp_accounts")
        assert is_soon == (graph_id == "554")


async def test_what_does_not_name_its_number_is_not_for_one_whose_digits_meta_has_not_told(
    pool: Pool, acme: Made, meta: Meta
) -> None:
    await pool.execute("UPDATE whatsapp_numbers SET digits = ''")
    change = message(acme, "STOP", graph_id="554")
    del change[2]["metadata"]["display_phone_number"]
    await meta.say(acme, change)
    assert not await opted_out(pool, acme)
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_conversations") == 0
    assert len(await dead_letters(pool)) == 1


@pytest.mark.fresh_database
async def test_whether_messages_to_new_numbers_are_awaited_costs_one_look_at_the_numbers(
    pool: Pool, acme: Made, meta: Meta
) -> None:
    """With two hundred numbers and 100,000 messages to an unknown one, the query took ten seconds, in which a worker
    that polled for work found none."""
    for _ in range(9):
        await new_number(pool, acme.organization_id, acme.account_id)
    await meta.say(acme, *(message(acme, f"to a new number {n}", graph_id="404") for n in range(50)))
    await pool.execute("UPDATE whatsapp_numbers SET changed_at = now() - interval '1 hour'")
    rows_read = """
SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::bigint FROM pg_stat_xact_user_tables
 WHERE relname IN ('whatsapp_numbers', 'whatsapp_dead_letters')
"""
    async with pool.acquire() as conn, conn.transaction():
        before = await conn.fetchval(rows_read)
        assert not await conn.fetchval(f"SELECT {ANY_AWAITED}")
        assert await conn.fetchval(rows_read) - before < 50


async def test_many_messages_to_a_new_number_take_no_more_statements_than_two(
    pool: Pool, acme: Made, meta: Meta
) -> None:
    """A thousand took 20 seconds, in which nobody else's STOP to the organization had an effect."""

    async def asked(first: int, count: int, graph_id: str) -> list[str]:
        written = [message(acme, by=f"+2588410{n:05}", graph_id=graph_id) for n in range(first, first + count)]
        await meta.say(acme, *written)
        new, *_ = await new_number(pool, acme.organization_id, acme.account_id)
        await pool.execute("UPDATE whatsapp_numbers SET graph_id = $2 WHERE id = $1", new, graph_id)
        found: list[str] = []
        async with pool.acquire() as conn, conn.transaction():
            with conn.query_logger(lambda query: found.append(query.query)):
                await retry_awaited(conn, KEY, RateBook(pool))
        return found

    assert len(await asked(0, 2, "777")) == len(await asked(10, 60, "778"))
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_messages") == 62
    assert await dead_letters(pool) == []


async def test_messages_to_a_number_that_stays_unknown_hide_none_to_one_that_was_found(
    pool: Pool, acme: Made, meta: Meta
) -> None:
    await meta.say(acme, message(acme, "STOP", graph_id="777"))
    await meta.say(acme, *(message(acme, graph_id="888") for _ in range(3)))
    new, *_ = await new_number(pool, acme.organization_id, acme.account_id)
    await pool.execute("UPDATE whatsapp_numbers SET graph_id = '777' WHERE id = $1", new)
    below = NEWEST
    for heard in (False, True):
        async with pool.acquire() as conn, conn.transaction():
            _, below = await retry_awaited(conn, KEY, RateBook(pool), below=below, limit=3, seconds=0)
        assert await opted_out(pool, acme) == heard
    async with pool.acquire() as conn, conn.transaction():
        assert await retry_awaited(conn, KEY, RateBook(pool), below=below) == (0, NEWEST)
    assert len(await dead_letters(pool)) == 3


async def test_a_dead_letter_is_retried_once_its_number_is_known(
    pool: Pool, acme: Made, meta: Meta, as_owner: Callable[[str], Awaitable[None]]
) -> None:
    await as_owner(REFUSE_POISON)
    at = ago(minutes=9)
    await meta.say(acme, message(acme, "first", at, graph_id="777", id="wamid.A"), message(acme, id=POISON))
    await meta.post(acme, raw=b"no JSON")
    await meta.work()
    assert await retry(pool, KEY) == (3, 0)
    await pool.execute("UPDATE whatsapp_numbers SET graph_id = '777'")
    assert await retry(pool, KEY) == (3, 1)
    assert [one["message"]["text"] for one in await event_data(pool)] == ["first"]
    assert len(await dead_letters(pool)) == 2
    await meta.say(acme, message(acme, "first", at, graph_id="777", id="wamid.A"))
    assert len(await event_data(pool)) == 1


async def test_all_dead_letters_are_retried_however_many_stay(pool: Pool, acme: Made, meta: Meta) -> None:
    """The oldest thousand that nobody could apply used to keep all later ones from being retried."""
    for _ in range(3):
        await meta.post(acme, raw=b"no JSON")
    await meta.say(acme, message(acme, "later", graph_id="777"))
    await meta.work()
    await pool.execute("UPDATE whatsapp_numbers SET graph_id = '777'")
    # Once its time is up, the step in progress is the last one.
    assert await retry(pool, KEY, limit=2, seconds=0) == (2, 0)
    assert await retry(pool, KEY, limit=2) == (4, 1)
    assert [one["message"]["text"] for one in await event_data(pool)] == ["later"]
    assert len(await dead_letters(pool)) == 3


@pytest.mark.parametrize(
    "raw",
    [b'{"a":' + b"[" * 100_000, b'{"type":"sealed",', b'{"type":"sealed","entry":5}'],
    ids=["nested", "torn", "like one of ours"],
)
async def test_no_body_keeps_operators_from_other_dead_letters(pool: Pool, acme: Made, meta: Meta, raw: bytes) -> None:
    await meta.say(acme, message(acme, "first", graph_id="777"))
    await meta.post(acme, raw=raw)
    await meta.work()
    async with pool.acquire() as conn:
        found = await list_all(conn, KEY, limit=10)
    assert [one.raw.strip() for one in found if one.item is None] == [raw]
    await pool.execute("UPDATE whatsapp_numbers SET graph_id = '777'")
    assert await retry(pool, KEY) == (2, 1)


# -- what goes wrong ---------------------------------------------------------------------------------------------------

POISON = "wamid.poison"
#: The database refuses it, and only it.
REFUSE_POISON = f"ALTER TABLE whatsapp_wamids ADD CHECK (wamid <> '{POISON}')"


async def test_of_a_thousand_items_only_the_poisonous_one_is_lost(
    pool: Pool, acme: Made, meta: Meta, as_owner: Callable[[str], Awaitable[None]]
) -> None:
    await as_owner(REFUSE_POISON)
    ids = [await outbound(pool, acme, queued=False) for _ in range(20)]
    good = [message(acme, by=f"+2588412{number:05d}") for number in range(979)]
    good += [status(acme, wamid(), "delivered", biz_opaque_callback_data=str(id)) for id in ids]
    changes = [*good, message(acme, "poison", id=POISON)]
    random.Random(1).shuffle(changes)
    await meta.say(acme, *changes)
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_messages WHERE direction = 'inbound'") == 979
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_messages WHERE status = 'delivered'") == 999
    ((reason, kept),) = await dead_letters(pool)
    assert reason == "MessageItem: CheckViolationError"
    assert POISON.encode() in kept
    await check_wallets(pool, [acme.organization_id])
    await nothing_waits(pool)


async def test_a_dead_letter_that_fails_again_keeps_no_other_from_its_effect(
    pool: Pool, acme: Made, meta: Meta, as_owner: Callable[[str], Awaitable[None]]
) -> None:
    await as_owner(REFUSE_POISON)
    poison = message(acme, id=POISON, graph_id="777")
    await meta.say(acme, message(acme, graph_id="777"), poison, message(acme, "STOP", graph_id="777"))
    await pool.execute("UPDATE whatsapp_numbers SET graph_id = '777'")
    assert await retry(pool, KEY) == (3, 2)
    assert await opted_out(pool, acme)
    assert len(await dead_letters(pool)) == 1


async def test_what_cannot_be_parsed_becomes_a_dead_letter(pool: Pool, acme: Made, meta: Meta) -> None:
    await meta.post(acme, raw=b"no JSON")
    await meta.post(acme, message(acme))
    await meta.post(acme, raw=batch([message(acme)]).replace(b'"timestamp":"', b'"timestamp":"x'))
    await meta.work()
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_messages") == 2  # an entry has a time, too
    assert [kept for _, kept in await dead_letters(pool)] == [b"no JSON"]
    await nothing_waits(pool)


async def test_a_large_callback_holds_up_nothing_else_of_the_worker(
    pool: Pool, acme: Made, meta: Meta, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of 3 MB, of the smallest items, used to be parsed in the event loop, for minutes."""
    threads: list[int] = []

    def parse(raw: bytes) -> Iterator[Item]:
        threads.append(threading.get_ident())
        return webhooks.parse(raw)

    monkeypatch.setattr(inbox, "parse", parse)
    await meta.say(acme, message(acme))
    await meta.say(acme, message(acme, "x" * inbox.LARGE))
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_messages") == 2
    small, large = threads
    assert small == threading.get_ident() != large


async def test_a_worker_with_another_secret_key_loses_nothing_and_holds_nobody_up(
    pool: Pool, acme: Made, meta: Meta
) -> None:
    await meta.post(acme, message(acme))
    stranger = Inbox(pool, derive_key("?" * 32, "tests"), RateBook(pool), on_deliveries=lambda: None)
    assert await stranger.round() == 1
    await meta.say(acme, message(acme))
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_messages") == 1
    assert await dead_letters(pool) == []
    await pool.execute("UPDATE queue SET due_at = now()")
    await meta.work()
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_messages") == 2
    await nothing_waits(pool)


async def test_a_schema_of_another_version_makes_no_dead_letters_and_stops_no_other_app(
    pool: Pool, acme: Made, meta: Meta, as_owner: Callable[[str], Awaitable[None]]
) -> None:
    other = await made(pool)
    await meta.post(acme, message(acme))
    await meta.post(other, status(other, "wamid.A", "sent"))
    await as_owner("ALTER TABLE whatsapp_messages RENAME content TO away")
    await meta.work()
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_early_statuses") == 1
    assert await dead_letters(pool) == []
    await as_owner("ALTER TABLE whatsapp_messages RENAME away TO content")
    await meta.work()
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_messages") == 1
    await nothing_waits(pool)


WAITS = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


async def test_a_batch_that_a_lock_disturbs_is_tried_again_as_a_whole(pool: Pool, acme: Made, meta: Meta) -> None:
    """A deadlock is no item's fault: it makes no dead letter."""
    first, second = [await outbound(pool, acme, queued=False, to=f"+25884000000{n}") for n in range(2)]
    await meta.post(acme, *(status(acme, wamid(), "sent", biz_opaque_callback_data=str(id)) for id in (first, second)))
    lock = "SELECT FROM whatsapp_messages WHERE id = $1 FOR UPDATE"
    async with pool.acquire() as conn, conn.transaction():
        await conn.execute(lock, second)
        working = asyncio.create_task(meta.work())
        for _ in range(3000):
            if await pool.fetch(WAITS):
                break
            await asyncio.sleep(0.01)
        try:
            async with conn.transaction():
                await conn.execute(lock, first)
        except Exception as error:
            assert type(error).__name__ == "DeadlockDetectedError"  # noqa: PT017 - either of the two may be the victim
    await working
    assert {row[0] for row in await pool.fetch("SELECT status FROM whatsapp_messages")} == {"sent"}
    assert await dead_letters(pool) == []


async def test_a_worker_that_ends_before_its_commit_leaves_all_to_the_next(
    pool: Pool, acme: Made, as_owner: Callable[[str], Awaitable[None]]
) -> None:
    broken, whole = Meta(pool), Meta(pool)
    await broken.post(acme, message(acme), message(acme))
    await as_owner("ALTER TABLE whatsapp_dead_letters RENAME TO away")
    await broken.post(acme, raw=b"no JSON")
    await broken.work()
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_messages") == 0
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_callbacks") == 2
    await as_owner("ALTER TABLE away RENAME TO whatsapp_dead_letters")
    await whole.work()
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_messages") == 2
    await nothing_waits(pool)


# -- any order, any grouping, any number of times ----------------------------------------------------------------------

USERS = [TO, "+258841234568", "+258841234569"]
START = ago(hours=30)


class Say(msgspec.Struct, frozen=True):
    """A planned item: whose, when (minutes after START), what."""

    user: int
    minute: int
    what: str
    number: int


SAYS = st.builds(
    Say,
    user=st.integers(0, 2),
    minute=st.integers(0, 29 * 60),
    what=st.sampled_from(["hello", "stop", "start", "yes", "reaction", "sent", "delivered", "read", "failed"]),
    number=st.integers(0, 3),
)


async def state(pool: Pool, made: Made) -> Any:
    """Everything that callbacks may have changed, without our own ids and times."""
    organization_id = made.organization_id
    talks = await pool.fetch(
        "SELECT recipient, opened_at, expires_at, last_inbound_at FROM whatsapp_conversations"
        " WHERE organization_id = $1 ORDER BY recipient",
        organization_id,
    )
    messages = await pool.fetch(
        "SELECT direction, type, status, recipient, delivered_at, read_at, charge, consumed, reserved"
        "  FROM whatsapp_messages WHERE organization_id = $1",
        organization_id,
    )
    wallet = await pool.fetchrow(
        "SELECT available, reserved, consumed FROM wallets WHERE organization_id = $1", organization_id
    )
    silent = {row[0] for row in await pool.fetch("SELECT recipient FROM opt_outs WHERE organization_id = $1",
                                                 organization_id)}  # fmt: skip
    events = await pool.fetch("SELECT kind FROM events WHERE organization_id = $1", organization_id)
    kinds = Counter(row[0] for row in events)
    return (
        [tuple(row) for row in talks],
        Counter(tuple(row) for row in messages),
        tuple(wallet),
        silent,
        kinds["message.received"],
        kinds["message.delivered"],
    )


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    says=st.lists(SAYS, min_size=1, max_size=14, unique_by=lambda say: (say.user, say.minute, say.what)),
    seed=st.integers(0, 2**32),
)
async def test_any_order_grouping_and_repetition_ends_in_the_same(
    pool: Pool, meta: Meta, says: list[Say], seed: int
) -> None:
    chance = random.Random(seed)
    results = []
    for shuffled in (False, True):
        one = await made(pool)
        ids = []
        for number in range(4):
            await conversation(pool, one, to=USERS[number], opened=None) if number < 3 else None
            ids.append(await outbound(pool, one, to=USERS[number % 3], age=timedelta(hours=31), queued=False))
        changes = [_change(one, say, str(ids[say.number]), index) for index, say in enumerate(says)]
        if not shuffled:
            await meta.say(one, *changes)
        else:
            changes += chance.choices(changes, k=chance.randint(0, 10))
            chance.shuffle(changes)
            while changes:
                size = chance.randint(1, len(changes))
                await meta.post(one, *changes[:size])
                del changes[:size]
                if chance.random() < 0.5:
                    await meta.work()
            await meta.work()
        await check_wallets(pool, [one.organization_id])
        results.append(await state(pool, one))
    assert results[0] == results[1]
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_dead_letters") == 0


def _change(made: Made, say: Say, opaque: str, index: int) -> Change:
    at = START + timedelta(minutes=say.minute)
    if say.what in ("sent", "delivered", "read", "failed"):
        more: dict[str, Any] = {"biz_opaque_callback_data": opaque}
        if say.what == "failed":
            more["errors"] = [{"code": 131026, "title": "x"}]
        to = USERS[say.number % 3]
        return status(made, f"wamid.{made.organization_id}.{say.number}", say.what, at, to=to, **more)
    id = f"wamid.{made.organization_id}.in.{index}"
    type = "reaction" if say.what == "reaction" else "text"
    return message(made, say.what, at, by=USERS[say.user], id=id, type=type)
