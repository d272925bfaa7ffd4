"""Columns of a list: chosen and ordered without a script, remembered with the person, and never a shape."""

from __future__ import annotations

import html
import re

from heliograph.base.database.pool import Pool

from .conftest import Api, Browser, Page, Tenant, make_person
from .test_messages import send

USUAL = ["To", "Status", "Channel", "From", "Reference", "Took", "Accepted"]


def headings(page: Page) -> list[str]:
    """Of the list's columns, and that every cell of its first row says which it is of."""
    row = re.search(r'<tr id="m-.*?</tr>', page.text, re.S)
    assert row
    labels = [one for one in re.findall(r'<th scope="col"[^>]*>(?:<span[^>]*>)?([^<]*)', page.text) if one != "Mark"]
    assert [one for one in re.findall(r'<td data-name="([^"]*)"', row[0]) if one != "Mark"] == labels[1:]
    return [html.unescape(one) for one in labels]


async def choose(browser: Browser, page: Page, *columns: str, **button: str) -> Page:
    form = page.form("/columns/messages")
    form = {name: form[name] for name in ("_token", "next")} | {"column": ",".join(columns)} | button
    return await browser.post("/columns/messages", form)


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
    page = await choose(owner, page, "status", "segments", "id", up="status")
    assert headings(page) == ["To", "Status", "Segments", "Id"]
    # On every device, in the region that renews itself too; for nobody else.
    assert headings(await owner.get("/messages", HX_Request="true", X_Seen="1"))[1:] == ["Status", "Segments", "Id"]
    await make_person(pool, tenant, "bo@example.com")
    await other_browser.sign_in("bo@example.com")
    assert headings(await other_browser.get("/messages")) == USUAL
    assert headings(await other_browser.get("/messages", HX_Request="true", X_Seen="1")) == USUAL
    page = await choose(owner, page, "id", usual="1")
    assert headings(page) == USUAL
    assert (await owner.post("/columns/nothing", page.form("/columns/messages"))).status == 404


async def test_a_choice_that_no_list_knows_any_more_changes_nothing(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    await send(api, tenant)
    await pool.execute("""UPDATE users SET columns = '{"messages": ["gone"], "other": ["status"]}'""")
    await owner.sign_in("ana@example.com")
    assert headings(await owner.get("/messages")) == USUAL
