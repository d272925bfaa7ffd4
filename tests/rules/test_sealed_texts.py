"""Texts of SMS sent by an organization that seals them: no table holds them, and with the key they are gone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import msgspec
import pytest

from heliograph.accounts import organizations, text_keys
from heliograph.accounts.text_keys import Locked, Sealed
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Pool
from heliograph.base.errors import Invalid, Unavailable
from heliograph.base.ids import uuid7
from heliograph.base.process.settings import Settings
from heliograph.privacy import holdings
from heliograph.queue.leases import Lease
from heliograph.sms import messages, timeline
from heliograph.sms.accepting.accept import Acceptor
from heliograph.sms.dispatch import claimed
from tests.rules.dispatching import Bench
from tests.rules.factories import organization, send
from tests.rules.test_campaigns import create, number, run

SETTINGS = Settings(secret_key="a secret key for texts that lie at rest")
MARKER = "xylophone"
#: Where a text still stands when an organization seals its own: docs/decisions/0192 says why, and for how long.
READABLE = {"campaigns"}

TABLES = """
SELECT c.oid::regclass::text AS name FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = 'public' AND c.relkind IN ('r', 'p') AND NOT c.relispartition ORDER BY 1
"""


@pytest.fixture(autouse=True)
def armed() -> Iterator[None]:
    before = list(text_keys._armed)
    text_keys.arm(SETTINGS)
    yield
    text_keys._armed[:] = before


async def sealing(pool: Pool, **values: Any) -> Actor:
    actor = await organization(pool, **values)
    async with pool.acquire() as conn:
        found = await text_keys.switch(conn, organization_id=actor.organization_id, on=True)
    assert (found.seals_texts, found.key) == (True, "kept")
    return actor


async def holding(pool: Pool, marker: str = MARKER) -> set[str]:
    """Tables of which a row holds the marker in any column, as text or as bytes."""
    tables = [row["name"] for row in await pool.fetch(TABLES)]
    assert len(tables) > 100
    looked = " UNION ALL ".join(
        f"SELECT '{name}' AS name WHERE EXISTS (SELECT FROM {name} t"
        " WHERE strpos(t::text, $1) > 0 OR strpos(t::text, $2) > 0)"
        for name in tables
    )
    return {row["name"] for row in await pool.fetch(looked, marker, marker.encode().hex())}


async def read(pool: Pool, actor: Actor, id: UUID) -> set[str | None]:
    """What each of those who show a text say that it is."""
    async with pool.acquire() as conn:
        detail = await messages.get(conn, actor, id=id)
        many = await messages.texts(conn, actor, ids=[id])
        told = await timeline.of_message(conn, id=id, with_text=True)
        kept = [row async for row in holdings.held(conn, actor, address=detail.message.recipient)]
    return {detail.text, many.get(id), told.text, *(row["body"] for row in kept if row["id"] == id)}


def stored(answer: Any) -> UUID:
    return UUID(msgspec.json.decode(answer.body)["message"]["id"])


async def test_no_table_holds_what_was_sent_and_the_handset_gets_it(pool: Pool) -> None:
    actor = await sealing(pool)
    acceptor = Acceptor(pool)
    one = await acceptor.accept(send(actor, f"code {MARKER} 1", key_name="k"))
    two, three = await acceptor.accept_many([send(actor, f"code {MARKER} {n}") for n in (2, 3)])
    again = await Acceptor(pool).accept(send(actor, f"code {MARKER} 1", key_name="k"))
    assert (again.body, again.replayed) == (one.body, True)
    assert await holding(pool) == set()
    bench = Bench(pool)
    await bench.round()
    assert {one.text for one in bench.only.submitted} == {f"code {MARKER} {n}" for n in (1, 2, 3)}
    assert await holding(pool) == set()
    for n, answer in enumerate((one, two, three), start=1):
        assert await read(pool, actor, stored(answer)) == {f"code {MARKER} {n}"}
    async with pool.acquire() as conn:
        assert await messages.texts(conn, actor, ids=[stored(one)], most=6) == {stored(one): "code x"}


async def test_a_campaign_leaves_its_template_and_nothing_else(pool: Pool) -> None:
    actor = await sealing(pool)
    await create(pool, actor, text=f"hello {MARKER}", recipients=[number(1), number(2)])
    await run(pool)
    assert await holding(pool) == READABLE
    assert await pool.fetchval("SELECT count(DISTINCT body) FROM messages") == 2
    bench = Bench(pool)
    await bench.round()
    assert [one.text for one in bench.only.submitted] == [f"hello {MARKER}"] * 2


async def test_a_campaign_may_begin_as_sealed_texts_do(pool: Pool) -> None:
    actor = await sealing(pool)
    async with pool.acquire() as conn:
        await text_keys.switch(conn, organization_id=actor.organization_id, on=False)
    await create(pool, actor, text="sealed:1:QUJD", recipients=[number(1), number(2)])
    await run(pool)
    bench = Bench(pool)
    await bench.round()
    assert [one.text for one in bench.only.submitted] == ["sealed:1:QUJD"] * 2


async def test_texts_from_before_and_after_the_switch_stand_side_by_side(pool: Pool) -> None:
    actor = await organization(pool)
    before = stored(await Acceptor(pool).accept(send(actor, "before")))
    looks_sealed = stored(await Acceptor(pool).accept(send(actor, "sealed:1: is how it begins")))
    async with pool.acquire() as conn:
        await text_keys.switch(conn, organization_id=actor.organization_id, on=True)
        during = stored(await Acceptor(pool).accept(send(actor, "during")))
        await text_keys.switch(conn, organization_id=actor.organization_id, on=False)
        after = stored(await Acceptor(pool).accept(send(actor, "after")))
        like_ours = stored(await Acceptor(pool).accept(send(actor, "sealed:1:QUJDREVGR0g=")))
        bodies = [row["body"] for row in await conn.fetch("SELECT body FROM messages ORDER BY id")]
        assert [text_keys.is_marked(one) for one in bodies] == [False, True, True, False, True]
        assert await messages.texts(conn, actor, ids=[before, looks_sealed, during, after, like_ours]) == {
            before: "before",
            looks_sealed: "sealed:1: is how it begins",
            during: "during",
            after: "after",
            like_ours: "sealed:1:QUJDREVGR0g=",
        }
        told = await conn.fetch(
            "SELECT before, after FROM audit_log WHERE action = 'organization.configured' ORDER BY id"
        )
    assert [msgspec.json.decode(row["after"]) for row in told] == [{"seals_texts": True}, {"seals_texts": False}]


async def test_closing_throws_the_key_away_for_good(pool: Pool) -> None:
    actor = await sealing(pool)
    id = stored(await Acceptor(pool).accept(send(actor, MARKER)))
    whose = actor.organization_id
    async with pool.acquire() as conn:
        await organizations.set_state(conn, id=whose, state="suspended")
        assert (await text_keys.get(conn, organization_id=whose)).key == "kept"
        await organizations.set_state(conn, id=whose, state="closed")
        assert (await text_keys.get(conn, organization_id=whose)).key == "destroyed"
        with pytest.raises(Invalid):
            await text_keys.switch(conn, organization_id=whose, on=True)
    assert await read(pool, actor, id) == {None}
    async with pool.acquire() as conn:
        await organizations.set_state(conn, id=whose, state="active")
        assert (await text_keys.get(conn, organization_id=whose)).key == "kept"
    assert await read(pool, actor, id) == {None}
    later = stored(await Acceptor(pool).accept(send(actor, f"again {MARKER}")))
    assert await read(pool, actor, later) == {f"again {MARKER}"}
    bench = Bench(pool)
    await bench.round()
    assert [one.text for one in bench.only.submitted] == [f"again {MARKER}"]
    assert await pool.fetchval("SELECT status FROM messages WHERE id = $1", id) == "expired"


async def test_without_the_secret_key_nothing_is_lost_or_stored_open(pool: Pool) -> None:
    actor, other = await sealing(pool), await organization(pool)
    id = stored(await Acceptor(pool).accept(send(actor, MARKER)))
    text_keys._armed[:] = [text_keys.seal_key(Settings(secret_key="another secret key for the texts at rest"))]
    acceptor = Acceptor(pool)
    with pytest.raises(Unavailable):
        await acceptor.accept(send(actor, MARKER))
    assert (await acceptor.accept(send(other, "open"))).status == 202
    assert await read(pool, actor, id) == {None}
    due_at = await pool.fetchval("SELECT due_at FROM queue WHERE id = $1", id)
    lease = Lease("sms", uuid7(), UUID(int=0), 0, actor.organization_id, id, 0, False, due_at)
    async with pool.acquire() as conn:
        with pytest.raises(Locked):
            await claimed.load(conn, [lease])
    assert await pool.fetchval("SELECT status FROM messages WHERE id = $1", id) == "accepted"
    text_keys.arm(SETTINGS)
    assert await read(pool, actor, id) == {MARKER}


async def test_a_sealed_text_opens_in_its_own_row_only(pool: Pool) -> None:
    actor = await sealing(pool)
    one, other = [stored(await Acceptor(pool).accept(send(actor, text))) for text in ("one", "other")]
    await pool.execute(
        "UPDATE messages SET body = (SELECT body FROM messages WHERE id = $2) WHERE organization_id = $3 AND id = $1",
        one,
        other,
        actor.organization_id,
    )
    assert await read(pool, actor, one) == {None}
    assert await read(pool, actor, other) == {"other"}


async def test_there_is_a_key_only_where_it_was_asked_for(pool: Pool) -> None:
    actor = await organization(pool)
    async with pool.acquire() as conn:
        assert await text_keys.get(conn, organization_id=actor.organization_id) == Sealed(False, "none", None)
        await organizations.set_state(conn, id=actor.organization_id, state="closed")
        await organizations.set_state(conn, id=actor.organization_id, state="active")
        text_keys._armed.clear()
        with pytest.raises(Invalid):
            await text_keys.switch(conn, organization_id=actor.organization_id, on=True)
        assert await text_keys.get(conn, organization_id=actor.organization_id) == Sealed(False, "none", None)
