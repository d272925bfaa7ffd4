"""Removing what WhatsApp users wrote and their identities, from rows that real callbacks and sends leave behind."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from heliograph.base.database import clock
from heliograph.base.database.migrate import make_partitions
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7, uuid7_floor
from heliograph.base.process.settings import Settings
from heliograph.retention import forgetting
from heliograph.whatsapp import status
from heliograph.whatsapp.callbacks.intake import KIND
from heliograph.whatsapp.money import wallet
from heliograph.whatsapp.status import Move
from tests.rules.callback_factories import Meta, message
from tests.rules.factories import TO, endpoint
from tests.rules.whatsapp_factories import Made, conversation, made
from tests.rules.whatsapp_factories import message as outbound

OTHER = "+258840000001"
SECRET = "my secret plan"


async def forget(pool: Pool, **changed: Any) -> None:
    """As if the times were over; `changed`: which."""
    settings = Settings(secret_key="a secret key for tests, long enough", **changed)
    async with pool.acquire() as conn:
        await forgetting.forget(conn, settings)


async def holding(pool: Pool, words: str) -> set[str]:
    """Tables in which the words stand, in any column."""
    names = await pool.fetch(
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
    )
    found = set()
    for (name,) in names:
        if await pool.fetchval(f"SELECT EXISTS (SELECT FROM {name} t WHERE strpos(t::text, $1) > 0)", words):
            found.add(name)
    return found


async def test_what_users_wrote_is_nowhere_after_its_time(pool: Pool) -> None:
    who = await made(pool)
    await endpoint(pool, who.actor, "message.received")
    meta = Meta(pool)
    await meta.say(
        who,
        message(who, SECRET),
        message(who, type="button", button={"payload": "p", "text": SECRET}),
        message(who, type="image", image={"id": "1", "mime_type": "image/jpeg", "caption": SECRET}),
    )
    await outbound(pool, who, type="text", text=SECRET, status="sent")
    assert len(await holding(pool, SECRET)) >= 2
    await forget(pool, text_retention_days=0)
    assert await holding(pool, SECRET) == set()
    # That something was said is not forgotten, nor what is told of it.
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_messages") == 4
    told = [msgspec.json.decode(row["data"])["message"] for row in await pool.fetch("SELECT data FROM events")]
    assert [one["text"] for one in told] == [None] * 3
    assert {one["from"] for one in told} == {TO}


async def test_what_may_still_be_sent_keeps_its_content(pool: Pool) -> None:
    """A message waits for up to 30 days, such as for an account that Meta has suspended."""
    who = await made(pool)
    waits, sent = await outbound(pool, who, type="text", text=SECRET), await outbound(pool, who, type="text", text="hi")
    await pool.execute("UPDATE whatsapp_messages SET status = 'sent' WHERE id = $1", sent)
    kept = "SELECT array_agg(id) FROM whatsapp_messages WHERE content IS NOT NULL"
    await pool.execute("UPDATE whatsapp_messages SET accepted_at = now() - interval '20 days'")
    await forget(pool, text_retention_days=7)
    assert await pool.fetchval(kept) == [waits]
    await pool.execute("UPDATE whatsapp_messages SET accepted_at = now() - interval '39 days'")
    await pool.execute("DELETE FROM retention_places")
    await forget(pool, text_retention_days=7)
    assert await pool.fetchval(kept) is None


async def test_early_statuses_and_reached_users_are_forgotten(pool: Pool) -> None:
    who = await made(pool)
    await pool.execute(
        "INSERT INTO whatsapp_early_statuses (number_id, wamid, status, at, received_at) SELECT $1, d::text, 'sent',"
        " now(), now() - make_interval(days => d) FROM unnest(ARRAY[7, 9]) d",
        who.number_id,
    )
    await pool.execute(
        "INSERT INTO whatsapp_reached SELECT 'p', h::text, now() - make_interval(hours => h)"
        " FROM unnest(ARRAY[23, 26]) h"
    )
    await forget(pool)
    assert [row["wamid"] for row in await pool.fetch("SELECT wamid FROM whatsapp_early_statuses")] == ["7"]
    assert [row["recipient"] for row in await pool.fetch("SELECT recipient FROM whatsapp_reached")] == ["23"]


async def test_callbacks_that_nobody_can_decrypt_and_dead_letters_go(pool: Pool) -> None:
    who = await made(pool)
    for days in (7, 9, 29, 31):
        id = uuid7_floor(datetime.now(UTC) - timedelta(days=days))
        await pool.execute("INSERT INTO whatsapp_dead_letters VALUES ($1, $2, 'x', 'why', now())", id, who.app)
        await pool.execute("INSERT INTO whatsapp_callbacks VALUES ($1, $2, 'x', $3, now())", id, who.app, days)
        await pool.execute(
            "INSERT INTO queue (kind, line, organization_id, due_at, id) VALUES ($1, $2, $2, now(), $3)",
            KIND, who.app, id,
        )  # fmt: skip
    await forget(pool)
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_dead_letters") == 1
    assert sorted(row[0] for row in await pool.fetch("SELECT items FROM whatsapp_callbacks")) == [7, 9, 29]
    assert await pool.fetchval("SELECT count(*) FROM queue") == 3


async def test_words_go_once_no_older_one_can_come_and_what_they_asked_for_stays(pool: Pool) -> None:
    who = await made(pool)
    meta = Meta(pool)
    await meta.say(who, message(who, "STOP"), message(who, "STOP", by=OTHER))
    await pool.execute("UPDATE whatsapp_words SET said_at = said_at - interval '46 days' WHERE recipient = $1", TO)
    await forget(pool)
    assert [row[0] for row in await pool.fetch("SELECT recipient FROM whatsapp_words")] == [OTHER]
    assert await pool.fetchval("SELECT count(*) FROM opt_outs") == 2


async def silent_since(pool: Pool, days: int) -> None:
    await pool.execute(
        "UPDATE whatsapp_conversations SET created_at = created_at - make_interval(days => $1),"
        " last_inbound_at = last_inbound_at - make_interval(days => $1)",
        days,
    )


async def known_as(pool: Pool, who: Made) -> set[str]:
    rows = await pool.fetch(
        "SELECT a.alias FROM whatsapp_aliases a JOIN whatsapp_conversations c USING (organization_id)"
        " WHERE c.id = a.conversation_id AND a.number_id = $1",
        who.number_id,
    )
    return {row["alias"] for row in rows}


async def test_a_conversation_goes_with_its_last_message_and_with_it_all_names_of_the_user(pool: Pool) -> None:
    who, other = await made(pool), await made(pool)
    for one in (who, other):
        gone = await conversation(pool, one)
        await pool.execute(
            "INSERT INTO whatsapp_aliases VALUES ($1, $2, 'MZ.1', $3)", one.organization_id, one.number_id, gone
        )
    await silent_since(pool, 14 * 31)
    await conversation(pool, other, to=OTHER)
    await outbound(pool, other)  # still on record, however old
    await forget(pool)
    assert await known_as(pool, who) == set()
    assert await known_as(pool, other) == {TO.removeprefix("+"), "MZ.1", OTHER.removeprefix("+")}
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_aliases") == 3
    await pool.execute("DELETE FROM whatsapp_messages")
    await forget(pool)
    assert await known_as(pool, other) == {OTHER.removeprefix("+")}
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_conversations") == 1


async def test_a_conversation_stays_with_messages_under_another_spelling_or_name(pool: Pool) -> None:
    who = await made(pool)
    names = ("+5511987654321", "+551187654321", "BR.1")
    await pool.execute(
        "INSERT INTO person_names (organization_id, name, person) SELECT $1, unnest($2::text[]), $3",
        who.organization_id,
        names[1:],
        uuid7(),
    )
    kept = await conversation(pool, who, to=names[0])
    await silent_since(pool, 14 * 31)
    for name in names:
        await outbound(pool, who, to=name, conversation_id=kept)
        await forget(pool)
        assert await pool.fetchval("SELECT count(*) FROM whatsapp_conversations") == 1, name
        await pool.execute("DELETE FROM whatsapp_messages")
    await forget(pool)
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_conversations") == 0


async def test_a_conversation_stays_with_messages_of_one_that_was_merged_into_it(pool: Pool) -> None:
    who = await made(pool)
    meta = Meta(pool)
    await meta.say(who, message(who, by=None, user_id="MZ.1"))
    await meta.say(who, message(who, by=TO))
    await meta.say(who, message(who, by=TO, user_id="MZ.1"))
    kept, merged = await pool.fetchrow(
        "SELECT merged_into, id FROM whatsapp_conversations WHERE merged_into IS NOT NULL"
    )
    await pool.execute("DELETE FROM whatsapp_messages WHERE conversation_id <> $1", merged)
    await silent_since(pool, 14 * 31)
    await forget(pool)
    assert {row[0] for row in await pool.fetch("SELECT id FROM whatsapp_conversations")} == {kept, merged}
    await pool.execute("DELETE FROM whatsapp_messages")
    await forget(pool)
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_conversations") == 0


async def test_a_user_who_was_forgotten_begins_anew(pool: Pool) -> None:
    who = await made(pool)
    meta = Meta(pool)
    await meta.say(who, message(who, "hello"))
    await silent_since(pool, 14 * 31)
    await pool.execute("DELETE FROM whatsapp_messages")
    await forget(pool)
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_conversations") == 0
    await meta.say(who, message(who, "hello again"))
    assert await known_as(pool, who) == {TO.removeprefix("+")}


# A message that was delivered, as its two movements; $2: its id.
DELIVERED = """
INSERT INTO wallet_movements (organization_id, id, movement, message_id, available, reserved, consumed, created_at)
VALUES ($1, $2, 'reserve', $2, -70, 70, 0, $3), ($1, $4, 'consume', $2, 10, -70, 60, $3)
"""


async def test_a_wallet_adds_up_after_its_movements_are_gone(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A month is summed up in steps and rounds, once its messages are gone, and shows in the commit that drops it."""
    monkeypatch.setattr(forgetting, "STEP", 4)
    monkeypatch.setattr(forgetting, "ROWS", 8)
    past = clock.now() - timedelta(days=500)
    async with pool.acquire() as conn:
        await make_partitions(conn, past.date(), ahead=0)
    first, second = await made(pool, balance=1000), await made(pool, balance=1000)
    floor = uuid7_floor(past).int
    for n, who in enumerate([first] * 11 + [second] * 4):
        await pool.execute(DELIVERED, who.organization_id, UUID(int=floor + n), past, UUID(int=floor + 1000 + n))
    spent = "UPDATE wallets SET available = available - $2, consumed = consumed + $2 WHERE organization_id = $1"
    await pool.execute(spent, first.organization_id, 11 * 60)
    await pool.execute(spent, second.organization_id, 4 * 60)
    month, partition = f"{past:%Y_%m}", f"wallet_movements_{past:%Y_%m}"
    sums = "SELECT sum(available), sum(reserved), sum(consumed) FROM wallet_entries WHERE organization_id = $1"
    rounds = 0
    while await pool.fetchval("SELECT to_regclass($1) IS NOT NULL", partition):
        await forget(pool)
        rounds += 1
        assert tuple(await pool.fetchrow(sums, first.organization_id)) == (340, 0, 660)
        assert tuple(await pool.fetchrow(sums, second.organization_id)) == (760, 0, 240)
    assert rounds > 2
    assert await pool.fetchval("SELECT to_regclass($1)", f"whatsapp_messages_{month}") is None
    assert await pool.fetchval("SELECT count(*) FROM wallet_movements") == 0
    async with pool.acquire() as conn:
        topped_up, summed = await wallet.ledger(conn, first.actor)
    assert (topped_up.movement, topped_up.available) == ("top_up", 1000)
    assert (summed.movement, summed.reason, summed.consumed) == ("month", f"sum of {past:%Y-%m}", 660)


