"""A member of two organizations has one session, which looks at one of them. A page opened in the other one changes
nothing in this one, and is shown nothing of it."""

from __future__ import annotations

import asyncio

import pytest

from heliograph.accounts import organizations
from heliograph.base.database.pool import Pool
from heliograph.people import memberships, sessions

from .conftest import Browser, Page, Tenant, make_tenant


@pytest.fixture
async def other(pool: Pool, tenant: Tenant, owner: Browser) -> Tenant:
    """A second organization of the owner."""
    made = await make_tenant(pool)
    async with pool.acquire() as conn:
        user = await conn.fetchval("SELECT id FROM users WHERE email = 'ana@example.com'")
        await memberships.add(conn, made.actor, user_id=user, role="owner")
    return made


async def switch(owner: Browser, page: Page, to: Tenant) -> None:
    answer = await owner.submit(page, f"/organizations/{to.id}/look")
    assert (answer.status, answer.path) == (200, "/")


async def test_a_form_reaches_the_organization_of_its_page(
    pool: Pool, tenant: Tenant, owner: Browser, other: Tenant
) -> None:
    home, form = await owner.get("/"), await owner.get("/contacts/new")
    await switch(owner, home, other)
    typed = {"name": "Rui", "phone": "+258841234567"}
    refused = await owner.submit(form, "/contacts", **typed)
    assert (refused.status, "You have switched to another organization" in refused.words) == (409, True)
    assert await pool.fetchval("SELECT count(*) FROM contacts") == 0
    # Personal actions, switching above all, work from any page.
    await switch(owner, await owner.get("/"), tenant)
    assert (await owner.submit(form, "/contacts", **typed)).status == 200
    assert [row[0] for row in await pool.fetch("SELECT organization_id FROM contacts")] == [tenant.id]


async def test_a_form_of_another_organization_is_refused_for_that_where_this_one_is_suspended(
    pool: Pool, owner: Browser, other: Tenant
) -> None:
    home, form = await owner.get("/"), await owner.get("/contacts/new")
    async with pool.acquire() as conn:
        await organizations.set_state(conn, id=other.id, state="suspended")
    await switch(owner, home, other)
    refused = await owner.submit(form, "/contacts", name="Rui", phone="+258841234567")
    assert (refused.status, "You have switched to another organization" in refused.words) == (409, True)


async def test_a_part_is_renewed_of_the_organization_of_its_page(tenant: Tenant, owner: Browser, other: Tenant) -> None:
    home = await owner.get("/")
    part = {"HX_Request": "true", "X_Seen": "0"}
    assert (await owner.get("/messages", X_Organization=str(tenant.id), **part)).status == 200
    await switch(owner, home, other)
    for path in ("/messages", "/state"):
        assert (await owner.get(path, X_Organization=str(tenant.id), **part)).status == 409
        assert (await owner.get(path, X_Organization=str(other.id), **part)).status == 200


async def test_a_link_of_a_mail_leads_to_the_page_of_its_organization(
    pool: Pool, tenant: Tenant, owner: Browser, other: Tenant
) -> None:
    """In a session that looks at another organization, what a mail was about was not found."""
    await pool.execute("UPDATE organizations SET name = 'Beta' WHERE id = $1", other.id)
    link = f"/organizations/{other.id}/look?next=/exports%3Fmode%3Dtest"
    page = await owner.get(link)
    said = "This link is about Beta , and you are looking at Acme ."
    assert (page.status, said in page.words) == (200, True), page.words
    there = await owner.submit(page, f"/organizations/{other.id}/look")
    assert (there.path, "Beta" in there.words) == ("/exports?mode=test", True)
    # Who looks at it already is there at once.
    assert (await owner.get(link)).path == "/exports?mode=test"
    # Nothing is said about anybody else's organization, and the link leads nowhere else.
    stranger = await make_tenant(pool)
    assert (await owner.get(f"/organizations/{stranger.id}/look")).status == 404
    away = await owner.get(f"/organizations/{tenant.id}/look?next=https://evil.example")
    assert (await owner.submit(away, f"/organizations/{tenant.id}/look")).path == "/"


MANY = """
WITH made AS (
    INSERT INTO organizations (id, name, created_at)
    SELECT gen_random_uuid(), 'Branch ' || lpad(n::text, 3, '0'), now() + make_interval(secs => n / 1000.0)
      FROM generate_series(1, $2) AS n RETURNING id, created_at
)
INSERT INTO memberships (organization_id, user_id, role, created_at) SELECT id, $1, 'owner', created_at FROM made
"""


async def test_of_hundreds_of_organizations_a_page_lists_some(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    """All two thousand used to make each page a megabyte large. The account's page has them all."""
    home = await owner.get("/")
    assert "All your organizations" not in home.words
    user = await pool.fetchval("SELECT id FROM users WHERE email = 'ana@example.com'")
    await pool.execute(MANY, user, 2 * sessions.MOST_IN_MENU)
    async with asyncio.timeout(60):  # what is known of a session is at most half a second old
        while "All your organizations" not in home.words:
            home = await owner.get("/")
    account = await owner.get("/account")
    assert home.text.count('/look"><input') == sessions.MOST_IN_MENU - 1
    assert 'href="/account#belong">All your organizations<' in home.text
    last = await pool.fetchval("SELECT id FROM organizations WHERE name = $1", f"Branch {2 * sessions.MOST_IN_MENU}")
    assert str(last) not in home.text
    assert (await owner.submit(account, f"/organizations/{last}/look")).path == "/"
    assert f"Branch {2 * sessions.MOST_IN_MENU} Owner" in (await owner.get("/account")).words
