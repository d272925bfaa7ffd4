"""Regions that refresh themselves: rendered once for all who see the same, with each reader's own forms."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Hashable
from datetime import timedelta

import pytest

from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.process.settings import Settings
from heliograph.http.turns import FOR_SENDS, MOST, RequestTurns
from heliograph.pages.live import sharing
from heliograph.pages.realms import DASHBOARD
from heliograph.people import sessions, users
from tests.api.conftest import make_tenant
from tests.processes import until_true

from .conftest import Api, Browser, Page, Tenant, make_person
from .test_campaigns import make, stage
from .test_messages import send

HOURS = timedelta(hours=2)


async def region(browser: Browser, path: str, *, seen: int = 0, **headers: str) -> Page:
    return await browser.get(path, HX_Request="true", X_Seen=str(seen), **headers)


async def test_a_region_is_never_older_than_the_page(api: Api, tenant: Tenant, owner: Browser) -> None:
    empty = await region(owner, "/messages")
    assert (empty.status, "No message yet" in empty.words) == (200, True)
    await send(api, tenant)
    page = await owner.get("/messages")
    (made,) = re.findall(r'data-made="(\d+)"', page.text)
    shown = await region(owner, "/messages", seen=int(made))
    assert "+258" in shown.words
    assert int(shown.headers["x-made"]) >= int(made)
    again = await region(owner, "/messages", If_None_Match=shown.headers["etag"])
    assert (again.status, again.text) == (304, "")
    assert int(again.headers["x-made"]) >= int(shown.headers["x-made"])


async def test_a_page_that_is_only_left_open_keeps_no_session(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    await make_person(pool, tenant, "rui@example.com")
    async with pool.acquire() as conn:
        user = await users.find(conn, email="rui@example.com")
        token = await sessions.open_for(conn, user_id=user.id, address="", agent="", how="password")
    other_browser.is_signed_in(DASHBOARD, user, token)
    await pool.execute("UPDATE sessions SET created_at = created_at - $1::interval, seen_at = seen_at - $1", HOURS)
    used = "SELECT coalesce(bool_or(seen_at > now() - $2::interval), false) FROM sessions WHERE user_id {} $1"
    panel = await owner.get("/contacts", HX_Request="true", X_Seen="-")
    for page in (await region(owner, "/messages"), await region(owner, "/"), await owner.get("/state"), panel):
        assert page.status == 200
    # Noted in order: what the first one did would be noted by then.
    assert (await other_browser.get("/messages")).path == "/messages"
    await until_true(lambda: pool.fetchval(used.format("="), user.id, HOURS))
    assert not await pool.fetchval(used.format("<>"), user.id, HOURS)
    assert (await owner.get("/messages")).path == "/messages"
    await until_true(lambda: pool.fetchval(used.format("<>"), user.id, HOURS))


async def test_colleagues_see_the_same(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    await send(api, tenant)
    await make_person(pool, tenant, "rui@example.com", "owner")
    await other_browser.sign_in("rui@example.com")
    began = None
    while began != clock.now().hour:  # its charts begin an hour later once an hour has ended
        began = clock.now().hour
        mine, theirs = await region(owner, "/"), await region(other_browser, "/")
        are_same = (mine.text, mine.headers["etag"]) == (theirs.text, theirs.headers["etag"])
    assert are_same


async def test_forms_of_a_region_are_the_readers_own(tenant: Tenant, owner: Browser) -> None:
    where = "/webhooks/catcher"
    first, second = [await region(owner, where) for _ in range(2)]
    assert first.headers["etag"] == second.headers["etag"]
    for name in ("_token", "_once"):
        values = [one.form(where)[name] for one in (first, second)]
        assert values[0] != values[1]
        assert not any(one.startswith(("token-", "once-")) for one in values)
    await owner.submit(second, where)
    # A reader's own action is never hidden by a rendering from before it.
    page = await owner.get(where)
    assert "The catcher is open" in page.words
    (made,) = re.findall(r'data-made="(\d+)"', page.text)
    assert "The catcher is open" in (await region(owner, where, seen=int(made))).words


async def test_an_answer_to_a_form_names_the_page_that_its_region_is_part_of(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    """Its own address is that of the form, which leads elsewhere when it is asked for."""
    await api.ask(
        "POST",
        "/campaigns",
        json={"name": "A", "content": "a", "recipients": ["+258841000001"]},
        headers=tenant.headers,
    )
    where = f"/campaigns/{await pool.fetchval('SELECT id FROM campaigns')}"
    page = await owner.get(where)
    assert "data-here" not in page.text
    wrong = await owner.submit(page, where + "/pace", pace="fast")
    assert (wrong.status, wrong.path) == (422, where + "/pace")
    (here,) = re.findall(r'data-here="([^"]+)"', wrong.text)
    assert here == where
    shown = await region(owner, here)
    assert (shown.status, "Faster or slower" in shown.words) == (200, True)
    await pool.execute("UPDATE campaigns SET status = 'canceled', step_at = NULL")
    (made,) = re.findall(r'data-made="(\d+)"', (await owner.get(where)).text)
    assert "Faster or slower" not in (await region(owner, where, seen=int(made))).words


@pytest.mark.parametrize("first", ["ana", "rui"])
async def test_a_campaign_is_approved_by_who_did_not_create_it(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Both are owners: whoever's page was renewed first, the other was shown what concerned them."""
    monkeypatch.setattr(sharing, "LEAST", sharing.MOST)
    await pool.execute("UPDATE organizations SET approval_above = 1 WHERE id = $1", tenant.id)
    await make_person(pool, tenant, "rui@example.com", "owner")
    await other_browser.sign_in("rui@example.com")
    made = await make(owner, to="numbers", numbers="+258841234567\n+258841234568", text="Hi")
    await stage(pool)
    readers = {"ana": owner, "rui": other_browser}
    for name in (first, *readers):
        words = (await region(readers[name], made.path)).words
        is_creator = name == "ana"
        assert ("You created it" in words, "Approve the campaign" in words) == (is_creator, not is_creator), name
    approved = await other_browser.submit(await other_browser.get(made.path), f"{made.path}/approve")
    (at,) = re.findall(r'data-made="(\d+)"', approved.text)
    for one in readers.values():
        assert "Approved by Rui" in (await region(one, made.path, seen=int(at))).words


