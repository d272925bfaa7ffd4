"""Dispatch with rules for senders and numbers: the sender, the supplier, and the format of a number."""

from __future__ import annotations

from uuid import UUID, uuid4

import msgspec
import pytest

from heliograph.base.actor import Actor
from heliograph.base.database.pool import Pool
from heliograph.base.errors import NotFound
from heliograph.base.ids import uuid7
from heliograph.prices import rows, tariffs
from heliograph.queue import timers
from heliograph.routes import rules as routes
from heliograph.routes.lookup import Choice, Route
from heliograph.senders import loading, numbers, owners, registrations, rules
from heliograph.senders.book import Book, NumberRule, SenderRule
from heliograph.sms import timeline
from heliograph.sms.dispatch import explaining
from heliograph.sms.dispatch.routing import Supplier
from heliograph.sms.received import inbound, inbox
from heliograph.suppliers.contract import Inbound
from tests.rules.dispatching import Bench
from tests.rules.factories import SENDER, TO, message, organization, sender, status_of, supplier


async def stored(pool: Pool, name: str) -> Supplier:
    """A supplier and its row, which rules refer to."""
    one = supplier(name, id=uuid7())
    await pool.execute(
        "INSERT INTO suppliers (id, name, kind, settings, secret, created_at, changed_at)"
        " VALUES ($1, $2, 'smpp', '{}', '', now(), now())",
        one.id,
        one.name,
    )
    return one


async def pair(pool: Pool) -> tuple[Supplier, Supplier, Bench]:
    """Two suppliers, in order of priority, and a worker."""
    main, backup = await stored(pool, "main"), await stored(pool, "backup")
    routes = [Route(id=uuid7(), name="all", choices=(Choice(main.id, 1), Choice(backup.id, 2)))]
    return main, backup, Bench(pool, main, backup, routes=routes)


async def read(pool: Pool) -> Book:
    async with pool.acquire() as conn:
        return await loading.load(conn)


async def because(pool: Pool, id: UUID) -> list[str]:
    async with pool.acquire() as conn:
        told = await timeline.of_message(conn, id=id)
    return [one.detail["because"] for one in told.entries if one.what == "attempt"]


async def from_number(pool: Pool, actor: Actor, number: str) -> UUID:
    """A message whose sender is a number."""
    sender_id = await sender(pool, actor, number)
    id = await message(pool, actor)
    await pool.execute("UPDATE messages SET sender = $2, sender_id = $3 WHERE id = $1", id, number, sender_id)
    return id


#: The supplier's prices for names, and for short codes.
CARD = "country,sender_type,price,currency\nMZ,alphanumeric,0.05,EUR\nMZ,short,0.01,EUR\n"


async def rated(pool: Pool, one: Supplier, text: str) -> None:
    async with pool.acquire() as conn:
        given = rows.read(text.splitlines(keepends=True))
        await tariffs.import_rates(conn, given, kind="cost", name=one.name, supplier_id=one.id)


async def test_a_supplier_charges_for_the_sender_that_it_is_told(pool: Pool) -> None:
    actor = await organization(pool)
    main, _, bench = await pair(pool)
    await rated(pool, main, CARD)
    await bench.charges.refresh(pool)
    await message(pool, actor)
    await bench.round()
    rule = SenderRule(id=uuid4(), supplier_id=main.id, country="MZ", action="replace", replacement="90210")
    async with pool.acquire() as conn:
        await rules.put(conn, rule)
    bench.book = await read(pool)
    await message(pool, actor)
    await bench.round()
    found = await pool.fetch(
        "SELECT sent_as, a.cost, m.cost AS of_message FROM attempts a JOIN messages m ON m.id = a.message_id"
        " ORDER BY m.id"
    )
    assert [tuple(row) for row in found] == [(None, 50_000, 50_000), ("90210", 10_000, 10_000)]


