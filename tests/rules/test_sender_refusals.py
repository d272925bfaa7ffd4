"""A sender that no supplier carries to a country is refused before it costs anything, and only then."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from heliograph.base.database.pool import Pool
from heliograph.base.errors import Refusal
from heliograph.base.ids import uuid7
from heliograph.consent.optouts import RecipientOptedOut
from heliograph.senders import registrations, rules
from heliograph.senders.book import SenderRule
from heliograph.sms.accepting import preview
from heliograph.sms.accepting.accept import Acceptor
from heliograph.sms.accepting.sender_ids import SenderIdNotAllowed
from tests.rules.factories import SENDER, organization, send

ADD = """
INSERT INTO suppliers (id, name, kind, settings, secret, prefixes, created_at, changed_at)
VALUES ($1, $2, 'smpp', '{}', '', $3, now(), now())
"""


async def add(pool: Pool, name: str, *prefixes: str) -> UUID:
    id = uuid7()
    await pool.execute(ADD, id, name, list(prefixes))
    return id


async def refuse(pool: Pool, supplier_id: UUID, **values: object) -> None:
    rule = SenderRule(**{"id": uuid4(), "supplier_id": supplier_id, "action": "refuse", **values})  # type: ignore[arg-type]
    async with pool.acquire() as conn:
        await rules.put(conn, rule)


async def test_what_nobody_carries_is_refused_and_costs_nothing(pool: Pool) -> None:
    actor = await organization(pool)
    main, backup = await add(pool, "main"), await add(pool, "backup", "258")
    await refuse(pool, main, country="MZ")
    acceptor = Acceptor(pool)
    assert (await acceptor.accept(send(actor))).status == 202, "the other one carries it"
    await refuse(pool, backup)
    acceptor = Acceptor(pool)
    with pytest.raises(SenderIdNotAllowed) as caught:
        await acceptor.accept(send(actor, key_name="k"))
    sender_id = await pool.fetchval("SELECT id FROM sender_ids WHERE organization_id = $1", actor.organization_id)
    assert (caught.value.code, caught.value.status) == ("sender_id_not_allowed", 409)
    assert caught.value.details == {"senderId": str(sender_id), "country": "MZ", "registration": None}
    assert (await acceptor.accept(send(actor, to="+351912345678"))).status == 202, "another country"
    async with pool.acquire() as conn:
        with pytest.raises(SenderIdNotAllowed):
            await preview.preview(conn, acceptor, send(actor))
    assert await pool.fetchval("SELECT used FROM quotas WHERE organization_id = $1", actor.organization_id) == 2
    # A refused key is free.
    await pool.execute("DELETE FROM sender_rules")
    acceptor = Acceptor(pool)
    assert (await acceptor.accept(send(actor, key_name="k"))).status == 202
    await acceptor.drain()


async def test_what_waits_for_its_registration_says_how_far_that_is(pool: Pool) -> None:
    actor = await organization(pool)
    main = await add(pool, "main")
    sender_id = await pool.fetchval("SELECT id FROM sender_ids WHERE organization_id = $1", actor.organization_id)
    await refuse(pool, main, country="MZ", action="register")
    for state in ("asked", "pending", "registered"):
        async with pool.acquire() as conn:
            await registrations.put(
                conn,
                organization_id=actor.organization_id,
                sender_id=sender_id,
                sender=SENDER,
                country="MZ",
                state=state,
            )
        acceptor = Acceptor(pool)
        (answer,) = await acceptor.accept_many([send(actor)])
        if state == "registered":
            assert not isinstance(answer, Refusal)
        else:
            assert isinstance(answer, SenderIdNotAllowed)
            assert answer.details["registration"] == state
        await acceptor.drain()


async def test_a_test_message_and_a_country_that_nobody_carries_to_are_no_matter_of_senders(pool: Pool) -> None:
    main = await add(pool, "main", "351")
    await refuse(pool, main)
    acceptor = Acceptor(pool)
    live, test = await organization(pool), await organization(pool, mode="test")
    assert (await acceptor.accept(send(live))).status == 202
    assert (await acceptor.accept(send(test, to="+351912345678"))).status == 202
    await acceptor.drain()


async def test_an_opt_out_comes_before_a_sender_that_nobody_carries_in_a_preview_too(pool: Pool) -> None:
    actor = await organization(pool)
    await refuse(pool, await add(pool, "main"))
    wanted, acceptor = send(actor), Acceptor(pool)
    await pool.execute("INSERT INTO opt_outs VALUES ($1, $2, now(), 'test')", actor.organization_id, wanted.to)
    with pytest.raises(RecipientOptedOut):
        await acceptor.accept(wanted)
    async with pool.acquire() as conn:
        with pytest.raises(RecipientOptedOut):
            await preview.preview(conn, acceptor, wanted)
    await acceptor.drain()
