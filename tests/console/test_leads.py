"""Where each finding leads, who is affected, and which are fixed by one button; what is held, and by whom."""

from __future__ import annotations

import re
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from heliograph.base.actor import Principal
from heliograph.base.crypto import derive_key
from heliograph.base.database.pool import Pool
from heliograph.base.sentences import Check, said
from heliograph.console.engine import leads
from heliograph.console.engine.leads import Known
from heliograph.guard import holds as guard
from heliograph.pages.requests import Request
from heliograph.queue import holds
from heliograph.queue.holds import Selection
from heliograph.queue.waiting import WaitingTotal
from heliograph.sms.dispatch import suppliers
from heliograph.sms.reports import remedies
from heliograph.sms.reports.remedies import MatchCount
from heliograph.traffic.reconciliation import Line
from heliograph.whatsapp import checks as whatsapp
from tests.api.conftest import SECRET_KEY, Api, Tenant, make_tenant
from tests.rules import whatsapp_factories
from tests.rules.factories import long_queue, supplier

from .conftest import Browser, Page, signed_in
from .test_guard import hold as suspicious
from .test_messages import sent

KEY = derive_key(SECRET_KEY, "suppliers")
SMPP = {"host": "127.0.0.1", "port": 2775, "system_id": "a"}


async def added(pool: Pool, name: str = "main", state: str = "active") -> UUID:
    async with pool.acquire() as conn:
        id = await suppliers.add(conn, KEY, name=name, kind="smpp", settings=SMPP, secret="s")
        await conn.execute("UPDATE suppliers SET state = $2 WHERE id = $1", id, state)
    return id


def card(page: Page, check: str) -> str:
    """The wall's text about a check."""
    found = [one for one in re.findall(r"<article class=\"card trouble.*?</article>", page.text, re.S) if check in one]
    assert len(found) == 1, (check, page.words)
    return str(found[0])


async def test_a_paused_supplier_is_resumed_from_the_wall(pool: Pool, root: Browser, other_browser: Browser) -> None:
    id = await added(pool, state="paused")
    page = await root.get("/console/now")
    told = card(page, "supplier main")
    assert f'href="/console/suppliers/{id}"' in told
    # Someone who may only look is led there, and offered nothing; someone who may not look gets the text.
    await signed_in(pool, other_browser, "support", "rui@example.com")
    told = card(await other_browser.get("/console/now"), "supplier main")
    assert f'href="/console/suppliers/{id}"' in told
    assert "<form" not in told
    await signed_in(pool, other_browser, "finance", "ana@example.com")
    seen = await other_browser.get("/console/now")
    told = card(seen, "supplier main")
    assert re.findall(r'<a [^>]*href="([^"]*)"', told) == ["/guide/runbook#heliographsupplierdown"], (
        "everybody may read"
    )
    for closed in ("/console/suppliers/", "/console/approvals", "/console/queue"):
        assert f'href="{closed}' not in seen.text, closed
    page = await root.submit(page, f"/console/suppliers/{id}/resume")
    assert "It carries messages again" in page.words
    assert await pool.fetchval("SELECT state FROM suppliers") == "active"


async def test_an_account_is_resumed_and_a_worker_takes_work_again_from_the_wall(pool: Pool, root: Browser) -> None:
    await whatsapp_factories.made(pool)
    await pool.execute("UPDATE whatsapp_accounts SET state = 'paused'")
    of, id, waba = await pool.fetchrow("SELECT organization_id, id, waba_id FROM whatsapp_accounts")
    worker = uuid4()
    await pool.execute(
        "INSERT INTO workers (id, name, started_at, seen_at, drain, drained_at)"
        " VALUES ($1, 'host:1', now(), now() + interval '50 seconds', 'stay', now())",
        worker,
    )
    page = await root.get("/console/now")
    assert f'href="/console/whatsapp/accounts/{of}/{id}"' in card(page, f"whatsapp {waba}")
    assert "Resume: host:1" in card(page, "workers")
    assert "It is sending again." in (await root.submit(page, f"/console/whatsapp/accounts/{of}/{id}/resume")).words
    resumed = await root.submit(page, f"/console/queue/workers/{worker}/resume")
    assert "host:1 takes work again." in resumed.words


def asking(*, may: bool = True) -> Request:
    return cast(
        "Request",
        SimpleNamespace(
            may=lambda **_: may,
            text=lambda text, **_: text,
            to=lambda path, **query: path + "".join(f"?{name}={value}" for name, value in query.items()),
        ),
    )


def known(*names: str) -> tuple[Known, dict[str, UUID]]:
    ids = {name: uuid4() for name in names}
    listed = [SimpleNamespace(id=id, name=name, state="active") for name, id in ids.items()]
    return Known(cast("Any", SimpleNamespace(suppliers=listed, workers=[])), {}, (), ()), ids


