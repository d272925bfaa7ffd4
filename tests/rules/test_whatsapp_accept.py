"""Accepting WhatsApp messages: every verdict, the order of checks, and what must hold under concurrency."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import pytest

from heliograph.accounts.organizations import DestinationNotAllowed, OrganizationSuspended
from heliograph.accounts.requests import Answer, IdempotencyConflict, OverLimit, RateUnit
from heliograph.base.actor import Principal
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool, open_pool
from heliograph.base.errors import Invalid, Refusal, Unavailable
from heliograph.base.ids import uuid7
from heliograph.base.process.settings import Settings
from heliograph.consent.optouts import RecipientOptedOut
from heliograph.whatsapp.accepting import preview
from heliograph.whatsapp.accepting.accept import Acceptor, Send, TemplateSend, TextReply, WindowClosed
from heliograph.whatsapp.mirror.numbers import PhoneNumberUnavailable
from heliograph.whatsapp.mirror.templates import (
    TemplateNotApproved,
    TemplateNotFound,
    TemplateNotSendable,
    TemplateParameterMismatch,
)
from heliograph.whatsapp.money.wallet import WalletInsufficientFunds
from tests.rate_windows import hold_windows
from tests.rules import factories, whatsapp_factories
from tests.rules.factories import TO
from tests.rules.test_accept import PAST, attempt, id_of, without_ids
from tests.rules.whatsapp_factories import Made, check_wallets, made

SHIPPED = TemplateSend("order_shipped", "en", "utility", ("Ana", "7"))
CODE = TemplateSend("login_code", "en", "authentication", ("481920",))
#: Their prices to Mozambique, and that of a text reply.
PRICE, CODE_PRICE = 10_000, 30_000


def acceptor_of(pool: Pool) -> Acceptor:
    return Acceptor(pool, settings=Settings())


@pytest.fixture
def acceptor(pool: Pool) -> Acceptor:
    return acceptor_of(pool)


@pytest.fixture
async def second(database_url: str) -> AsyncIterator[Acceptor]:
    """Another process's acceptor, with a connection pool of its own."""
    pool = await open_pool(database_url, size=2)
    try:
        yield acceptor_of(pool)
    finally:
        pool.terminate()


def send(one: Made, content: TemplateSend | TextReply = SHIPPED, *, key_name: str | None = None, **values: Any) -> Send:
    values.setdefault("actor", one.actor)
    values.setdefault("to", TO)
    values.setdefault("number_id", one.number_id)
    if key_name is not None:
        values["key_hash"] = factories.key(key_name)
        values["request_hash"] = hashlib.sha256(msgspec.json.encode([values["to"], content])).digest()
    return Send(content=content, request_id="req", **values)


async def previewed(pool: Pool, acceptor: Acceptor, one: Send) -> preview.Preview:
    async with pool.acquire() as conn:
        return await preview.preview(conn, acceptor, one, margin=60)


async def stored(pool: Pool) -> int:
    count: int = await pool.fetchval("SELECT count(*) FROM whatsapp_messages")
    return count


