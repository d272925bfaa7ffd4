"""`heliograph message list`: an organization's messages for operators, with the filters of the API."""

from __future__ import annotations

import asyncio
from uuid import UUID

from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.sms import refunds
from heliograph.sms.status import Move, move_many
from tests.journeys.test_cli import Cli
from tests.rules import whatsapp_factories as whatsapp
from tests.rules.factories import message, organization


async def test_messages_are_listed_newest_first_by_what_the_api_filters_by(pool: Pool, database_url: str) -> None:
    actor, other = await organization(pool), await organization(pool)
    ids = [str(await message(pool, actor)) for _ in range(3)]
    await message(pool, other)
    await pool.execute("UPDATE messages SET status = 'failed', failure_code = 'failed' WHERE id = $1", UUID(ids[0]))
    await pool.execute("UPDATE messages SET recipient = '+258840000042' WHERE id = $1", UUID(ids[1]))
    await pool.execute("UPDATE messages SET client_reference = 'order 7' WHERE id = $1", UUID(ids[2]))
    cli, org = Cli(HELIOGRAPH_DATABASE_URL=database_url), ("--org", str(actor.organization_id))

    async def listed(*filters: str) -> list[str]:
        return [one["id"] for one in (await cli("message", "list", *org, *filters, "--json")).data]

    found = await asyncio.gather(
        listed(),
        listed("--limit", "2"),
        listed("--status", "failed"),
        listed("--recipient", "258840000042"),
        listed("--reference", "order 7"),
        listed("--mode", "test"),
        listed("--until", "2020-01-01T00:00:00Z"),
        listed("--since", "2020-01-01T00:00:00Z", "--status", "accepted"),
        listed("--channel", "whatsapp"),
        listed("--country", "mz", "--failure", "failed"),
        listed("--country", "001"),
        listed("--channel", "whatsapp", "--country", "CA", "--failure", "window_closed"),
    )
    await pool.execute("UPDATE organizations SET country = 'MZ' WHERE id = $1", actor.organization_id)
    assert await listed("--recipient", "84 000 0042") == [ids[1]]
    assert await listed("--recipient", "MZ.1349", "--channel", "whatsapp") == []
    newest = ids[::-1]
    assert found == [newest, newest[:2], [ids[0]], [ids[1]], [ids[2]], [], [], newest[:2], [], [ids[0]], [], []]

    several, table, *wrong = await asyncio.gather(
        cli("message", "list"),
        cli("message", "list", *org),
        cli("message", "list", *org, "--status", "read"),
        cli("message", "list", *org, "--recipient", "eight"),
        cli("message", "list", *org, "--channel", "whatsapp", "--sender", "x"),
        cli("message", "list", *org, "--since", "yesterday"),
        cli("message", "list", *org, "--country", "Mozambique"),
        cli("message", "list", *org, "--country", "QQ"),
        cli("message", "list", *org, "--failure", "nonsense"),
        cli("message", "list", *org, "--channel", "whatsapp", "--failure", "undelivered"),
    )
    assert (several.status, "several organizations" in several.err) == (1, True)
    assert len(table.out.splitlines()) == 4
    words = ("--status", "--recipient", "--sender", "--since", *("--country",) * 2, *("--failure",) * 2)
    for one, word in zip(wrong, words, strict=True):
        assert (one.status, word in one.err, one.out) == (2, True, "")


async def test_messages_of_a_campaign_and_with_a_reference_are_listed_on_either_channel(
    pool: Pool, database_url: str
) -> None:
    one, campaign = await whatsapp.made(pool), uuid7()
    sms, reply, _, _ = [
        *[await message(pool, one.actor), await whatsapp.message(pool, one)],
        *[await message(pool, one.actor), await whatsapp.message(pool, one)],
    ]
    for table, id in (("messages", sms), ("whatsapp_messages", reply)):
        change = f"UPDATE {table} SET campaign_id = $1, client_reference = 'order 7' WHERE id = $2"
        await pool.execute(change, campaign, id)
    cli = Cli(HELIOGRAPH_DATABASE_URL=database_url)
    for channel, id in (("sms", sms), ("whatsapp", reply)):
        for option in (("--campaign", str(campaign)), ("--reference", "order 7")):
            found = await cli("message", "list", "--channel", channel, *option, "--json")
            assert [row["id"] for row in found.data] == [str(id)], (channel, option)


async def test_a_message_is_shown_with_its_price_its_cost_and_the_margin(pool: Pool, database_url: str) -> None:
    actor, cli = await organization(pool), Cli(HELIOGRAPH_DATABASE_URL=database_url)

    async def shown(
        price: tuple[int, str] | None, cost: tuple[int, str] | None, *, is_refunded: bool = False
    ) -> tuple[str | None, ...]:
        id = await message(pool, actor)
        charged = [(*one, "submit") if one else (None, None, None) for one in (price, cost)]
        await pool.execute(
            """UPDATE messages SET price = $2, price_currency = $3, price_due = $4, cost = $5, cost_currency = $6,
                                   cost_due = $7 WHERE id = $1""",
            id,
            *charged[0],
            *charged[1],
        )
        if is_refunded:
            await pool.execute("UPDATE messages SET sent_at = accepted_at WHERE id = $1", id)
            async with pool.acquire() as conn, conn.transaction():
                await refunds.change_policy(conn, {"undelivered": True})
                ended = Move(actor.organization_id, id, "undelivered", clock.now(), "undelivered")
                await move_many(conn, [ended])
        found = (await cli("message", "show", str(id), "--json")).data["message"]
        return found["price"], found["cost"], found["margin"]

    assert await asyncio.gather(
        shown((50_000, "EUR"), (30_000, "EUR")),
        shown((50_000, "EUR"), (80_000, "EUR")),
        shown((50_000, "EUR"), (30_000, "USD")),
        shown(None, (30_000, "EUR")),
        shown(None, None),
        shown((50_000, "EUR"), (30_000, "EUR"), is_refunded=True),
    ) == [
        ("0.050000", "0.030000", "0.020000"),
        ("0.050000", "0.080000", "-0.030000"),
        ("0.050000", "0.030000", None),
        (None, "0.030000", None),
        (None, None, None),
        # Nobody pays what was refunded.
        ("0.050000", "0.030000", None),
    ]
