"""Journey 15: hostile values in whatever people and programs may write are shown as they are, on every page, and
nothing of them runs: no script, no request, no complaint of the policy."""

from __future__ import annotations

import csv
import io

import aiohttp
import pytest

from heliograph.campaigns.channels import sms as campaigns
from heliograph.campaigns.channels.sms import Wish
from heliograph.consent import optouts
from heliograph.contacts import records
from heliograph.contacts.records import Entry
from heliograph.dashboard.table import ROUTES
from heliograph.people import invitations, policy
from heliograph.webhooks import endpoints
from tests.processes import until_true

from .conftest import NIGHT, Site, looks

#: What would be run, computed, loaded or turned round.
RUNS = '"><img src=/evil onerror=evil()><script>evil()</script>{{7*7}}${7*7}'
TURNS = "\u202egnp.exe\u202d"
FORMULA = '=HYPERLINK("https://evil.example","x")'
#: Between cells, where a comma is a decimal sign and where it is not.
SEPARATORS = {"en": ",", "pt": ";"}
LEADS = frozenset({"/go", "/go/{anything}", "/palette"})
WATCH = "window.evil = () => console.error('it ran')"


@pytest.mark.lasts(25)
@pytest.mark.parametrize("site", looks(NIGHT), indirect=True, ids=str)
async def test_what_is_written_stays_text(site: Site) -> None:
    page, actor = site.page, site.made.actor
    await page.add_init_script(WATCH)
    body = {"to": "+258841234567", "message": RUNS + TURNS, "clientReference": RUNS}
    headers = {"authorization": f"Bearer {site.made.key}", "idempotency-key": "one", "user-agent": RUNS}
    async with (
        aiohttp.ClientSession() as session,
        session.post(site.base + "/v1/sms/send", json=body, headers=headers) as answer,
    ):
        assert answer.status == 202, await answer.text()
        message = (await answer.json())["message"]["id"]
    async with site.pool.acquire() as conn:
        entries = [
            Entry("+258841234567", RUNS, tags=("<b>vip</b>", "x" * 64)),
            Entry("+258841234568", FORMULA),
            Entry("+258841234569", TURNS + "n" * (200 - len(TURNS))),
        ]
        await records.create_many(conn, actor, entries=entries)
        person = await conn.fetchval("SELECT id FROM contacts WHERE name = $1", RUNS)
        await invitations.invite(conn, actor, email="rui@example.com", role="viewer", note=RUNS)
        await optouts.add(conn, actor, phone="+258841234560", reason=RUNS)
        rules = endpoints.rules(site.made.settings)
        hook, _ = await endpoints.create(
            conn,
            actor,
            url=site.made.receiver.url + "?x=%22%3E%3Cscript%3E",
            subscribed_events=["message.failed"],
            description=RUNS,
            rules=rules,
        )
        async with conn.transaction():
            await policy.rename(conn, actor, name=RUNS)
        wish = Wish(name=RUNS, message_template=RUNS.replace("{{7*7}}", ""), recipients=["+258841234561"])
        campaign = await campaigns.create(conn, actor, wish=wish, request_id="one")
    ids = {
        "/messages/{id}": message,
        "/contacts/{id}": person,
        "/contacts/{id}/edit": person,
        "/webhooks/{id}": hook.id,
        "/webhooks/{id}/edit": hook.id,
        "/campaigns/{id}": campaign.id,
        "/campaigns/{id}/cancel": campaign.id,
        "/requests/{id}": message,
    }
    await page.goto(await site.link())
    await page.wait_for_url(site.base + "/")
    await page.goto(site.base + "/account")
    await page.locator("#name").fill(RUNS)
    async with page.expect_navigation():
        await page.locator("main form[action='/account'] button").click()
    shown, wide = "", list[str]()
    for route in ROUTES:
        if route.method != "GET" or route.path in LEADS or ("{" in route.path and route.path not in ids):
            continue
        await page.goto(site.base + route.path.replace("{id}", str(ids.get(route.path, ""))))
        shown += await page.locator("body").inner_text()
        assert await page.locator("img[src='/evil'], main script:not([type='application/json'])").count() == 0
        await page.set_viewport_size({"width": 320, "height": 800})
        if await page.evaluate("document.documentElement.scrollWidth") > 320:
            wide.append(route.path)
        await page.set_viewport_size({"width": 1280, "height": 800})
    for path in (f"/messages?q={RUNS}", f"/contacts?q={RUNS}", f"/go?q={RUNS}", f"/requests?q={RUNS}", f"/{RUNS}"):
        await page.goto(site.base + path.replace("%", "%25").replace("#", "%23"))
        shown += await page.locator("body").inner_text()
    assert wide == []
    assert shown.count(RUNS) >= 10
    assert "49${" not in shown

    # Taken away, a formula is a text.
    await page.goto(site.base + "/contacts")
    await page.locator("form[action^='/contacts/export'] button[value=csv]").click()

    async def is_written() -> bool:
        return bool(await site.pool.fetchval("SELECT count(*) FROM exports WHERE state = 'finished'"))

    await until_true(is_written)
    written = await site.pool.fetchval("SELECT bytes FROM export_chunks")
    file = io.StringIO(written.decode("utf-8-sig"))
    cells = {cell for row in csv.reader(file, delimiter=SEPARATORS[site.speech.language]) for cell in row}
    assert "'" + FORMULA in cells
    site.complaints = [one for one in site.complaints if "status of 404" not in one]