# ── One message ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kept", [72, 1])
async def test_one_alone_is_stored_and_answered_as_one_of_many(pool: Pool, kept: int) -> None:
    """`whatsapp_accept_one` and `whatsapp_accept`: the same sends of two organizations, of which one's always share a
    batch."""
    acceptor = Acceptor(pool, settings=Settings(idempotency_hours=kept))
    alone, among, others = [await made(pool, balance=balance) for balance in (250_000, 250_000, 10_000_000)]
    key, campaign = uuid7(), uuid7()
    varieties: list[dict[str, Any]] = [
        {},
        {"key_name": "k", "client_reference": "a"},
        {"key_name": "k", "client_reference": "a"},  # a replay
        {"key_name": "k", "content": CODE},
        {"mode": "test"},
        {"mode": "test", "key_name": "of a test", "content": TextReply("free")},
        {"by": Principal("person", PERSON), "key_name": "of a person"},
        {"key_name": "past"},  # an earlier use that no longer counts; kept for another hour, it is in the way
        {"to": OPTED_OUT},
        {"to": OPTED_OUT, "key_name": "opted out"},
        {"content": msgspec.structs.replace(SHIPPED, name="nothing_like_it")},
        {"content": msgspec.structs.replace(SHIPPED, category="marketing")},
        {"content": msgspec.structs.replace(SHIPPED, parameters=("Ana",))},
        {"content": TextReply("closed"), "key_name": "closed"},
        {"content": TextReply("open", preview_url=True), "to": OPEN, "key_name": "open"},
        {"content": CODE, "to": FREE},
        {"content": CODE, "to": "+258843334444", "lane": 1, "campaign_id": campaign},
        {"send_at": clock.now() + timedelta(hours=1), "key_name": "later"},
        # beyond the wallet, then beyond the limit
        *({"key_name": f"n{n}", "to": f"+25884555{n:04d}"} for n in range(24)),
    ]
    told: dict[UUID, list[Any]] = {}
    await attempt(acceptor, send(others))
    for one in (alone, among):
        await attempt(acceptor, send(one, key_name="past"))
        await pool.execute(PAST, timedelta(hours=kept + 1), kept >= 24, one.organization_id)
        said_stop = "INSERT INTO opt_outs VALUES ($1, $2, '2026-01-02T03:04:05Z', 'test')"
        await pool.execute(said_stop, one.organization_id, OPTED_OUT)
        await whatsapp_factories.conversation(pool, one, to=OPEN)
        await whatsapp_factories.conversation(pool, one, to=FREE, free=timedelta(hours=1))
        # Its window was opened while the clock was ahead; it has been set back since.
        ahead = (
            "INSERT INTO rate_windows VALUES ($1, $2, 'mutations', date_trunc('minute', now()) + interval '1 hour', 99)"
        )
        await pool.execute(ahead, one.organization_id, key)
        told[one.organization_id] = []
        for n, variety in enumerate(map(dict, varieties)):
            unit = RateUnit(key, 39)
            who = msgspec.structs.replace(one.actor, mode=variety.pop("mode", "live"), by=variety.pop("by", None))
            batch = [attempt(acceptor, send(one, actor=who, rate_unit=unit, **variety))]
            if one is among:
                batch.append(attempt(acceptor, send(others, key_name=f"{n}")))
            said = (await asyncio.gather(*batch, return_exceptions=True))[0]
            told[one.organization_id].append((without_ids(said), unit.used, unit.window_start is not None))
            await hold_windows(pool)
    assert told[alone.organization_id] == told[among.organization_id]
    for refused in (WalletInsufficientFunds, OverLimit, RecipientOptedOut, WindowClosed, IdempotencyConflict):
        assert any(repr(refused) in said for said, _, _ in told[alone.organization_id])
    by_person = "SELECT count(*) FROM whatsapp_messages WHERE organization_id = $1 AND person_id = $2"
    assert await pool.fetchval(by_person, alone.organization_id, PERSON) == 1
    for rows in STORED:
        single, many = [await pool.fetch(rows, one.organization_id) for one in (alone, among)]
        assert single == many, rows
        assert single
    await check_wallets(pool, [alone.organization_id, among.organization_id])


