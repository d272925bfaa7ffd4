"""What operators name is found by the name as they type it: in any case, and in any encoding of its accents."""

from __future__ import annotations

from uuid import UUID

import pytest

from heliograph.accounts import organizations
from heliograph.base.crypto import derive_key
from heliograph.base.database.pool import Connection, Pool
from heliograph.base.ids import uuid7
from heliograph.routes import rules
from heliograph.routes.lookup import Choice, Route
from heliograph.sms.dispatch import suppliers
from heliograph.sms.lookups import accounts

KEY = derive_key("a secret key for tests of names only, long", "suppliers")
DECOMPOSED, COMPOSED = "Cafe\u0301", "Caf\u00e9"


async def _supplier(conn: Connection, name: str) -> UUID:
    return await suppliers.add(conn, KEY, name=name, kind="smpp", settings={"host": "127.0.0.1"}, secret="x")


@pytest.mark.parametrize("typed", [DECOMPOSED, COMPOSED, DECOMPOSED.upper(), "the id", "THE ID"])
async def test_a_name_is_found_as_it_is_typed(pool: Pool, typed: str) -> None:
    async with pool.acquire() as conn, conn.transaction():
        supplier = await _supplier(conn, DECOMPOSED)
        route = await rules.add(conn, Route(id=uuid7(), name=DECOMPOSED, choices=(Choice(supplier, 0, 1),)))
        values = {"base_url": "https://x.example", "price": "0.003", "currency": "EUR"}
        lookup = await accounts.add(
            conn, KEY, name=DECOMPOSED, kind="infobip", values=values, secrets={"secret": "its key"}
        )
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
