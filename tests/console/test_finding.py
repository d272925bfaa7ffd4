"""The palette of the console: what was pasted leads to its page, for who may see it."""

from __future__ import annotations

import uuid

import pytest

from heliograph.base.crypto import derive_key
from heliograph.base.database.pool import Pool
from heliograph.sms.dispatch import suppliers
from tests.api.conftest import Tenant

from .conftest import Browser, signed_in


async def make_supplier(pool: Pool) -> uuid.UUID:
    key, settings = derive_key("k" * 32, "tests"), {"host": "127.0.0.1", "port": 2775}
    async with pool.acquire() as conn:
        return await suppliers.add(conn, key, name="main", kind="smpp", settings=settings, secret="xyzzy-plugh")


async def led(browser: Browser, pasted: str) -> str:
    """Where the palette leads from there."""
    where = f"{browser.base_url}/console/go"
    async with browser.session.get(where, params={"q": pasted}, allow_redirects=False) as answer:
        assert answer.status == 303, pasted
        return answer.headers["location"]


async def test_what_was_pasted_leads_to_its_page(pool: Pool, tenant: Tenant, root: Browser) -> None:
    supplier, called = await make_supplier(pool), "main"
    organization, name = await pool.fetchrow("SELECT id, name FROM organizations")
    message = uuid.uuid4()
    await pool.execute(
        """INSERT INTO attempts (organization_id, message_id, attempt, target_id, state, started_at, ended_at,
                                 supplier_message_id) VALUES ($1, $2, 1, $3, 'accepted', now(), now(), '188b2c')""",
        organization,
        message,
        supplier,
    )
    for pasted, place in (
        (str(organization), f"/console/organizations/{organization}"),
        (name.upper(), f"/console/organizations/{organization}"),
        (str(supplier), f"/console/suppliers/{supplier}"),
        (called.upper(), f"/console/suppliers/{supplier}"),
        ("188B2C", f"/console/messages/{message}"),
        (str(message), f"/console/messages/{message}"),
        ("+258 84 123 4567", "/console/messages?recipient=%2B258+84+123+4567"),
        ("nobody at all", "/console/organizations?search=nobody+at+all"),
        ("quota_exceeded", "/docs/errors/quota_exceeded"),
        ("", "/console"),
    ):
        assert await led(root, pasted) == place


async def test_what_names_nothing_may_be_a_reference(pool: Pool, tenant: Tenant, root: Browser) -> None:
    page = await root.get(await led(root, "order & 7"))
    assert 'href="/console/messages?reference=order+%26+7"' in page.text
    page = await root.get("/console/messages?reference=order+%26+7")
    assert (page.status, "Acme" in page.words) == (200, True), "there is one organization only"
    page = await root.get(f"/console/organizations/{tenant.id}")
    assert f'href="/console/audit?organization={tenant.id}"' in page.text


@pytest.mark.parametrize("role", ["support", "finance"])
async def test_what_a_role_may_not_see_is_not_found(pool: Pool, browser: Browser, role: str) -> None:
    me = await signed_in(pool, browser, role)
    supplier = await make_supplier(pool)
    sees_messages = role == "support"
    assert await led(browser, str(me.id)) == (
        f"/console/messages/{me.id}" if sees_messages else f"/console/organizations?search={me.id}"
    )
    assert (await led(browser, str(supplier)) == f"/console/suppliers/{supplier}") == sees_messages
