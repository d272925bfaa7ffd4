"""Usage on a page, and the bill of a month: page and command line produce the same file."""

from __future__ import annotations

import csv
import html
import re
import uuid
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from uuid import UUID

import msgspec
import pytest

from heliograph import traffic
from heliograph.accounts import organizations, plans, quota
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.notices import conditions
from heliograph.pages import languages
from heliograph.pages.languages import catalogue, locale
from heliograph.sms import refunds
from tests.journeys.test_cli import Cli

from .conftest import Api, Browser, Tenant, make_person, make_tenant, owner_of
from .exported import fetch
from .test_messages import send
from .test_sending import clock_session

DAY = timedelta(days=1)
LEDGER = "SELECT sum(quantity)::bigint FROM usage_entries WHERE organization_id = $1"


async def in_one_month(pool: Pool, use: Callable[[Tenant], Awaitable[None]]) -> tuple[Tenant, str]:
    """An organization that has existed, and been used, in one month only, and that month: if it ends meanwhile, another
    organization is used."""
    while True:
        months = await current_months(pool)
        tenant = await make_tenant(pool)
        await use(tenant)
        months |= await current_months(pool)
        if len(months) == 1:
            return tenant, months.pop()


async def current_months(pool: Pool) -> set[str]:
    """The month by this process's clock and by the database's."""
    return {f"{clock.now():%Y-%m}", await pool.fetchval("SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM')")}


async def test_a_month_is_exported_and_adds_up_to_the_usage_list(
    api: Api, pool: Pool, browser: Browser, database_url: str
) -> None:
    """Journey 9: whatever is folded, refunded or adjusted, the page, both files and the ledger agree."""

    async def use(tenant: Tenant) -> None:
        ids = [await send(api, tenant, to=to) for to in ("+258841234567", "+258841234568", "+351912345678")]
        async with pool.acquire() as conn:
            async with conn.transaction():
                await quota.refund_many(conn, [(tenant.id, uuid.UUID(ids[0]), 1)], "canceled")
            await quota.adjust(conn, tenant.id, amount=-7, reason="=typed twice")
            await traffic.fold(conn)
        await send(api, tenant, to="+258841234569")

    tenant, month = await in_one_month(pool, use)
    owner, org = await owner_of(pool, tenant, browser), str(tenant.id)
    other = await make_tenant(pool)
    await send(api, other, to="+351912345679")
    left = await pool.fetchval(LEDGER, tenant.id)
    assert left == 1000 - 4 + 1 - 7

    page = await owner.get(f"/usage?month={month}")
    assert "Left 990" in page.words
    assert "4 SMS in 4 segments, 0 WhatsApp messages, 1 refunded." in page.words
    assert "All changes add up to 990, which is what is left." in page.words
    assert "Mozambique 3 3 75 %" in page.words
    assert "test 4 4 100 %" in page.words
    # A refund has no key, and is no message.
    assert "sent by hand" not in page.words
    made = {}
    for kind in ("csv", "json"):
        file = await fetch(pool, owner, page, "/usage/export", by="country", format=kind)
        assert f"usage-{month}-by-country.{kind}" in file.headers["content-disposition"]
        made[kind] = file.text
    rows = list(csv.DictReader(made["csv"].removeprefix("\ufeff").splitlines()))
    assert sum(int(row["quantity"]) for row in rows) == left
    assert {(row["type"], row["value"], row["quantity"]) for row in rows} == {
        ("usage", "MZ", "-3"), ("usage", "PT", "-1"), ("refund", "MZ", "1"), ("adjustment", "", "-7"),
        ("grant", "", "1000"),
    }  # fmt: skip
    document = msgspec.json.decode(made["json"])
    assert (document["quantity"], document["messages"], document["segments"]) == (left, 4, 4)

    cli = Cli(HELIOGRAPH_DATABASE_URL=database_url)
    done = await cli("usage", "month", month, "--by", "country", "--org", org)
    assert (done.status, done.out) == (0, made["csv"].removeprefix("\ufeff"))
    (listed,) = (await cli("usage", "months", "--org", org, "--json")).data
    assert (listed["month"], listed["sent"], listed["refunds"], listed["adjustments"]) == (month, 4, 1, -7)
    wrong = await cli("usage", "month", "November", "--org", org)
    assert (wrong.status, "2026-11" in wrong.err) == (2, True)
    told = await pool.fetch("SELECT who FROM audit_log WHERE action = 'usage.exported' ORDER BY id")
    assert [row[0] for row in told] == ["person", "person", "cli"]

    refused = await owner.submit(page, "/usage/export", month="1999-1x", format="csv")
    assert (refused.status, "Enter a month as 2026-11." in refused.words) == (422, True)
    assert (await owner.get("/usage?month=2020-02")).words.count("Nothing was sent in this month.") == 1
    assert (await owner.get("/usage?month=nonsense")).status == 422

    week = await owner.get("/usage?range=7d")
    assert "Day by day 4 SMS in 4 segments, 0 WhatsApp messages, 1 refunded." in week.words
    assert "Mozambique 3 3 75 %" in week.words
    before = await owner.get("/usage?from=2020-01-30&to=2020-02-02")
    assert "Nothing was sent in this period." in before.words
    assert "Mozambique 3 3" not in before.words
    assert (await owner.get("/usage?from=x")).words.count("Enter a time as 2027-01-31 or 2027-01-31 14:30.") == 1


