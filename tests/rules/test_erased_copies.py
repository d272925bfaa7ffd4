"""Erasing a person on a real database: copies of their data in forms and in what is kept for undoing."""

from __future__ import annotations

import pytest

from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.campaigns import drafts
from heliograph.contacts import marked, records
from heliograph.contacts.records import Entry
from heliograph.privacy import erasure
from tests.rules.factories import organization

ANA, BIA = "+258841234567", "+258841234568"
IMAGE = """
INSERT INTO contact_import_images (organization_id, import_id, batch, contact_id, name, tags, updated_at)
VALUES ($1, $2, 1, $3, 'Ana Before', '{}', now())
"""


@pytest.mark.parametrize("typed", ["84 123-4567", "0841234567", "+258 84 123 4567"])
async def test_a_number_in_a_draft_goes_as_it_is_written_at_home_too(pool: Pool, typed: str) -> None:
    actor, draft = await organization(pool), uuid7()
    others = ["84 123-4568", "+34841234567", "nobody"]
    async with pool.acquire() as conn:
        await drafts.save(conn, actor, id=draft, fields={"text": "Hello"}, numbers=[typed, *others])
        done = await erasure.erase(conn, actor, address="+258841234567")
        assert done.erased == {"campaign_drafts": 1}
        kept = (await drafts.get(conn, actor, id=draft)).numbers
    assert kept == ["841234568", "+34841234567", "nobody"]


async def test_a_contact_that_was_just_deleted_goes_as_it_was_before_an_import_too(pool: Pool) -> None:
    actor = await organization(pool)
    async with pool.acquire() as conn:
        kept, gone = [await records.create(conn, actor, entry=Entry(to, "Somebody")) for to in (BIA, ANA)]
        for one in (kept, gone):
            await conn.execute(IMAGE, actor.organization_id, uuid7(), one.id)
        async with conn.transaction():
            await marked.delete(conn, actor, ids=[gone.id])
        done = await erasure.erase(conn, actor, address=ANA)
    assert done.erased == {"contacts_before": 1, "rows_of_imports": 1}
    assert [row[0] for row in await pool.fetch("SELECT contact_id FROM contact_import_images")] == [kept.id]