def test_each_finding_leads_to_where_it_is_mended() -> None:
    one = supplier("main")
    seen, ids = known("main")
    page = f"/console/suppliers/{ids['main']}"
    line = Line(
        supplier_id=ids["main"],
        at=None,
        country=None,
        counts={"accepted": 90, "unknown": 80},
        segments={},
        amounts={},
        unpriced={},
        to_receipt=[],
    )
    receipts = said("receipts of %(name)s", name="main")
    for check, place in (
        (Check(said("supplier %(name)s", name="main"), "failed", said("no session bound")), page),
        (remedies._unread(one, line), page),
        (remedies._recipients(one, MatchCount(9, 9)), "/console/receipts/unmatched?supplier=main"),
        (Check(receipts, "warning", said("unknown states: %(states)s", states="LOST (4)")), "/console/receipts/words"),
        (remedies._suspect(one, said("no session bound")), page),
        (Check(said("certificate of %(whose)s", whose="main"), "warning", said("none")), page),
        (Check(said("certificate of %(whose)s", whose=said("the database")), "warning", said("none")), leads.HEALTH),
        (Check(said("supplier %(name)s", name="the 101st"), "failed", said("none")), "/console/suppliers"),
        (Check(said("guard"), "warning", said("none")), "/console/guard"),
        (Check(said("callbacks"), "warning", said("none")), "/console/whatsapp/callbacks"),
        (Check(said("inbox"), "warning", said("none")), "/console/inbound"),
        (Check(said("workers"), "failed", said("none")), "/console/queue"),
        (Check(said("backups"), "warning", said("none")), leads.HEALTH),
        (whatsapp._warned({"waba_id": "7", "organization": "Acme", "warnings": "x"})[0], "/console/whatsapp"),
    ):
        assert leads.lead(asking(), check, seen).path == place, (check.check, check.detail)
        assert leads.lead(asking(may=False), check, seen).path == "", check.check


#: Of an installation with waiting work.
standing = cast("Any", SimpleNamespace(suppliers=[], workers=[], queued={"sms": 1}))


async def hits(pool: Pool, check: str) -> leads.Affected | None:
    found = Check(said(check), "failed", said("none"))
    async with pool.acquire() as conn:
        return leads.lead(asking(), found, await leads.load(conn, standing, [found])).hit


async def test_a_hold_hits_those_whose_work_it_holds(pool: Pool, api: Api, tenant: Tenant) -> None:
    other = await make_tenant(pool)
    await sent(api, tenant)
    await long_queue(pool, other.id, 3)
    assert await hits(pool, "queue") == leads.Affected(4, False, ["Acme 1", "Acme"])
    assert await hits(pool, "holds") is None
    async with pool.acquire() as conn:
        await holds.hold(conn, Selection(organization_id=tenant.id), reason="")
    assert await hits(pool, "holds") == leads.Affected(1, False, ["Acme"])


