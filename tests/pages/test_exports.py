"""Exports: written by workers, downloaded by their requester while their role allows it, bounded, and expired."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from structlog.testing import capture_logs

from heliograph.accounts.api_keys import lifecycle
from heliograph.base.actor import Principal
from heliograph.base.database.pool import Pool
from heliograph.contacts import records
from heliograph.contacts.records import Entry
from heliograph.contacts.search import Filters
from heliograph.dashboard.table import ROUTES
from heliograph.overview.exports import jobs, kinds, work
from heliograph.overview.exports.kinds import Contacts
from heliograph.overview.exports.work import ExportWork
from heliograph.people import memberships
from heliograph.privacy import erasure
from tests.api.conftest import Api
from tests.rules.test_locked_rows import locking

from .conftest import Browser, Tenant, make_person, make_tenant
from .exported import fetch, write
from .test_messages import send

NUMBER = "+258841234567"
#: Twenty minutes pass: whatever is leased for less can be taken over.
OVER = """
UPDATE exports SET lease_until = now() - interval '1 second' WHERE lease_until < now() + interval '20 minutes'
RETURNING id
"""


async def people(pool: Pool, tenant: Tenant, count: int) -> None:
    async with pool.acquire() as conn:
        await records.create_many(
            conn, tenant.actor, entries=[Entry(f"+25884000{n:04}", f"Person {n}") for n in range(count)]
        )


async def request_export(pool: Pool, tenant: Tenant, user: UUID) -> UUID:
    """An export of contacts requested by this person."""
    actor = msgspec.structs.replace(tenant.actor, by=Principal("person", user, name="Ana"))
    async with pool.acquire() as conn:
        return await jobs.ask(conn, actor, wanted=Contacts(form="csv", filters=Filters()))


async def owner_id(pool: Pool) -> UUID:
    id: UUID = await pool.fetchval("SELECT id FROM users WHERE email = 'ana@example.com'")
    return id


async def test_a_file_is_written_page_by_page_and_one_goes_on_where_another_ended(
    pool: Pool, tenant: Tenant, owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kinds, "PAGE", 2)
    monkeypatch.setattr(work, "STEPS", 1)
    await people(pool, tenant, 5)
    page = await owner.submit(await owner.get("/contacts"), "/contacts/export", format="csv")
    assert page.path == "/exports"
    assert "Being written" in page.words
    assert "data-final" not in page.text
    await ExportWork(pool).round()
    assert await pool.fetchval("SELECT rows FROM exports") == 2
    assert "Download" not in (await owner.get("/exports")).words
    await write(pool)  # another worker
    page = await owner.get("/exports", HX_Request="true")
    assert ("Ready" in page.words, "data-final" in page.text, "<html" in page.text) == (True, True, False)
    address = re.search(r'action="(/exports/[0-9a-f-]+/file)"', page.text)
    assert address
    file = await owner.submit(await owner.get("/exports"), address[1])
    assert file.text.count("\ufeff") == 1
    assert re.findall(r"Person \d", file.text) == [f"Person {n}" for n in (4, 3, 2, 1, 0)]
    told = await pool.fetch("SELECT action FROM audit_log WHERE action LIKE '%export%' ORDER BY at")
    assert [one["action"] for one in told] == ["contacts.exported", "export.fetched"]


async def test_a_form_that_is_sent_twice_asks_once(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    form = (await owner.get("/messages")).form("/messages/export") | {"format": "csv"}
    for _ in range(2):
        assert (await owner.post("/messages/export", form)).path == "/exports"
    assert await pool.fetchval("SELECT count(*) FROM exports") == 1


async def test_an_owner_takes_everything_along(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    await people(pool, tenant, 1)
    page = await owner.submit(await owner.get("/settings"), "/exports/everything")
    assert page.path == "/exports"
    asked = [row["kind"] for row in await pool.fetch("SELECT kind FROM exports ORDER BY id")]
    assert asked == ["messages", "contacts", "opt_outs", "audit"]
    told = {
        row["action"]
        for row in await pool.fetch("SELECT action FROM audit_log WHERE action LIKE '%.exported' ORDER BY id")
    }
    assert told == {"messages.exported", "contacts.exported", "opt_outs.exported", "audit.exported"}
    await write(pool)
    assert (await owner.get("/exports")).words.count("Ready") == 4
    # All of them, or none.
    await owner.submit(await owner.get("/settings"), "/exports/everything")
    page = await owner.submit(await owner.get("/settings"), "/exports/everything")
    assert "Five exports of your organization are being written." in page.words
    assert await pool.fetchval("SELECT count(*) FROM exports") == 8


async def test_only_who_asked_may_fetch_it_and_only_while_their_role_lets_them(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    await send(api, tenant)
    rui = await make_person(pool, tenant, "rui@example.com", "admin")
    await other_browser.sign_in("rui@example.com")
    file = await fetch(pool, other_browser, await other_browser.get("/messages"), "/messages/export")
    assert NUMBER in file.text
    id = await pool.fetchval("SELECT id FROM exports")
    # The owner sees that it was requested, and by whom.
    page = await owner.get("/exports")
    assert ("Rui" in page.words, "Download" in page.words) == (True, False)
    form = (await owner.get("/account")).form("/account")
    for act in ("file", "stop"):
        assert (await owner.post(f"/exports/{id}/{act}", form | {"_once": act})).status == 404
    # An admin's export contains whole numbers, which a viewer does not see.
    page = await other_browser.get("/exports")
    async with pool.acquire() as conn:
        await memberships.change_role(conn, tenant.actor, user_id=rui.id, role="viewer")
    await pool.execute("UPDATE sessions SET seen_at = seen_at")
    await other_browser.post("/logout", (await other_browser.get("/")).form("/logout"))
    await other_browser.sign_in("rui@example.com")
    page = await other_browser.get("/exports")
    assert ("messages.csv" in page.words, "Download" in page.words) == (True, False)
    form = (await other_browser.get("/account")).form("/account")
    assert (await other_browser.post(f"/exports/{id}/file", form)).status == 404
    # Nobody sees another organization's.
    other = await make_tenant(pool)
    await make_person(pool, other, "eva@example.com")
    await other_browser.post("/logout", (await other_browser.get("/")).form("/logout"))
    await other_browser.sign_in("eva@example.com")
    form = (await other_browser.get("/account")).form("/account")
    assert (await other_browser.post(f"/exports/{id}/file", form)).status == 404
    assert "messages.csv" not in (await other_browser.get("/exports")).words


async def test_an_export_ends_when_nobody_can_fetch_it_any_more(
    pool: Pool, tenant: Tenant, owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kinds, "PAGE", 1)
    monkeypatch.setattr(work, "STEPS", 1)
    await people(pool, tenant, 2)
    rui = await make_person(pool, tenant, "rui@example.com", "admin")
    async with pool.acquire() as conn:
        key, _ = await lifecycle.issue(conn, tenant.actor, name="Files", profile="full_access")
        actor = msgspec.structs.replace(tenant.actor, key_id=key.id)
        by_key = await jobs.ask(conn, actor, wanted=Contacts(form="csv", filters=Filters()))
    leaving, staying = [await request_export(pool, tenant, user) for user in (rui.id, await owner_id(pool))]
    for _ in range(3):  # a page of each
        await ExportWork(pool).round()
        await pool.execute("UPDATE exports SET lease_until = now() + interval '1 hour' WHERE rows = 1")
    assert [tuple(row) for row in await pool.fetch("SELECT state, rows FROM exports")] == [("running", 1)] * 3
    async with pool.acquire() as conn:
        await memberships.remove(conn, tenant.actor, user_id=rui.id)
        await lifecycle.revoke(conn, tenant.actor, id=key.id)
    await pool.execute("UPDATE exports SET lease_until = NULL")
    await write(pool)
    states = dict(await pool.fetch("SELECT id, state FROM exports"))
    assert states == {by_key: "stopped", leaving: "stopped", staying: "finished"}
    assert await pool.fetchval("SELECT count(*) FROM exports WHERE finished_at IS NULL") == 0
    told = await pool.fetch("SELECT kind, user_id FROM notices WHERE kind LIKE 'export.%'")
    assert [tuple(row) for row in told] == [("export.ready", await owner_id(pool))]


async def test_whoever_writes_to_people_does_not_take_them_all_away(
    pool: Pool, tenant: Tenant, browser: Browser
) -> None:
    await people(pool, tenant, 1)
    await make_person(pool, tenant, "rui@example.com", "sender")
    await browser.sign_in("rui@example.com")
    page = await browser.get("/contacts")
    assert ("+258840000000" in page.words, "/contacts/export" in page.text) == (True, False)
    form = (await browser.get("/account")).form("/account")
    for path in ("/contacts/export", "/contacts/opt-outs/export"):
        assert (await browser.post(path, form)).status == 403, path
    assert "/contacts/opt-outs/export" not in (await browser.get("/contacts/opt-outs")).text


async def test_exports_are_few_stopped_cut_and_erased(
    pool: Pool, tenant: Tenant, owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    await people(pool, tenant, 3)
    user = await owner_id(pool)
    ids = [await request_export(pool, tenant, user) for _ in range(jobs.MOST_OPEN)]
    page = await owner.submit(await owner.get("/contacts"), "/contacts/export", format="csv")
    assert "Five exports of your organization are being written." in page.words
    page = await owner.submit(page, f"/exports/{ids[0]}/stop")
    assert "Stopped" in page.words
    await pool.execute("UPDATE exports SET size = $2 WHERE id = $1", ids[1], jobs.MOST_KEPT)
    page = await owner.submit(await owner.get("/contacts"), "/contacts/export", format="csv")
    assert jobs.FULL in page.words
    await pool.execute("UPDATE exports SET size = $2 WHERE id = $1", ids[1], jobs.MOST_KEPT - 1)
    page = await owner.submit(await owner.get("/contacts"), "/contacts/export", format="csv")
    assert jobs.FULL not in page.words
    await pool.execute("UPDATE exports SET size = 0 WHERE id = $1", ids[1])
    await owner.submit(page, f"/exports/{await pool.fetchval('SELECT id FROM exports ORDER BY id DESC LIMIT 1')}/stop")
    monkeypatch.setattr(kinds, "PAGE", 1)
    monkeypatch.setattr(work, "MOST_ROWS", 2)
    await write(pool)
    page = await owner.get("/exports")
    assert "It reached the size limit of a file." in page.words
    assert await pool.fetchval("SELECT count(*) FROM exports WHERE is_cut AND rows = 2") == jobs.MOST_OPEN - 1
    # An erased person may be in any of them, so they are deleted with their parts.
    assert await pool.fetchval("SELECT count(*) FROM export_chunks") > 0
    monkeypatch.setattr(erasure, "PIECES_AT_ONCE", 1)
    async with pool.acquire() as conn:
        await erasure.erase(conn, tenant.actor, address="+258840000001")
    form = (await owner.get("/account")).form("/account")
    assert (await owner.post(f"/exports/{ids[1]}/file", form)).status == 404
    assert "A person who may have been in it was erased." in (await owner.get("/exports")).words
    assert await pool.fetchval("SELECT count(*) FROM export_chunks") == 0


async def test_files_are_forgotten_after_a_week_in_bounded_steps(
    pool: Pool, tenant: Tenant, owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kinds, "PAGE", 1)
    await people(pool, tenant, 3)
    user = await owner_id(pool)
    old, young = [await request_export(pool, tenant, user) for _ in range(2)]
    await write(pool)
    page = await owner.get("/exports")
    form = page.form(f"/exports/{old}/file")
    await pool.execute("UPDATE exports SET created_at = now() - interval '8 days' WHERE id = $1", old)
    # From then on nobody can download it, even if it is not deleted yet.
    assert (await owner.post(f"/exports/{old}/file", form)).status == 404
    page = await owner.get("/exports")
    assert [str(id) in page.text for id in (old, young)] == [False, True]
    monkeypatch.setattr(jobs, "AT_ONCE", 1)
    monkeypatch.setattr(jobs, "ROUNDS", 2)
    rounds = 0
    async with pool.acquire() as conn:
        while not await jobs.forget(conn):
            rounds += 1
            assert rounds < 20
    assert rounds > 0
    assert await pool.fetch("SELECT id FROM exports") == [(young,)]
    assert await pool.fetch("SELECT DISTINCT export_id FROM export_chunks") == [(young,)]


async def test_what_cannot_be_written_is_tried_again_and_given_up(
    pool: Pool, tenant: Tenant, owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    await people(pool, tenant, 1)
    id = await request_export(pool, tenant, await owner_id(pool))
    whole = kinds.page

    async def broken(*given: object, **named: object) -> kinds.Page:
        raise RuntimeError("no")

    monkeypatch.setattr(kinds, "page", broken)
    await ExportWork(pool).round()
    assert await pool.fetchval("SELECT state FROM exports WHERE id = $1", id) == "running"
    monkeypatch.setattr(kinds, "page", whole)
    await pool.execute("UPDATE exports SET lease_until = NULL")
    await write(pool)
    assert await pool.fetchval("SELECT state FROM exports WHERE id = $1", id) == "finished"
    id = await request_export(pool, tenant, await owner_id(pool))
    monkeypatch.setattr(kinds, "page", broken)
    for _ in range(work.TRIES):
        await ExportWork(pool).round()
        await pool.execute("UPDATE exports SET lease_until = NULL")
    assert await pool.fetchval("SELECT state FROM exports WHERE id = $1", id) == "failed"
    assert "Failed" in (await owner.get("/exports")).words


async def test_a_change_that_waits_for_a_locked_row_lets_others_have_their_turn_and_is_not_given_up(
    pool: Pool, tenant: Tenant, owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as a statement may take, each of its turns waited, and no file was written meanwhile."""
    await people(pool, tenant, 1)
    user = await owner_id(pool)
    actor = msgspec.structs.replace(tenant.actor, by=Principal("person", user, name="Ana"))
    async with pool.acquire() as conn:
        changed = await jobs.ask(conn, actor, wanted=kinds.Tag(form="csv", filters=Filters(), value="new"))
    written = await request_export(pool, tenant, user)
    monkeypatch.setattr(work, "TRIES", 1)
    states = "SELECT state FROM exports WHERE id = ANY ($1) ORDER BY id"
    async with locking(pool) as open_session:
        await open_session.execute("SELECT FROM contacts FOR UPDATE")
        await write(pool)
        assert [row["state"] for row in await pool.fetch(states, [changed, written])] == ["running", "finished"]
    await pool.execute("UPDATE exports SET lease_until = NULL")
    await write(pool)
    assert [row["state"] for row in await pool.fetch(states, [changed, written])] == ["finished"] * 2


