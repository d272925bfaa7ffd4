"""Routes: listed with each supplier's current share, changed after a preview of what that moves, and undone."""

from __future__ import annotations

import inspect
import re
from typing import Any
from uuid import UUID

import pytest

from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.process.settings import Settings
from heliograph.cli.traffic import route as command
from heliograph.console.routing import editing
from heliograph.prices import margins, rows, tariffs
from heliograph.routes import rules
from heliograph.routes.rules import StoredRoute
from heliograph.senders import rules as sender_rules
from heliograph.senders.book import SenderRule
from heliograph.sms.circuits import sharing
from heliograph.sms.dispatch import suppliers
from heliograph.sms.lookups import accounts
from tests.api.conftest import Tenant

from .conftest import Browser, signed_in, yesterday
from .test_suppliers import add, audit_entries

NEW = "/console/routes/new"


@pytest.fixture
async def main(pool: Pool, settings: Settings) -> UUID:
    return await add(pool, settings, "main")


@pytest.fixture
async def backup(pool: Pool, settings: Settings) -> UUID:
    return await add(pool, settings, "backup")


async def stored(pool: Pool, name: str = "moz") -> StoredRoute:
    async with pool.acquire() as conn:
        return await rules.find(conn, route=name)


def at(supplier: UUID, place: int | str, weight: int | str = 1) -> dict[str, str]:
    return {f"place-{supplier}": str(place), f"weight-{supplier}": str(weight)}


async def added(browser: Browser, **typed: str) -> Any:
    """Add a route with its form; returns its page."""
    page = await browser.submit(await browser.get(NEW), NEW, **{"name": "moz", "country": "MZ"} | typed)
    assert "Before it is saved" in page.words, page.words
    return await browser.submit(page, NEW, do="save")


def test_the_form_has_the_fields_of_the_command() -> None:
    options = {"supplier", "dry_run", "json", "data_dir"}
    assert {*inspect.signature(command.add).parameters} - options == editing.FIELDS.keys()
    assert {*inspect.signature(command.set_).parameters} - options - {"which"} == editing.FIELDS.keys()


async def test_a_route_is_added_after_a_look_at_what_it_moves(
    pool: Pool, root: Browser, tenant: Tenant, main: UUID, backup: UUID
) -> None:
    await yesterday(pool, tenant, "MZ", 41)
    await yesterday(pool, tenant, "ZA", 59)
    page = await root.submit(await root.get(NEW), NEW, name="odd", network="643-98", **at(backup, 10))
    assert "The zeros of 643-98 cannot be checked" in page.words
    page = await root.submit(await root.get(NEW), NEW, name="moz", country="mz", note="as agreed", **at(backup, 10))
    assert "The zeros of" not in page.words
    # Of two suppliers with shares, one now carries all of Mozambique.
    assert "It moves 20.5 % of yesterday's 100 messages." in page.words
    assert "20 from main to backup" in page.words
    async with pool.acquire() as conn:
        assert await rules.load(conn) == [], "nothing is saved yet"
    page = await root.submit(page, NEW, do="save")
    assert "The route is added" in page.words
    one = await stored(pool)
    assert (one.route.country, one.note, [choice.supplier_id for choice in one.route.choices]) == (
        "MZ",
        "as agreed",
        [backup],
    )
    assert [entry[:2] for entry in await audit_entries(pool, one.route.id)] == [("route.added", "operator")]
    for path in ("/console/routes", "/console/routes/matrix", "/console/routes/history"):
        page = await root.get(path)
        assert page.status == 200
        assert "moz" in page.words
        assert "backup" in page.words


