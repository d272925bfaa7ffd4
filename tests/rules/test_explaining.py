"""Explanations in advance, compared with what then happens to the messages."""

from __future__ import annotations

from datetime import timedelta
from itertools import product
from random import Random
from uuid import UUID

import pytest

from heliograph.accounts import organizations
from heliograph.base.database.pool import Connection, Pool
from heliograph.base.ids import uuid7
from heliograph.guard import rules as guarding
from heliograph.networks import learned
from heliograph.networks.learned import LearnedNetwork
from heliograph.prices import rows, tariffs
from heliograph.queue import holds
from heliograph.queue.holds import Selection
from heliograph.routes import rules
from heliograph.routes.lookup import Choice, Route
from heliograph.senders import loading
from heliograph.senders import rules as sender_rules
from heliograph.senders.book import SenderRule
from heliograph.sms.dispatch import explaining, routing
from tests.rules.dispatching import Bench
from tests.rules.factories import message, organization

NAMES = ("a", "b", "c", "d", "e")
#: Of the last three, two share +1 and one shares +7.
NUMBERS = ("+258841234567", "+258861234567", "+351912345678", "+12025550123", "+14165550123", "+77012345678")
#: Prefix, country and network of the routes.
PLACES = (
    *(("25884", None, None), (None, "MZ", None), (None, None, "643-03")),
    *(("1", None, None), (None, "RU", None), (None, None, None)),
)
CARDS = ("country,price,currency\n", "mcc,mnc,price,currency\n", "prefix,price,currency\n")
RATES = ("MZ,1,USD\n", "US,1,USD\n", "CA,1,USD\n", "KZ,1,USD\n"), ("643,03,1,USD\n",), ("2588,1,USD\n", "1,1,USD\n")
CLASSES = ("otp", "transactional")


async def rule(conn: Connection, chance: Random, organization_id: UUID) -> None:
    """Suppliers, some of which serve few numbers, are paused, held for an organization or refuse a sender; their cards;
    and routes."""
    ids = [uuid7() for _ in NAMES]
    for name, id in zip(NAMES, ids, strict=True):
        await conn.execute(
            "INSERT INTO suppliers"
            " (id, name, prefixes, state, priority, kind, settings, secret, created_at, changed_at)"
            " VALUES ($1, $2, $3, $4, $5, 'smpp', '{}', '', now(), now())",
            *(id, name, chance.choice(([], [], ["258", "1"])), chance.choice(("active", "active", "paused"))),
            ord(name),
        )
        for header, some in zip(CARDS, RATES, strict=True):
            if given := [one for one in some if chance.random() < 0.4]:
                card = rows.read([header, *given])
                await tariffs.import_rates(conn, card, kind="cost", name=name, supplier_id=id)
    await conn.execute(
        "INSERT INTO supplier_sessions SELECT id, 0, $1, now() + interval '1 min', true, true FROM suppliers", uuid7()
    )
    for n, (prefix, country, network) in enumerate(chance.choices(PLACES, k=5)):
        chosen = chance.sample(ids, chance.randint(1, 3))
        route = Route(
            id=uuid7(),
            name=f"r{n}",
            prefix=prefix,
            country=country,
            network=network,
            traffic_class=chance.choice((None, "otp")),
            priority=n,
            rated=chance.random() < 0.7,
            choices=tuple(Choice(id, at) for at, id in enumerate(chosen)),
        )
        await rules.add(conn, route)
    barring = SenderRule(id=uuid7(), supplier_id=ids[0], kind="alphanumeric", action="register")
    await sender_rules.put(conn, barring)
    held = Selection(kinds=("sms",), line=ids[1], organization_id=organization_id)
    await holds.hold(conn, held, reason="its bill is open")


@pytest.mark.parametrize("seed", [3, 6])
async def test_who_is_named_beforehand_is_who_is_asked(pool: Pool, seed: int) -> None:
    chance = Random(seed)
    actor = await organization(pool)
    async with pool.acquire() as conn:
        await rule(conn, chance, actor.organization_id)
        await learned.learn(conn, [LearnedNetwork(int(NUMBERS[0][1:]), "643-03", learned.LOOKUP)])
        bench = Bench(pool, *await routing.load(conn), routes=await rules.active(conn))
        bench.book = await loading.load(conn)
        bench.charges.routes_by_network = True
        await bench.charges.refresh(conn)
        foretold = {}
        for to, traffic_class in product(NUMBERS, CLASSES):
            said = await explaining.explain(
                conn,
                to,
                organization_id=actor.organization_id,
                organization="acme",
                sender="ACME",
                traffic_class=traffic_class,
            )
            id = await message(pool, actor, to=to, traffic_class=traffic_class)
            foretold[id] = (next(iter(said.suppliers), None), said.ends)
    await bench.round(2)
    by = {
        one.message_id: account.supplier.name
        for id, account in bench.accounts.items()
        for one in bench.connectors[id].submitted
    }
    ended = await pool.fetch("SELECT id, failure_code FROM messages")
    assert {row["id"]: (by.get(row["id"]), row["failure_code"]) for row in ended} == foretold


async def test_what_keeps_a_message_back_whoever_its_supplier_is_told(pool: Pool) -> None:
    actor, other = await organization(pool), await organization(pool)

    async def told(conn: Connection, to: str = NUMBERS[0]) -> list[str]:
        said = await explaining.explain(
            conn, to, organization_id=actor.organization_id, organization="acme", sender="ACME", traffic_class="otp"
        )
        return [str(one) for one in said.withheld]

    async with pool.acquire() as conn:
        # For another organization, for a supplier, and older.
        theirs = Selection(kinds=("sms",), organization_id=other.organization_id)
        older = Selection(kinds=("sms",), before=await holds.ago(conn, timedelta(0)))
        for one in (theirs, older, Selection(kinds=("sms",), line=uuid7()), Selection(kinds=("webhook",))):
            await holds.hold(conn, one, reason="")
        assert await told(conn) == []
        await holds.hold(conn, Selection(kinds=("sms",), organization_id=actor.organization_id), reason="")
        assert await told(conn) == ["an operator holds SMS"]
        await guarding.configure(conn, actor.organization_id, policy="hold")
        await conn.execute(
            "INSERT INTO guard_holds (organization_id, id, range, kind, rules, score, policy, begun_at, until)"
            " VALUES ($1, $2, '25884123', 'block', '{pumping}', 9, 'hold', now(), '2100-01-31 08:30Z')",
            *(actor.organization_id, uuid7()),
        )
        await organizations.set_state(conn, id=actor.organization_id, state="suspended")
        assert await told(conn) == [
            "the organization is suspended",
            "an operator holds SMS",
            "the guard holds messages to numbers like this one until 2100-01-31 08:30 UTC",
        ]
        assert len(await told(conn, NUMBERS[1])) == 2, "the guard holds a block"
        await guarding.configure(conn, actor.organization_id, policy="refuse")
        assert "the guard refuses messages to numbers like this one until 2100-01-31 08:30 UTC" in await told(conn)
        await guarding.configure(conn, actor.organization_id, policy="ask")
        await holds.hold(conn, Selection(kinds=("sms",)), reason="", restored=True)
        assert (await told(conn))[1:] == [
            "an operator holds SMS",
            "SMS have been held since a backup was restored",
            "the guard refuses messages to numbers like this one until 2100-01-31 08:30 UTC, unless the sender has"
            " made sure that a person asked for them",
        ]