OPTED_OUT, OPEN, FREE = "+258841112222", "+258841113333", "+258841114444"
PERSON = uuid7()
#: Everything stored for an organization except what is its own: all other columns, including future ones. Two
#: organizations stored one after the other have the same, even if an hour or a day ended in between.
STORED = (
    "SELECT to_jsonb(m) - '{organization_id,id,number_id,conversation_id,template_id,campaign_id,accepted_at,"
    "deadline_at}'::text[], m.deadline_at - q.due_at, q.kind, q.line = m.number_id, q.lane, q.tries, q.claims,"
    " q.due_at > m.accepted_at, to_jsonb(c) - '{organization_id,id,number_id,opened_at,expires_at,free_until,"
    "last_inbound_at,created_at}'::text[], m.template_id IS NULL, m.campaign_id IS NULL"
    " FROM whatsapp_messages m JOIN queue q USING (organization_id, id)"
    " JOIN whatsapp_conversations c ON c.organization_id = m.organization_id AND c.id = m.conversation_id"
    " WHERE m.organization_id = $1 ORDER BY m.id",
    "SELECT movement, key, available, reserved, consumed, id = message_id FROM wallet_movements"
    " WHERE organization_id = $1 ORDER BY id",
    # Without the earlier key: when a day ends, a new one does not replace it.
    "SELECT k.key_hash, k.request_hash, k.made_on = (k.created_at AT TIME ZONE 'UTC')::date, m.content FROM send_keys k"
    " JOIN whatsapp_messages m ON m.organization_id = k.organization_id AND m.id = k.message_id"
    " WHERE k.organization_id = $1 AND k.created_at > m.accepted_at - interval '1 hour' ORDER BY k.key_hash",
    "SELECT to_jsonb(d) - '{organization_id,batch,sender,hour}'::text[],"
    " d.hour = date_trunc('hour', m.accepted_at, 'UTC') FROM traffic_deltas d"
    " JOIN whatsapp_messages m ON m.organization_id = d.organization_id AND m.id = d.batch"
    " WHERE d.organization_id = $1 ORDER BY d.batch",
    "SELECT available, reserved, consumed, total, currency FROM wallets WHERE organization_id = $1",
    "SELECT bucket, taken FROM rate_windows WHERE organization_id = $1",
)


async def test_a_202_is_message_content_reservation_queue_row_and_record(acceptor: Acceptor, pool: Pool) -> None:
    one = await made(pool, balance=50_000)
    answer = await acceptor.accept(send(one, key_name="k", client_reference='a"b'))
    id = id_of(answer)
    assert (answer.status, answer.replayed) == (202, False)
    assert msgspec.json.decode(answer.body) == {
        "success": True,
        "queued": True,
        "status": "accepted",
        "message": {"id": str(id), "clientReference": 'a"b'},
    }
    row = await pool.fetchrow("SELECT * FROM whatsapp_messages WHERE id = $1", id)
    expected = {
        "organization_id": one.organization_id,
        "direction": "outbound",
        "type": "template",
        "mode": "live",
        "status": "accepted",
        "number_id": one.number_id,
        "recipient": TO,
        "template_id": one.template_id,
        "template_name": "order_shipped",
        "template_language": "en",
        "billing_category": "utility",
        "client_reference": 'a"b',
        "campaign_id": None,
        "charge": "reserved",
        "reserved": PRICE,
        "country": "MZ",
    }
    assert {name: row[name] for name in expected} == expected
    assert row["deadline_at"] - row["accepted_at"] == timedelta(days=31)
    content = await pool.fetchval("SELECT content FROM whatsapp_messages WHERE id = $1", id)
    assert msgspec.json.decode(content) == {"type": "template", "parameters": ["Ana", "7"]}
    work = await pool.fetchrow("SELECT kind, line, lane, tries FROM queue WHERE id = $1", id)
    assert tuple(work) == ("whatsapp", one.number_id, 0, 0)
    thread = await pool.fetchrow("SELECT * FROM whatsapp_conversations WHERE id = $1", row["conversation_id"])
    assert (thread["recipient"], thread["number_id"], thread["expires_at"]) == (TO, one.number_id, None)
    assert await pool.fetchval("SELECT alias FROM whatsapp_aliases") == TO[1:]
    assert [row["message_id"] for row in await pool.fetch("SELECT message_id FROM send_keys")] == [id]
    assert await pool.fetchval("SELECT available FROM wallets") == 40_000
    await check_wallets(pool, [one.organization_id])
    assert acceptor.stored.is_set()


async def test_how_long_each_kind_may_take(acceptor: Acceptor, pool: Pool) -> None:
    one = await made(pool)
    await whatsapp_factories.conversation(pool, one)
    await whatsapp_factories.template(pool, one.organization_id, one.account_id, name="short", ttl_seconds=60)
    at = clock.now() + timedelta(days=2)
    found = []
    for content in (CODE, TextReply("hello"), TemplateSend("short", "en", "utility", ("Ana", "7"))):
        id = id_of(await acceptor.accept(send(one, content, send_at=at)))
        row = await pool.fetchrow("SELECT deadline_at, accepted_at FROM whatsapp_messages WHERE id = $1", id)
        found.append(row["deadline_at"] - at)
        assert await pool.fetchval("SELECT due_at FROM queue WHERE id = $1", id) == at
    assert found == [timedelta(minutes=25), timedelta(days=31), timedelta(days=1, minutes=1)]