async def test_refusals_stand_at_their_fields_with_what_was_typed(
    pool: Pool, root: Browser, main: UUID, backup: UUID
) -> None:
    form = await root.get(NEW)
    good = {"name": "moz", "country": "MZ"} | at(main, 10)
    for typed, field in (
        ({"name": ""}, "name"),
        ({"prefix": "+abc", "country": ""}, "prefix"),
        ({"prefix": "258"}, "prefix"),
        ({"country": "XX"}, "country"),
        ({"network": "643", "country": ""}, "network"),
        ({"organization": "Nobody"}, "organization"),
        ({"priority": "1001"}, "priority"),
        ({"class": "urgent"}, "class"),
        (at(main, ""), "supplier"),
        (at(main, "-1"), f"place-{main}"),
        (at(main, 1, 0), f"weight-{main}"),
    ):
        page = await root.submit(form, NEW, **good | typed)
        assert page.status == 422, typed
        assert f'href="#{field}"' in page.text, (typed, page.words)
        assert f'id="{field}"' in page.text, typed
    # All of them at once; a supplier whose priority cannot be read is not a missing one.
    typed = {"name": "", "prefix": "+abc", "country": "XX", "organization": "Nobody", "note": "x" * 501} | at(main, -1)
    page = await root.submit(form, NEW, **typed)
    named = {"name", "prefix", "country", "organization", "note", f"place-{main}"}
    assert set(re.findall(r'href="#([^"]+)"', page.text)) & {*named, "supplier"} == named
    for network, said in (("643", "such as 643-04 or 334-020"), ("643-4", "did you mean 643-04?")):
        page = await root.submit(form, NEW, **good | {"network": network, "country": ""})
        assert said in page.words, page.words
    assert (await added(root, **at(main, 10))).status == 200
    page = await root.submit(form, NEW, **good | {"note": "kept"})
    assert page.status == 422
    assert "already a route with this name" in page.words
    assert 'value="kept"' in page.text


async def test_a_change_is_shown_saved_and_undone(
    pool: Pool, root: Browser, tenant: Tenant, main: UUID, backup: UUID
) -> None:
    await yesterday(pool, tenant, "MZ", 1)
    await added(root, **at(main, 10))
    one = await stored(pool)
    path = f"/console/routes/{one.route.id}"
    page = await root.submit(await root.get(f"{path}/edit"), f"{path}/edit", **at(backup, 5))
    assert "It moves yesterday's message." in page.words
    page = await root.submit(await root.get(f"{path}/edit"), f"{path}/edit", **at(backup, 10))
    assert "It moves 50 % of yesterday's message." in page.words
    page = await root.submit(await root.get(f"{path}/edit"), f"{path}/edit", note="new", **at(backup, 20, 3))
    assert "It does not move yesterday's message." in page.words
    assert "main (priority 10, weight 1), backup (priority 20, weight 3)" in page.words
    again = await root.submit(page, f"{path}/edit", do="again")
    assert 'value="new"' in again.text
    page = await root.submit(page, f"{path}/edit", do="save")
    assert "Saved: workers apply it" in page.words
    assert len((await stored(pool)).route.choices) == 2
    # The audit log names suppliers, as the history does.
    logged = await root.get("/console/audit?action=route.changed")
    before = "main (priority 10, weight 1)"
    assert f"Suppliers: {before} → {before}, backup (priority 20, weight 3)" in logged.words
    assert str(backup) not in logged.text
    # With the notice's button, and from the history.
    entry = await pool.fetchval("SELECT id FROM audit_log WHERE action = 'route.changed'")
    undo = f"{path}/undo/{entry}"
    assert f'action="{undo}"' in page.text
    page = await root.submit(await root.get(undo), undo)
    assert "is restored" in page.words
    assert await stored(pool) == await stored(pool, str(one.route.id))
    after = await stored(pool)
    assert (after.route, after.note) == (one.route, one.note)
    page = await root.get(undo)
    assert "already like that" in page.words
    page = await root.submit(await root.get(f"{path}/edit"), f"{path}/edit")
    assert "Nothing was changed" in page.words


async def test_who_was_slower_looks_again(pool: Pool, root: Browser, main: UUID, backup: UUID) -> None:
    await added(root, **at(main, 10))
    path = f"/console/routes/{(await stored(pool)).route.id}/edit"
    page = await root.submit(await root.get(path), path, note="mine")
    async with pool.acquire() as conn, conn.transaction():
        await rules.set_state(conn, await rules.lock(conn, route="moz"), "paused")
    page = await root.submit(page, path, do="save")
    assert page.status == 422
    assert "changed this route in the meantime" in page.words
    assert (await stored(pool)).note == ""


