"""Columns of a list: chosen and ordered without a script, and remembered per person."""

from __future__ import annotations

import html
import re
from uuid import UUID

from heliograph.base.database.pool import Pool
from heliograph.consent import optouts
from heliograph.contacts import records
from heliograph.contacts.records import Entry
from heliograph.dashboard import listing
from tests.hooks import endpoint, record, until
from tests.rules import whatsapp_factories as making

from .conftest import Api, Browser, Page, Tenant, make_person
from .test_campaigns import make as campaign
from .test_messages import send

USUAL = ["To", "Status", "Channel", "From", "Reference", "Took", "Accepted"]


def headings(page: Page) -> list[str]:
    """Checks the list's columns, and that every cell of its first row names its column."""
    row = re.search(r'<tr id="m-.*?</tr>', page.text, re.S)
    assert row
    labels = [one for one in re.findall(r'<th scope="col"[^>]*>(?:<span[^>]*>)?([^<]*)', page.text) if one != "Select"]
    assert [one for one in re.findall(r'<td data-name="([^"]*)"', row[0]) if one != "Select"] == labels[1:]
    return [html.unescape(one) for one in labels]


async def choose(browser: Browser, page: Page, *columns: str, list: str = "messages", **button: str) -> Page:
    form = page.form(f"/columns/{list}")
    form = {name: form[name] for name in ("_token", "next")} | {"column": ",".join(columns)} | button
    return await browser.post(f"/columns/{list}", form)


