"""Consent: withdrawing an opt-out affects only the statement that is withdrawn."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import UUID

import pytest

from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection, Pool
from heliograph.base.ids import uuid7
from heliograph.consent import history, optouts, people
from heliograph.consent.history import Statement
from heliograph.consent.importing import OptOutImports
from heliograph.consent.optouts import NotYoursToLift, OptOut
from heliograph.contacts.imports import drafts
from heliograph.contacts.imports.running import Runner
from tests.rules.factories import blocked, organization

ANA, BIA, EVA, RUI = (f"+25884123456{n}" for n in range(4))


async def work(pool: Pool) -> None:
    runner = Runner(pool, {"opt_outs": OptOutImports()})
    while await runner.round():
        pass
    await runner.close()


async def imported(pool: Pool, actor: Actor, *numbers: str) -> UUID:
    """An imported suppression list."""
    content = "\n".join(("number", *numbers)).encode()
    async with pool.acquire() as conn:
        id = await drafts.begin(conn, actor, file="list.csv", kind="opt_outs")
        await drafts.put(conn, actor, id=id, number=0, chunk=content)
        found = await drafts.uploaded(conn, actor, id=id, size=len(content), encoding="utf-8")
        options = {"fields": found.fields, "country": None, "tags": [], "on_duplicate": "update"}
        await drafts.check(conn, actor, id=id, **options)
    await work(pool)
    async with pool.acquire() as conn:
        await drafts.run(conn, actor, id=id, confirmed=["strangers", "unused"])
    await work(pool)
    return id


async def undone(pool: Pool, actor: Actor, id: UUID) -> None:
    async with pool.acquire() as conn:
        await drafts.undo(conn, actor, id=id)
    await work(pool)
    assert await pool.fetchval("SELECT state FROM contact_imports WHERE id = $1", id) == "undone"


async def say_stop(conn: Connection, actor: Actor, who: str) -> None:
    said = OptOut(actor.organization_id, who, clock.now(), optouts.KEYWORD, "stop", uuid7())
    await optouts.suppress(conn, [said])


async def stop(pool: Pool, actor: Actor, who: str) -> None:
    async with pool.acquire() as conn, conn.transaction():
        await say_stop(conn, actor, who)


async def silent(pool: Pool) -> dict[str, str]:
    """Who has opted out, and how."""
    return {row[0]: row[1] for row in await pool.fetch("SELECT recipient, source FROM opt_outs ORDER BY recipient")}


async def test_an_undo_leaves_what_others_recorded_meanwhile(pool: Pool) -> None:
    actor = await organization(pool, key_id=uuid7())
    async with pool.acquire() as conn:
        await optouts.add(conn, actor, phone=EVA)
    id = await imported(pool, actor, ANA, BIA, EVA)
    # By hand, within the same instant as the import's beginning; by their own word, for somebody whom the file had
    # opted out already.
    await pool.execute(
        "INSERT INTO opt_outs (organization_id, recipient, since, source)"
        " SELECT organization_id, $1, started_at, 'organization' FROM contact_imports",
        RUI,
    )
    await stop(pool, actor, ANA)
    await undone(pool, actor, id)
    assert await silent(pool) == {ANA: "keyword", EVA: "organization", RUI: "organization"}


async def test_of_two_files_with_the_same_number_the_other_one_holds(pool: Pool) -> None:
    actor = await organization(pool, key_id=uuid7())
    first, second = await imported(pool, actor, ANA, BIA), await imported(pool, actor, BIA, EVA)
    await undone(pool, actor, first)
    assert [*await silent(pool)] == [BIA, EVA]
    await undone(pool, actor, second)
    assert await silent(pool) == {}


async def test_nobody_lifts_what_somebody_said_after_it_was_recorded_for_them(pool: Pool) -> None:
    actor = await organization(pool, key_id=uuid7())
    async with pool.acquire() as conn:
        await optouts.add(conn, actor, phone=ANA)
    await stop(pool, actor, ANA)
    async with pool.acquire() as conn:
        with pytest.raises(NotYoursToLift):
            await optouts.remove(conn, actor, phone=ANA)
    assert [*await silent(pool)] == [ANA]


@pytest.mark.parametrize("source", [optouts.KEYWORD, optouts.OPERATOR, optouts.SUPPLIER])
async def test_nobody_lifts_what_somebody_said_while_it_was_recorded_for_them(pool: Pool, source: str) -> None:
    actor = await organization(pool, key_id=uuid7())

    async def say() -> None:
        async with pool.acquire() as conn, conn.transaction():
            await optouts.suppress(conn, [OptOut(actor.organization_id, ANA, clock.now(), source)])

    async with pool.acquire() as conn, conn.transaction():
        await optouts.add(conn, actor, phone=ANA)
        saying = asyncio.create_task(say())
        await blocked(pool)
    await saying
    assert await silent(pool) == {ANA: source}
    async with pool.acquire() as conn:
        with pytest.raises(NotYoursToLift):
            await optouts.remove(conn, actor, phone=ANA)


async def test_nobody_lifts_what_somebody_said_under_another_name(pool: Pool) -> None:
    """Meta tells only afterwards that both names are theirs."""
    actor, user = await organization(pool, key_id=uuid7()), "MZ.1349"
    async with pool.acquire() as conn, conn.transaction():
        await optouts.add(conn, actor, phone=ANA)
        await say_stop(conn, actor, user)
        await people.link(conn, [(actor.organization_id, ANA, user)])
    async with pool.acquire() as conn:
        with pytest.raises(NotYoursToLift):
            await optouts.remove(conn, actor, phone=ANA)
        found = await optouts.find(conn, actor, phone=ANA)
    assert found is not None
    assert (found.source, await silent(pool)) == ("keyword", {ANA: "organization", user: "keyword"})


async def test_an_undo_that_two_workers_finish_is_recorded_once(pool: Pool) -> None:
    """One whose lease ended meanwhile, and the one that took over."""
    actor = await organization(pool, key_id=uuid7())
    id = await imported(pool, actor, ANA, BIA)
    await undone(pool, actor, id)
    async with pool.acquire() as conn:
        draft = await drafts.get(conn, actor, id=id)
        await OptOutImports().undo(conn, actor, draft=draft)
    told = await pool.fetch("SELECT after::text FROM audit_log WHERE action = 'contacts.import_undone'")
    assert sorted('"lifted"' in row["after"] for row in told) == [False, True]  # it was asked for, and it ended


async def test_who_says_stop_during_an_undo_stays_opted_out(pool: Pool) -> None:
    actor = await organization(pool, key_id=uuid7())
    id = await imported(pool, actor, ANA, BIA)
    async with pool.acquire() as conn, conn.transaction():
        await say_stop(conn, actor, ANA)
        async with pool.acquire() as other:
            await drafts.undo(other, actor, id=id)
        undoing = asyncio.create_task(work(pool))
        waits = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid)))"
        async with asyncio.timeout(30):
            while not await pool.fetchval(waits, conn.get_server_pid()):  # noqa: ASYNC110  # nobody is told
                await asyncio.sleep(0.01)
    await undoing
    assert await silent(pool) == {ANA: "keyword"}


async def test_a_start_that_comes_late_lifts_what_was_said_before_it_and_no_more(pool: Pool) -> None:
    actor = await organization(pool, key_id=uuid7())
    async with pool.acquire() as conn, conn.transaction():
        await optouts.add(conn, actor, phone=ANA)
        start, stop = (clock.now() + timedelta(seconds=n) for n in (1, 2))
        said_stop = OptOut(actor.organization_id, ANA, stop, optouts.KEYWORD, "stop", uuid7())
        await optouts.suppress(conn, [said_stop])
        said_start = Statement(actor.organization_id, ANA, start, optouts.KEYWORD, "start", uuid7())
        await optouts.lift_earlier(conn, [said_start])
        said = await history.of_person(conn, actor, address=ANA, limit=10)
    assert await silent(pool) == {ANA: "keyword"}
    assert [(one.said, one.source, one.ended_at is None) for one in said] == [
        ("out", "keyword", True),
        ("in", "keyword", True),
        ("out", "organization", False),
    ]
