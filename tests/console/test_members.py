"""An organization's members: invited, changed, helped and removed by an operator."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

from heliograph.accounts.api_keys import lifecycle
from heliograph.accounts.api_keys.scopes import SCOPES
from heliograph.base.actor import Actor, Principal
from heliograph.base.database.pool import Pool
from heliograph.people import links, memberships
from tests.api.conftest import Tenant, make_tenant
from tests.pages.conftest import make_person

from .conftest import PASSWORD, Browser, signed_in


async def recorded(pool: Pool, organization_id: UUID) -> list[tuple[str, str]]:
    """(action, who) of operators' entries in the organization's own audit log."""
    rows = await pool.fetch(
        "SELECT action, who FROM audit_log WHERE organization_id = $1 AND who = 'operator' ORDER BY id", organization_id
    )
    return [(row["action"], row["who"]) for row in rows]


async def role_of(pool: Pool, tenant: Tenant, user: Any) -> str | None:
    async with pool.acquire() as conn:
        return await memberships.role_of(conn, tenant.actor, user_id=user.id)


async def test_somebody_is_invited_again_and_joins(
    pool: Pool, tenant: Tenant, root: Browser, other_browser: Browser
) -> None:
    here = f"/console/organizations/{tenant.id}/members"
    page = await root.get(f"{here}/invite")
    wrong = await root.submit(page, f"{here}/invite", email="no address", role="owner")
    assert wrong.status == 422
    assert "e-mail address" in wrong.words
    made = await root.submit(page, f"{here}/invite", email="rui@example.com", role="admin", note="Hello")
    assert re.search(r'value="http[^"]+/invitation#[^"]+"', made.text), made.words
    page = await root.get(here)
    assert "rui@example.com" in page.words
    invitation = await pool.fetchval("SELECT id FROM invitations WHERE organization_id = $1", tenant.id)
    below = f"/console/organizations/{tenant.id}/invitations/{invitation}"
    page = await root.submit(page, f"{below}/renew")
    link = re.search(r'value="http[^"]+/invitation#([^"]+)"', page.text)
    assert link, page.words
    page = await other_browser.submit(await other_browser.get("/invitation"), "/invitation", link=link[1])
    page = await other_browser.submit(page, "/invitation/accept", name="Rui", password=PASSWORD)
    assert page.status == 200, page.words
    page = await root.get(here)
    assert "Rui rui@example.com Admin" in page.words, page.words
    assert (
        await root.submit(await root.get(f"{here}/invite"), f"{here}/invite", email="rui@example.com")
    ).status == 422
    assert await recorded(pool, tenant.id) == [("invitation.made", "operator")] * 2


async def test_an_invitation_is_withdrawn(pool: Pool, tenant: Tenant, root: Browser) -> None:
    here = f"/console/organizations/{tenant.id}/members"
    await root.submit(await root.get(f"{here}/invite"), f"{here}/invite", email="rui@example.com", role="viewer")
    invitation = await pool.fetchval("SELECT id FROM invitations WHERE organization_id = $1", tenant.id)
    page = await root.submit(
        await root.get(here), f"/console/organizations/{tenant.id}/invitations/{invitation}/withdraw"
    )
    assert page.path == here
    assert "The invitation is withdrawn." in page.words
    assert await pool.fetchval("SELECT count(*) FROM invitations") == 0
    assert await recorded(pool, tenant.id) == [("invitation.made", "operator"), ("invitation.withdrawn", "operator")]


async def test_a_member_gets_another_role_and_goes_with_their_keys(pool: Pool, tenant: Tenant, root: Browser) -> None:
    here = f"/console/organizations/{tenant.id}/members"
    ana = await make_person(pool, tenant, "ana@example.com", "owner")
    page = await root.get(f"{here}/{ana.id}")
    wrong = await root.submit(page, f"{here}/{ana.id}/role", role="viewer")
    assert wrong.status == 422
    assert "last owner" in wrong.words
    assert (await root.submit(page, f"{here}/{ana.id}/role", role="king")).status == 422
    assert (await root.submit(page, f"{here}/{ana.id}/remove")).status == 422
    await make_person(pool, tenant, "eva.owner@example.com", "owner")
    page = await root.submit(page, f"{here}/{ana.id}/role", role="developer")
    assert page.path == here, page.words
    assert await role_of(pool, tenant, ana) == "developer"
    by = Actor(tenant.id, None, "live", frozenset(SCOPES), "active", by=Principal("person", ana.id, "Ana"))
    async with pool.acquire() as conn:
        key, _ = await lifecycle.issue(conn, by, name="Hers", profile="sms", mode="live")
    page = await root.get(f"{here}/{ana.id}")
    assert "Hers" in page.words
    page = await root.submit(page, f"{here}/{ana.id}/remove", keys="revoke")
    assert "Ana is no longer a member. 1 key was revoked." in page.words, page.words
    assert await role_of(pool, tenant, ana) is None
    assert await pool.fetchval("SELECT revoked_at IS NOT NULL FROM api_keys WHERE id = $1", key.id)
    assert (await root.get(f"{here}/{ana.id}")).status == 404
    done = [action for action, _ in await recorded(pool, tenant.id)]
    assert done == ["member.role_changed", "member.removed", "api_key.revoked"]


async def test_a_sign_in_link_is_made_by_root_alone(
    pool: Pool, tenant: Tenant, root: Browser, other_browser: Browser
) -> None:
    here = f"/console/organizations/{tenant.id}/members"
    ana = await make_person(pool, tenant, "ana@example.com", "owner")
    page = await root.submit(await root.get(f"{here}/{ana.id}"), f"{here}/{ana.id}/link")
    link = re.search(r'value="http[^"]+/enter#([^"]+)"', page.text)
    assert link, page.words
    async with pool.acquire() as conn:
        used = await links.use(conn, token=link[1])
    assert used.user_id == ana.id
    assert await recorded(pool, tenant.id) == [("user.link_made", "operator")]
    await signed_in(pool, other_browser, "operator", "olga@example.com")
    page = await other_browser.get(f"{here}/{ana.id}")
    assert page.status == 200
    assert f"{here}/{ana.id}/link" not in page.text
    token = page.form(f"{here}/{ana.id}/role")["_token"]
    assert (await other_browser.post(f"{here}/{ana.id}/link", {"_token": token})).status == 403


async def test_a_member_is_found_below_their_own_organization_only(
    pool: Pool, tenant: Tenant, root: Browser, other_browser: Browser
) -> None:
    ana = await make_person(pool, tenant, "ana@example.com", "owner")
    other = await make_tenant(pool)
    assert (await root.get(f"/console/organizations/{other.id}/members/{ana.id}")).status == 404
    page = await root.get(f"/console/organizations/{tenant.id}/members/{ana.id}")
    foreign = f"/console/organizations/{other.id}/members/{ana.id}"
    token = page.form(f"/console/organizations/{tenant.id}/members/{ana.id}/role")["_token"]
    assert (await root.post(f"{foreign}/link", {"_token": token})).status == 404
    assert await pool.fetchval("SELECT count(*) FROM sign_in_links WHERE user_id = $1", ana.id) == 0
    # Someone who may only view organizations is offered nothing.
    await signed_in(pool, other_browser, "support", "sue@example.com")
    page = await other_browser.get(f"/console/organizations/{tenant.id}/members")
    assert "ana@example.com" in page.words
    assert f"/console/organizations/{tenant.id}/members/" not in page.text