async def test_another_role_sees_its_own(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser, browser: Browser, other_browser: Browser
) -> None:
    await send(api, tenant)
    await make_person(pool, tenant, "vera@example.com", "viewer")
    await other_browser.sign_in("vera@example.com")
    assert "+258" in (await region(owner, "/messages")).words
    seen = await region(other_browser, "/messages")
    assert "•••" in seen.words
    assert "+258" not in seen.words
    # A sender sees some rows in full because they are their own: two senders see different things.
    for name in ("ana", "rita"):
        await make_person(pool, tenant, f"{name}@example.com", "sender")
    await pool.execute(
        "UPDATE messages SET person_id = (SELECT id FROM users WHERE email = 'ana@example.com'), key_id = NULL"
    )
    for name, is_own in (("ana", True), ("rita", False)):
        sender = Browser(api.base_url)
        try:
            await sender.sign_in(f"{name}@example.com")
            words = (await region(sender, "/messages")).words
            assert ("+258" in words, "•••" in words) == (is_own, not is_own)
        finally:
            await sender.session.close()
    await make_person(pool, tenant, "bill@example.com", "billing")
    refused = Browser(api.base_url)
    try:
        await refused.sign_in("bill@example.com")
        assert (await region(refused, "/messages")).status == 403
    finally:
        await refused.session.close()


