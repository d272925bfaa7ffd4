"""Texts stored by people of an organization that seals them: saved texts, and drafts of campaigns."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from heliograph.accounts import organizations
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Pool
from heliograph.campaigns import drafts, plan, record
from heliograph.campaigns.channels.sms import SmsCampaignSpec
from heliograph.campaigns.views import preview
from heliograph.sealing import text_keys
from heliograph.sms.by_hand import saved_texts
from heliograph.webhooks.recording import feed
from tests.rules.factories import organization
from tests.rules.test_campaigns import create, number, run
from tests.rules.test_sealed_texts import KEY_LOSSES, MARKER, holding, sealing

pytestmark = pytest.mark.usefixtures("armed")


@pytest.fixture
async def sealed(pool: Pool) -> Actor:
    return await sealing(pool)


async def test_saved_texts_are_sealed_and_read(pool: Pool, sealed: Actor) -> None:
    async with pool.acquire() as conn:
        made = await saved_texts.create(conn, sealed, name="hello", body=MARKER)
        assert made.body == MARKER
        assert await holding(pool) == set()
        assert (await saved_texts.get(conn, sealed, id=made.id)).body == MARKER
        await saved_texts.change(conn, sealed, id=made.id, name="hello", body="\u20ac" * 1590 + MARKER)
        assert await holding(pool) == set()
        assert [one.body[-9:] for one in await saved_texts.list_all(conn, sealed)] == [MARKER]
        await organizations.set_state(conn, id=sealed.organization_id, state="closed")
        assert [one.body for one in await saved_texts.list_all(conn, sealed)] == [""]
    other = await organization(pool)
    async with pool.acquire() as conn:
        plain = await saved_texts.create(conn, other, name="hello", body="sealed:1:QUJD")
        assert (await saved_texts.get(conn, other, id=plain.id)).body == "sealed:1:QUJD"


async def test_drafts_of_campaigns_are_sealed_and_read(pool: Pool, sealed: Actor) -> None:
    id = uuid4()
    fields = {"name": "spring", "text": MARKER}
    async with pool.acquire() as conn:
        await drafts.save(conn, sealed, id=id, fields=fields, numbers=["+258841234567"])
        assert await holding(pool) == set()
        assert (await drafts.get(conn, sealed, id=id)).fields == fields
        assert [one.fields for one in await drafts.list_all(conn, sealed)] == [fields]
        await organizations.set_state(conn, id=sealed.organization_id, state="closed")
        assert (await drafts.get(conn, sealed, id=id)).fields == {}


async def templates(pool: Pool, actor: Actor, id: UUID) -> set[Any]:
    """A campaign's text as each of its readers shows it."""
    async with pool.acquire() as conn:
        one = await record.get(conn, actor, id=id)
        (listed,) = await record.list_page(conn, actor, after=None, limit=5)
        ((_, everywhere),) = await record.list_everywhere(conn, organization_id=actor.organization_id, limit=5)
    return {found.content["message_template"] for found in (one, listed, everywhere)}


async def duplicates(pool: Pool, actor: Actor, text: str) -> list[UUID]:
    spec = SmsCampaignSpec(name="again", message_template=text, recipients=[number(1)])
    async with pool.acquire() as conn:
        return [one.id for one in await preview.duplicates(conn, actor, spec=spec)]


async def test_what_a_campaign_says_is_sealed_and_read(pool: Pool, sealed: Actor) -> None:
    made = await create(pool, sealed, text=MARKER, recipients=[number(1)], messages_per_minute=60)
    assert made.content["message_template"] == MARKER
    assert await holding(pool) == set()
    assert await templates(pool, sealed, made.id) == {MARKER}
    assert (await duplicates(pool, sealed, MARKER), await duplicates(pool, sealed, "other")) == ([made.id], [])
    async with pool.acquire() as conn, conn.transaction():
        paced = await plan.change_pace(conn, sealed, id=made.id, messages_per_minute=90)
    assert paced.content["message_template"] == MARKER
    await run(pool)
    await pool.execute("UPDATE campaigns SET queued = 0, delivered = 1 WHERE id = $1", made.id)
    async with pool.acquire() as conn, conn.transaction():
        moved = await plan.move(conn, sealed.organization_id, made.id, "completed")
    assert moved is not None
    assert await holding(pool) == set()
    id = await pool.fetchval("SELECT id FROM events WHERE kind = 'campaign.completed'")
    async with pool.acquire() as conn:
        (event,) = await feed.get_many(conn, sealed, ids=[id])
    assert msgspec.json.decode(event.data)["campaign"]["message_template"] == MARKER


async def test_a_campaign_waits_for_its_key_and_others_go_on(pool: Pool, sealed: Actor) -> None:
    other = await sealing(pool)
    waits = await create(pool, sealed, text="waits", recipients=[number(1)])
    goes = await create(pool, other, text="goes out", recipients=[number(2)])
    kept = await pool.fetchval("SELECT sealed FROM text_keys WHERE organization_id = $1", sealed.organization_id)
    await pool.execute(KEY_LOSSES["damaged"], sealed.organization_id)
    await run(pool)
    rows = await pool.fetch("SELECT organization_id FROM messages")
    assert [row["organization_id"] for row in rows] == [other.organization_id]
    assert await templates(pool, sealed, waits.id) == {""}
    assert await templates(pool, other, goes.id) == {"goes out"}
    await pool.execute("UPDATE text_keys SET sealed = $2 WHERE organization_id = $1", sealed.organization_id, kept)
    await pool.execute("UPDATE campaigns SET step_at = now() WHERE step_at IS NOT NULL")
    await run(pool)
    assert await pool.fetchval("SELECT count(*) FROM messages") == 2


async def test_a_campaign_whose_text_is_gone_fails_and_says_so(pool: Pool, sealed: Actor) -> None:
    made = await create(pool, sealed, text=MARKER, recipients=[number(1)])
    async with pool.acquire() as conn:
        for state in ("closed", "active"):
            await organizations.set_state(conn, id=sealed.organization_id, state=state)
        assert (await text_keys.get(conn, organization_id=sealed.organization_id)).key == "kept"
    await run(pool)
    async with pool.acquire() as conn:
        found = await record.get(conn, sealed, id=made.id)
    assert (found.status, found.status_reason, found.content["message_template"]) == ("failed", plan.ERASED, "")
    assert await pool.fetchval("SELECT count(*) FROM messages") == 0
