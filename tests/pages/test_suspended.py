"""A suspended or closed organization can read, export, and end or stop something on the dashboard, such as somebody's
access or a campaign, but not change or send anything else."""

from __future__ import annotations

import uuid
from datetime import timedelta

import aiohttp
import pytest

from heliograph.accounts import organizations
from heliograph.accounts.api_keys import lifecycle
from heliograph.base.actor import Principal
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.campaigns.channels import sms
from heliograph.campaigns.channels.sms import SmsCampaignSpec
from heliograph.dashboard.table import ROUTES
from heliograph.pages.routes import Route
from heliograph.people import invitations, users
from tests.hooks import until

from .conftest import Browser, Page, Tenant, make_person

REFUSED = "This organization is suspended or closed: it can read, export, cancel and revoke, but not send or change."
#: What remains: looking, exporting, and what concerns the reader alone.
READING = {
    "/account/number/code",
    "/account/number/remove",
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
    "/messages/marked",
    "/messages/{id}/reveal",
    "/notices/choices",
    "/notices/read",
    "/send/preview",
    "/send/reply/preview",
    "/send/template/preview",
    "/usage/export",
    "/webhooks/{id}/events/{event}/reveal",
}
#: And what ends somebody's access to what can still be read, or stops what would go on afterwards.
ENDING = {
    "/campaigns/{id}/cancel",
    "/campaigns/{id}/pause",
    "/contacts/imports/{id}/stop",
    "/contacts/opt-outs/add",
    "/keys/{id}/revoke",
    "/messages/all",
    "/messages/marked/cancel",
    "/messages/{id}/cancel",
    "/team/invitations/{id}/withdraw",
    "/team/members/{id}/remove",
    "/webhooks/{id}/disable",
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


async def submitted(browser: Browser, route: Route, path: str, token: str) -> Page:
    """The answer to an empty form."""
    if not route.takes_file:
        return await browser.post(path, {"_token": token})
    data = aiohttp.FormData({"_token": token}, default_to_multipart=True)
    headers = {"Origin": browser.base_url, "Accept": "text/html"}
    async with browser.session.post(browser.base_url + path, data=data, headers=headers) as answer:
        return Page(answer, await answer.text())


def test_the_forms_that_remain_are_these() -> None:
    assert {route.path for route in ROUTES if route.only_reads} == READING
    assert {route.path for route in ROUTES if route.only_ends} == ENDING
    assert {route.method for route in ROUTES if route.only_reads or route.only_ends} == {"POST"}


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
            page = await submitted(owner, route, f"{path}?mode={mode}", token)
            is_allowed = route.only_reads or route.only_ends
            assert (REFUSED in page.words) != is_allowed, (route.path, mode, page.words)
            assert (page.status == 403) != is_allowed, (route.path, mode, page.status)


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


@pytest.mark.parametrize("state", sorted(organizations.STOPPED))
async def test_a_leaked_key_is_revoked_and_a_person_removed(
    pool: Pool, tenant: Tenant, owner: Browser, state: str
) -> None:
    async with pool.acquire() as conn:
        key, _ = await lifecycle.issue(conn, tenant.actor, name="leaked", mode="live", profile="read_only")
    rui = await make_person(pool, tenant, "rui@example.org", role="developer")
    token = (await owner.get("/account")).form("/account")["_token"]
    told = f"This organization is {state}: you can read and export, and stop messages"
    assert told not in (await owner.get("/keys")).words
    await become(pool, tenant, state)
    await taken(owner, token, is_refused=True)
    for path in ("/", "/keys", "/send"):
        assert told in (await owner.get(path)).words, path
    page = await owner.post(f"/keys/{key.id}/revoke", {"_token": token})
    assert "is revoked" in page.words
    assert await pool.fetchval("SELECT status FROM api_keys WHERE id = $1", key.id) == "revoked"
    assert (await owner.post(f"/team/members/{rui.id}/remove", {"_token": token})).status == 200
    assert await pool.fetchval("SELECT count(*) FROM memberships WHERE user_id = $1", rui.id) == 0


async def test_an_invitation_is_still_accepted(pool: Pool, tenant: Tenant) -> None:
    """It gives somebody what the others have; an operator invites, too, if an organization's people are gone."""
    async with pool.acquire() as conn:
        _, token, _ = await invitations.invite(conn, tenant.actor, email="eva@example.org", role="owner")
        user, _ = await users.ensure(conn, tenant.actor, email="eva@example.org", name="Eva")
        await become(pool, tenant, "suspended")
        assert await invitations.accept(conn, Principal("person"), token=token, user_id=user.id) == tenant.id
    assert await pool.fetchval("SELECT role FROM memberships WHERE user_id = $1", user.id) == "owner"


@pytest.mark.parametrize("state", sorted(organizations.STOPPED))
async def test_a_campaign_is_canceled_and_nobody_is_written_to_who_asked_for_it(
    pool: Pool, tenant: Tenant, owner: Browser, state: str
) -> None:
    """Both would be written to once the organization is resumed."""
    at = clock.now() + timedelta(days=1)
    spec = SmsCampaignSpec(name="Sale", message_template="Hi", recipients=["+258841000001"], scheduled_at=at)
    async with pool.acquire() as conn, conn.transaction():
        made = await sms.create(conn, tenant.actor, spec=spec, request_id="req")
    token = (await owner.get("/account")).form("/account")["_token"]
    await become(pool, tenant, state)
    await taken(owner, token, is_refused=True)
    page = await owner.submit(await owner.get(f"/campaigns/{made.id}/cancel"), f"/campaigns/{made.id}/cancel")
    assert "The campaign is canceled" in page.words
    assert await pool.fetchval("SELECT status FROM campaigns") == "canceled"
    page = await owner.submit(
        await owner.get("/contacts/opt-outs"), "/contacts/opt-outs/add", phone="+258841000002", reason="on the phone"
    )
    assert await pool.fetchval("SELECT count(*) FROM opt_outs") == 1, page.words