async def test_columns_are_chosen_ordered_and_remembered(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    await send(api, tenant, clientReference="order-1")
    page = await owner.get("/messages?channel=sms")
    assert headings(page) == USUAL
    page = await choose(owner, page, "segments", "status", "<b>", "nothing", "segments")
    assert (page.path, headings(page)) == ("/messages?channel=sms", ["To", "Segments", "Status"])
    page = await choose(owner, page, "segments", "status", "id", down="segments")
    assert headings(page) == ["To", "Status", "Segments", "Id"]
    assert re.search(r'<details class="who" open><summary class="button">Columns', page.text)
    # The pressed button keeps the focus.
    assert re.findall(r'<button [^>]*name="(\w+)" value="(\w+)" autofocus>', page.text) == [("down", "segments")]
    page = await choose(owner, page, "status", "segments", "id", up="status")
    assert headings(page) == ["To", "Status", "Segments", "Id"]
    # On every device, in the refreshed region too; for nobody else.
    assert headings(await owner.get("/messages", HX_Request="true", X_Seen="1"))[1:] == ["Status", "Segments", "Id"]
    await make_person(pool, tenant, "bo@example.com")
    await other_browser.sign_in("bo@example.com")
    assert headings(await other_browser.get("/messages")) == USUAL
    assert headings(await other_browser.get("/messages", HX_Request="true", X_Seen="1")) == USUAL
    page = await choose(owner, page, "id", usual="1")
    assert headings(page) == USUAL
    # Parameters that none of our buttons send are not in the next address.
    page = await choose(owner, page, "status", down="x&y=z")
    assert page.path == "/messages?channel=sms"
    assert (await owner.post("/columns/nothing", page.form("/columns/messages"))).status == 404


async def test_a_choice_that_no_list_knows_any_more_changes_nothing(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    await send(api, tenant)
    await pool.execute("""UPDATE users SET columns = '{"messages": ["gone"], "other": ["status"]}'""")
    await owner.sign_in("ana@example.com")
    assert headings(await owner.get("/messages")) == USUAL


def table(page: Page, caption: str) -> tuple[list[str], list[str]]:
    """(headings, column names of the first row's cells) of the list with this caption, except for its first column."""
    (found,) = (one for one in re.findall(r"<table.*?</table>", page.text, re.S) if f">{caption}</caption>" in one)
    head, body = found.split("<tbody>")
    headings = [html.unescape(one) for one in re.findall(r'<th scope="col"[^>]*>([^<]+)', head)]
    return headings[1:], [html.unescape(one) for one in re.findall(r'<td data-name="([^"]*)"', body.split("</tr>")[0])]


async def test_every_list_has_columns_to_choose(api: Api, pool: Pool, tenant: Tenant, owner: Browser) -> None:
    async with pool.acquire() as conn:
        await records.create_many(conn, tenant.actor, entries=[Entry("+258841000001", "P", tags=("all",))])
        await optouts.add(conn, tenant.actor, phone="+258849999999", reason="")
    await send(api, tenant)
    await making.made(pool, organization_id=tenant.id)
    await campaign(owner)
    hook, _ = await endpoint(pool, tenant.actor, "https://example.com/hook")
    (event,) = await record(pool, tenant.actor)
    await pool.execute(
        "INSERT INTO webhook_attempts VALUES ($1, $2, $3, 1, now(), 12, 503, 'refused', '')",
        tenant.id,
        UUID(event),
        hook,
    )

    async def is_written() -> bool:
        return bool(await pool.fetchval("SELECT count(*) FROM requests"))

    await until(is_written)
    lists = {
        "messages": ("/messages", "Messages"),
        "contacts": ("/contacts", "Contacts"),
        "opt-outs": ("/contacts/opt-outs", "Opt-outs"),
        "campaigns": ("/campaigns", "Campaigns"),
        "templates": ("/templates", "Templates"),
        "deliveries": (f"/webhooks/{hook}", "Attempts"),
        "requests": ("/requests", "Requests"),
    }
    assert set(lists) == set(listing.COLUMNS)
    for name, (path, caption) in lists.items():
        offered = listing.COLUMNS[name]
        usual = [one.label for one in offered if one.is_usual]
        page = await owner.get(path)
        assert table(page, caption) == (usual, usual), name
        # All of them, the last one first: every cell names its own column, and none is always empty.
        every = [one.label for one in reversed(offered)]
        page = await choose(owner, page, *(one.name for one in reversed(offered)), list=name)
        assert table(page, caption) == (every, every), name
        first = offered[-1]
        page = await choose(owner, page, first.name, list=name)
        assert table(page, caption) == ([first.label], [first.label]), name
        assert table(await owner.get(path), caption)[0] == [first.label], name


async def test_what_messages_cost_is_shown_to_who_sees_the_wallet(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    free, waiting, charged, lost, arrived = [await send(api, tenant) for _ in range(5)]
    account = await making.made(pool, organization_id=tenant.id)
    reserved = await making.message(pool, account, template_id=account.template_id, price=30_000)
    priced = "UPDATE messages SET price = 25000, price_currency = 'EUR', price_due = $2 WHERE id = $1"
    for id, due in ((waiting, "submit"), (charged, "submit"), (lost, "delivered"), (arrived, "delivered")):
        await pool.execute(priced, UUID(id), due)
    await pool.execute("UPDATE messages SET sent_at = now() WHERE id = ANY ($1)", [UUID(charged), UUID(lost)])
    await pool.execute("UPDATE messages SET status = 'undelivered' WHERE id = $1", UUID(lost))
    await pool.execute("UPDATE messages SET status = 'delivered', delivered_at = now() WHERE id = $1", UUID(arrived))
    page = await choose(owner, await owner.get("/messages"), "price")
    assert headings(page) == ["To", "Price"]
    shown = dict(re.findall(r'<tr id="m-([0-9a-f-]{36})">.*?data-name="Price"[^>]*>(.*?)</td>', page.text, re.S))
    told = {id: re.sub("<[^>]+>", " ", cell).split() for id, cell in shown.items()}
    assert told == {
        free: ["–"],
        waiting: ["€0.025", "not", "charged", "yet"],
        charged: ["€0.025"],
        lost: ["–"],
        arrived: ["€0.025"],
        str(reserved): ["€0.03", "not", "charged", "yet"],
    }
    # A role that sees no wallet is not offered it.
    await make_person(pool, tenant, "vera@example.com", "viewer")
    await other_browser.sign_in("vera@example.com")
    page = await choose(other_browser, await other_browser.get("/messages"), "price")
    assert (headings(page), "Price" in page.words) == (USUAL, False)
