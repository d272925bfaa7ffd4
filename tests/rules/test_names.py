"""What operators name is found by the name as they type it: in any case, and in any encoding of its accents."""

from __future__ import annotations

from uuid import UUID

import msgspec
import pytest

from heliograph.accounts import organizations
from heliograph.accounts.api_keys import issued, lifecycle
from heliograph.audit import reading as audit
from heliograph.base.crypto import derive_key
from heliograph.base.database.pool import Connection, Pool
from heliograph.base.ids import uuid7
from heliograph.contacts import records, search, suggesting
from heliograph.contacts.records import Entry
from heliograph.contacts.search import Filters
from heliograph.overview import finding
from heliograph.overview.installation import organizations as overview
from heliograph.overview.searching import finding as searching
from heliograph.people import memberships, users
from heliograph.prices import tariffs
from heliograph.prices.tariff import Rate
from heliograph.routes import rules
from heliograph.routes.lookup import Choice, Route
from heliograph.sms.dispatch import suppliers
from heliograph.sms.lookups import accounts
from tests.rules.factories import TO
from tests.rules.factories import organization as tenant
from tests.rules.test_campaigns import create

KEY = derive_key("a secret key for tests of names only, long", "suppliers")
DECOMPOSED, COMPOSED = "Cafe\u0301", "Caf\u00e9"


async def _supplier(conn: Connection, name: str) -> UUID:
    return await suppliers.add(conn, KEY, name=name, kind="smpp", settings={"host": "127.0.0.1"}, secret="x")


async def _lookup(conn: Connection, name: str) -> UUID:
    values = {"base_url": "https://x.example", "price": "0.003", "currency": "EUR"}
    return await accounts.add(conn, KEY, name=name, kind="infobip", values=values, secrets={"secret": "its key"})


async def test_an_id_means_what_has_it_and_not_what_is_named_so(pool: Pool) -> None:
    """An organization that named itself after another one's id got the quota that an operator granted that one."""
    async with pool.acquire() as conn, conn.transaction():
        organization = await organizations.create(conn, name="Zeta")
        await organizations.create(conn, name=str(organization.id).upper())
        assert (await organizations.find(conn, reference=str(organization.id))).name == "Zeta"
        supplier = await _supplier(conn, "zeta")
        await _supplier(conn, str(supplier))
        assert await suppliers.id_of(conn, str(supplier)) == supplier
        assert (await suppliers.lock(conn, supplier=str(supplier))).name == "zeta"
        made = Route(id=uuid7(), name="zeta", choices=(Choice(supplier, 0, 1),))
        route = await rules.add(conn, made)
        await rules.add(conn, msgspec.structs.replace(made, name=str(route.id)))
        assert (await rules.find(conn, route=str(route.id))).route.name == "zeta"
        lookup = await _lookup(conn, "zeta")
        await _lookup(conn, str(lookup))
        assert (await accounts.find(conn, str(lookup))).name == "zeta"


@pytest.mark.parametrize("typed", [DECOMPOSED, COMPOSED, DECOMPOSED.upper(), "the id", "THE ID"])
async def test_a_name_is_found_as_it_is_typed(pool: Pool, typed: str) -> None:
    async with pool.acquire() as conn, conn.transaction():
        supplier = await _supplier(conn, DECOMPOSED)
        route = await rules.add(conn, Route(id=uuid7(), name=DECOMPOSED, choices=(Choice(supplier, 0, 1),)))
        lookup = await _lookup(conn, DECOMPOSED)
        organization = await organizations.create(conn, name=DECOMPOSED)

        def asked(id: UUID) -> str:
            return {"the id": str(id), "THE ID": str(id).upper()}.get(typed, typed)

        assert await suppliers.id_of(conn, asked(supplier)) == supplier
        assert (await suppliers.lock(conn, supplier=asked(supplier))).name == COMPOSED
        assert await suppliers.set_state(conn, supplier=asked(supplier), state="paused") == supplier
        assert (await rules.find(conn, route=asked(route.id))).route.name == COMPOSED
        assert (await rules.lock(conn, route=asked(route.id))).route.id == route.id
        assert (await accounts.find(conn, asked(lookup))).name == COMPOSED
        assert (await accounts.set_state(conn, account=asked(lookup), state="paused")).id == lookup
        assert (await organizations.find(conn, reference=asked(organization.id))).id == organization.id


