"""Journeys 12 and 15 in the console: it works without scripts, and input from others stays text on every page."""

from __future__ import annotations

import asyncio
import re
import urllib.parse

import pyotp
import pytest

from heliograph.audit import recording as audit
from heliograph.base.actor import Principal
from heliograph.overview.installation import notes
from heliograph.people import invitations
from heliograph.queue import holds
from heliograph.sms.accepting import sender_ids
from heliograph.sms.dispatch import routing
from tests.rules.factories import message

from . import places
from .conftest import DAY, NIGHT, PASSWORD, Site, looks, press_key
from .test_console import set_up, setup_link
from .test_hostile import RUNS, TEXT, TURNS, WATCH

#: How many times to check that a page fits a screen that became narrow.
LOOKS = 100
#: Every text column that a person, a program, a supplier or Meta can write and an operator reads.
WRITTEN = {
    "organizations": ("name",),
    "users": ("name",),
    "suppliers": ("name",),
    "supplier_drafts": ("name",),
    "lookup_suppliers": ("name",),
    "routes": ("name",),
    "tariffs": ("name",),
    "api_keys": ("name",),
    "workers": ("name",),
    "messages": ("body", "client_reference", "request_id", "sender"),
    "attempts": ("code", "detail"),
    "receipts": ("error",),
    "sender_ids": ("value",),
    "organization_notes": ("body", "author"),
    "invitations": ("note",),
    "queue_holds": ("reason",),
    "whatsapp_accounts": ("name", "held_reason", "mirror_detail"),
    "whatsapp_numbers": ("verified_name", "display_phone_number", "held_reason"),
    "whatsapp_templates": ("name", "language", "rejection_reason"),
    "whatsapp_dead_letters": ("reason",),
}


@pytest.mark.lasts(60)
@pytest.mark.parametrize("site", looks(NIGHT), indirect=True)
async def test_what_others_wrote_stays_text(site: Site) -> None:
    page, pool = site.page, site.pool
    await page.add_init_script(WATCH)
    await set_up(site)
    paths = await places.console(site)
    actor = site.made.actor
    id = await message(pool, actor, to="+258841234567", text=RUNS)
    said = {"name": RUNS, "note": TURNS}
    by = Principal("operator", None, RUNS, address=RUNS, device=RUNS, reason=RUNS)
    async with pool.acquire() as conn:
        (supplier, *_) = await routing.load(conn)
        await notes.add(conn, organization_id=actor.organization_id, body=RUNS)
        await invitations.invite(conn, actor, email="rui@example.com", role="viewer", note=RUNS)
        await holds.hold(conn, holds.Selection(kinds=("sms",), line=supplier.id), reason=RUNS)
        for object_id, whose in ((actor.organization_id, actor.organization_id), (supplier.id, None)):
            await audit.record(
                conn,
                by,
                "organization.renamed",
                object_id=object_id,
                name=RUNS,
                organization_id=whose,
                before=said,
                after=said,
            )
        # Numbered beyond those of the worker, which may have sent the message by now.
        await conn.execute(
            "INSERT INTO attempts (organization_id, message_id, attempt, target_id, state, started_at, ended_at)"
            " VALUES ($1, $2, 99, $3, 'refused', now(), now())",
            actor.organization_id,
            id,
            supplier.id,
        )
    paths += [
        f"/console/messages/{id}",
        f"/console/messages?organization={actor.organization_id}",
    ]
    for table, columns in WRITTEN.items():
        for column in columns:
            # Unique values stay unique, and each value is cut to what its column allows.
            longest = await pool.fetchval(
                "SELECT coalesce(min((regexp_match(pg_get_constraintdef(oid), '<= (\\d+)'))[1]::integer), 400)"
                " FROM pg_constraint WHERE conrelid = $1::regclass AND contype = 'c'"
                "   AND pg_get_constraintdef(oid) ~ ('length\\(' || $2 || '\\)')",
                table,
                column,
            )
            await pool.execute(
                f"UPDATE {table} SET {column} = left($1 || substr(md5(random()::text), 1, 8), $2)",
                RUNS + TURNS,
                longest,
            )
    shown, wide = "", list[str]()
    for path in paths:
        answer = await page.goto(site.base + path)
        assert answer is not None
        assert answer.status == 200, path
        text, came_alive = await page.evaluate(TEXT)
        shown += text
        assert came_alive == 0, path
        await page.set_viewport_size({"width": 320, "height": 800})
        for _ in range(LOOKS):  # charts follow a moment later
            if await page.evaluate("document.documentElement.scrollWidth") <= 320:
                break
            await asyncio.sleep(0.1)
        else:
            wide.append(path)
        await page.set_viewport_size({"width": 1280, "height": 800})
    await page.goto(f"{site.base}/console/messages/{id}")
    await page.locator("#reason").fill(RUNS)
    await press_key(page, "Enter")
    await page.locator(".bubble").wait_for()
    assert RUNS in await page.locator(".bubble").inner_text()
    for query in ("q", "next"):
        await page.goto(f"{site.base}/console/go?{query}={urllib.parse.quote(RUNS)}")
    assert wide == []
    assert shown.count(RUNS) >= 20
    assert "49${" not in shown
    assert site.complaints == []