async def test_a_route_is_paused_resumed_removed_and_brought_back(
    pool: Pool, root: Browser, tenant: Tenant, main: UUID, backup: UUID
) -> None:
    await yesterday(pool, tenant, "MZ", 100)
    await added(root, **at(backup, 10), note="keep")
    id = (await stored(pool)).route.id
    path = f"/console/routes/{id}"
    page = await root.get(f"{path}/pause")
    paused = page
    assert "It moves 50 % of yesterday's 100 messages." in page.words
    assert (await stored(pool)).state == "active"
    for offered in (True, False):  # the second time, the last change is somebody else's, or one that is long past
        page = await root.submit(page if offered else paused, f"{path}/pause")
        assert ("It is paused" in page.words, f'action="{path}/undo/' in page.text) == (True, offered)
    page = await root.submit(await root.get(f"{path}/resume"), f"{path}/resume")
    assert "decides again" in page.words
    form = await root.get(f"{path}/remove")
    assert "50 from backup to main" in form.words
    assert (await root.submit(form, f"{path}/remove", typed="other")).status == 422
    await root.submit(await root.get(f"{path}/pause"), f"{path}/pause")
    page = await root.submit(form, f"{path}/remove", typed="moz")
    assert "moz is removed" in page.words
    assert (await root.get(path)).status == 404
    (undo,) = [one for one in page.text.split('"') if one.startswith(f"{path}/undo/")]
    back = await root.submit(await root.get(undo), undo)
    assert "is restored" in back.words
    one = await stored(pool)
    assert (one.note, one.state, [choice.supplier_id for choice in one.route.choices]) == ("keep", "paused", [backup])
    # A second time is refused with a message.
    page = await root.get(undo)
    assert page.status == 422
    assert "already a route" in page.words
    # Nor one that names a removed supplier.
    await pool.execute("UPDATE suppliers SET state = 'removed' WHERE id = $1", backup)
    async with pool.acquire() as conn, conn.transaction():
        await rules.remove(conn, await rules.lock(conn, route="moz"))
    page = await root.get(undo)
    assert "supplier that it had then has been removed" in page.words


async def test_shares_now_stand_beside_those_configured(
    pool: Pool, root: Browser, settings: Settings, main: UUID, backup: UUID
) -> None:
    await added(root, **at(main, 10, 3), **at(backup, 10, 1))
    page = await root.get(f"/console/routes/{(await stored(pool)).route.id}")
    assert "none of its suppliers is available now" in page.words, "no worker has a session"
    await bound(pool, main, backup)
    page = await root.get("/console/routes")
    assert "main 75 %" in page.words
    async with pool.acquire() as conn:
        await suppliers.set_state(conn, supplier="main", state="paused")
    page = await root.get("/console/routes")
    assert "main 0 % configured: 75 % paused" in page.words
    assert "backup 100 % configured: 25 %" in page.words
    assert "100 %" in (await root.get("/console/routes/matrix")).words
    # Measured shares of an adaptive route.
    async with pool.acquire() as conn:
        await suppliers.set_state(conn, supplier="main", state="active")
        async with conn.transaction():
            before = await rules.lock(conn, route="moz")
            await rules.change(conn, before, rules.msgspec.structs.replace(before.route, adaptive=True))
        shares = [rules.Share(main, 40, 0, "97 %"), rules.Share(backup, 60, 0, "99 %")]
        await rules.store_shares(conn, {before.route.id: shares})
    page = await root.get("/console/routes")
    assert "main 40 % configured: 75 %" in page.words
    assert "99 %" in (await root.get(f"/console/routes/{before.route.id}")).words
    assert "Networks with other shares" not in (await root.get(f"/console/routes/{before.route.id}")).words
    there = [rules.Share(one.supplier_id, 50, 0, "98 % there") for one in shares]
    shares = [
        rules.msgspec.structs.replace(one, networks={"643-04": other}) for one, other in zip(shares, there, strict=True)
    ]
    async with pool.acquire() as conn:
        await rules.store_shares(conn, {before.route.id: shares})
        assert (await rules.find(conn, route="moz")).shares == {one.supplier_id: one for one in shares}
    page = await root.get(f"/console/routes/{before.route.id}")
    assert "main 643-04 50 points 98 % there" in page.words
    # A circuit that is open for all.
    await pool.execute(
        "INSERT INTO supplier_health (supplier_id, opened_at) VALUES ($1, clock_timestamp() + interval '1 second')",
        main,
    )
    async with pool.acquire() as conn:
        assert main in await sharing.avoided(conn)
    assert "main 0 % configured: 75 % avoided since" in (await root.get("/console/routes")).words