@pytest.mark.parametrize("zone", ["UTC", "Etc/GMT+12", "Pacific/Kiritimati"])
async def test_the_last_hours_are_all_utc_days_that_they_touch(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser, zone: str
) -> None:
    """Wherever the reader is: if it was another day there already, or still, a day used to be missing."""
    await pool.execute("UPDATE users SET time_zone = $1", zone)
    await clock_session(owner)
    await send(api, tenant)

    def spell(now: datetime) -> str:
        return f"{locale('en').day(now - DAY)} – {locale('en').day(now)}"

    def seen(now: datetime) -> str:
        return f"Day by day 1 SMS in 1 segment, 0 WhatsApp messages, 0 refunded. messages a day · {spell(now)} · UTC"

    before = clock.now()
    page = await owner.get("/usage?range=24h")
    assert seen(before) in page.words or seen(clock.now()) in page.words, page.words
    # A chosen day is that day of UTC, as on bills.
    page = await owner.get(f"/usage?from={before - DAY:%Y-%m-%d}&to={before:%Y-%m-%d}")
    assert seen(before) in page.words, page.words


@pytest.mark.parametrize(("zone", "day"), [("Africa/Cairo", "2026-04-24"), ("America/Santiago", "2026-09-05")])
async def test_a_day_is_itself_where_clocks_skip_midnight(
    pool: Pool, tenant: Tenant, owner: Browser, zone: str, day: str
) -> None:
    """The day that begins at one o'clock, and the one before it: each used to include its neighbour."""
    await pool.execute(
        "INSERT INTO usage_days SELECT $1, $2::text::date + n, 'sms', 'MZ', 'ACME', $3, $3, 10 ^ (n + 1),"
        " 10 ^ (n + 1), 0, 0 FROM generate_series(-1, 1) n",
        *(tenant.id, day, UUID(int=0)),
    )
    await pool.execute("UPDATE users SET time_zone = $1", zone)
    await clock_session(owner)
    assert "10 SMS in 10 segments" in (await owner.get(f"/usage?from={day}&to={day}")).words


