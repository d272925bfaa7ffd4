"""Journey 15: hostile values in everything that people and programs can write are shown as text on every page, and none
of them takes effect: no script, no request, no violation of the content security policy."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import aiohttp
import pytest

from heliograph.accounts.api_keys import lifecycle
from heliograph.base import crypto
from heliograph.base.database import clock
from heliograph.campaigns.channels import sms as campaigns
from heliograph.campaigns.channels.sms import SmsCampaignSpec
from heliograph.consent import optouts
from heliograph.contacts import notes, records
from heliograph.contacts.records import Entry
from heliograph.dashboard.table import ROUTES
from heliograph.people import invitations, policy
from heliograph.simulators.receiver import Options, Receiver
from heliograph.sms.accepting import sender_ids, sender_questions
from heliograph.sms.by_hand import saved_texts
from heliograph.webhooks import endpoints, replays
from heliograph.whatsapp.mirror import apps
from tests.processes import until_true
from tests.rules import whatsapp_factories

from .conftest import NIGHT, Site, looks
from .test_conversing import receive_message

#: Values that could be executed, evaluated, loaded or displayed in reverse.
RUNS = '"><img src=/evil onerror=evil()><script>evil()</script>{{7*7}}${7*7}'
TURNS = "\u202egnp.exe\u202d"
FORMULA = '=HYPERLINK("https://evil.example","x")'
#: Cell separators, by whether a comma is a decimal sign.
SEPARATORS = {"en": ",", "pt": ";"}
LEADS = frozenset({"/go", "/go/{anything}", "/palette"})
WATCH = "window.evil = () => console.error('it ran')"
#: A page's text, and the number of elements that a hostile value became. Locators would start Playwright's scripts on
#: each page.
TEXT = """() => [document.body.innerText,
  document.querySelectorAll("img[src='/evil'], main script:not([type='application/json'])").length]"""


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
        spec = SmsCampaignSpec(name=RUNS, message_template=RUNS.replace("{{7*7}}", ""), recipients=["+258841234561"])
        campaign = await campaigns.create(conn, actor, spec=spec, request_id="one")
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
        text, came_alive = await page.evaluate(TEXT)
        shown += text
        assert came_alive == 0, route.path
        await page.set_viewport_size({"width": 320, "height": 800})
        if await page.evaluate("document.documentElement.scrollWidth") > 320:
            wide.append(route.path)
        await page.set_viewport_size({"width": 1280, "height": 800})
    for path in (f"/messages?q={RUNS}", f"/contacts?q={RUNS}", f"/go?q={RUNS}", f"/requests?q={RUNS}", f"/{RUNS}"):
        await page.goto(site.base + path.replace("%", "%25").replace("#", "%23"))
        shown += (await page.evaluate(TEXT))[0]
    assert wide == []
    assert shown.count(RUNS) >= 10
    assert "49${" not in shown

    # In a downloaded file, a formula is text.
    await page.goto(site.base + "/contacts")
    await page.locator("form[action^='/contacts/export'] button[value=csv]").click()

    async def is_written() -> bool:
        return bool(await site.pool.fetchval("SELECT count(*) FROM exports WHERE state = 'finished'"))

    await until_true(is_written)
    written = await site.pool.fetchval("SELECT bytes FROM export_chunks")
    file = io.StringIO(written.decode("utf-8-sig"))
    cells = {cell for row in csv.reader(file, delimiter=SEPARATORS[site.locale.language]) for cell in row}
    assert "'" + FORMULA in cells
    site.expect("status of 404")


#: All text of a page, including fields and collapsed sections: of the attempts, only the last one's response is
#: expanded.
SHOWN = """() => {
  for (const one of document.querySelectorAll('main details')) one.open = true;
  return [document.body.innerText, ...[...document.querySelectorAll('input, textarea')].map(one => one.value)]
    .join('\\n');
}"""
ALIVE = """document.querySelectorAll("img[src='/evil'], img[src='x'], main script:not([type*='json'])").length"""
#: A hostile file name, without quotes because browsers encode those differently.
FILE = "<img src=x onerror=evil()>.csv"


@pytest.mark.lasts(30)
@pytest.mark.parametrize("site", looks(NIGHT), indirect=True, ids=str)
async def test_what_comes_from_others_stays_text(site: Site, tmp_path: Path) -> None:
    """Values from handsets, files, endpoints, Meta and operators; and no formula in downloaded files takes effect."""
    page, actor, says = site.page, site.made.actor, site.says
    await page.add_init_script(WATCH)
    await site.enter()
    receiver = Receiver(Options(status=500, answer=RUNS.encode()))
    await receiver.start()
    try:
        async with site.pool.acquire() as conn:
            about = endpoints.rules(site.made.settings)
            hook, _ = await endpoints.create(
                conn, actor, url=receiver.url, subscribed_events=["message.failed"], rules=about
            )
            event = await replays.send_example(conn, actor, endpoint_id=hook.id, request_id="one")

        async def was_answered() -> bool:
            # An attempt that timed out on a busy machine has no response: another one follows it.
            return bool(await site.pool.fetchval("SELECT count(*) FROM webhook_attempts WHERE status = 500"))

        await until_true(was_answered)
    finally:
        await receiver.stop()
    await receive_message(site.pool, site, RUNS)
    key = apps.seal_key(site.made.settings)
    async with site.pool.acquire() as conn:
        text = await saved_texts.create(conn, actor, name=RUNS, body=RUNS.replace("{{7*7}}", ""))
        known, _ = await lifecycle.issue(conn, actor, name=RUNS.replace("{{7*7}}", "")[:64], profile="sms_only")
        await records.create_many(conn, actor, entries=[Entry("+258841234561", "Ana")])
        person = await conn.fetchval("SELECT id FROM contacts")
        await notes.write(conn, actor, id=person, notes=RUNS)
        asked = await sender_ids.request(conn, actor, value="SHOP")
        await sender_questions.ask(conn, actor, id=asked.id, question=RUNS)
        no = await sender_ids.request(conn, actor, value="BANK")
        await sender_ids.review(conn, actor, id=no.id, status="rejected", reason=RUNS)
        app = await apps.ensure_app(conn, key, "900", "secret", "verify", clock.now())
    account, _ = await whatsapp_factories.account(site.pool, actor.organization_id, app)
    token = crypto.seal(key, b"token", f"whatsapp_accounts/{account}/token")
    await site.pool.execute("UPDATE whatsapp_accounts SET token = $2 WHERE id = $1", account, token)
    await whatsapp_factories.number(site.pool, actor.organization_id, account)
    await site.pool.execute("UPDATE whatsapp_numbers SET verified_name = $1", RUNS)
    body = [{"type": "BODY", "text": RUNS.replace("{{7*7}}", "")}]
    template = await whatsapp_factories.template(
        site.pool, actor.organization_id, account, name="order_shipped", components=body, parameter_count=0
    )
    thread = await site.pool.fetchval("SELECT id FROM inbox_threads")

    async def shows(path: str, text: str = RUNS) -> None:
        await page.goto(site.base + path)
        assert text in await page.evaluate(SHOWN), path
        assert await page.evaluate(ALIVE) == 0, path
        await page.set_viewport_size({"width": 320, "height": 800})
        assert await page.evaluate("document.documentElement.scrollWidth") <= 320, path
        await page.set_viewport_size({"width": 1280, "height": 800})

    plain = RUNS.replace("{{7*7}}", "")
    await shows(f"/webhooks/{hook.id}/events/{event}")
    await shows("/inbox")
    await shows(f"/inbox/{thread}")
    await shows("/texts")
    await shows(f"/texts/{text.id}")
    for path in ("/keys", f"/keys/{known.id}/rename"):
        await shows(path, plain[:64])
    await shows(f"/contacts/{person}")
    await shows("/senders")
    await shows("/senders/new?value=BANK")
    await shows("/numbers")
    await shows(f"/templates/{template}", plain)
    await shows("/audit", plain[:64])

    # A file, its name and its cells.
    cell = '"' + RUNS.replace('"', '""') + '"'
    (tmp_path / FILE).write_text(f"phone;name;{cell}\nnobody;{cell};x\n+258841234570;Rui;y\n")
    await page.goto(site.base + "/contacts/import")
    await page.get_by_label(says("File"), exact=True).set_input_files(tmp_path / FILE)
    for step in ("read", "map"):
        await page.get_by_role("button", name=says("Continue")).click()
        await page.wait_for_url(f"**/{step}")
        await shows(page.url.removeprefix(site.base))
    await page.get_by_role("button", name=says("Check the whole file")).click()
    await page.wait_for_url("**/check")
    run = page.locator("form[action$='/run'] button.primary")
    await run.wait_for()
    await shows(page.url.removeprefix(site.base))
    await run.click()
    await page.get_by_text(says("Finished")).wait_for()
    await shows(page.url.removeprefix(site.base), FILE)
    await page.get_by_role("link", name=says("Fix here")).click()
    await page.wait_for_url("**/mend")
    await shows(page.url.removeprefix(site.base))
    await shows("/contacts/imports", FILE)

    # Whatever is downloaded is text in a table.
    headers = {"authorization": f"Bearer {site.made.key}", "idempotency-key": "formula"}
    sent = {"to": "+258841234567", "message": FORMULA, "clientReference": FORMULA}
    async with (
        aiohttp.ClientSession() as session,
        session.post(site.base + "/v1/sms/send", json=sent, headers=headers) as answer,
    ):
        assert answer.status == 202, await answer.text()
    async with site.pool.acquire() as conn:
        await records.create_many(conn, actor, entries=[Entry("+258841234562", FORMULA, tags=(FORMULA.lower(),))])
        await optouts.add(conn, actor, phone="+258841234563", reason=FORMULA)
        async with conn.transaction():
            await policy.rename(conn, actor, name=FORMULA)
    await page.goto(site.base + "/settings")
    await page.get_by_role("button", name=says("Export everything")).click()

    async def are_written() -> bool:
        return bool(await site.pool.fetchval("SELECT count(*) = 4 FROM exports WHERE state = 'finished'"))

    await until_true(are_written)
    told = set()
    for row in await site.pool.fetch(
        "SELECT e.kind, string_agg(c.bytes, ''::bytea ORDER BY c.number) AS bytes"
        " FROM exports e JOIN export_chunks c ON c.export_id = e.id GROUP BY e.id, e.kind"
    ):
        file = io.StringIO(row["bytes"].decode("utf-8-sig"), newline="")
        cells = [one for line in csv.reader(file, delimiter=SEPARATORS[site.locale.language]) for one in line]
        assert [one for one in cells if re.match(r"[=@\t\r\n]|[+-](?![0-9])", one)] == [], row["kind"]
        told |= {row["kind"] for one in cells if "hyperlink" in one.lower()}
    assert told == {"messages", "contacts", "audit"}  # downloaded opt-outs do not include the reason