@pytest.mark.parametrize("typed", [DECOMPOSED, COMPOSED, DECOMPOSED.upper()])
async def test_a_price_list_is_found_as_it_is_typed(pool: Pool, typed: str) -> None:
    """The console looks for the one that it has just imported: a new one with such a name could not be imported."""
    rate = Rate(country="MZ", price=38_000, currency="EUR")
    async with pool.acquire() as conn, conn.transaction():
        await tariffs.import_rates(conn, [(1, rate)], kind="price", name=DECOMPOSED)
        assert (await tariffs.find(conn, "price", name=typed)).name == COMPOSED


@pytest.mark.parametrize("typed", [DECOMPOSED, COMPOSED, DECOMPOSED.upper()])
async def test_a_search_finds_a_name_as_it_is_typed(pool: Pool, typed: str) -> None:
    actor = await tenant(pool)
    campaign = await create(pool, actor, name=DECOMPOSED, recipients=[TO])
    async with pool.acquire() as conn, conn.transaction():
        supplier = await _supplier(conn, DECOMPOSED)
        route = await rules.add(conn, Route(id=uuid7(), name=DECOMPOSED, choices=(Choice(supplier, 0, 1),)))
        organization = await organizations.create(conn, name=DECOMPOSED)
        things = {"supplier": supplier, "route": route.id, "organization": organization.id}
        for kind, id in things.items():
            found = await searching.by_name(conn, name=typed, kinds=[kind])
            assert found is not None
            assert found.id == id
        assert [one.id for one in await overview.listed(conn, search=typed)] == [organization.id]
        theirs = await finding.by_name(conn, actor, name=typed, kinds=["campaign"])
        assert theirs is not None
        assert theirs.id == campaign.id


@pytest.mark.parametrize("typed", [DECOMPOSED, COMPOSED, DECOMPOSED.upper()])
async def test_the_filters_of_lists_find_a_name_as_it_is_typed(pool: Pool, typed: str) -> None:
    actor = await tenant(pool)
    async with pool.acquire() as conn, conn.transaction():
        contact = await records.create(conn, actor, entry=Entry(TO, records.name(DECOMPOSED)))
        assert [one.id for one in (await search.search(conn, actor, filters=Filters(text=typed))).contacts] == [
            contact.id
        ]
        assert [one.id for one in await records.find(conn, actor, text=typed, country=None)] == [contact.id]
        assert [one.phone for one in await suggesting.suggest(conn, actor, text=typed)] == [TO]

        key, _ = await lifecycle.issue(conn, actor, name=DECOMPOSED, profile="read_only")
        found = await issued.list_everywhere(conn, organization_id=None, search=typed, limit=5)
        assert [one.id for _, one in found] == [key.id]

        # Addresses stay as they are written.
        user, _ = await users.ensure(conn, actor, email=f"{DECOMPOSED}@example.com", name=DECOMPOSED)
        other, _ = await users.ensure(conn, actor, email=f"{DECOMPOSED}@example.org", name="Zoe")
        for one in (user, other):
            await memberships.add(conn, actor, user_id=one.id, role="owner")
        assert [one.user_id for one in await memberships.list_page(conn, actor, search=typed, limit=5)] == [
            user.id,
            other.id,
        ]
    async with pool.acquire() as conn:
        for thing, id in ((typed, key.id), (f"{typed}@example.org", other.id)):
            logged = await audit.list_page(
                conn, audit.Filter(organization_id=actor.organization_id, object=thing), limit=9
            )
            assert {one.object_id for one in logged.entries} >= {str(id)}