async def test_who_has_no_rate_gets_nothing_of_a_route_that_requires_one(
    pool: Pool, root: Browser, main: UUID, backup: UUID
) -> None:
    async def priced(card: str) -> None:
        async with pool.acquire() as conn, conn.transaction():
            given = rows.read([f"{line}\n" for line in card.splitlines()])
            await tariffs.import_rates(conn, given, kind="cost", name="main", supplier_id=main)

    await added(root, rated="yes", **at(main, 10, 3), **at(backup, 10, 1))
    await bound(pool, main, backup)
    page = await root.get("/console/routes/matrix")
    assert page.words.count("has no rate there") == 2, page.words
    await priced("country,price,currency\nMZ,0.01,USD")
    one = f"/console/routes/{(await stored(pool)).route.id}"
    for path, says in (
        ("/console/routes", ("main 100 % configured: 75 %", "backup 0 % configured: 25 % has no rate there")),
        ("/console/routes/matrix", ("0 % configured: 25 % has no rate there 10 · ×3 100 % configured: 75 %",)),
        (one, ("main 10 3 75 % 100 % – ● can be asked backup 10 1 25 % 0 % – ◔ has no rate there",)),
    ):
        words = (await root.get(path)).words
        assert all(text in words for text in says), words
    # A supplier for some of its numbers: those it does carry.
    for card, times in (
        ("country,prefix,price,currency\n,25884,0.01,USD", 1),
        ("country,mcc,mnc,price,currency\n,643,04,0.01,USD", 1),
        ("country,price,currency\nPT,0.01,USD", 2),
        ("country,prefix,price,currency\n,35191,0.01,USD", 2),
    ):
        await pool.execute("DELETE FROM tariff_rates")
        await pool.execute("DELETE FROM tariffs")
        await priced(card)
        words = (await root.get("/console/routes/matrix")).words
        assert words.count("has no rate there") == times, card
    # Countries that share a calling code have separate rates, by which workers route their numbers.
    for route, card, times in (
        ({"country": "US"}, "country,price,currency\nCA,0.01,USD", 1),
        ({"country": "RU"}, "country,price,currency\nKZ,0.01,USD", 1),
        ({"country": "US"}, "country,price,currency\nKZ,0.01,USD", 2),
        ({"country": "US"}, "country,mcc,mnc,price,currency\n,302,720,0.01,USD", 1),
        ({"prefix": "1416"}, "country,mcc,mnc,price,currency\n,302,720,0.01,USD", 1),
        ({"prefix": "77"}, "country,mcc,mnc,price,currency\n,401,02,0.01,USD", 1),
        ({"prefix": "77"}, "country,price,currency\nRU,0.01,USD", 2),
        ({"prefix": "1"}, "country,price,currency\nCA,0.01,USD", 1),
        ({"prefix": "1416"}, "country,price,currency\nUS,0.01,USD", 2),
        ({"network": "302-720"}, "country,prefix,price,currency\n,1416,0.01,USD", 1),
        ({"country": "MZ"}, "country,mcc,mnc,price,currency\n,302,720,0.01,USD", 2),
        ({}, "country,price,currency\nPT,0.01,USD", 1),
        # Its country's rate says nothing about a network that is not served.
        (
            {"network": "643-04"},
            "country,mcc,mnc,price,currency,reject\nMZ,,,0.01,USD,\nMZ,643,04,0,USD,yes",
            2,
        ),
    ):
        await pool.execute("DELETE FROM tariff_rates")
        await pool.execute("DELETE FROM tariffs")
        await priced(card)
        async with pool.acquire() as conn, conn.transaction():
            before = await rules.lock(conn, route="moz")
            where = {"country": None, "prefix": None, "network": None} | route
            await rules.change(conn, before, rules.msgspec.structs.replace(before.route, **where))
        words = (await root.get("/console/routes/matrix")).words
        assert words.count("has no rate there") == times, (route, card)