async def test_any_address_answers_whoever_asks_for_regions(owner: Browser) -> None:
    later = round(time.time() * 1000) + 10**6
    for path, status in (("/account", 200), ("/requests", 200), ("/nowhere", 404), ("/webhooks", 200)):
        for seen in (0, later):
            assert (await region(owner, path, seen=seen)).status == status, path
    assert (await owner.get("/", HX_Request="true", X_Seen="x")).status == 200


async def test_a_page_and_a_region_are_packed_for_a_browser_that_takes_it(
    api: Api, tenant: Tenant, owner: Browser
) -> None:
    for _ in range(4):
        await send(api, tenant)
    regions = {"X_Seen": "0", "HX_Request": "true"}
    for headers in ({}, regions):
        plain = await owner.get("/messages", **headers)
        packed = await owner.get("/messages", Accept_Encoding="br, gzip", **headers)
        assert [one.headers.get("content-encoding") for one in (plain, packed)] == [None, "gzip"]
        assert int(plain.headers["content-length"]) == len(plain.text.encode())
        assert int(packed.headers["content-length"]) < len(packed.text.encode()) / 2
        assert "+258" in plain.words
        assert "+258" in packed.words


async def test_an_organizations_pages_are_made_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch, tenant: Tenant, owner: Browser
) -> None:
    """Hundreds of requests with one session used to take the few connections for reads: everybody's pages failed."""
    turn, under_way, most = RequestTurns.of, Counter[Hashable](), Counter[Hashable]()

    @contextlib.asynccontextmanager
    async def of(self: RequestTurns, whose: Hashable) -> AsyncIterator[None]:
        async with turn(self, whose):
            under_way[whose] += 1
            most[whose] = max(most[whose], under_way[whose])
            yield
            under_way[whose] -= 1

    monkeypatch.setattr(RequestTurns, "of", of)
    pages = await asyncio.gather(*(owner.get("/messages") for _ in range(12)), region(owner, "/", seen=1))
    assert {page.status for page in pages} == {200}
    assert most.keys() == {tenant.id}
    assert most[tenant.id] <= MOST


BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


async def test_an_organizations_forms_are_worked_through_a_few_at_a_time(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    """Hundreds of forms with one session used to take all connections to the database: everybody's requests failed."""
    other = await make_tenant(pool)
    action = f"/keys/{tenant.key_id}/revoke"
    form = (await owner.get(action)).form(action)
    async with pool.acquire() as conn, conn.transaction():
        await conn.execute("SELECT FROM organizations WHERE id = $1 FOR NO KEY UPDATE", tenant.id)
        posted = [asyncio.create_task(owner.post(action, form)) for _ in range(20)]

        async def are_blocked() -> bool:
            return await pool.fetchval(BLOCKED) >= MOST

        await until_true(are_blocked)
        for _ in range(3):
            assert (await api.ask("GET", "/account", headers=other.headers))[0] == 200
    assert {page.status for page in await asyncio.gather(*posted)} == {200}


async def test_messages_are_accepted_while_forms_of_several_organizations_wait_for_a_table(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    """As while somebody runs VACUUM FULL: two organizations had taken all connections."""
    other = await make_tenant(pool)
    await make_person(pool, other, "rui@example.com", "owner")
    await other_browser.sign_in("rui@example.com")
    forms = [
        (one, (await one.get("/contacts/new")).form("/contacts")) for one in (owner, other_browser) for _ in range(MOST)
    ]
    async with pool.acquire() as conn, conn.transaction():
        await conn.execute("LOCK TABLE contacts")
        posted = [
            asyncio.create_task(one.post("/contacts", form | {"name": "Ana", "phone": f"+25884123456{n}"}))
            for n, (one, form) in enumerate(forms)
        ]

        async def are_blocked() -> bool:
            return await pool.fetchval(BLOCKED) >= Settings().database_pool - FOR_SENDS

        await until_true(are_blocked)
        for _ in range(3):
            await send(api, tenant)
        assert await pool.fetchval(BLOCKED) == Settings().database_pool - FOR_SENDS
    assert {page.status for page in await asyncio.gather(*posted)} == {200}