async def test_a_month_is_split_by_what_its_references_begin_with(
    api: Api, pool: Pool, browser: Browser, database_url: str
) -> None:
    async def use(tenant: Tenant) -> None:
        for reference in ("shop-1", "shop-2", "app:3"):
            await send(api, tenant, clientReference=reference)
        await send(api, tenant)

    tenant, month = await in_one_month(pool, use)
    owner = await owner_of(pool, tenant, browser)
    page = await owner.get(f"/usage?month={month}")
    file = await fetch(pool, owner, page, "/usage/export", by="reference", format="csv")
    assert f"usage-{month}-by-reference.csv" in file.headers["content-disposition"]
    rows = list(csv.DictReader(file.text.removeprefix("\ufeff").splitlines()))
    found = {(row["type"], row["value"], row["quantity"]) for row in rows}
    assert found == {("usage", "shop", "-2"), ("usage", "app", "-1"), ("usage", "", "-1"), ("grant", "", "1000")}
    done = await Cli(HELIOGRAPH_DATABASE_URL=database_url)(
        "usage", "month", month, "--by", "reference", "--org", str(tenant.id)
    )
    assert (done.status, done.out) == (0, file.text.removeprefix("\ufeff"))
    file = await fetch(pool, owner, page, "/usage/export", by="reference", characters="1", format="json")
    assert f"usage-{month}-by-reference-1.json" in file.headers["content-disposition"]
    assert {line["value"] for line in msgspec.json.decode(file.text)["lines"]} == {"s", "a", ""}
    wrong = await owner.submit(page, "/usage/export", by="reference", characters="0", format="csv")
    assert (wrong.status, "can use its first 1 to 99 characters" in wrong.words) == (422, True)