async def test_a_simulator_has_its_badge_wherever_routes_name_it(
    pool: Pool, root: Browser, tenant: Tenant, settings: Settings, main: UUID
) -> None:
    async with pool.acquire() as conn:
        key = suppliers.seal_key(settings)
        toy = await suppliers.add(conn, key, name="toy", kind="smpp", settings={}, secret="x", simulated=True)
    await added(root, **at(main, 10), **at(toy, 20))
    one = (await stored(pool)).route.id
    explained = "/console/routes/explain?to=%2B258841234567"
    page = await root.get(explained)
    assert (page.status, "simulated" in page.text) == (200, False), page.words
    for path, times in (
        # Also if no route decides.
        ("/console/routes", 2),
        ("/console/routes/matrix", 1),
        (f"/console/routes/{one}", 1),
        (f"/console/routes/{one}/edit", 1),
    ):
        page = await root.get(path)
        assert page.text.count('class="tag simulated nowrap"') == times, path
        assert "toy simulator" in page.words, path
        assert "main simulator" not in page.words, path
    # If it is the only one, it would be used, and the page says what that means.
    await pool.execute("UPDATE suppliers SET state = 'removed' WHERE id = $1", main)
    await bound(pool, toy)
    page = await root.get(explained)
    assert page.text.count('class="tag simulated nowrap"') == 1
    assert "toy simulator" in page.words
    assert "Live messages go to a simulator" in page.words


async def bound(pool: Pool, *ids: UUID) -> None:
    """A worker holds a session with each of them."""
    worker = UUID(int=1)
    await pool.execute(
        "INSERT INTO workers (id, name, started_at, seen_at) VALUES ($1, 'w', now(), now()) ON CONFLICT DO NOTHING",
        worker,
    )
    for n, id in enumerate(ids):
        await pool.execute(
            "INSERT INTO supplier_sessions (supplier_id, slot, worker_id, lease_until, bound)"
            " VALUES ($1, $2, $3, now() + interval '1 minute', true)",
            id,
            n,
            worker,
        )


async def test_lists_are_filtered_and_continued(
    pool: Pool, root: Browser, tenant: Tenant, settings: Settings, main: UUID
) -> None:
    async with pool.acquire() as conn:
        for n in range(55):
            route = rules.Route(id=UUID(int=n), name=f"r{n:02}", prefix=f"258{n:02}", choices=(rules.Choice(main, 10),))
            await rules.add(conn, rules.msgspec.structs.replace(route, traffic_class="otp" if n else None))
    page = await root.get("/console/routes")
    assert "Routes 1 to 50 of 55" in page.words
    (more,) = [one.replace("&amp;", "&") for one in page.text.split('"') if "from=" in one]
    page = await root.get(more)
    assert "Routes 51 to 55 of 55" in page.words
    page = await root.get("/console/routes?class=marketing")
    assert "r00" in page.words
    assert "r01" not in page.words
    page = await root.get("/console/routes?organization=Nobody")
    assert page.status == 422
    assert (await root.get(f"/console/routes?organization={tenant.id}")).status == 200