@pytest.mark.parametrize(("kind", "asked"), [("short", "main"), ("alphanumeric", "backup")])
async def test_a_route_wants_a_price_for_the_sender_that_is_told(pool: Pool, kind: str, asked: str) -> None:
    """The decision of a worker, and of an explanation in advance."""
    actor = await organization(pool)
    main, backup = await stored(pool, "main"), await stored(pool, "backup")
    await rated(pool, main, f"country,sender_type,price,currency\nMZ,{kind},0.01,EUR\n")
    await rated(pool, backup, "country,sender_type,price,currency\nMZ,alphanumeric,0.03,EUR\n")
    rule = SenderRule(id=uuid4(), supplier_id=main.id, country="MZ", action="replace", replacement="90210")
    choices = (Choice(main.id, 1), Choice(backup.id, 2))
    async with pool.acquire() as conn:
        await rules.put(conn, rule)
        route = await routes.add(conn, Route(id=uuid7(), name="all", prefix="258", rated=True, choices=choices))
    bench = Bench(pool, main, backup, routes=[route])
    bench.book = await read(pool)
    await bench.charges.refresh(pool)
    await message(pool, actor)
    await bench.round()
    assert [one.name for one in (main, backup) if bench.connectors[one.id].submitted] == [asked]
    await pool.execute(
        "INSERT INTO supplier_sessions SELECT id, 0, $1, now() + interval '1 min', true, true FROM suppliers", uuid7()
    )
    async with pool.acquire() as conn:
        said = await explaining.explain(
            conn,
            TO,
            organization_id=actor.organization_id,
            organization="acme",
            sender=SENDER,
            traffic_class="transactional",
        )
    assert said.suppliers[0] == asked


@pytest.mark.parametrize("out", ["unrated", "barred"])
async def test_what_only_a_paused_supplier_may_carry_waits_for_it(pool: Pool, out: str) -> None:
    """Whatever keeps the message from the others; an explanation says the same."""
    actor = await organization(pool)
    main, other = await stored(pool, "main"), await stored(pool, "other")
    await rated(pool, main, "country,price,currency\nMZ,0.01,EUR\n")
    choices = (Choice(main.id, 1), Choice(other.id, 2))
    wanted = Route(id=uuid7(), name="all", prefix="258", rated=out == "unrated", choices=choices)
    async with pool.acquire() as conn:
        route = await routes.add(conn, wanted)
        if out == "barred":
            await rules.put(conn, SenderRule(id=uuid4(), supplier_id=other.id, action="refuse"))
    bench = Bench(pool, main, other, routes=[route])
    bench.book = await read(pool)
    await bench.charges.refresh(pool)

    async def paused(state: str, one: Supplier) -> None:
        bench.accounts[one.id].supplier = msgspec.structs.replace(one, state=state)
        await pool.execute("UPDATE suppliers SET state = $2 WHERE id = $1", one.id, state)

    async def said() -> explaining.Explanation:
        async with pool.acquire() as conn:
            return await explaining.explain(
                conn,
                TO,
                organization_id=actor.organization_id,
                organization="acme",
                sender=SENDER,
                traffic_class="transactional",
            )

    await paused("paused", main)
    id = await message(pool, actor)
    await bench.round(2)
    assert await status_of(pool, id) == "accepted"
    assert ((await said()).suppliers, (await said()).ends) == ([], None)
    await paused("active", main)
    await bench.later(seconds=2)
    bench.restart()  # it polls all lines at its start
    await bench.round(2)
    assert [one.message_id for one in bench.connectors[main.id].submitted] == [id]
    # Neither may ever get it: it ends, as explained in advance, and costs nothing, since no supplier was asked.
    async with pool.acquire() as conn:
        await rules.put(conn, SenderRule(id=uuid4(), supplier_id=main.id, action="refuse"))
    bench.book = await read(pool)
    id = await message(pool, actor)
    await bench.round()
    ended = await pool.fetchval("SELECT failure_code FROM messages WHERE id = $1", id)
    assert ended == (await said()).ends == {"unrated": "destination_unreachable", "barred": "sender_not_approved"}[out]
    assert await pool.fetchval("SELECT count(*) FROM usage_ledger WHERE type = 'refund' AND message_id = $1", id) == 1