async def test_a_page_that_outlives_its_lease_is_written_by_a_later_worker(
    pool: Pool, tenant: Tenant, owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers began it anew one after the other, and none of them could keep it."""
    await people(pool, tenant, 1)
    id = await request_export(pool, tenant, await owner_id(pool))
    whole, lease = kinds.page, timedelta(minutes=15)
    others = [ExportWork(pool, lease=lease) for _ in range(2)]

    async def slow(*given: Any, **named: Any) -> kinds.Page:
        """It takes twenty minutes, after which another worker looks for work."""
        is_over = (
            "UPDATE exports SET lease_until = now() WHERE lease_until < now() + interval '20 minutes' RETURNING id"
        )
        if await pool.fetchval(is_over) and others:
            await others.pop().round()
        return await whole(*given, **named)

    monkeypatch.setattr(kinds, "page", slow)
    with capture_logs() as logs:
        await ExportWork(pool, lease=lease).round()
    row = await pool.fetchrow("SELECT state, tries FROM exports WHERE id = $1", id)
    assert (*row, len(others)) == ("finished", 0, 1)
    # The first one only came too late.
    assert "export failed" not in [one["event"] for one in logs]


async def test_the_bell_rings_for_whoever_asked_alone(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    await people(pool, tenant, 2)
    await make_person(pool, tenant, "rui@example.com", "admin")
    await other_browser.sign_in("rui@example.com")
    await request_export(pool, tenant, await owner_id(pool))
    await write(pool)
    said = (await owner.get("/notices")).words
    assert ("The file “contacts.csv” is ready." in said, "2 rows." in said) == (True, True)
    assert "contacts.csv" not in (await other_browser.get("/notices")).words
    assert await pool.fetchval("SELECT count(*) FROM notices WHERE user_id IS NOT NULL") == 1


async def test_people_are_taken_away_only_with_the_password(pool: Pool, owner: Browser) -> None:
    """Contacts and opt-outs as files; messages and campaigns' recipients go the same way (the routes say so)."""
    proved = {route.path for route in ROUTES if route.method == "POST" and route.is_proved}
    exports = {"/messages/export", "/contacts/export", "/contacts/opt-outs/export", "/campaigns/{id}/export"}
    assert exports <= proved
    page = await owner.get("/contacts/opt-outs")
    await pool.execute("UPDATE sessions SET proved_at = now() - interval '11 minutes'")
    await owner.asked_again("/account/password")
    asked = await owner.submit(page, "/contacts/opt-outs/export", format="csv")
    assert (asked.status, "Confirm that it is you" in asked.words) == (403, True)
    assert await pool.fetchval("SELECT count(*) FROM exports") == 0