async def test_it_says_where_a_message_would_go(
    pool: Pool, root: Browser, tenant: Tenant, main: UUID, backup: UUID
) -> None:
    await added(root, **at(main, 10), **at(backup, 20))
    await bound(pool, main)
    path = "/console/routes/explain"
    page = await root.get(f"{path}?to=%2B258+84+123+4567&sender=ACME&class=otp")
    assert "country MZ (route moz): main" in page.words
    assert "backup skipped: no session bound" in page.words
    page = await root.get(f"{path}?to=%2B27821234567")
    assert "no route: the suppliers' own" in page.words
    assert "No supplier is available; the message would wait." not in page.words
    assert "Nothing is sent at present" not in page.words
    await pool.execute("UPDATE organizations SET state = 'suspended'")
    page = await root.get(f"{path}?to=%2B258841234567&sender=ACME")
    assert "Nothing is sent at present: the organization is suspended" in page.words
    await pool.execute("UPDATE organizations SET state = 'active'")
    # Waiting messages are distinguished from those that end at once: here because nobody has the price that the route
    # requires.
    await pool.execute("UPDATE routes SET rated = true")
    page = await root.get(f"{path}?to=%2B258841234567&sender=ACME")
    assert "The message would end at once, and be refunded: destination_unreachable" in page.words
    await pool.execute("UPDATE routes SET rated = false")
    await pool.execute("UPDATE suppliers SET state = 'paused'")
    page = await root.get(f"{path}?to=%2B258841234567&sender=ACME")
    assert "No supplier is available; the message would wait." in page.words
    # Without its country code it would be explained as a Vietnamese number.
    for query, field in (
        ("to=84", "to"),
        ("to=841234567", "to"),
        ("to=%2B258841234567&organization=X", "organization"),
    ):
        page = await root.get(f"{path}?{query}")
        assert page.status == 422
        assert f'href="#{field}"' in page.text
    for typed, said in (("x", "such as 643-04 or 334-020"), ("643-4", "did you mean 643-04?")):
        page = await root.get(f"{path}?to=%2B258841234567&network={typed}")
        assert (page.status, said in page.words) == (422, True), page.words


async def test_who_may_look_may_not_change(pool: Pool, browser: Browser, settings: Settings) -> None:
    await signed_in(pool, browser, "support")
    page = await browser.get("/console/routes")
    assert page.status == 200
    assert NEW not in page.text
    assert (await browser.get(NEW)).status == 403


async def test_a_preview_says_what_would_be_refused_and_looked_up(
    pool: Pool, root: Browser, tenant: Tenant, settings: Settings, main: UUID, backup: UUID
) -> None:
    await yesterday(pool, tenant, "MZ", 80)
    await yesterday(pool, tenant, "ZA", 20)
    async with pool.acquire() as conn:
        rule = SenderRule(id=UUID(int=0), supplier_id=backup, country="MZ", sender="ACME", action="refuse")
        await sender_rules.put(conn, rule)
        priced = {"base_url": "https://x1y2z3.api.infobip.com", "price": "0.01", "currency": "USD", "reuses": 100}
        await accounts.add(
            conn, suppliers.seal_key(settings), name="mnp", kind="infobip", values=priced, secrets={"secret": "x"}
        )
    form = await root.get(NEW)
    page = await root.submit(form, NEW, name="moz", country="MZ", **at(backup, 10))
    assert "After that, 80 of them would be refused" in page.words
    assert "80 from ACME to Mozambique" in page.words
    # The effects of rules for senders are included: one supplier carries everything already.
    page = await root.submit(form, NEW, name="moz", country="MZ", **at(main, 10), **at(backup, 20))
    assert "It moves nothing of yesterday's 100 messages." in page.words
    assert "Nothing would be refused that" in page.words
    assert "looked up" not in page.words
    # Rates are those of the country that a prefix belongs to, as when messages are sent.
    await pool.execute("UPDATE suppliers SET priority = 20 WHERE name = 'backup'")
    for name, id, country in (("main", main, "CA"), ("backup", backup, "US")):
        async with pool.acquire() as conn:
            given = rows.read(["country,price,currency\n", f"{country},0.01,USD\n"])
            await tariffs.import_rates(conn, given, kind="cost", name=name, supplier_id=id)
    await yesterday(pool, tenant, "US", 40)
    page = await root.submit(form, NEW, name="toronto", prefix="1416", rated="yes", **at(main, 10), **at(backup, 20))
    assert "It moves nothing of yesterday's 140 messages." in page.words
    await pool.execute("DELETE FROM traffic_days WHERE country = 'US'")
    await pool.execute("UPDATE suppliers SET priority = 10 WHERE name = 'backup'")
    # A route that requires a price uses nobody without one.
    page = await root.submit(form, NEW, name="za", country="ZA", rated="yes", **at(main, 10))
    assert "20 from ACME to South Africa" in page.words
    async with pool.acquire() as conn:
        given = rows.read(["country,sender_type,price,currency\n", "ZA,alphanumeric,0.01,USD\n"])
        await tariffs.import_rates(conn, given, kind="cost", name="main", supplier_id=main)
    page = await root.submit(form, NEW, name="za", country="ZA", rated="yes", **at(main, 10))
    assert "Nothing would be refused that" in page.words, "its price is for senders of that kind"
    page = await root.submit(form, NEW, name="movitel", network="643-03", **at(main, 10))
    said = "Numbers of Mozambique would be looked up by mnp before they are sent to: 80 a day at most, for US$0.80."
    assert said in page.words, page.words
    # A network of one country moves nothing of another's.
    assert "It moves 0 % to 40 %" not in page.words
    await root.submit(page, NEW, do="save")
    path = f"/console/routes/{(await stored(pool, 'movitel')).route.id}"
    assert "Numbers of Mozambique would no longer be looked up." in (await root.get(f"{path}/pause")).words