@pytest.mark.lasts(20)
@pytest.mark.parametrize("site", looks(DAY), indirect=True)
async def test_without_scripts(site: Site) -> None:
    """From a pasted link with a second factor to an organization, an approval, a revealed message and a supplier."""
    page, says, pool = site.page, site.says, site.pool
    # An empty script, not a failed request: the browser would report that of the last page whenever it pleases.
    await page.route("**/*.js", lambda route: route.fulfill(content_type="text/javascript", body=""))
    token = (await setup_link(site)).partition("#")[2]
    await page.goto(site.base + "/console/setup")
    await page.locator("#link").fill(token)
    await page.locator("main form button").click()
    await page.locator("#password").fill(PASSWORD)
    await page.locator("main form button.primary").click()
    await page.wait_for_url("**/console/setup/factor")
    key = (await page.locator("p.mono").inner_text()).replace(" ", "").strip()
    await page.locator("#code").fill(pyotp.TOTP(key).now())
    await press_key(page, "Enter")
    code = await page.locator(".codes li").first.inner_text()
    # Sign out, and in again with the password and a saved recovery code.
    await page.goto(site.base + "/console/account")
    await page.locator("details.who > summary").click()
    await page.get_by_role("button", name=says("Sign out")).click()
    await page.locator("#email").fill("eva@example.com")
    await page.locator("#password").fill(PASSWORD)
    await press_key(page, "Enter")
    await page.locator("#code").fill(code)
    await press_key(page, "Enter")
    await page.wait_for_url("**/console/now")
    # An organization with its first owner.
    await page.get_by_role("link", name=says("Organizations")).first.click()
    await page.get_by_role("link", name=says("New organization")).click()
    for name, value in (("name", "Padaria Sol"), ("country", "MZ"), ("quota", "500"), ("email", "dono@example.com")):
        await page.locator(f"#{name}").fill(value)
    await page.locator("#email").press("Enter")
    assert re.search("#[A-Za-z0-9_-]{43}$", await page.locator("#link").input_value())
    assert await pool.fetchval("SELECT count(*) FROM organizations WHERE name = 'Padaria Sol'") == 1
    # A sender ID is approved, and the approval is undone.
    async with pool.acquire() as conn:
        await sender_ids.request(conn, site.made.actor, value="PADARIA")
    await page.goto(site.base + "/console/approvals")
    approve = page.locator("article", has_text="PADARIA").get_by_role("button", name=says("Approve"))
    await approve.click()
    await page.get_by_role("button", name=says("Undo")).click()
    await approve.wait_for()
    assert await pool.fetchval("SELECT status FROM sender_ids WHERE value = 'PADARIA'") == "pending"
    # A message is found by its number, and revealed for a reason.
    await message(pool, site.made.actor, to="+258841234567", text="Your code is 4711", queued=False)
    await page.goto(site.base + "/console/messages")
    await page.locator("#organization").fill(str(site.made.actor.organization_id))
    await page.locator("#recipient").fill("+258 84 123 4567")
    await press_key(page, "Enter")
    await page.locator("td a[href^='/console/messages/']").first.click()
    assert "Your code is" not in await page.locator("main").inner_text()
    await page.locator("#reason").fill("ticket 814")
    await press_key(page, "Enter")
    await page.locator(".bubble", has_text="Your code is 4711").wait_for()
    # A supplier is paused and resumed.
    async with pool.acquire() as conn:
        (supplier, *_) = await routing.load(conn)
    await page.goto(f"{site.base}/console/suppliers/{supplier.id}")
    await page.get_by_role("link", name=says("Pause or drain…")).click()
    await page.get_by_role("button", name=says("Pause")).click()
    await page.get_by_role("button", name=says("Resume")).click()
    await page.get_by_role("link", name=says("Pause or drain…")).wait_for()
    assert await pool.fetchval("SELECT state FROM suppliers WHERE id = $1", supplier.id) == "active"
    assert site.complaints == []