async def test_what_nobody_has_a_price_for_is_said_to_end(pool: Pool) -> None:
    actor = await organization(pool)
    main = await stored(pool, "main")
    async with pool.acquire() as conn:
        wanted = Route(id=uuid7(), name="all", prefix="258", rated=True, choices=(Choice(main.id, 1),))
        await routes.add(conn, wanted)
        said = await explaining.explain(
            conn,
            TO,
            organization_id=actor.organization_id,
            organization="acme",
            sender=SENDER,
            traffic_class="transactional",
        )
    assert (said.suppliers, said.ends) == ([], "destination_unreachable")


async def test_a_supplier_sends_as_its_rules_say_and_another_takes_what_it_refuses(pool: Pool) -> None:
    actor = await organization(pool)
    main, backup, bench = await pair(pool)
    rule = SenderRule(id=uuid4(), supplier_id=main.id, country="MZ", action="replace", replacement="INFO")
    async with pool.acquire() as conn:
        await rules.put(conn, rule)
    bench.book = await read(pool)
    await message(pool, actor)
    await bench.round()
    assert [one.sender for one in bench.connectors[main.id].submitted] == ["INFO"]
    # Stored with the attempt, and shown with the message.
    (first,) = await pool.fetch("SELECT message_id, sent_as FROM attempts")
    assert first["sent_as"] == "INFO"
    async with pool.acquire() as conn:
        entries = (await timeline.of_message(conn, id=first["message_id"])).entries
    assert [one.detail.get("sent_as") for one in entries if one.what == "answer"] == ["INFO"]
    async with pool.acquire() as conn:
        await rules.put(conn, SenderRule(id=uuid4(), supplier_id=main.id, country="MZ", action="refuse"))
    bench.book = await read(pool)
    id = await message(pool, actor)
    await bench.round()
    assert [(one.message_id, one.sender) for one in bench.connectors[backup.id].submitted] == [(id, SENDER)]
    said = "any destination (route all): backup; main skipped: its rules refuse the sender there"
    assert await because(pool, id) == [said]
    assert await pool.fetchval("SELECT sent_as FROM attempts WHERE message_id = $1", id) is None
    # No supplier is left: it ends, and costs nothing.
    async with pool.acquire() as conn:
        await rules.put(conn, SenderRule(id=uuid4(), supplier_id=backup.id, action="refuse"))
    bench.book = await read(pool)
    id = await message(pool, actor)
    await bench.round()
    row = await pool.fetchrow("SELECT status, failure_code FROM messages WHERE id = $1", id)
    assert tuple(row) == ("rejected", "sender_not_approved")
    assert await pool.fetchval("SELECT count(*) FROM usage_ledger WHERE type = 'refund' AND message_id = $1", id) == 1


async def test_a_sender_goes_once_it_is_registered(pool: Pool) -> None:
    actor = await organization(pool)
    main, backup, bench = await pair(pool)
    sender_id = await pool.fetchval("SELECT id FROM sender_ids WHERE organization_id = $1", actor.organization_id)

    async def register(state: str) -> list[UUID]:
        """Which supplier carries a message in this state."""
        async with pool.acquire() as conn:
            await registrations.put(
                conn,
                organization_id=actor.organization_id,
                sender_id=sender_id,
                sender=SENDER,
                country="MZ",
                supplier_id=main.id,
                state=state,
            )
        bench.book = await read(pool)
        for connector in bench.connectors.values():
            connector.submitted.clear()
        await message(pool, actor)
        await bench.round()
        return [id for id, connector in bench.connectors.items() if connector.submitted]

    assert await register("asked") == [main.id], "no rule asks for it"
    assert await register("refused") == [backup.id]
    async with pool.acquire() as conn:
        await rules.put(conn, SenderRule(id=uuid4(), supplier_id=main.id, country="MZ", action="register"))
    assert await register("pending") == [backup.id]
    assert await register("registered") == [main.id]
    told = await pool.fetch("SELECT after FROM audit_log WHERE action = 'sender_id.registered' ORDER BY at")
    assert len(told) == 4
    assert not any("main" in row["after"] or str(main.id) in row["after"] for row in told), "customers read it"
    async with pool.acquire() as conn:
        (standing,) = await registrations.standing(conn, organization_id=actor.organization_id, sender_ids=[sender_id])
    assert (standing.country, standing.state) == ("MZ", "registered")


