"""Erasing a person on a real database: copies of their data in forms and in what is kept for undoing."""

from __future__ import annotations

import pytest

from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.campaigns import drafts
from heliograph.privacy import erasure
from tests.rules.factories import organization


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
