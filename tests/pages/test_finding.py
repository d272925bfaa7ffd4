"""/go/{anything}: whatever somebody pasted leads to its page, and to nobody else's."""

from __future__ import annotations

import urllib.parse
import uuid

from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.contacts import records
from heliograph.contacts.records import Entry

from .conftest import Api, Browser, Tenant, make_person, make_tenant
from .test_campaigns import make
from .test_messages import send
from .test_webhooks import id_in, register

EVENT = """
INSERT INTO events (organization_id, id, kind, mode, message_id, request_id, data, created_at)
VALUES ($1, $2, 'message.delivered', 'live', $3, 'r', '{}', now())
"""


async def found(browser: Browser, what: object) -> str:
    """Where it leads to; "" if there is nothing."""
    text = urllib.parse.quote(str(what), safe="")
    page = await browser.get(f"/go?q={text}" if "/" in str(what) else f"/go/{text}")
    return "" if page.status == 404 else page.path


async def test_everything_is_found_by_its_id_or_its_name(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    endpoint = id_in(await register(owner, "https://example.com/hooks"))
    async with pool.acquire() as conn:
        await records.create_many(conn, tenant.actor, entries=[Entry("+258841000001", "Ana")])
        contact = await conn.fetchval("SELECT id FROM contacts")
    await make(owner, name="Spring sale", to="numbers", numbers="+258841000001")
    campaign = await pool.fetchval("SELECT id FROM campaigns")
    sender = await pool.fetchval("SELECT id FROM sender_ids WHERE organization_id = $1", tenant.id)
    message, event = await send(api, tenant), uuid7()
    await pool.execute(EVENT, tenant.id, event, uuid.UUID(message))
    person = await make_person(pool, tenant, "vera@example.com", "viewer")
    wanted = {
        endpoint: f"/webhooks/{endpoint}",
        "https://example.com/hooks": f"/webhooks/{endpoint}",
        contact: f"/contacts/{contact}",
        campaign: f"/campaigns/{campaign}",
        "SPRING sale": f"/campaigns/{campaign}",
        sender: "/senders",
        "heliograph": "/senders",
        tenant.key_id: "/keys",
        f"{tenant.secret[:8]}…{tenant.secret[-4:]}": "/keys",
        person.id: "/team",
        "Vera@example.com": "/team",
        event: f"/messages/{message}",
        message: f"/messages/{message}",
    }
    for what, where in wanted.items():
        assert await found(owner, what) == where, what
    # What a role does not see is not there; what belongs to others is not, for anybody.
    await other_browser.sign_in("vera@example.com")
    assert await found(other_browser, campaign) == f"/campaigns/{campaign}"
    for what in (tenant.key_id, person.id):
        assert await found(other_browser, what) == "", what
    other = await make_tenant(pool)
    await make_person(pool, other, "eve@example.com")
    stranger = Browser(api.base_url)
    try:
        await stranger.sign_in("eve@example.com")
        for what in wanted:
            where = await found(stranger, what)
            if what == "heliograph":
                assert where == "/senders"  # of their own
            else:
                assert not where or where.startswith("/messages?q="), what
    finally:
        await stranger.session.close()