async def test_movements_stay_while_a_message_could_still_move_money(pool: Pool) -> None:
    past = clock.now() - timedelta(days=500)
    async with pool.acquire() as conn:
        await make_partitions(conn, past.date(), ahead=0)
        who = await made(pool)
        id = uuid7_floor(past)
        await conn.execute(DELIVERED, who.organization_id, id, past, uuid7())
        # A message whose id was made by a wrong clock holds its month back.
        young = await outbound(pool, who)
        await conn.execute("UPDATE whatsapp_messages SET id = $2 WHERE id = $1", young, UUID(int=id.int + 1))
        await forget(pool)
        assert await conn.fetchval("SELECT count(*) FROM wallet_movements WHERE message_id = $1", id) == 2
        assert await conn.fetchval("SELECT count(*) FROM wallet_months") == 0


async def test_messages_stay_while_meta_may_still_charge_for_them(pool: Pool) -> None:
    """However short messages are kept: one that arrives after its lifetime is charged, too."""
    who = await made(pool)
    now = clock.now()
    kept, gone = uuid7(), uuid7()
    for id, days in ((kept, 31), (gone, 62)):
        # Of the last month that ended this long ago, the end.
        ends = (now - timedelta(days=days)).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        at = ends - timedelta(hours=1)
        async with pool.acquire() as conn:
            await make_partitions(conn, at.date(), ahead=0)
        made_as = await outbound(pool, who, age=now - at, queued=False)
        place = UUID(int=uuid7_floor(at).int | id.int & (2**62 - 1))
        await pool.execute("UPDATE whatsapp_messages SET id = $2 WHERE id = $1", made_as, place)
    await forget(pool, metadata_retention_months=1)
    (left,) = await pool.fetch("SELECT id FROM whatsapp_messages")
    assert left["id"].int & (2**62 - 1) == kept.int & (2**62 - 1)
    async with pool.acquire() as conn, conn.transaction():
        await status.move_many(conn, [Move(who.organization_id, left["id"], "delivered", now)], rates=None)
        assert (await wallet.show(conn, who.actor)).consumed == 10_000