async def test_a_reply_is_kept_as_it_was_sent_and_costs_the_rate_of_its_country(acceptor: Acceptor, pool: Pool) -> None:
    one = await made(pool, balance=100_000)
    thread = await whatsapp_factories.conversation(pool, one)
    id = id_of(await acceptor.accept(send(one, TextReply('Olá "€"', preview_url=True))))
    row = await pool.fetchrow("SELECT * FROM whatsapp_messages WHERE id = $1", id)
    assert (row["type"], row["billing_category"], row["conversation_id"]) == ("text", "service", thread)
    assert (row["template_id"], row["template_name"], row["reserved"]) == (None, None, PRICE)
    content = await pool.fetchval("SELECT content FROM whatsapp_messages WHERE id = $1", id)
    assert msgspec.json.decode(content) == {"type": "text", "body": 'Olá "€"', "previewUrl": True}
    await acceptor.accept(send(one, CODE, to="+351912345678"))
    assert await pool.fetchval("SELECT reserved FROM wallets") == PRICE + CODE_PRICE
    await check_wallets(pool, [one.organization_id])


async def test_what_is_free_for_now_reserves_nothing(acceptor: Acceptor, pool: Pool) -> None:
    one = await made(pool, balance=0)
    await whatsapp_factories.conversation(pool, one, free=timedelta(hours=1))
    id = id_of(await acceptor.accept(send(one)))
    assert await pool.fetchrow("SELECT charge, reserved FROM whatsapp_messages WHERE id = $1", id) == ("reserved", 0)
    await pool.execute("UPDATE wallets SET available = -5, total = -5")
    assert (await acceptor.accept(send(one))).status == 202
    assert await previewed(pool, acceptor, send(one)) == preview.Preview("EUR", 0, -5)
    tester = msgspec.structs.replace(one.actor, mode="test")
    assert (await previewed(pool, acceptor, send(one, actor=tester))).price == 0
    await pool.execute("UPDATE whatsapp_conversations SET free_until = now() - interval '1 second'")
    assert isinstance(await attempt(acceptor, send(one)), WalletInsufficientFunds)


async def test_a_test_key_costs_nothing_and_needs_neither_wallet_nor_rate(acceptor: Acceptor, pool: Pool) -> None:
    one = await made(pool, balance=0)
    await pool.execute("DELETE FROM whatsapp_rates")
    await pool.execute("DELETE FROM wallet_ledger")
    await pool.execute("DELETE FROM wallets")
    tester = msgspec.structs.replace(one.actor, mode="test")
    id = id_of(await acceptor.accept(send(one, actor=tester, key_name="k")))
    assert (await acceptor.accept(send(one, actor=tester, key_name="k"))).replayed
    row = await pool.fetchrow("SELECT mode, charge, reserved FROM whatsapp_messages WHERE id = $1", id)
    assert tuple(row) == ("test", "none", 0)
    assert await pool.fetchval("SELECT line FROM queue WHERE id = $1", id) == UUID(int=1)
    assert await pool.fetchval("SELECT count(*) FROM wallet_entries") == 0
    assert await pool.fetchrow("SELECT currency, total FROM wallets") == ("EUR", 0)


