"""A suspended or closed organization can read and export on the dashboard, but not change or send anything."""

from __future__ import annotations

import uuid

import pytest

from heliograph.accounts import organizations
from heliograph.base.database.pool import Pool
from heliograph.dashboard.table import ROUTES
from tests.hooks import until

from .conftest import Browser, Tenant

REFUSED = "This organization is suspended: it can read, but not send or change anything."
#: What remains: looking, exporting, and what concerns the reader alone.
READING = {
    "/audit/export",
    "/campaigns/{id}/export",
    "/contacts/export",
    "/contacts/imports/{id}/rejects",
    "/contacts/opt-outs/export",
    "/exports/everything",
    "/exports/{id}/file",
    "/exports/{id}/stop",
    "/keys/check",
    "/messages/export",
    "/messages/{id}/reveal",
    "/notices/choices",
    "/notices/read",
    "/send/preview",
    "/send/reply/preview",
    "/send/template/preview",
    "/usage/export",
    "/webhooks/{id}/events/{event}/reveal",
}


async def become(pool: Pool, tenant: Tenant, state: str) -> None:
    async with pool.acquire() as conn:
        await organizations.set_state(conn, id=tenant.id, state=state)


async def taken(browser: Browser, token: str, *, is_refused: bool) -> None:
    """Until the session knows the state: its data is cached for up to half a second."""

    async def known() -> bool:
        page = await browser.post("/contacts/tags/rename", {"_token": token})
        return (REFUSED in page.words) == is_refused

    await until(known, within=10)


def test_the_forms_that_remain_are_these() -> None:
    assert {route.path for route in ROUTES if route.only_reads} == READING
    assert {route.method for route in ROUTES if route.only_reads} == {"POST"}


@pytest.mark.parametrize("state", sorted(organizations.STOPPED))
async def test_every_form_of_an_organization_that_may_only_read(
    pool: Pool, tenant: Tenant, owner: Browser, state: str
) -> None:
    token = (await owner.get("/account")).form("/account")["_token"]
    await become(pool, tenant, state)
    await taken(owner, token, is_refused=True)
    for route in ROUTES:
        if route.method != "POST" or route.is_public or route.is_personal:
            continue
        path = route.path.replace("{id}", str(uuid.uuid4())).replace("{event}", str(uuid.uuid4()))
        for mode in ("live", "test"):
            page = await owner.post(f"{path}?mode={mode}", {"_token": token})
            assert (REFUSED in page.words) != route.only_reads, (route.path, mode, page.words)
            assert (page.status == 403) != route.only_reads, (route.path, mode, page.status)


async def test_it_sees_its_pages_and_changes_nothing_until_it_is_resumed(
    pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    form = (await owner.get("/contacts/new")).form("/contacts")
    filled = form | {"phone": "+258840000001", "name": "Ana"}
    await become(pool, tenant, "suspended")
    await taken(owner, form["_token"], is_refused=True)
    for path in ("/", "/messages", "/contacts", "/contacts/new", "/send", "/usage", "/settings"):
        assert (await owner.get(path)).status == 200, path
    page = await owner.post("/contacts", filled)
    assert (page.status, REFUSED in page.words) == (403, True)
    assert await pool.fetchval("SELECT count(*) FROM contacts") == 0
    await become(pool, tenant, "active")
    await taken(owner, form["_token"], is_refused=False)
    await owner.post("/contacts", filled)
    assert await pool.fetchval("SELECT phone FROM contacts") == "+258840000001"
