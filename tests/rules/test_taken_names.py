"""A name, number or address that is taken is refused without an ERROR in PostgreSQL's log, which operators watch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import pytest

from heliograph.accounts import organizations
from heliograph.base.actor import SYSTEM
from heliograph.base.crypto import derive_key
from heliograph.base.database.pool import Connection, Pool
from heliograph.base.errors import Refusal
from heliograph.base.ids import uuid7
from heliograph.contacts import records
from heliograph.contacts.records import Changes, Entry
from heliograph.people import email_change, users
from heliograph.routes import rules
from heliograph.routes.lookup import Choice, Route
from heliograph.sms.by_hand import saved_texts
from heliograph.sms.dispatch import routing, suppliers
from heliograph.sms.lookups import accounts as lookups
from heliograph.whatsapp.mirror import accounts as whatsapp_accounts
from tests.rules import factories
from tests.rules import whatsapp_account_factories as whatsapp

KEY = derive_key("a secret key for tests of names only, long", "suppliers")

#: What prepares a refusal, and returns the call to be refused.
Case = Callable[[Pool, Connection], Awaitable[Callable[[], Awaitable[object]]]]


async def supplier(conn: Connection, name: str) -> routing.Supplier:
    id = await suppliers.add(conn, KEY, name=name, kind="smpp", settings={"host": "127.0.0.1"}, secret="x")
    return next(one for one in await routing.load(conn) if one.id == id)


async def supplier_added(pool: Pool, conn: Connection) -> Callable[[], Awaitable[object]]:
    await supplier(conn, "main")
    return lambda: supplier(conn, "MAIN")


async def supplier_renamed(pool: Pool, conn: Connection) -> Callable[[], Awaitable[object]]:
    await supplier(conn, "main")
    other = await supplier(conn, "other")
    await suppliers.change(conn, KEY, msgspec.structs.replace(other, name="Other"), before=other)
    return lambda: suppliers.change(conn, KEY, msgspec.structs.replace(other, name="MAIN"), before=other)


async def route_renamed(pool: Pool, conn: Connection) -> Callable[[], Awaitable[object]]:
    choices = (Choice((await supplier(conn, "main")).id),)
    for name in ("one", "other"):
        await rules.add(conn, Route(id=uuid7(), name=name, choices=choices))
    before = await rules.find(conn, route="other")
    await rules.change(conn, before, msgspec.structs.replace(before.route, name="Other"))
    return lambda: rules.change(conn, before, msgspec.structs.replace(before.route, name="ONE"))


async def lookup_added(pool: Pool, conn: Connection) -> Callable[[], Awaitable[object]]:
    values = {"base_url": "https://x.example", "price": "0.003", "currency": "EUR"}

    def add(name: str) -> Awaitable[object]:
        return lookups.add(conn, KEY, name=name, kind="infobip", values=values, secrets={"secret": "its key"})

    await add("hlr")
    return lambda: add("HLR")


async def organization_renamed(pool: Pool, conn: Connection) -> Callable[[], Awaitable[object]]:
    await organizations.create(conn, name="Acme")
    other = await organizations.create(conn, name="Other")
    assert (await organizations.rename(conn, id=other.id, name="OTHER")).name == "OTHER"
    return lambda: organizations.rename(conn, id=other.id, name="ACME")


async def contact_changed(pool: Pool, conn: Connection) -> Callable[[], Awaitable[object]]:
    actor = await factories.organization(pool)
    await records.create(conn, actor, entry=Entry("+258841234567"))
    other = await records.create(conn, actor, entry=Entry("+258841234568"))
    changes = Changes(phone="+258841234567")
    return lambda: records.change(conn, actor, id=other.id, changes=changes)


async def text_saved(pool: Pool, conn: Connection) -> Callable[[], Awaitable[object]]:
    actor = await factories.organization(pool)
    await saved_texts.create(conn, actor, name="Hours", body="9 to 5")
    return lambda: saved_texts.create(conn, actor, name="HOURS", body="8 to 4")


async def text_renamed(pool: Pool, conn: Connection) -> Callable[[], Awaitable[object]]:
    actor = await factories.organization(pool)
    await saved_texts.create(conn, actor, name="Hours", body="9 to 5")
    other = await saved_texts.create(conn, actor, name="Other", body="Hi")
    await saved_texts.change(conn, actor, id=other.id, name="OTHER", body="Hi!")
    return lambda: saved_texts.change(conn, actor, id=other.id, name="HOURS")


async def whatsapp_added(pool: Pool, conn: Connection) -> Callable[[], Awaitable[object]]:
    one, other = [await factories.organization(pool) for _ in range(2)]
    values = {
        "app_id": whatsapp.APP,
        "app_secret": whatsapp.SECRET,
        "verify_token": whatsapp.VERIFY,
        "waba_id": "900",
        "token": whatsapp.TOKEN,
        "currency": "EUR",
    }
    former = await whatsapp_accounts.add(conn, whatsapp.KEY, organization_id=other.organization_id, **values)
    await conn.execute("UPDATE whatsapp_accounts SET state = 'removed' WHERE id = $1", former.id)
    await whatsapp_accounts.add(conn, whatsapp.KEY, organization_id=one.organization_id, **values)
    return lambda: whatsapp_accounts.add(conn, whatsapp.KEY, organization_id=other.organization_id, **values)


async def address_changed(pool: Pool, conn: Connection) -> Callable[[], Awaitable[object]]:
    for email in ("eva@example.com", "ana@example.com"):
        await conn.execute(
            "INSERT INTO users (id, email, name, created_at) VALUES ($1, $2, 'A', now())", uuid7(), email
        )
    user = await users.find(conn, email="ana@example.com")
    values = {"user": user, "email": "eva@example.com", "session_id": uuid7(), "language": "en"}
    return lambda: email_change.ask(conn, SYSTEM, None, **values)


@pytest.mark.parametrize(
    "case",
    [
        supplier_added,
        supplier_renamed,
        route_renamed,
        lookup_added,
        organization_renamed,
        contact_changed,
        text_saved,
        text_renamed,
        whatsapp_added,
        address_changed,
    ],
)
async def test_what_is_taken_is_refused_without_an_error_in_the_databases_log(pool: Pool, case: Case) -> None:
    failures: list[object] = []
    async with pool.acquire() as conn:
        call = await case(pool, conn)
        with conn.query_logger(lambda query: failures.append(query.exception)), pytest.raises(Refusal):
            await call()
    assert failures
    assert not any(failures)
