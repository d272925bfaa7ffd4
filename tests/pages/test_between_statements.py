"""Something changes between two statements of a page: it shows what was true at one moment, or is renewed."""

from __future__ import annotations

import pytest

from heliograph.accounts.api_keys import lifecycle
from heliograph.base.database.pool import Pool
from heliograph.campaigns.views import tags as tag_uses
from heliograph.contacts import records, tags
from heliograph.contacts.records import Entry
from heliograph.people import memberships
from heliograph.webhooks import timeline as webhooks
from heliograph.whatsapp.money import wallet
from heliograph.whatsapp.money.wallet import Movement
from tests.meanwhile import DELIVERED, after, before, in_this_loop
from tests.rules import factories, whatsapp_factories
from tests.rules.dispatching import Bench
from tests.wallets import settle

from .conftest import Browser, Tenant, make_person


async def test_a_tag_that_is_renamed_while_the_list_is_read(
    pool: Pool, tenant: Tenant, owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page that is no longer renewed has the new name."""
    monkeypatch.setattr(tags, "STEP", 1)
    async with pool.acquire() as conn, conn.transaction():
        entries = [Entry(f"+25884{1_000_000 + n}", f"Person {n}", tags=("old",)) for n in range(2)]
        await records.create_many(conn, tenant.actor, entries=entries)
        await tags.begin(conn, tenant.actor, tag="old", becomes="new")

    async def done() -> None:
        async with pool.acquire() as conn, conn.transaction():
            while await tags.step(conn):
                pass

    after(monkeypatch, tag_uses, "list_page", in_this_loop(done))
    page = await owner.get("/contacts/tags", HX_Request="true")
    assert ("old" in page.words, "data-final" in page.text) == (True, False)
    page = await owner.get("/contacts/tags", HX_Request="true")
    assert ("old" in page.words, "data-final" in page.text) == (False, True)


async def test_what_is_charged_while_the_wallet_is_read(
    pool: Pool, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not shown as reserved by older messages, of which there are none."""
    one = await whatsapp_factories.made(pool, balance=100_000_000)
    tenant = Tenant(one.organization_id, one.actor, "", one.organization_id)
    await make_person(pool, tenant, "ana@example.com")
    await browser.sign_in("ana@example.com")
    id = await whatsapp_factories.message(pool, one, price=10_000_000)

    async def charged() -> None:
        async with pool.acquire() as conn, conn.transaction():
            await settle(conn, [Movement(one.organization_id, id, "consume", 10_000_000, "regular")])

    before(monkeypatch, wallet, "reserved", in_this_loop(charged))
    page = await browser.get("/wallet")
    assert "1 message reserves its price since" in page.words
    assert "Older messages" not in page.words
    assert "reserves its price" not in (await browser.get("/wallet")).words


async def test_who_is_removed_with_their_keys_keeps_none_that_they_are_making(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    rui = await make_person(pool, tenant, "rui@example.com", "admin")
    await other_browser.sign_in("rui@example.com")
    form = await other_browser.get("/keys/new")

    async def removed() -> None:
        async with pool.acquire() as conn:
            await memberships.remove(conn, tenant.actor, user_id=rui.id, revokes_keys=True)

    before(monkeypatch, lifecycle, "issue", in_this_loop(removed))
    page = await other_browser.submit(form, "/keys", name="mine", profile="sms_only")
    assert page.status == 403, page.words
    assert await pool.fetchval("SELECT count(*) FROM api_keys WHERE name = 'mine'") == 0


async def test_a_message_is_renewed_until_its_event_is_delivered(
    pool: Pool, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the attempt is recorded while the page is read, which is then renewed once more."""
    actor = await factories.organization(pool)
    await make_person(pool, Tenant(actor.organization_id, actor, "", actor.organization_id), "ana@example.com")
    await browser.sign_in("ana@example.com")
    await factories.endpoint(pool, actor, "message.delivered")
    bench, id = Bench(pool), await factories.message(pool, actor)
    await bench.round()
    await bench.receive(bench.only_id, factories.receipt(f"{id}-1"))

    async def delivered() -> None:
        await pool.execute(DELIVERED)

    assert 'id="live" class="stack" data-live' in (await browser.get(f"/messages/{id}")).text
    after(monkeypatch, webhooks, "tried", in_this_loop(delivered))
    seen = []
    for _ in range(2):
        page = await browser.get(f"/messages/{id}", HX_Request="true")
        assert "Delivered" in page.words
        seen.append(("Webhook attempt 1" in page.words, "data-final" in page.text))
    assert seen == [(False, False), (True, True)]
    url = await pool.fetchval("SELECT url FROM webhook_endpoints")
    assert f'<span class="sub">{url}</span>' in page.text, "there may be several"
    assert 'id="live" class="stack" data-live' not in (await browser.get(f"/messages/{id}")).text