async def test_the_guard_hits_those_whose_messages_wait_for_it(
    pool: Pool, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await hits(pool, "guard") is None
    other = await make_tenant(pool)
    await long_queue(pool, other.id, 3)
    id = await suspicious(pool, tenant)
    assert await hits(pool, "guard") == leads.Affected(2, False, ["Acme"])
    # However many there are, it counts no further than LOOK.
    monkeypatch.setattr(leads, "LOOK", 1)
    assert await hits(pool, "guard") == leads.Affected(2, True, ["Acme"])
    async with pool.acquire() as conn:
        await guard.release(conn, id)
    assert await hits(pool, "guard") is None


async def test_the_wall_says_whom_it_hits(pool: Pool, api: Api, tenant: Tenant, root: Browser) -> None:
    id = await sent(api, tenant)
    assert "Affected organizations: Acme · 1 row waits" in (await root.get("/console/now")).words
    line = await added(pool)
    await pool.execute("UPDATE queue SET line = $2 WHERE id = $1", UUID(id), line)
    main = said("supplier %(name)s", name="main")
    async with pool.acquire() as conn:
        found = await leads.load(conn, standing, [Check(main, "failed", said("none"))])

    def hit(english: str, **values: str) -> Any:
        return leads.lead(asking(), Check(said(english, **values), "failed", said("none")), found).hit

    assert hit("supplier %(name)s", name="main") == leads.Affected(1, False, ["Acme"])
    assert hit("supplier %(name)s", name="other") is None
    assert hit("guard") is None
    assert hit("clocks") is None
    many = [WaitingTotal((f"organization {n}",), rows=n, is_more=n == 3) for n in range(1, 9)]
    assert leads._of(many) == leads.Affected(36, True, [f"organization {n}" for n in (8, 7, 6, 5, 4)], 3)


async def test_a_hold_says_what_it_holds_and_who_made_it(pool: Pool, tenant: Tenant, root: Browser) -> None:
    line = await added(pool)
    by = Principal("cli", name="rui")
    async with pool.acquire() as conn:
        which = Selection(
            kinds=("sms",), line=line, organization_id=tenant.id, before=await holds.ago(conn, timedelta(0))
        )
        await holds.hold(conn, which, reason="the bill is disputed", by=by)
        await holds.hold(conn, Selection(kinds=("webhook",)), reason="", by=by)
        first, _ = await holds.list_all(conn)
    assert first.made_by == "rui"
    for place in ("/console/queue", "/console/now"):
        page = await root.get(place)
        assert "by rui" in page.words
        assert "Organization: Acme · Supplier: main · only from before" in page.words
        assert "All of it, for every organization." in page.words
        assert f'href="/console/suppliers/{line}"' in page.text
        assert f'action="/console/queue/holds/{first.id}/release"' in page.text
    page = await root.submit(page, f"/console/queue/holds/{first.id}/release")
    assert "Released" in page.words
    page = await root.get("/console/queue", accept_language="pt")
    assert "por rui" in page.words


async def test_of_many_holds_the_wall_tells_some(pool: Pool, root: Browser) -> None:
    async with pool.acquire() as conn:
        for n in range(7):
            await holds.hold(conn, Selection(kinds=("sms",), line=UUID(int=n + 1)), reason=f"reason {n}")
    words = (await root.get("/console/now")).words
    assert words.count("Held: ") == 5
    assert "7 holds keep work back." in words


async def test_a_supplier_that_is_avoided_is_tried_again_from_the_wall(pool: Pool, root: Browser) -> None:
    id = await added(pool)
    await pool.execute(
        "INSERT INTO supplier_health (supplier_id, opened_at) VALUES ($1, clock_timestamp() + interval '1 second')", id
    )
    page = await root.submit(await root.get("/console/now"), f"/console/suppliers/{id}/reset-circuit")
    assert "Workers try it again within a second." in page.words


async def test_the_first_rows_of_the_queue_say_why_they_are_there(
    pool: Pool, api: Api, tenant: Tenant, root: Browser
) -> None:
    id = await sent(api, tenant)
    seen = f"{id[:8]}…{id[-4:]} SMS Acme"
    for change, told in (
        ("due_at = now() - interval '1 minute'", "due, not taken yet"),
        ("due_at = now() + interval '1 hour'", "due later"),
        ("lease_until = now() + interval '1 hour'", "with a worker"),
    ):
        await pool.execute(f"UPDATE queue SET {change}")
        words = (await root.get("/console/queue")).words.partition("First in the queue")[2]
        assert seen in words, words
        assert told in words, told
    await pool.execute("UPDATE queue SET lease_until = NULL")
    async with pool.acquire() as conn:
        await holds.hold(conn, Selection(kinds=("sms",)), reason="")
    assert "held by an operator" in (await root.get("/console/queue")).words.partition("First in the queue")[2]
    assert "Primeiras da fila" in (await root.get("/console/queue", accept_language="pt")).words


async def test_pages_that_are_watched_renew_themselves(pool: Pool, root: Browser) -> None:
    for place, told in (
        ("/console/routes/matrix", "Where no route decides"),
        ("/console/inbound", "Latest from handsets"),
        ("/console/receipts/unmatched", "Every receipt was matched"),
        ("/console/health", "What was found"),
    ):
        page = await root.get(place)
        assert 'id="live"' in page.text, place
        assert "data-live=" in page.text, place
        region = await root.get(place, hx_request="true")
        assert "<html" not in region.text, place
        assert told in region.words, region.words


async def test_how_fast_both_channels_deliver_is_on_the_wall(pool: Pool, tenant: Tenant, root: Browser) -> None:
    # All within 4.1 s; another hour, test messages and rows without durations do not count.
    for hour, mode, channel, durations in (
        ("now()", "live", "sms", [0] * 11 + [90] + [0] * 20),
        ("now()", "live", "whatsapp", [0] * 11 + [9] + [0] * 20),
        ("now()", "test", "sms", [0] * 20 + [999] + [0] * 11),
        ("now() - interval '5 hours'", "live", "sms", [0] * 20 + [999] + [0] * 11),
    ):
        await pool.execute(
            "INSERT INTO traffic (organization_id, hour, channel, mode, country, sender, supplier_id, status, count,"
            f" segments, to_sent, to_delivered) VALUES ($1, date_trunc('hour', {hour}, 'UTC'), $2, $3, 'MZ', 'ACME',"
            " $4, 'delivered', 1, 1, '{}', $5)",
            tenant.id,
            channel,
            mode,
            UUID(int=0),
            durations,
        )
    words = (await root.get("/console/now")).words
    told = re.search(r"95 of 100 delivered within ([\d.]+) s from acceptance", words)
    assert told, words
    assert 3.9 < float(told[1]) < 4.1


async def test_without_a_supplier_its_button_is_offered(pool: Pool, root: Browser, other_browser: Browser) -> None:
    for place in ("/console/now", "/console/suppliers"):
        page = await root.get(place)
        assert "No supplier yet" in page.words
        assert 'href="/console/suppliers/new"' in page.text
        assert "heliograph supplier add” connects" not in page.words
    await signed_in(pool, other_browser, "auditor", "rui@example.com")
    assert 'href="/console/suppliers/new"' not in (await other_browser.get("/console/suppliers")).text
