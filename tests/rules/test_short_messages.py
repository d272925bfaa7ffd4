"""Messages of organizations that keep them for a shorter time: theirs are removed with everything that contains their
numbers, nobody else's are, and sums still add up."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec
import pytest

from heliograph.accounts import send_defaults, usage
from heliograph.base.actor import Actor
from heliograph.base.database.migrate import make_partitions
from heliograph.base.database.pool import Pool
from heliograph.base.errors import Invalid
from heliograph.base.ids import uuid7, uuid7_floor
from heliograph.base.process.settings import Settings
from heliograph.retention import forgetting, removing, shorter, turns
from tests.rules.factories import organization

SETTINGS = Settings(secret_key="a secret key for tests, long enough")
NOW = datetime.now(UTC)
SENT = """
INSERT INTO messages (organization_id, id, status, mode, recipient, sender, sender_id, encoding, segments, guarantee,
                      country, body, request_id, balance_after, accepted_at)
VALUES ($1, $2, $3, $4, '1', '1', $2, 'gsm7', 2, 'at_least_once', 'MZ', 'x', '', $5, $6)
"""
SPENT = "UPDATE quotas SET used = used + 1 WHERE organization_id = $1 RETURNING total - used"
#: Everything stored with a message of the organization ($1) and the id $2, from the time $3.
BESIDE = {
    "received_messages": """
INSERT INTO received_messages (organization_id, id, supplier_id, sender, recipient, sender_id, segments, body,
                               received_at)
VALUES ($1, $2, $2, '+258841234567', '90210', $2, 1, 'x', $3)
""",
    "inbound_messages": """
INSERT INTO inbound_messages (id, supplier_id, sender, recipient, body, raw, received_at, state, due_at,
                              organization_id, message_id)
VALUES ($2, $2, '+258841234567', '90210', 'x', 'x', $3, 'received', NULL, $1, $2)
""",
    "events": """
INSERT INTO events (organization_id, id, mode, kind, message_id, request_id, data, created_at)
VALUES ($1, $2, 'live', 'message.sent', $2, '', '{"message":{"to":"+258841234567"}}', $3)
""",
    "whatsapp_messages": """
INSERT INTO whatsapp_messages (organization_id, id, direction, mode, status, number_id, conversation_id, recipient,
                               type, content, request_id, accepted_at)
VALUES ($1, $2, 'inbound', 'live', 'delivered', $2, $2, '+258841234567', 'text', '{}', '', $3)
""",
    "attempts": """
INSERT INTO attempts (organization_id, message_id, attempt, target_id, state, started_at, ended_at)
VALUES ($1, $2, 1, $2, 'accepted', $3, $3)
""",
    "receipts": """
INSERT INTO receipts (received_on, supplier_id, fingerprint, keys, state, error, recipient, sender, received_at,
                      organization_id, message_id)
VALUES (($3::timestamptz AT TIME ZONE 'UTC')::date, $2, $2, '{x}', 'delivered', '', '1', '1', $3, $1, $2)
""",
    "sms_parts": """
INSERT INTO sms_parts (answered_on, supplier_id, id_key, message_id, attempt, part, parts, organization_id,
                       recipient_suffix, created_at)
VALUES (($3::timestamptz AT TIME ZONE 'UTC')::date, $2, $2::uuid::text, $2, 1, 1, 2, $1, '4567', $3)
""",
    "inbox_threads": """
INSERT INTO inbox_threads (organization_id, id, channel, line_id, peer, message_id, heard_at)
VALUES ($1, $2, 'sms', $2, '+258841234567', $2, $3)
""",
    "whatsapp_conversations": """
INSERT INTO whatsapp_conversations (organization_id, id, number_id, recipient, last_inbound_at, created_at)
VALUES ($1, $2, $2, '+258841234567', $3, $3)
""",
    "whatsapp_aliases": """
INSERT INTO whatsapp_aliases (organization_id, number_id, alias, conversation_id)
SELECT $1, $2, $2::uuid::text, $2 WHERE $3::timestamptz IS NOT NULL
""",
    "campaign_skipped": """
INSERT INTO campaign_skipped (organization_id, campaign_id, reason, id, recipient)
SELECT $1, $2, 'opted_out', $2, '+258841234567' WHERE $3::timestamptz IS NOT NULL
""",
    "guard_challenges": """
