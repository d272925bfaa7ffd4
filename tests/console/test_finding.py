"""The console's palette: a pasted id or number leads to its page, for those who may see it."""

from __future__ import annotations

import urllib.parse
import uuid

import pytest
from yarl import URL

from heliograph.base.actor import SYSTEM
from heliograph.base.crypto import derive_key
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.console.finding import OWNED
from heliograph.people import users
from heliograph.sms.accepting import sender_ids
from heliograph.sms.dispatch import suppliers
from tests.api.conftest import Tenant, make_tenant
from tests.rules import whatsapp_factories

from .conftest import Browser, signed_in


async def make_supplier(pool: Pool) -> uuid.UUID:
    key, settings = derive_key("k" * 32, "tests"), {"host": "127.0.0.1", "port": 2775}
    async with pool.acquire() as conn:
        return await suppliers.add(conn, key, name="main", kind="smpp", settings=settings, secret="xyzzy-plugh")


async def palette_target(browser: Browser, pasted: str) -> str:
    """The page to which the palette leads from there."""
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
        ("00258841234567", "/console/messages?recipient=00258841234567"),
        ("nobody at all", "/console/organizations?search=nobody+at+all"),
        ("quota_exceeded", "/docs/errors/quota_exceeded"),
        ("hg_live_…a1B2", "/console/keys?search=a1B2&revoked=yes"),
        ("hg_test_" + "x" * 32 + "a1B2", "/console/keys?search=a1B2&revoked=yes"),
        ("rates", "/console/rates"),
        ("", "/console"),
    ):
        assert await palette_target(root, pasted) == place


async def accepted(pool: Pool, tenant: Tenant, *named: str) -> list[uuid.UUID]:
    """Messages that a supplier accepted with these ids, one after the other."""
    supplier, messages = await make_supplier(pool), [uuid.uuid4() for _ in named]
    for hours, (message, name) in enumerate(zip(reversed(messages), reversed(named), strict=True)):
        await pool.execute(
            """INSERT INTO attempts (organization_id, message_id, attempt, target_id, state, started_at, ended_at,
                                    supplier_message_id)
              VALUES ($1, $2, 1, $3, 'accepted', now(), now() - make_interval(hours => $4), $5)""",
            tenant.id,
            message,
            supplier,
            hours,
            name,
        )
    return messages


@pytest.mark.parametrize(
    ("stored", "pasted"),
    [
        ("188b2c", "188B2C"),
        ("7926919", "0007926919"),
        ("1608492", "188B2C"),  # the account's ids are decimal, and on the supplier's pages they are hexadecimal
        ("188b2c", "1608492"),
        ("120c3c19cdd04ba4bc0bc09e9532ffc7", "120C3C19-CDD0-4BA4-BC0B-C09E9532FFC7"),
    ],
)
async def test_a_suppliers_id_is_found_however_it_is_written(
    pool: Pool, tenant: Tenant, root: Browser, stored: str, pasted: str
) -> None:
    message, _ = await accepted(pool, tenant, stored, "f" + stored)
    place = f"/console/messages/{message}"
    assert await palette_target(root, pasted) == place
    where, given = f"{root.base_url}/console/messages", {"id": pasted}
    async with root.session.get(where, params=given, allow_redirects=False) as answer:
        assert (answer.status, answer.headers["location"]) == (303, place)


async def test_a_suppliers_id_is_first_what_it_says(pool: Pool, tenant: Tenant, root: Browser) -> None:
    # 0x100 is 256: the id of another, newer message.
    message, _ = await accepted(pool, tenant, "100", "256")
    assert await palette_target(root, "100") == f"/console/messages/{message}"


async def test_a_link_by_id_alone_leads_where_the_palette_does(pool: Pool, tenant: Tenant, root: Browser) -> None:
    supplier = await make_supplier(pool)
    for pasted in (str(tenant.id), str(supplier), "+258 84 123 4567", "a b?c", str(uuid.uuid4())):
        where = f"{root.base_url}/console/go/{urllib.parse.quote(pasted)}"
        async with root.session.get(where, allow_redirects=False) as answer:
            assert (answer.status, answer.headers["location"]) == (303, await palette_target(root, pasted))
    # No name has NUL, which the database refuses.
    async with root.session.get(URL(f"{root.base_url}/console/go/%00", encoded=True)) as answer:
        assert answer.status == 404


async def test_a_sender_leads_to_those_who_have_it(pool: Pool, tenant: Tenant, root: Browser) -> None:
    async with pool.acquire() as conn:
        for value in ("PADARIA", "Acm"):
            await sender_ids.request(conn, tenant.actor, value=value)
    assert await palette_target(root, "padaria") == "/console/senders?search=padaria"
    # The beginning of an organization's name is found as before.
    assert await palette_target(root, "acm") == "/console/organizations?search=acm"
    assert await palette_target(root, "padar") == "/console/organizations?search=padar"


