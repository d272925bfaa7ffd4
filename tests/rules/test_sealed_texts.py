"""Texts of SMS sent by an organization that seals them: no table contains them, and they are gone with the key."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
import pytest

from heliograph.accounts import organizations
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Pool
from heliograph.base.errors import Invalid, Unavailable
from heliograph.base.ids import uuid7
from heliograph.base.process.settings import Settings
from heliograph.base.sentences import Check
from heliograph.privacy import holdings
from heliograph.queue.leases import Lease
from heliograph.sealing import text_keys
from heliograph.sealing.text_keys import Sealed
from heliograph.sms import checks, messages, timeline
from heliograph.sms.accepting.accept import Acceptor
from heliograph.sms.dispatch import claimed
from tests.rules.dispatching import Bench
from tests.rules.factories import organization, send
from tests.rules.test_accept import id_of
from tests.rules.test_campaigns import create, number, run
from tests.sealing import SETTINGS

pytestmark = pytest.mark.usefixtures("armed")

MARKER = "xylophone"

TABLES = """
SELECT c.oid::regclass::text AS name FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = 'public' AND c.relkind IN ('r', 'p') AND NOT c.relispartition ORDER BY 1
"""


async def sealing(pool: Pool, **values: Any) -> Actor:
    actor = await organization(pool, **values)
    async with pool.acquire() as conn:
        found = await text_keys.switch(conn, organization_id=actor.organization_id, on=True)
    assert (found.seals_texts, found.key) == (True, "kept")
    return actor


async def holding(pool: Pool, marker: str = MARKER) -> set[str]:
    """Tables in which any column of a row contains the marker, as text or as bytes."""
    tables = [row["name"] for row in await pool.fetch(TABLES)]
    assert len(tables) > 100
    looked = " UNION ALL ".join(
        f"SELECT '{name}' AS name WHERE EXISTS (SELECT FROM {name} t"
        " WHERE strpos(t::text, $1) > 0 OR strpos(t::text, $2) > 0)"
        for name in tables
    )
    return {row["name"] for row in await pool.fetch(looked, marker, marker.encode().hex())}


async def read(pool: Pool, actor: Actor, id: UUID) -> set[str | None]:
    """The text as each of its readers shows it."""
    async with pool.acquire() as conn:
        detail = await messages.get(conn, actor, id=id)
        many = await messages.texts(conn, actor, ids=[id])
        told = await timeline.of_message(conn, id=id, with_text=True)
        kept = [row async for row in holdings.held(conn, actor, address=detail.message.recipient)]
    return {detail.text, many.get(id), told.text, *(row["body"] for row in kept if row["id"] == id)}


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
        assert await read(pool, actor, id_of(answer)) == {f"code {MARKER} {n}"}
    async with pool.acquire() as conn:
        assert await messages.texts(conn, actor, ids=[id_of(one)], most=6) == {id_of(one): "code x"}


async def test_no_table_holds_what_a_campaign_says_and_everybody_reads_it(pool: Pool) -> None:
    actor = await sealing(pool)
    await create(pool, actor, text=f"hello {MARKER}", recipients=[number(1), number(2)])
    await run(pool)
    assert await holding(pool) == set()
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
    before = id_of(await Acceptor(pool).accept(send(actor, "before")))
    looks_sealed = id_of(await Acceptor(pool).accept(send(actor, "sealed:1: is how it begins")))
    async with pool.acquire() as conn:
        await text_keys.switch(conn, organization_id=actor.organization_id, on=True)
        during = id_of(await Acceptor(pool).accept(send(actor, "during")))
        await text_keys.switch(conn, organization_id=actor.organization_id, on=False)
        after = id_of(await Acceptor(pool).accept(send(actor, "after")))
        like_ours = id_of(await Acceptor(pool).accept(send(actor, "sealed:1:QUJDREVGR0g=")))
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
    id = id_of(await Acceptor(pool).accept(send(actor, MARKER)))
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
    later = id_of(await Acceptor(pool).accept(send(actor, f"again {MARKER}")))
    assert await read(pool, actor, later) == {f"again {MARKER}"}
    bench = Bench(pool)
    await bench.round()
    assert [one.text for one in bench.only.submitted] == [f"again {MARKER}"]
    assert await pool.fetchval("SELECT status FROM messages WHERE id = $1", id) == "expired"


async def test_without_the_secret_key_nothing_is_lost_or_stored_open(pool: Pool) -> None:
    actor, other = await sealing(pool), await organization(pool)
    id = id_of(await Acceptor(pool).accept(send(actor, MARKER)))
    text_keys._armed[:] = [text_keys.seal_key(Settings(secret_key="another secret key for the texts at rest"))]
    acceptor = Acceptor(pool)
    with pytest.raises(Unavailable):
        await acceptor.accept(send(actor, MARKER))
    assert (await acceptor.accept(send(other, "open"))).status == 202
    assert await read(pool, actor, id) == {None}
    due_at = await pool.fetchval("SELECT due_at FROM queue WHERE id = $1", id)
    lease = Lease("sms", uuid7(), UUID(int=0), 0, actor.organization_id, id, 0, False, due_at)
    async with pool.acquire() as conn:
        (found,) = await claimed.load(conn, [lease])
    assert (found.is_locked, found.body) == (True, None)
    assert await pool.fetchval("SELECT status FROM messages WHERE id = $1", id) == "accepted"
    text_keys.arm(SETTINGS)
    assert await read(pool, actor, id) == {MARKER}


#: A damaged key, and one whose row is missing; with what restores it.
KEY_LOSSES = {
    "damaged": (
        "UPDATE text_keys SET sealed = set_byte(sealed, 20, get_byte(sealed, 20) # 1) WHERE organization_id = $1"
    ),
    "missing": "DELETE FROM text_keys WHERE organization_id = $1",
}


@pytest.mark.parametrize("loss", KEY_LOSSES)
async def test_a_key_that_does_not_open_stops_its_own_organization_only(pool: Pool, loss: str) -> None:
    broken, whole = await sealing(pool), await sealing(pool)
    acceptor = Acceptor(pool)
    stuck = id_of(await acceptor.accept(send(broken, "stuck")))
    late = id_of(await acceptor.accept(send(broken, "late", validity_seconds=60)))
    await acceptor.accept(send(whole, "goes out"))
    kept = await pool.fetchrow("SELECT * FROM text_keys WHERE organization_id = $1", broken.organization_id)
    assert kept is not None
    await pool.execute(KEY_LOSSES[loss], broken.organization_id)
    # One of them could have expired since: a lost key is no reason to let it.
    await pool.execute("UPDATE messages SET expires_at = accepted_at WHERE id = $1", late)
    bench = Bench(pool)
    assert await bench.round() == 3
    assert [one.text for one in bench.only.submitted] == ["goes out"]
    statuses = await pool.fetch("SELECT status FROM messages WHERE organization_id = $1", broken.organization_id)
    assert [row["status"] for row in statuses] == ["accepted", "accepted"]
    # They wait: none of them is due, so the next rounds find nothing.
    assert await bench.round() == 0
    pauses = await pool.fetch(
        "SELECT due_at - now() BETWEEN interval '50 s' AND interval '60 s' AS waits, tries, attempt FROM queue"
        " WHERE kind = 'sms' AND organization_id = $1",
        broken.organization_id,
    )
    assert [tuple(row) for row in pauses] == [(True, 0, 0)] * 2

    told = await texts_of_doctor(pool)
    assert [one.state for one in told] == ["failed"]
    names = {
        actor: await pool.fetchval("SELECT name FROM organizations WHERE id = $1", actor.organization_id)
        for actor in (broken, whole)
    }
    assert names[broken] in told[0].detail
    assert names[whole] not in told[0].detail
    assert "text_keys" in told[0].remedy

    await pool.execute("DELETE FROM text_keys WHERE organization_id = $1", broken.organization_id)
    await pool.execute("INSERT INTO text_keys VALUES ($1, $2, $3, $4)", *kept.values())
    assert [one.state for one in await texts_of_doctor(pool)] == ["ok"]
    await pool.execute("UPDATE queue SET due_at = now() WHERE organization_id = $1", broken.organization_id)
    await bench.round()
    assert [one.text for one in bench.only.submitted] == ["goes out", "stuck"]
    assert await pool.fetchval("SELECT status FROM messages WHERE id = $1", stuck) == "sent"
    assert await pool.fetchval("SELECT status FROM messages WHERE id = $1", late) == "expired"


async def test_the_remedies_for_a_key_that_is_lost_for_good(pool: Pool) -> None:
    damaged, missing = await sealing(pool), await sealing(pool)
    for actor, loss in ((damaged, "damaged"), (missing, "missing")):
        await Acceptor(pool).accept(send(actor, "lost"))
        await pool.execute(KEY_LOSSES[loss], actor.organization_id)
    assert len(await texts_of_doctor(pool)) == 2
    async with pool.acquire() as conn:
        for state in ("closed", "active"):
            await organizations.set_state(conn, id=damaged.organization_id, state=state)
        await text_keys.switch(conn, organization_id=missing.organization_id, on=True)
    assert [one.state for one in await texts_of_doctor(pool)] == ["ok"]
    for actor in (damaged, missing):
        await Acceptor(pool).accept(send(actor, "readable"))
    bench = Bench(pool)
    await bench.round()
    assert [one.text for one in bench.only.submitted] == ["readable"] * 2
    assert await pool.fetchval("SELECT count(*) FROM messages WHERE status = 'expired'") == 2


@pytest.mark.fresh_database
async def test_the_check_of_keys_costs_the_same_however_many_texts_wait(pool: Pool) -> None:
    """Reading a thousand texts of each organization took longer than a web process's statement may, so without workers
    no check was made: not even the one that no worker is running."""
    rows_read = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'queue'"
    async with pool.acquire() as conn, conn.transaction():
        await conn.execute(
            """
INSERT INTO queue (kind, line, organization_id, due_at, id)
SELECT 'sms', $1, made.id, now(), gen_random_uuid()
  FROM (SELECT gen_random_uuid() AS id FROM generate_series(1, 20)) AS made, generate_series(1, 1000)
""",
            UUID(int=0),
        )
        before = await conn.fetchval(rows_read)
        assert (await text_keys.standing(conn)).missing == []
        assert await conn.fetchval(rows_read) - before < 1.1 * text_keys.TEXTS


async def texts_of_doctor(pool: Pool) -> list[Check]:
    async with pool.acquire() as conn:
        return [one for one in await checks.run(conn, SETTINGS) if one.check == "sealed texts"]


async def test_a_sealed_text_opens_in_its_own_row_only(pool: Pool) -> None:
    actor = await sealing(pool)
    one, other = [id_of(await Acceptor(pool).accept(send(actor, text))) for text in ("one", "other")]
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