INSERT INTO guard_challenges (organization_id, message_id, passed_at) VALUES ($1, $2, $3)
""",
}
#: The column of each table that identifies them.
KNOWN = {
    "attempts": "message_id",
    "receipts": "message_id",
    "sms_parts": "message_id",
    "guard_challenges": "message_id",
    "whatsapp_aliases": "conversation_id",
}
WHATSAPP = """
INSERT INTO whatsapp_messages (organization_id, id, direction, mode, status, number_id, conversation_id, recipient,
                               type, request_id, accepted_at, deadline_at, charge, reserved)
VALUES ($1, $2, 'outbound', 'live', $4, $2, $2, '+258841234567', 'text', '', $3, $5, $6, $7)
"""


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a loaded machine, the time of a round may be over before its work is done."""
    monkeypatch.setattr(turns, "SECONDS", 600.0)


def id_of(at: datetime) -> UUID:
    return UUID(int=uuid7_floor(at).int + 1 + uuid7().int % 2**60)


async def spend(pool: Pool, actor: Actor, days: float, *, status: str = "delivered", mode: str = "live") -> UUID:
    """A message accepted this many days ago, and its unit of quota."""
    at = NOW - timedelta(days=days)
    id = id_of(at)
    balance = 0 if mode == "test" else await pool.fetchval(SPENT, actor.organization_id)
    await pool.execute(SENT, actor.organization_id, id, status, mode, balance, at)
    return id


async def store(pool: Pool, actor: Actor, days: float) -> UUID:
    """A message accepted this many days ago, with everything stored beside it."""
    id = await spend(pool, actor, days)
    for statement in BESIDE.values():
        await pool.execute(statement, actor.organization_id, id, NOW - timedelta(days=days))
    return id


async def remaining_ids(pool: Pool, actor: Actor, table: str) -> set[UUID]:
    column = KNOWN.get(table, "id")
    rows = await pool.fetch(
        f"SELECT {column} AS id FROM {table} WHERE organization_id = $1",
        actor.organization_id,
    )
    return {row["id"] for row in rows}


async def keep_for(pool: Pool, actor: Actor, days: int | None) -> None:
    async with pool.acquire() as conn:
        await send_defaults.change(conn, organization_id=actor.organization_id, message_days=days)


async def forget(pool: Pool, settings: Settings = SETTINGS) -> bool:
    """One round, like a worker's."""
    async with pool.acquire() as conn:
        texts = await shorter.forget(conn)
        return await removing.forget(conn, settings) and texts


async def check_sums(pool: Pool) -> None:
    """What remains of each quota is the sum of its entries."""
    rows = await pool.fetch(
        "SELECT total - used AS remains, (SELECT sum(quantity)::bigint FROM usage_entries e"
        " WHERE e.organization_id = q.organization_id) AS adds_up FROM quotas q"
    )
    assert rows
    assert [row for row in rows if row["remains"] != row["adds_up"]] == []


async def test_messages_go_after_the_organizations_own_time(pool: Pool) -> None:
    own, other = await organization(pool, quota=100), await organization(pool, quota=100)
    async with pool.acquire() as conn:
        for back in range(4):
            await make_partitions(conn, (NOW - timedelta(days=31 * back)).date(), ahead=0)
    for actor in (own, other):
        await store(pool, actor, 100)
    old = [await store(pool, own, days) for days in (70, 45.2, 45.01)]
    young = {await store(pool, own, days) for days in (0, 12, 44.9)}
    theirs = {table: await remaining_ids(pool, other, table) for table in ("messages", *BESIDE)}
    # Receipts have partitions of their own, and a test message used no quota.
    tried = await spend(pool, own, 50, mode="test")
    await keep_for(pool, own, 45)
    assert await forget(pool)
    assert old
    assert tried
    for table in ("messages", *BESIDE):
        assert await remaining_ids(pool, own, table) == young, table
        assert await remaining_ids(pool, other, table) == theirs[table], table
    await check_sums(pool)
    # And again, when nothing is left to do.
    assert await forget(pool)
    await check_sums(pool)
    assert await remaining_ids(pool, own, "messages") == young