async def test_a_route_is_found_and_says_what_it_earned(
    pool: Pool, browser: Browser, tenant: Tenant, main: UUID, backup: UUID
) -> None:
    await signed_in(pool, browser, "operator")
    page = await added(browser, **at(main, 10))
    assert "Margin of the last" not in page.words
    name = (await stored(pool)).route.name
    common: dict[str, Any] = {
        "organization_id": tenant.id,
        "at": clock.now(),
        "network": "",
        "messages": 2,
        "segments": 2,
    }
    paid: dict[str, Any] = {
        "price": 90_000,
        "price_currency": "USD",
        "cost": 42_000,
        "cost_currency": "USD",
        "route": name,
    }
    async with pool.acquire() as conn:
        await margins.record(
            conn,
            [
                margins.Due(**common, **paid, supplier_id=main, country="MZ"),
                margins.Due(**common, **paid | {"route": ""}, supplier_id=backup, country="MZ"),
                margins.Due(**common, **paid | {"route": "other"}, supplier_id=main, country="MZ"),
            ],
        )
    for asked in ("moz", str((await stored(pool)).route.id)):
        page = await browser.get(f"/console/go?q={asked}")
        assert page.path == f"/console/routes/{(await stored(pool)).route.id}"
        assert "US$0.09 US$0.042 US$0.048" in page.words, page.words
        assert page.words.count("US$0.09") == 1


async def test_a_route_that_workers_skip_says_so_before_it_is_saved(
    pool: Pool, settings: Settings, root: Browser, main: UUID
) -> None:
    # Workers skip a route if none of its suppliers serves the destination: nothing waits for it, and other routes
    # decide.
    abroad = await add(pool, settings, "abroad", prefixes=["351"])
    skipped = "It decides nothing: none of its suppliers carries to its destination."
    page = await root.submit(await root.get(NEW), NEW, name="moz", country="MZ", **at(abroad, 10))
    assert skipped in page.words, page.words
    assert "abroad: does not carry there" in page.words
    page = await root.submit(page, NEW, do="save")
    assert skipped in page.words
    assert "decides nothing" in (await root.get("/console/routes")).words
    assert "its messages wait" not in page.words
    # A route whose suppliers serve it, but have no session, does decide: its messages wait.
    page = await root.submit(await root.get(NEW), NEW, name="pt", country="PT", **at(abroad, 10))
    assert "none of its suppliers is available now: its messages wait, or expire" in page.words, page.words
    assert skipped not in page.words


async def test_shares_without_a_route_are_those_of_the_suppliers_that_carry_there(
    pool: Pool, settings: Settings, root: Browser, main: UUID
) -> None:
    page = await root.get("/console/routes")
    assert "main : priority 10, weight 1 – 0 % configured: 100 %" in page.words, page.words
    await add(pool, settings, "abroad", prefixes=["351", "34"])
    page = await root.get("/console/routes")
    # Both serve Portugal and Spain; all other countries are served by main alone.
    here, others = page.words.split("Numbers that begin with 34, 351:")[1].split("All other numbers:")
    assert here.count("configured: 50 %") == 2, here
    assert ("main : priority 10, weight 1 – 0 % configured: 100 %" in others, "abroad" in others) == (True, False)
    assert "carries to 351, 34" in (await root.get("/console/routes/matrix")).words