async def test_a_test_key_has_conversations_of_its_own(acceptor: Acceptor, pool: Pool) -> None:
    """It neither sees nor moves a live window, and a text sent with it needs none."""
    one = await made(pool)
    live = await whatsapp_factories.conversation(pool, one, opened=timedelta(hours=25))
    tester = msgspec.structs.replace(one.actor, mode="test")
    mine = id_of(await acceptor.accept(send(one)))
    tests = [id_of(await acceptor.accept(send(one, content, actor=tester))) for content in (SHIPPED, TextReply("hi"))]
    assert isinstance(await attempt(acceptor, send(one, TextReply("hi"))), WindowClosed)
    rows = await pool.fetch("SELECT id, conversation_id FROM whatsapp_messages")
    found = {row["id"]: row["conversation_id"] for row in rows}
    assert found[mine] == live
    assert found[tests[0]] == found[tests[1]] != live
    rows = await pool.fetch("SELECT id, mode, recipient FROM whatsapp_conversations")
    assert {tuple(row) for row in rows} == {(live, "live", TO), (found[tests[0]], "test", TO)}


# ── Keys ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_second_post_of_a_key_is_the_first_answer_whatever_has_changed(acceptor: Acceptor, pool: Pool) -> None:
    one = await made(pool)
    first = await acceptor.accept(send(one, key_name="k"))
    await pool.execute("UPDATE whatsapp_templates SET disabled_locally = true")
    await pool.execute("UPDATE whatsapp_accounts SET state = 'paused'")
    again = await acceptor_of(pool).accept(send(one, key_name="k"))
    assert again == Answer(202, first.body, True)
    assert isinstance(await attempt(acceptor_of(pool), send(one, CODE, key_name="k")), IdempotencyConflict)
    assert await stored(pool) == 1


async def test_a_refused_send_frees_its_key(acceptor: Acceptor, pool: Pool) -> None:
    one = await made(pool, balance=0)
    for content in (SHIPPED, TextReply("hello"), TemplateSend("none", "en", "utility", ())):
        assert isinstance(await attempt(acceptor, send(one, content, key_name="k")), Refusal)
    await pool.execute("UPDATE wallets SET available = 50000, total = 50000")
    assert not (await acceptor.accept(send(one, CODE, key_name="k"))).replayed


async def test_twins_in_two_processes_are_one_message(acceptor: Acceptor, second: Acceptor, pool: Pool) -> None:
    one = await made(pool)
    for key in "abc":
        posts = [(acceptor, second)[n % 2].accept(send(one, key_name=key)) for n in range(100)]
        answers = await asyncio.gather(*posts)
        assert sum(not answer.replayed for answer in answers) == 1
        assert len({answer.body for answer in answers}) == 1
    assert await stored(pool) == 3
    await check_wallets(pool, [one.organization_id])


async def test_an_organization_that_is_held_up_holds_up_no_other(acceptor: Acceptor, pool: Pool) -> None:
    one, other = await made(pool), await made(pool)
    async with pool.acquire() as conn, conn.transaction():
        await conn.execute("SELECT FROM wallets WHERE organization_id = $1 FOR UPDATE", one.organization_id)
        waiting, keyless, fine = await asyncio.gather(
            attempt(acceptor, send(one, key_name="k")), attempt(acceptor, send(one)), attempt(acceptor, send(other))
        )
    assert isinstance(waiting, Unavailable)
    assert isinstance(keyless, Unavailable)
    assert isinstance(fine, Answer)
    assert not (await acceptor.accept(send(one, key_name="k"))).replayed