async def test_the_usage_list_has_a_sum_where_the_messages_stood(pool: Pool) -> None:
    own = await organization(pool, quota=100)
    for days in (40, 39, 38):
        await spend(pool, own, days)
    kept = await spend(pool, own, 29)
    await keep_for(pool, own, 30)
    assert await forget(pool)
    async with pool.acquire() as conn:
        entries = (await usage.list_page(conn, own)).entries
    months = {f"{NOW - timedelta(days=days):%Y-%m}" for days in (40, 39, 38)}
    sums = [entry for entry in entries if entry.message_id is None and entry.type == "usage"]
    assert {entry.reason for entry in sums} == {f"sum of {month}" for month in months}
    assert (sum(entry.quantity for entry in sums), sum(entry.segments or 0 for entry in sums)) == (-3, 6)
    # The newest sum takes the place of the last of its messages, below what was accepted since, with its balance.
    assert max(entry.created_at for entry in sums) == NOW - timedelta(days=38)
    assert [entry.id for entry in entries if entry.type == "usage"] == [kept, *(entry.id for entry in sums)]
    assert [entry.balance_after for entry in entries if entry.type == "usage"][:2] == [96, 97]
    await check_sums(pool)
    # A round that removes more of the same month moves it on.
    await pool.execute("DELETE FROM retention_places")
    await pool.execute("UPDATE messages SET accepted_at = $2 WHERE id = $1", kept, NOW - timedelta(days=37))
    await keep_for(pool, own, None)
    assert await forget(pool)
    assert await remaining_ids(pool, own, "messages") == {kept}


async def test_what_may_still_be_sent_or_cost_money_stays(pool: Pool) -> None:
    own = await organization(pool, quota=100)
    waits = await spend(pool, own, 50, status="accepted")
    scheduled = await spend(pool, own, 50)
    await pool.execute("UPDATE messages SET sent_at = now() - interval '2 days' WHERE id = $1", scheduled)
    gone = await spend(pool, own, 50)
    whatsapp = {}
    for name, status, days, deadline, charge, reserved in (
        ("reserved", "sent", 70, 40, "reserved", 5),
        ("may be reported", "failed", 50, 29, "released", 0),
        ("settled", "delivered", 70, 40, "consumed", 0),
        ("canceled", "canceled", 50, None, "none", 0),
        ("waits", "accepted", 70, 40, "none", 0),
    ):
        at = NOW - timedelta(days=days)
        whatsapp[name] = id_of(at)
        until = None if deadline is None else NOW - timedelta(days=deadline)
        await pool.execute(
            WHATSAPP, own.organization_id, whatsapp[name], at, status, until, charge, reserved
        )  # fmt: skip
    await keep_for(pool, own, 45)
    assert await forget(pool)
    assert await remaining_ids(pool, own, "messages") == {waits, scheduled}
    assert await remaining_ids(pool, own, "whatsapp_messages") == {
        whatsapp[name] for name in ("reserved", "may be reported", "waits")
    }
    # They are found when everything is scanned again, once they can no longer change.
    await pool.execute("UPDATE messages SET status = 'expired', sent_at = NULL")
    await pool.execute("UPDATE whatsapp_messages SET status = 'failed', charge = 'released', reserved = 0")
    await pool.execute("UPDATE whatsapp_messages SET deadline_at = now() - interval '31 days'")
    await pool.execute("UPDATE retention_places SET mark = jsonb_build_object('whole', now() - interval '8 days')")
    assert await forget(pool)
    assert await remaining_ids(pool, own, "messages") == await remaining_ids(pool, own, "whatsapp_messages") == set()
    assert gone
    await check_sums(pool)


async def test_what_money_was_moved_by_stays_in_the_wallet(pool: Pool) -> None:
    own = await organization(pool, quota=100)
    at = NOW - timedelta(days=80)
    id = id_of(at)
    await pool.execute(
        WHATSAPP, own.organization_id, id, at, "delivered", NOW - timedelta(days=50), "consumed", 0
    )  # fmt: skip
    await pool.execute(
        "INSERT INTO wallet_movements (organization_id, id, movement, message_id, available, reserved, consumed,"
        " created_at) VALUES ($1, $2, 'consume', $2, -5, 0, 5, $3)",
        own.organization_id,
        id,
        at,
    )
    await keep_for(pool, own, 45)
    assert await forget(pool)
    assert await remaining_ids(pool, own, "whatsapp_messages") == set()
    rows = await pool.fetch(
        "SELECT message_id, consumed FROM wallet_entries WHERE organization_id = $1", own.organization_id
    )
    assert [tuple(row) for row in rows] == [(id, 5)]


async def test_a_text_goes_before_its_message(pool: Pool) -> None:
    """Copies of a text are found by its message: one that still has its text stays until that has been erased."""
    own = await organization(pool, quota=100)
    id = await spend(pool, own, 50)
    await keep_for(pool, own, 45)
    async with pool.acquire() as conn:
        assert await removing.forget(conn, SETTINGS)
        assert await remaining_ids(pool, own, "messages") == {id}
        assert await shorter.forget(conn), "texts go by the time of messages, where that is shorter"
    assert await pool.fetchval("SELECT body FROM messages WHERE id = $1", id) is None
    await pool.execute("DELETE FROM retention_places")
    assert await forget(pool)
    assert await remaining_ids(pool, own, "messages") == set()


