"""An operator views as an organization, read only, for a reason that both audit logs keep."""

from __future__ import annotations

import re
import uuid

import pytest

from heliograph.base.database.pool import Pool
from heliograph.dashboard.table import ROUTES
from heliograph.people import links, roles
from heliograph.people.operators.roles import LOOK, ROLES
from tests.api.conftest import Api, Tenant
from tests.processes import until_true

from .conftest import Browser, signed_in
from .test_messages import TEXT, sent

WHY = "ticket 815: sends stand still"


async def begin_viewing(browser: Browser, tenant: Tenant, reason: str = WHY) -> str:
    """The token of a link created by the console."""
    here = f"/console/organizations/{tenant.id}/view"
    page = await browser.submit(await browser.get(here), here, reason=reason)
    found = re.search(r'/view#([\w-]{43})"', page.text)
    assert found, page.words
    return found[1]


async def viewing(browser: Browser, tenant: Tenant) -> None:
    page = await browser.submit(await browser.get("/view"), "/view", link=await begin_viewing(browser, tenant))
    assert page.path == "/", page.words


async def test_the_dashboard_is_seen_and_nothing_of_it_changed(
    pool: Pool, api: Api, tenant: Tenant, browser: Browser
) -> None:
    await signed_in(pool, browser, "support")
    id = await sent(api, tenant)
    await viewing(browser, tenant)
    page = await browser.get("/")
    assert f"You are viewing as Acme, as an operator: nothing can be changed. Why: {WHY}" in page.words
    token = page.form("/logout")["_token"]
    # What it has to do, but not as if the operator had to, whose own second factor is no step of it.
    assert ("Nobody here has a second factor" in page.words, "/account/factor" in page.text) == (True, False)
    assert "First steps" not in page.words
    page = await browser.get(f"/messages/{id}")
    assert page.status == 200
    assert TEXT not in page.text
    assert "841234567" not in page.text
    # The operator is no member, and has sent nothing here.
    me = await pool.fetchval("SELECT user_id FROM operators")
    page = await browser.get(f"/messages?by={me}")
    assert (page.status, id in page.text) == (200, False)
    before = await pool.fetchval("SELECT count(*) FROM audit_log")
    for route in ROUTES:
        path = re.sub(r"\{\w+\}", str(uuid.uuid4()), route.path)
        if route.method == "GET":
            assert (await browser.get(path)).status < 500, path
        elif not route.is_harmless:
            # Because of the role, or because nothing may be changed while viewing.
            assert (await browser.post(path, {"_token": token})).status == 403, path
    refused = await browser.post("/account", {"_token": token, "name": "Somebody"})
    assert "You are viewing as this organization: nothing can be changed." in refused.words
    assert await pool.fetchval("SELECT count(*) FROM audit_log") == before
    # The organization sees who looked, and why; so does the installation.
    assert WHY in (await browser.get("/audit")).words
    told = await pool.fetchrow("SELECT * FROM audit_log WHERE action = 'organization.viewed'")
    assert told is not None
    assert (told["who"], told["organization_id"], told["reason"]) == ("operator", tenant.id, WHY)
    assert WHY in (await browser.get("/console/audit?action=organization.viewed")).words
    # It ends, and the console stays open.
    await browser.submit(await browser.get("/"), "/logout")
    assert (await browser.get("/messages")).path.startswith("/login")
    assert (await browser.get("/console/now")).status == 200


@pytest.mark.parametrize("role", ROLES)
async def test_who_may(pool: Pool, tenant: Tenant, browser: Browser, role: str) -> None:
    await signed_in(pool, browser, role)
    here = f"/console/organizations/{tenant.id}/view"
    may = LOOK in ROLES[role].permissions
    assert ((await browser.get(here)).status == 200) == may
    assert (f'href="{here}"' in (await browser.get(f"/console/organizations/{tenant.id}")).text) == may
    if may:
        refused = await browser.submit(await browser.get(here), here, reason=" \u200b\u3164 ")
        assert (refused.status, await pool.fetchval("SELECT count(*) FROM sessions")) == (422, 0)


async def test_a_link_is_good_once_and_no_session_by_itself(
    pool: Pool, tenant: Tenant, root: Browser, other_browser: Browser
) -> None:
    token = await begin_viewing(root, tenant)
    other_browser.session.cookie_jar.update_cookies({"hg": token})
    assert (await other_browser.get("/messages")).path.startswith("/login")
    other_browser.session.cookie_jar.clear()
    page = await root.submit(await root.get("/view"), "/view", link=f"{root.base_url}/view#{token}")
    assert page.path == "/"
    again = await other_browser.submit(await other_browser.get("/view"), "/view", link=token)
    assert (again.status, "was used already" in again.words) == (422, True)
    late = await begin_viewing(root, tenant)
    await pool.execute("UPDATE sessions SET created_at = created_at - interval '3 minutes', seen_at = created_at")
    await pool.execute("UPDATE sessions SET seen_at = created_at")
    again = await other_browser.submit(await other_browser.get("/view"), "/view", link=late)
    assert again.status == 422


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE operators SET role = 'finance'",
        "DELETE FROM operators",
        "DELETE FROM operator_sessions",
        "DELETE FROM sessions",
    ],
)
async def test_who_may_no_longer_is_signed_out_within_a_second(
    pool: Pool, tenant: Tenant, root: Browser, change: str
) -> None:
    await viewing(root, tenant)
    assert (await root.get("/messages")).status == 200
    await pool.execute(change)

    async def is_over() -> bool:
        return (await root.get("/messages")).path.startswith("/login")

    await until_true(is_over)
    # It is not the session of a person who belongs to no organization and is told to ask for an invitation.
    assert (await root.get("/account")).path.startswith("/login")
    assert "You belong to no organization" not in (await root.get("/")).words


def test_nobody_is_given_the_role_and_it_only_reads() -> None:
    assert roles.VIEWING.name not in roles.ROLES
    assert all(scope.endswith(":read") for scope in roles.VIEWING.live | roles.VIEWING.test)
    assert not roles.VIEWING.permissions & {roles.CONTENT, roles.REVEAL, roles.CONVERSE, roles.EXPORT}


async def test_a_link_of_ones_own_does_not_confirm_it_to_a_view(
    pool: Pool, api: Api, tenant: Tenant, browser: Browser
) -> None:
    """It signs its operator in, like any link, and ends the view."""
    await signed_in(pool, browser, "support")
    await viewing(browser, tenant)
    async with pool.acquire() as conn:
        token = await links.make(conn, tenant.actor, user_id=await conn.fetchval("SELECT user_id FROM operators"))
    page = await browser.submit(await browser.get("/enter?next=%2Faccount"), "/enter", link=token)
    assert (page.status, page.path) == (200, "/account"), page.words
    assert [row["reason"] for row in await pool.fetch("SELECT reason FROM sessions")] == [None]
