"""The check of an uploaded file counts each of its rows once, even if the database is away for a moment."""

from __future__ import annotations

import tempfile
from pathlib import Path
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from heliograph.base.actor import Actor
from heliograph.base.database.pool import Pool, is_down
from heliograph.base.process import measures
from heliograph.consent.importing import OptOutImports
from heliograph.contacts import records, tags
from heliograph.contacts.imports import drafts
from heliograph.contacts.imports.running import Runner
from heliograph.contacts.records import Entry
from tests.rules.factories import organization
from tests.rules.test_locked_rows import locking
from tests.wire import wired_pool

CONTENT = b"phone,name\n" + b"".join(b"+25884123%04d,Ana %d\n" % (n, n) for n in range(6))


async def being_checked(pool: Pool, actor: Actor, kind: str = "contacts") -> UUID:
    """An import of CONTENT that waits for its check."""
    async with pool.acquire() as conn:
        id = await drafts.begin(conn, actor, file="people.csv", kind=kind)
        await drafts.put(conn, actor, id=id, number=0, chunk=CONTENT)
        found = await drafts.uploaded(conn, actor, id=id, size=len(CONTENT), encoding="utf-8")
        await drafts.check(conn, actor, id=id, fields=found.fields, country=None, tags=[], on_duplicate="update")
    return id


async def test_an_outage_during_a_check_loses_no_rows(pool: Pool, database_url: str) -> None:
    actor = await organization(pool)
    id = await being_checked(pool, actor)
    async with wired_pool(database_url) as (line, weak):
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


async def test_an_import_that_waits_for_a_locked_contact_lets_others_have_their_turn(pool: Pool) -> None:
    """Each of its turns took half a minute."""
    actors = [await organization(pool) for _ in range(2)]
    async with pool.acquire() as conn, conn.transaction():
        await records.create(conn, actors[0], entry=Entry("+258841230000", "Ana"))
    runner = Runner(pool, {})
    try:
        ids = [await being_checked(pool, actor) for actor in actors]
        while await runner.round():
            pass
        async with pool.acquire() as conn:
            for actor, id in zip(actors, ids, strict=True):
                survey = (await drafts.get(conn, actor, id=id)).survey
                assert survey is not None
                await drafts.run(conn, actor, id=id, confirmed=survey.doubts)
        failures = measures.FAILURES.values.copy()
        states = "SELECT array_agg(state ORDER BY id) FROM contact_imports"
        async with locking(pool) as open_session:
            await open_session.execute("SELECT FROM contacts FOR UPDATE")
            while await runner.round():
                pass
            assert await pool.fetchval(states) == ["running", "finished"]
        assert measures.FAILURES.values == failures
        await pool.execute("UPDATE contact_imports SET lease_until = NULL")
        while await runner.round():
            pass
    finally:
        await runner.close()
    assert await pool.fetchval(states) == ["finished"] * 2


@pytest.mark.parametrize("kind", ["contacts", "opt_outs"])
async def test_an_undo_that_waits_for_a_locked_row_lets_other_imports_have_their_turn(pool: Pool, kind: str) -> None:
    """As long as a statement may take, each of its turns waited."""
    actors = [await organization(pool) for _ in range(2)]
    runner = Runner(pool, {"opt_outs": OptOutImports()})
    states = "SELECT array_agg(state ORDER BY id) FROM contact_imports"
    try:
        ids = [await being_checked(pool, actor, kind) for actor in actors]
        for then in (drafts.run, drafts.undo):
            while await runner.round():
                pass
            async with pool.acquire() as conn:
                for actor, id in zip(actors, ids, strict=True):
                    survey = (await drafts.get(conn, actor, id=id)).survey
                    given = {"confirmed": survey.doubts} if then is drafts.run and survey else {}
                    await then(conn, actor, id=id, **given)
        async with locking(pool) as open_session:
            await open_session.execute(
                f"SELECT FROM {kind} WHERE organization_id = $1 FOR UPDATE", actors[0].organization_id
            )
            with capture_logs() as logs:
                while await runner.round():
                    pass
            assert await pool.fetchval(states) == ["undoing", "undone"]
            assert {one.get("error") for one in logs} == {"LockNotAvailableError"}
        await pool.execute("UPDATE contact_imports SET lease_until = NULL")
        while await runner.round():
            pass
    finally:
        await runner.close()
    assert await pool.fetchval(states) == ["undone"] * 2


async def test_a_change_of_a_tag_that_waits_for_a_locked_contact_lets_others_go_on(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the one with the least progress, it was always next, and nobody's was changed for as long as it waited."""
    monkeypatch.setattr(tags, "STEP", 1)
    actors = [await organization(pool) for _ in range(2)]
    async with pool.acquire() as conn, conn.transaction():
        for actor in actors:
            entries = [Entry(f"+25884{1_000_000 + n}", f"Person {n}", tags=("old",)) for n in range(3)]
            await records.create_many(conn, actor, entries=entries)
            await tags.begin(conn, actor, tag="old", becomes="new")

    async def change() -> list[int]:
        async with pool.acquire() as conn, conn.transaction():
            while await tags.step(conn):
                pass
        left = "SELECT count(*)::int FROM contact_tags WHERE organization_id = $1 AND tag = 'old'"
        return [await pool.fetchval(left, actor.organization_id) for actor in actors]

    async with locking(pool) as open_session:
        waiting = "SELECT FROM contacts WHERE organization_id = $1 AND 'old' = ANY (tags) FOR UPDATE"
        await open_session.execute(waiting, actors[0].organization_id)
        assert await change() == [2, 0]
    assert await change() == [0, 0]