async def test_what_a_number_sends_leaves_by_its_own_supplier(pool: Pool) -> None:
    actor = await organization(pool)
    main, backup, bench = await pair(pool)
    async with pool.acquire() as conn:
        await owners.note(conn, [("90210", backup.id)])
    bench.book = await read(pool)
    id = await from_number(pool, actor, "90210")
    named = await message(pool, actor)
    await bench.round()
    assert [one.message_id for one in bench.connectors[backup.id].submitted] == [id]
    assert [one.message_id for one in bench.connectors[main.id].submitted] == [named]
    assert await because(pool, id) == ["any destination (route all): backup"]
    # It waits for its supplier, and goes nowhere else.
    bench.connectors[backup.id].sessions = 0
    waiting = await from_number(pool, await organization(pool), "90210")
    await bench.round()
    assert await pool.fetchval("SELECT line FROM queue WHERE id = $1", waiting) == backup.id
    assert len(bench.connectors[main.id].submitted) == 1


async def test_a_route_that_does_not_name_the_owner_gives_way(pool: Pool) -> None:
    actor = await organization(pool)
    main, owner = await stored(pool, "main"), await stored(pool, "owner")
    bench = Bench(pool, main, owner, routes=[Route(id=uuid7(), name="all", choices=(Choice(main.id),))])
    async with pool.acquire() as conn:
        await owners.note(conn, [("90210", owner.id)])
    bench.book = await read(pool)
    id = await from_number(pool, actor, "90210")
    await bench.round()
    assert [one.message_id for one in bench.connectors[owner.id].submitted] == [id]
    assert await because(pool, id) == ["the sender's number belongs to its supplier: owner"]
    # A supplier through which nothing has arrived for a long time owns nothing.
    await pool.execute("UPDATE sender_owners SET seen_at = now() - $1::interval", owners.KEPT)
    bench.book = await read(pool)
    later = await from_number(pool, await organization(pool), "90210")
    await bench.round()
    assert [one.message_id for one in bench.connectors[main.id].submitted] == [later]


async def test_a_number_leaves_the_supplier_whose_rule_refuses_it(pool: Pool) -> None:
    """Until a message arrived at its new supplier, messages from the number used to go to the old one, or end there."""
    actor = await organization(pool)
    main, backup, bench = await pair(pool)
    async with pool.acquire() as conn:
        await owners.note(conn, [("90210", main.id)])
        at_home = SenderRule(id=uuid4(), supplier_id=main.id, sender="90210", country="MZ", action="refuse")
        await rules.put(conn, at_home)
    bench.book = await read(pool)
    # In one country only, its owner is still the only one that may use it.
    stuck = await from_number(pool, actor, "90210")
    await bench.round()
    assert await status_of(pool, stuck) == "rejected"
    async with pool.acquire() as conn:
        await rules.put(conn, SenderRule(id=uuid4(), supplier_id=main.id, sender="90210", action="refuse"))
    bench.book = await read(pool)
    id = await from_number(pool, await organization(pool), "90210")
    await bench.round()
    assert [one.message_id for one in bench.connectors[backup.id].submitted] == [id]
    assert bench.connectors[main.id].submitted == []
    # Both own it once a message has arrived at the new one, and the old one gets nothing back.
    async with pool.acquire() as conn:
        await owners.note(conn, [("90210", backup.id)])
    bench.book = await read(pool)
    assert bench.book.owners("90210") == (backup.id,)