async def test_an_id_of_any_kind_leads_to_where_it_is_whichever_organization_has_it(pool: Pool, root: Browser) -> None:
    await make_tenant(pool)
    who = await whatsapp_factories.made(pool)
    campaign = await whatsapp_factories.campaign(pool, who)
    organization = who.organization_id
    here = f"/console/organizations/{organization}"
    account, message = who.account_id, await whatsapp_factories.message(pool, who)
    ids = {kind: uuid7() for kind in OWNED} | {"whatsapp_campaign": campaign, "account": account}
    rows: dict[str, tuple[str, str]] = {
        "sms_campaign": (
            "campaigns (id, organization_id, mode, name, status, request_id, created_at, message_template, sender_id,"
            " audience_tag_match_mode)",
            "$1, $2, 'test', 'c', 'paused', 'r', now(), 'hello', $1, 'any'",
        ),
        "key": (
            "api_keys (id, organization_id, name, mode, scopes, prefix, last4, secret_hash, created_at)",
            "$1, $2, 'k', 'live', '{}', 'hg_live_', 'abcd', sha256('x'), now()",
        ),
        "sender": ("sender_ids (id, organization_id, value, created_at)", "$1, $2, 'SOL', now()"),
        "endpoint": (
            "webhook_endpoints (id, organization_id, url, subscribed_events, secret, created_at)",
            "$1, $2, 'https://example.com', '{}', '', now()",
        ),
        "told": ("events (id, organization_id, kind, request_id, data, created_at)", "$1, $2, 'k', '', '{}', now()"),
        "contact": (
            "contacts (id, organization_id, mode, name, phone, created_at, updated_at)",
            "$1, $2, 'test', 'Ana', '+258841234567', now(), now()",
        ),
        "import": ("contact_imports (id, organization_id, file, started_at)", "$1, $2, 'people.csv', now()"),
        "received": (
            "received_messages (id, organization_id, supplier_id, sender, recipient, sender_id, segments, received_at)",
            "$1, $2, $1, '+258841234567', '1234', $1, 1, now()",
        ),
        "lookup": (
            "lookup_suppliers (id, name, kind, settings, secret, created_at, changed_at)",
            "$1, 'mnp', 'infobip', '{}', '', now(), now()",
        ),
        "tariff": (
            "tariffs (id, kind, name, currency, created_at, changed_at)",
            "$1, 'price', 'standard', 'USD', now(), now()",
        ),
        "dead_letter": (
            "whatsapp_dead_letters (id, app, body, reason, received_at)",
            "$1, $1, '', 'unknown account', now()",
        ),
    }
    for kind, (columns, values) in rows.items():
        given = [ids[kind], organization] if "$2" in values else [ids[kind]]
        await pool.execute(f"INSERT INTO {columns} VALUES ({values})", *given)
    await pool.execute(
        "INSERT INTO events (id, organization_id, kind, message_id, request_id, data, created_at)"
        " VALUES ($1, $2, 'k', $3, '', '{}', now())",
        ids["event"],
        organization,
        message,
    )
    async with pool.acquire() as conn:
        user, _ = await users.ensure(conn, SYSTEM, email="ana@example.com", name="Ana")
    ids["person"] = user.id
    await pool.execute(
        "INSERT INTO memberships (organization_id, user_id, role, created_at) VALUES ($1, $2, 'owner', now())",
        organization,
        user.id,
    )
    places = {
        "sms_campaign": f"{here}/campaigns?after={uuid.UUID(int=ids['sms_campaign'].int + 1)}",
        "whatsapp_campaign": f"{here}/campaigns?channel=whatsapp&after={uuid.UUID(int=campaign.int + 1)}",
        "key": f"{here}/keys/{ids['key']}",
        "sender": f"{here}/keys",
        "endpoint": f"{here}/webhooks",
        "event": f"/console/messages/{message}",
        "told": f"{here}/webhooks",
        "account": f"/console/whatsapp/accounts/{organization}/{account}",
        "contact": here,
        "import": here,
        "received": f"/console/inbound?after={uuid.UUID(int=ids['received'].int + 1)}#latest",
        "person": here,
        "lookup": f"/console/lookups/{ids['lookup']}",
        "tariff": f"/console/rates/cards/{ids['tariff']}",
        "dead_letter": f"/console/whatsapp/callbacks/{ids['dead_letter']}",
    }
    assert set(places) == set(OWNED)
    for kind, place in places.items():
        assert await palette_target(root, str(ids[kind])) == place, kind
    for id in (who.number_id, who.template_id):
        assert await palette_target(root, str(id)) == places["account"]
    # The list starts with the campaign.
    assert "Delivery day" in (await root.get(places["whatsapp_campaign"])).words


async def test_what_names_nothing_may_be_a_reference(pool: Pool, tenant: Tenant, root: Browser) -> None:
    page = await root.get(await palette_target(root, "order & 7"))
    assert 'href="/console/messages?reference=order+%26+7"' in page.text
    page = await root.get("/console/messages?reference=order+%26+7")
    assert (page.status, "Acme" in page.words) == (200, True), "there is one organization only"
    page = await root.get(f"/console/organizations/{tenant.id}")
    assert f'href="/console/organizations/{tenant.id}/history"' in page.text


@pytest.mark.parametrize("role", ["support", "finance"])
async def test_what_a_role_may_not_see_is_not_found(pool: Pool, browser: Browser, role: str) -> None:
    me = await signed_in(pool, browser, role)
    supplier = await make_supplier(pool)
    sees_messages = role == "support"
    assert await palette_target(browser, str(me.id)) == (
        f"/console/messages/{me.id}" if sees_messages else f"/console/organizations?search={me.id}"
    )
    assert (await palette_target(browser, str(supplier)) == f"/console/suppliers/{supplier}") == sees_messages