async def test_the_usage_list_is_read_in_pages(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    assert (await owner.get("/usage/ledger?after=nonsense")).status == 200
    await pool.execute(
        "INSERT INTO usage_ledger (organization_id, id, type, channel, quantity, balance_after, reason, created_at)"
        " SELECT $1, id, 'grant', 'sms', 1, n, 'number ' || n, now() FROM unnest($2::uuid[]) WITH ORDINALITY"
        " AS item (id, n)",
        tenant.id,
        [uuid7() for _ in range(60)],
    )
    page = await owner.get("/usage/ledger")
    assert ("number 60" in page.words, "number 11 " in page.words, "number 10 " in page.words) == (True, True, False)
    older = re.search(r'rel="next" href="([^"]+)"', page.text)
    assert older
    page = await owner.get(older[1].replace("&amp;", "&"))
    assert ("number 10 " in page.words, "number 1 " in page.words, "number 11 " in page.words) == (True, True, False)
    back = re.search(r'rel="prev" href="([^"]+)"', page.text)
    assert back
    assert "number 60" in (await owner.get(back[1])).words


async def test_reasons_that_the_service_gives_are_in_the_readers_language(
    pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    """They are stored in English; what a person wrote is theirs."""
    given = {
        **{one: twin for one, twin in catalogue("pt").items() if one.startswith(languages.LEDGER)},
        "plan 100 %s: gold": "plano 100 %s: gold",
        "plan <b>: remaining quota expired": "plano <b>: o que restava da quota expirou",
        "sum of 2026-10": "soma de 2026-10",
        "plans have changed": "plans have changed",
        "Canceled": "Canceled",
    }
    assert {languages.LEDGER + one for one in refunds.REASONS.values()} <= given.keys()
    given = {one.removeprefix(languages.LEDGER): twin for one, twin in given.items()}
    await pool.execute(
        "INSERT INTO usage_ledger (organization_id, id, type, channel, quantity, balance_after, reason, created_at)"
        " SELECT $1, id, 'grant', 'sms', 1, 1, reason, now()"
        " FROM unnest($2::uuid[], $3::text[]) AS item (id, reason)",
        *(tenant.id, [uuid7() for _ in given], list(given)),
    )
    for language, shown in (("en", given.keys()), ("pt", given.values())):
        page = await owner.get("/usage/ledger", Accept_Language=language)
        found = re.findall(r'<td data-name="(?:Reason|Motivo)">([^<]*)</td>', page.text)
        assert [html.unescape(one) for one in found] == [*list(shown)[::-1], "test"]


async def test_a_quota_that_runs_out_is_said(pool: Pool, tenant: Tenant, browser: Browser) -> None:
    """Billing sees it, and has no links to messages."""
    await make_person(pool, tenant, "bea@example.com", "billing")
    await browser.sign_in("bea@example.com")
    assert "Ask the operator" not in (await browser.get("/usage")).words
    for used, said in ((800, "80 % of the quota is used."), (959, "95 % of the quota"), (1000, "The quota is used up")):
        await pool.execute("UPDATE quotas SET used = $1", used)
        assert said in (await browser.get("/usage")).words
    await pool.execute("UPDATE quotas SET used = 0, total = 0")
    assert "There is no quota: SMS are refused. Ask the operator for it." in (await browser.get("/usage")).words
    assert "/messages/" not in (await browser.get("/usage/ledger")).text


async def test_a_quota_without_a_plan_is_not_said_to_be_renewed(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    """One that lasts longer than anybody looks ahead was "enough until it is renewed"."""
    await pool.execute(
        "INSERT INTO usage_days VALUES ($1, $2, 'sms', 'MZ', 'ACME', $3, $3, 7, 7, 0, 0)",
        *(tenant.id, clock.now().date() - DAY, UUID(int=0)),
    )
    await pool.execute("UPDATE quotas SET total = 10 ^ 6")
    words = (await owner.get("/usage")).words
    assert ("Renews – No plan" in words, "Pace 1 a day " in words, "until it is renewed" in words) == (
        True,
        True,
        False,
    )
    await pool.execute("UPDATE quotas SET resets_at = now() + interval '9 days'")
    assert "Pace 1 a day; enough until it is renewed" in (await owner.get("/usage")).words


async def test_the_quota_of_a_closed_organization_is_not_said_to_be_renewed(
    pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    async with pool.acquire() as conn:
        await plans.subscribe(conn, tenant.id, plans.Terms("Gold", 500), now=clock.now())
        renews = (await quota.get(conn, tenant.id)).resets_at
        assert renews is not None
        day = locale("en").day(renews)
        assert f"Renews {day} Plan: Gold" in (await owner.get("/usage")).words
        await organizations.set_state(conn, id=tenant.id, state="closed")
        assert "Renews – Plan: Gold" in (await owner.get("/usage")).words
        await organizations.resume(conn, id=tenant.id)
        assert (await quota.get(conn, tenant.id)).resets_at == renews


async def test_the_bell_rings_when_a_day_has_more_than_the_alert(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    for to in ("+258841234567", "+258841234568"):
        await send(api, tenant, to=to)
    page = await owner.submit(await owner.get("/usage"), "/usage/alert", above="x")
    assert (page.status, 'href="#above"' in page.text) == (422, True)
    page = await owner.submit(page, "/usage/alert", above="2")
    assert "The alert is set." in page.words
    async with pool.acquire() as conn:
        await traffic.fold(conn)
        await conditions.report(conn)
        assert await pool.fetchval("SELECT count(*) FROM notices WHERE kind = 'usage.day'") == 0
        page = await owner.submit(await owner.get("/usage"), "/usage/alert", above="1")
        for _ in range(2):
            await conditions.report(conn)
    notices = await owner.get("/notices")
    assert notices.words.count("More messages were sent in a day than the alert's threshold.") == 1
    assert "more than 1." in notices.words
    page = await owner.submit(page, "/usage/alert", above="")
    assert "The alert is off." in page.words
    told = await pool.fetch("SELECT after FROM audit_log WHERE action = 'usage.alert_changed' ORDER BY id")
    assert [row["after"] for row in told] == ['{"above":2}', '{"above":1}', '{"above":null}']


async def test_an_entry_of_a_campaign_leads_to_it(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    id = uuid7()
    await pool.execute(
        "INSERT INTO usage_ledger VALUES ($1, $2, 'refund', 'sms', 1, 1000, 1, NULL, $3, NULL, now())",
        tenant.id,
        uuid7(),
        id,
    )
    assert f'href="/campaigns/{id}"' in (await owner.get("/usage/ledger")).text