async def test_a_name_belongs_to_no_supplier(pool: Pool) -> None:
    """Receipts that a supplier does not mark are stored as messages to the sender's name."""
    actor = await organization(pool)
    main, backup, bench = await pair(pool)
    async with pool.acquire() as conn:
        await timers.ensure(conn, inbox.TIMER)
        await inbound.store(conn, backup.id, [Inbound("258841234567", SENDER, "id:7 stat:DELIVRD err:000", b"raw")])
        assert (await inbox.process_due(conn)).rows == 1
    assert await pool.fetchval("SELECT recipient FROM received_messages") == SENDER
    bench.book = await read(pool)
    id = await message(pool, actor)
    await bench.round()
    assert [one.message_id for one in bench.connectors[main.id].submitted] == [id]


async def test_a_number_does_not_belong_to_who_does_not_mark_its_receipts(pool: Pool) -> None:
    """They are stored as messages to the sender's number, which says nothing about its owner."""
    actor = await organization(pool)
    main, backup, _ = await pair(pool)
    await sender(pool, actor, "90210")
    said = "id:7 sub:001 dlvrd:001 submit date:2611281200 done date:2611281200 stat:DELIVRD err:000 text:"
    for supplier_id, text in ((backup.id, said), (main.id, "the stat: is DELIVRD, says id:7")):
        async with pool.acquire() as conn:
            await timers.ensure(conn, inbox.TIMER)
            await inbound.store(conn, supplier_id, [Inbound("258841234567", "90210", text, b"raw")])
            assert (await inbox.process_due(conn)).rows == 1
    assert await pool.fetchval("SELECT count(*) FROM received_messages WHERE recipient = '90210'") == 2
    async with pool.acquire() as conn:
        assert await owners.recent(conn) == [("90210", main.id)]


async def test_a_number_is_written_as_the_supplier_wants_it_and_stays_what_it_is(pool: Pool) -> None:
    actor = await organization(pool)
    main, _, bench = await pair(pool)
    rule = NumberRule(
        id=uuid4(),
        supplier_id=main.id,
        prefix="549",
        strip="549",
        prepend="54",
        numbering=(2, 8),
        sender_numbering=(0, 1),
    )
    async with pool.acquire() as conn:
        await numbers.put(conn, rule)
    bench.book = await read(pool)
    await message(pool, actor, to="+5491123456789")
    await message(pool, actor)
    await bench.round()
    first, second = sorted(bench.connectors[main.id].submitted, key=lambda one: one.to, reverse=True)
    assert (first.to, first.address, first.numbering, first.sender_numbering) == (
        "5491123456789",
        "541123456789",
        (2, 8),
        (0, 1),
    )
    assert (second.address, second.numbering, second.sender_numbering) == ("", None, None)


async def test_every_change_is_noticed_and_in_the_audit_log(pool: Pool) -> None:
    main = await stored(pool, "main")
    seen = [await loading.version(pool)]
    async with pool.acquire() as conn:
        rule = SenderRule(id=uuid4(), supplier_id=main.id, action="refuse")
        first = await rules.put(conn, rule)
        seen.append(await loading.version(pool))
        again = SenderRule(id=uuid4(), supplier_id=main.id, action="allow")
        assert await rules.put(conn, again) == first, "one rule for the same"
        seen.append(await loading.version(pool))
        await rules.remove(conn, first)
        seen.append(await loading.version(pool))
        second = await numbers.put(conn, NumberRule(id=uuid4(), supplier_id=main.id, prepend="00"))
        seen.append(await loading.version(pool))
        await numbers.remove(conn, second)
        seen.append(await loading.version(pool))
        await owners.note(conn, [("90210", main.id)])
        seen.append(await loading.version(pool))
        await owners.note(conn, [("90210", main.id)])
        assert await loading.version(pool) == seen[-1], "nothing new"
        with pytest.raises(NotFound):
            await rules.remove(conn, first)
        with pytest.raises(NotFound):
            await numbers.remove(conn, second)
    assert seen == sorted(set(seen))
    actions = await pool.fetch("SELECT action FROM audit_log ORDER BY at")
    assert [row["action"] for row in actions] == [
        "sender_rule.changed",
        "sender_rule.changed",
        "sender_rule.removed",
        "number_rule.changed",
        "number_rule.removed",
    ]
    assert not (await read(pool)).judges