async def test_a_month_that_is_being_added_up_is_left_alone(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its messages would count twice: in its sum, and in that of those removed individually."""
    own, other = await organization(pool, quota=100), await organization(pool, quota=100)
    month = (NOW - timedelta(days=100)).replace(day=1)
    async with pool.acquire() as conn:
        await make_partitions(conn, month.date(), ahead=0)
    for actor in (own, other):
        for day in range(6):
            await spend(pool, actor, (NOW - month).total_seconds() / 86_400 - day)
    short = msgspec.structs.replace(SETTINGS, metadata_retention_months=1)
    monkeypatch.setattr(forgetting, "STEP", 2)
    monkeypatch.setattr(forgetting, "ROWS", 1)
    async with pool.acquire() as conn:
        assert not await forgetting.forget(conn, short), "two of them are counted, and the next round goes on"
    await keep_for(pool, own, 30)
    # Meanwhile the installation's time was extended, so the month is not past for all.
    assert await forget(pool)
    assert len(await remaining_ids(pool, own, "messages")) == 6
    await check_sums(pool)
    monkeypatch.setattr(forgetting, "ROWS", 1_000_000)
    async with pool.acquire() as conn:
        while not await forgetting.forget(conn, short):
            pass
    assert await remaining_ids(pool, own, "messages") == await remaining_ids(pool, other, "messages") == set()
    await check_sums(pool)


async def test_a_month_is_dropped_after_some_of_its_messages_were_removed(pool: Pool) -> None:
    own, other = await organization(pool, quota=100), await organization(pool, quota=100)
    async with pool.acquire() as conn:
        await make_partitions(conn, (NOW - timedelta(days=100)).date(), ahead=0)
    for actor in (own, other):
        for days in (101, 100.5, 100):
            await spend(pool, actor, days)
    stays = await spend(pool, own, 100.2, status="accepted")
    await keep_for(pool, own, 30)
    assert await forget(pool)
    assert await remaining_ids(pool, own, "messages") == {stays}
    await check_sums(pool)
    async with pool.acquire() as conn:
        assert await forgetting.forget(conn, msgspec.structs.replace(SETTINGS, metadata_retention_months=1))
    assert await remaining_ids(pool, own, "messages") == await remaining_ids(pool, other, "messages") == set()
    await check_sums(pool)


async def test_a_round_is_bounded_and_each_organization_has_its_turn(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = [await organization(pool, quota=100) for _ in range(3)]
    for actor in some:
        for days in range(35, 50):
            await spend(pool, actor, days)
        await keep_for(pool, actor, 30)
    async with pool.acquire() as conn:
        assert await shorter.forget(conn)
    monkeypatch.setattr(turns, "STEP", 2)
    monkeypatch.setattr(turns, "STATEMENTS", 20)
    rounds = 0
    while True:
        async with pool.acquire() as conn:
            finished = await removing.forget(conn, SETTINGS)
        await check_sums(pool)
        if finished:
            break
        rounds += 1
        assert rounds < 300
    assert rounds > 3
    assert [await remaining_ids(pool, actor, "messages") for actor in some] == [set(), set(), set()]


async def test_a_message_that_somebody_changes_is_passed_over(pool: Pool) -> None:
    own = await organization(pool, quota=100)
    held, free = await spend(pool, own, 50), await spend(pool, own, 51)
    await keep_for(pool, own, 45)
    async with pool.acquire() as conn:
        assert await shorter.forget(conn)
    async with pool.acquire() as conn, conn.transaction():
        await conn.execute("SELECT FROM messages WHERE id = $1 FOR UPDATE", held)
        async with pool.acquire() as other:
            assert await asyncio.wait_for(removing.forget(other, SETTINGS), 120)
    assert await remaining_ids(pool, own, "messages") == {held}
    assert free


async def test_no_time_below_a_month_is_taken(pool: Pool) -> None:
    own = await organization(pool)
    for days in (29, 0, 3651):
        with pytest.raises(Invalid) as refused:
            await keep_for(pool, own, days)
        assert refused.value.details["fields"][0]["field"] == "message_days"
    await keep_for(pool, own, 30)
    before, after = await pool.fetchrow(
        "SELECT before, after FROM audit_log WHERE action = 'organization.configured' AND organization_id = $1",
        own.organization_id,
    )
    assert ('"message_days": null' in before.replace('":n', '": n'), '"message_days":30' in after.replace(" ", "")) == (
        True,
        True,
    )