# ── Refusals ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_first_thing_that_is_wrong_is_the_answer(pool: Pool) -> None:
    """Known key → organization, destination (403) → what is missing or does not fit (400) → opt-out → number,
    template, window → wallet (409)."""
    one = await made(pool, balance=0)
    await whatsapp_factories.template(pool, one.organization_id, one.account_id, name="new", status="pending")
    pending = TemplateSend("new", "en", "utility", ("Ana", "7"))
    await pool.execute(
        "INSERT INTO opt_outs (organization_id, recipient, since, source) VALUES ($1, $2, '2026-01-02T03:04:05Z', 't')",
        one.organization_id,
        TO,
    )
    stopped = msgspec.structs.replace(one.actor, state="suspended", allowed_countries=frozenset({"PT"}))
    away = msgspec.structs.replace(stopped, state="active")

    async def said(content: TemplateSend | TextReply, **values: Any) -> type[BaseException] | type[Answer]:
        return type(await attempt(acceptor_of(pool), send(one, content, **values)))

    for unknown in (pending, TemplateSend("none", "en", "utility", ())):
        assert await said(unknown, actor=stopped, number_id=uuid7()) is OrganizationSuspended
        assert await said(unknown, actor=away, number_id=uuid7()) is DestinationNotAllowed
        assert await said(unknown, number_id=uuid7()) is Invalid
    assert await said(TemplateSend("none", "en", "utility", ())) is TemplateNotFound
    assert await said(TemplateSend("new", "fr", "utility", ("Ana", "7"))) is TemplateNotFound
    assert await said(TemplateSend("new", "en", "authentication", ("Ana", "7"))) is Invalid
    assert await said(TemplateSend("new", "en", "utility", ("Ana",))) is TemplateParameterMismatch
    assert await said(TemplateSend("new", "en", "utility", ("Ana", "a\nb"))) is Invalid
    assert await said(pending, actor=stopped) is OrganizationSuspended
    assert await said(pending, actor=away) is DestinationNotAllowed
    await pool.execute("UPDATE whatsapp_rates SET currency = 'USD'")
    assert await said(pending) is DestinationNotAllowed
    await pool.execute("UPDATE whatsapp_rates SET currency = 'EUR'")
    assert await said(pending) is RecipientOptedOut
    assert await said(TextReply("hello")) is RecipientOptedOut
    await pool.execute("UPDATE whatsapp_numbers SET connection_status = 'banned'")
    assert await said(pending) is RecipientOptedOut
    assert await said(pending, actor=stopped) is OrganizationSuspended
    assert await said(TemplateSend("none", "en", "utility", ())) is TemplateNotFound
    assert await said(TemplateSend("new", "en", "utility", ("Ana",))) is TemplateParameterMismatch
    assert await said(pending, actor=away) is DestinationNotAllowed
    await pool.execute("DELETE FROM opt_outs")
    assert await said(pending) is PhoneNumberUnavailable
    await pool.execute("UPDATE whatsapp_numbers SET connection_status = 'connected'")
    assert await said(pending) is TemplateNotApproved
    assert await said(TextReply("hello")) is WindowClosed
    assert await said(SHIPPED) is WalletInsufficientFunds
    assert await stored(pool) == 0
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_conversations") == 0


async def test_a_template_that_cannot_be_filled_is_refused_as_such(acceptor: Acceptor, pool: Pool) -> None:
    """Whatever values are sent: no number of texts would fit."""
    one = await made(pool)
    parts = [*whatsapp_factories.BODY, {"type": "HEADER", "format": "IMAGE"}]
    id = await whatsapp_factories.template(
        pool, one.organization_id, one.account_id, name="pictured", components=parts, parameter_count=2
    )
    for values in ((), ("Ana", "7"), ("Ana", "7", "https://x.example/p.png")):
        refusal = await attempt(acceptor, send(one, TemplateSend("pictured", "en", "utility", values)))
        assert isinstance(refusal, TemplateNotSendable)
        assert refusal.details == {"templateId": str(id), "reason": "its header is of the kind image"}
    # A wrong category is the client's mistake.
    assert isinstance(await attempt(acceptor, send(one, TemplateSend("pictured", "en", "marketing", ()))), Invalid)
    assert await stored(pool) == 0


