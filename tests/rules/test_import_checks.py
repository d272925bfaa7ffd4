"""The check of an uploaded file counts each of its rows once, even if the database is away for a moment."""

from __future__ import annotations

import tempfile
from pathlib import Path
from uuid import UUID

import pytest

from heliograph.base.actor import Actor
from heliograph.base.database.pool import Pool, is_down, open_pool
from heliograph.base.process import measures
from heliograph.contacts.imports import drafts
from heliograph.contacts.imports.running import Runner
from tests.rules.factories import organization
from tests.wire import wire

CONTENT = b"phone,name\n" + b"".join(b"+25884123%04d,Ana %d\n" % (n, n) for n in range(6))


async def being_checked(pool: Pool, actor: Actor) -> UUID:
    """An import of CONTENT that waits for its check."""
    async with pool.acquire() as conn:
        id = await drafts.begin(conn, actor, file="people.csv")
        await drafts.put(conn, actor, id=id, number=0, chunk=CONTENT)
        found = await drafts.uploaded(conn, actor, id=id, size=len(CONTENT), encoding="utf-8")
        await drafts.check(conn, actor, id=id, fields=found.fields, country=None, tags=[], on_duplicate="update")
    return id


async def test_an_outage_during_a_check_loses_no_rows(pool: Pool, database_url: str) -> None:
    actor = await organization(pool)
    id = await being_checked(pool, actor)
    async with wire(database_url) as (line, through):
        weak = await open_pool(through, size=2)
        runner = Runner(weak, {}, rows=2)
        try:
            line.end_at(b"AS opted_out")
            with pytest.raises(Exception) as error:
                await runner.round()
            assert is_down(error.value)
            while await runner.round():
                pass
        finally:
            await runner.close()
            weak.terminate()
    async with pool.acquire() as conn:
        checked = await drafts.get(conn, actor, id=id)
    assert checked.survey is not None
    assert (checked.state, checked.survey.rows, checked.survey.created) == ("checked", 6, 6)


async def test_a_worker_without_room_for_a_file_leaves_it_to_another(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It kept the file for itself, tried again twice a second, and logged that the database was unavailable."""
    actor = await organization(pool)
    id = await being_checked(pool, actor)
    failures = measures.FAILURES.values.copy()
    runner, other = Runner(pool, {}), Runner(pool, {})
    try:
        with monkeypatch.context() as full:
            full.setattr(tempfile, "tempdir", str(tmp_path / "none"))
            assert await runner.round() == 1
        held = await pool.fetchrow("SELECT worker, lease_until > now() AS waits FROM contact_imports WHERE id = $1", id)
        assert held is not None
        assert tuple(held) == (None, True)
        assert measures.FAILURES.values[("imports",)] == failures.get(("imports",), 0) + 1
        await pool.execute("UPDATE contact_imports SET lease_until = NULL WHERE id = $1", id)
        while await other.round():
            pass
    finally:
        await runner.close()
        await other.close()
    async with pool.acquire() as conn:
        checked = await drafts.get(conn, actor, id=id)
    assert checked.state == "checked"


async def test_what_a_check_showed_of_people_is_not_kept_with_their_import(pool: Pool) -> None:
    actor = await organization(pool)
    content = b"phone,name\n+258841234567,Ana\n84 123,Bia\n+258001234567,Cleo\n"
    runner = Runner(pool, {})
    try:
        async with pool.acquire() as conn:
            id = await drafts.begin(conn, actor, file="people.csv")
            await drafts.put(conn, actor, id=id, number=0, chunk=content)
            found = await drafts.uploaded(conn, actor, id=id, size=len(content), encoding="utf-8")
            await drafts.check(conn, actor, id=id, fields=found.fields, country=None, tags=[], on_duplicate="update")
        while await runner.round():
            pass
        async with pool.acquire() as conn:
            checked = (await drafts.get(conn, actor, id=id)).survey
            assert checked is not None
            assert checked.unused_examples == [(4, "+258001234567", "+258001234567")]
            assert [one.examples for one in checked.reasons.values()] == [[(3, ["84 123", "Bia"])]]
            await drafts.run(conn, actor, id=id, confirmed=checked.doubts)
        while await runner.round():
            pass
        async with pool.acquire() as conn:
            ended = await drafts.get(conn, actor, id=id)
            kept = await conn.fetchval("SELECT survey FROM contact_imports WHERE id = $1", id)
    finally:
        await runner.close()
    assert (ended.state, ended.rows, ended.rejected) == ("finished", 3, 1)
    assert ended.survey is not None
    assert (ended.survey.rows, ended.survey.unused) == (3, 1)
    assert [one.count for one in ended.survey.reasons.values()] == [1]
    assert not [one for one in ("Bia", "84 123", "258001234567") if one in kept]