async def test_refusals_say_what_they_know(acceptor: Acceptor, pool: Pool) -> None:
    one = await made(pool, balance=25_000)
    await whatsapp_factories.template(
        pool, one.organization_id, one.account_id, name="held", status="paused", parameter_count=2
    )
    await whatsapp_factories.conversation(pool, one, opened=timedelta(hours=24))

    async def details(content: TemplateSend | TextReply, **values: Any) -> dict[str, Any]:
        refusal = await attempt(acceptor, send(one, content, **values))
        assert isinstance(refusal, Refusal)
        return refusal.details

    assert await details(CODE, to="+351912345678") == {
        "available": "0.025000",
        "required": "0.030000",
        "currency": "EUR",
    }
    assert await details(TemplateSend("order_shipped", "en", "utility", ())) == {"expected": 2, "received": 0}
    assert await details(TemplateSend("none", "en", "utility", ())) == {"name": "none", "language": "en"}
    assert (await details(TemplateSend("held", "en", "utility", ("a", "b"))))["status"] == "paused"
    expired = (await details(TextReply("hello")))["serviceWindowExpiresAt"]
    assert datetime.fromisoformat(expired) <= clock.now()
    assert await details(TextReply("hello"), to="+351912345678") == {"serviceWindowExpiresAt": None}
    fields = (await details(TemplateSend("order_shipped", "en", "utility", ("Ana", ""))))["fields"]
    assert [each["field"] for each in fields] == ["template.parameters[1]"]
    other = await made(pool)
    assert await details(SHIPPED, number_id=other.number_id) == {
        "fields": [
            {
                "field": "phoneNumberId",
                "issue": "unknown",
                "message": "`phoneNumberId` is not a WhatsApp number of this organization",
            }
        ]
    }
    assert await stored(pool) == 0
    await check_wallets(pool, [one.organization_id, other.organization_id])


@pytest.mark.parametrize(("left", "open"), [(3600, True), (70, True), (50, False), (-1, False)])
async def test_a_window_counts_as_closed_a_minute_before_its_end(
    acceptor: Acceptor, pool: Pool, left: int, open: bool
) -> None:
    one = await made(pool)
    await whatsapp_factories.conversation(pool, one, opened=timedelta(days=1, seconds=-left))
    outcome = await attempt(acceptor, send(one, TextReply("hello")))
    assert isinstance(outcome, Answer if open else WindowClosed)


async def test_a_window_is_that_of_one_number_and_one_user(acceptor: Acceptor, pool: Pool) -> None:
    one, other = await made(pool), await made(pool)
    await whatsapp_factories.conversation(pool, one)
    second, _, _ = await whatsapp_factories.number(pool, one.organization_id, one.account_id)
    assert isinstance(await attempt(acceptor, send(one, TextReply("hello"), number_id=second)), WindowClosed)
    assert isinstance(await attempt(acceptor, send(other, TextReply("hello"))), WindowClosed)
    assert isinstance(await attempt(acceptor, send(one, TextReply("hello"))), Answer)


async def test_a_wallet_in_another_currency_pays_for_nothing(acceptor: Acceptor, pool: Pool) -> None:
    one = await made(pool)
    await pool.execute("UPDATE wallets SET currency = 'USD'")
    refused = await attempt(acceptor, send(one))
    assert isinstance(refused, WalletInsufficientFunds)
    assert refused.details == {"available": "0.000000", "required": "0.010000", "currency": "EUR"}
    with pytest.raises(WalletInsufficientFunds) as foreseen:
        await previewed(pool, acceptor, send(one))
    assert foreseen.value.details == refused.details


# ── Many at once ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_bad_item_never_sinks_its_batch(acceptor: Acceptor, pool: Pool) -> None:
    one, other = await made(pool), await made(pool, balance=0)
    await whatsapp_factories.conversation(pool, one)
    sends = [
        send(one),
        send(other),
        send(one, TextReply("\ud800")),
        send(one, TextReply("hello")),
        send(one, TextReply("nobody"), to="+258849999999"),
        send(one, number_id=uuid7()),
        send(one, CODE),
    ]
    outcomes = await asyncio.gather(*(acceptor.accept(each) for each in sends), return_exceptions=True)
    assert [isinstance(each, Answer) for each in outcomes] == [True, False, False, True, False, False, True]
    assert not isinstance(outcomes[2], Refusal)  # the API lets no such text through
    await check_wallets(pool, [one.organization_id, other.organization_id])


async def test_what_costs_too_much_leaves_the_rest_to_what_costs_less(acceptor: Acceptor, pool: Pool) -> None:
    one = await made(pool, balance=CODE_PRICE + 2 * PRICE - 1)
    contents = [CODE, SHIPPED, CODE, SHIPPED, SHIPPED]
    outcomes = await acceptor.accept_many([send(one, content) for content in contents])
    assert [isinstance(each, Answer) for each in outcomes] == [True, True, False, False, False]
    assert await pool.fetchval("SELECT available FROM wallets") == PRICE - 1
    await check_wallets(pool, [one.organization_id])


async def test_two_processes_spend_exactly_what_there_is(acceptor: Acceptor, second: Acceptor, pool: Pool) -> None:
    makes = [await made(pool, balance=37 * PRICE + 5) for _ in range(2)]
    sends = [send(makes[n % 2], to=f"+25884{n:07}") for n in range(200)]
    parts = await asyncio.gather(acceptor.accept_many(sends[::3]), second.accept_many(sends[1::3] + sends[2::3]))
    accepted = [each for part in parts for each in part if isinstance(each, Answer)]
    assert len(accepted) == 74
    for one in makes:
        wallet = await pool.fetchrow(
            "SELECT available, reserved FROM wallets WHERE organization_id = $1", one.actor.organization_id
        )
        assert tuple(wallet) == (5, 37 * PRICE)
    await check_wallets(pool, [one.organization_id for one in makes])


async def test_a_user_has_one_conversation_whoever_meets_them_first(
    acceptor: Acceptor, second: Acceptor, pool: Pool
) -> None:
    one = await made(pool)
    numbers = [f"+25884{n % 7:07}" for n in range(60)]
    await asyncio.gather(*((acceptor, second)[n % 2].accept(send(one, to=to)) for n, to in enumerate(numbers)))
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_conversations") == 7
    assert await pool.fetchval("SELECT count(DISTINCT conversation_id) FROM whatsapp_messages") == 7
    wrong = await pool.fetchval(
        "SELECT count(*) FROM whatsapp_messages m JOIN whatsapp_conversations c ON c.id = m.conversation_id"
        " WHERE c.recipient <> m.recipient"
    )
    assert wrong == 0


async def test_a_unit_of_the_rate_window_is_taken_in_the_same_commit(acceptor: Acceptor, pool: Pool) -> None:
    one = await made(pool)
    key = uuid7()
    # Two batches, between which the minute may end: the window is already that of the next.
    await pool.execute("INSERT INTO rate_windows VALUES ($1, $2, 'mutations', now(), 0)", one.organization_id, key)
    await hold_windows(pool)
    rate_units = [RateUnit(key, 2) for _ in range(4)]
    outcomes = await asyncio.gather(
        *(acceptor.accept(send(one, rate_unit=rate_unit)) for rate_unit in rate_units), return_exceptions=True
    )
    assert [type(each) for each in outcomes] == [Answer, Answer, OverLimit, OverLimit]
    assert [rate_unit.used for rate_unit in rate_units] == [1, 2, 3, 4]
    assert await pool.fetchrow("SELECT bucket, taken FROM rate_windows") == ("mutations", 4)
    assert await stored(pool) == 2


async def test_a_deadlock_is_nobody_s_fault_and_nobody_sees_it(
    acceptor: Acceptor, pool: Pool, database_url: str
) -> None:
    """Another transaction begins a conversation and then wants the wallet: in the opposite order to accepting."""
    one = await made(pool)
    other = await asyncpg.connect(database_url)
    try:
        # The first to wait is aborted, unless the machine is so slow that nobody waits yet.
        with contextlib.suppress(asyncpg.DeadlockDetectedError):
            async with other.transaction():
                await other.execute(
                    "INSERT INTO whatsapp_aliases VALUES ($1, $2, $3, $4)",
                    one.organization_id,
                    one.number_id,
                    TO.removeprefix("+"),
                    uuid7(),
                )
                accepting = asyncio.create_task(attempt(acceptor, send(one)))
                await factories.blocked(pool)
                await other.execute("SELECT FROM wallets WHERE organization_id = $1 FOR UPDATE", one.organization_id)
                raise asyncpg.DeadlockDetectedError  # the conversation is not started after all
        answer = await accepting
    finally:
        await other.close()
    assert isinstance(answer, Answer)
    assert answer.status == 202
    assert await stored(pool) == 1
    await check_wallets(pool, [one.organization_id])
