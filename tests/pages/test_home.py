"""Home: figures from the roll-ups, and first steps that are ticked off by what actually happened."""

from __future__ import annotations

import html
import re
from datetime import timedelta
from uuid import UUID

import pytest

from heliograph import traffic
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.dashboard.messaging.home import LATEST, TRIED
from heliograph.overview import figures
from heliograph.sms.arrivals import FAILURES
from heliograph.sms.status import Move, move_many
from heliograph.traffic import Point
from heliograph.whatsapp.money import wallet
from tests.rules import whatsapp_factories as making
from tests.rules.factories import SUM_DAYS

from .conftest import Api, Browser, Tenant, make_person
from .test_messages import send
from .test_sending import clock_session


def open_steps(text: str) -> int:
    return len(re.findall(r'<li class=""><span class="tickmark"', text))


async def test_figures_are_those_of_the_roll_ups(api: Api, pool: Pool, tenant: Tenant, owner: Browser) -> None:
    assert "Nothing happened in this period." in (await owner.get("/")).words
    for _ in range(LATEST + 2):
        await send(api, tenant)
    async with pool.acquire() as conn:
        while await traffic.fold(conn):
            pass
    page = await owner.get("/")
    assert "12 accepted, 0 delivered, 0 failed." in page.words
    assert "Mozambique 12" in page.words
    assert "Quota left 988 99 % of 1,000" in page.words
    assert len(re.findall(r'<tr id="m-', page.text)) == LATEST
    assert "Nothing happened in this period." in (await owner.get("/?mode=test")).words
    assert "12 accepted" in (await owner.get("/?range=7d")).words


async def test_what_is_used_and_what_is_left_are_the_whole_quota(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    """Both used to be rounded down, so that 99 % were left of a quota of which 0 % was used; and then 1 % was used from
    the first message on."""
    million = 10**6
    for used, total, left, spent in (
        *((0, 1000, "100", "0"), (12, 1000, "99", "1"), (10, 1000, "99", "1"), (9, 1000, ">99", "<1")),
        *((0, 0, "0", "100"), (1, million, ">99", "<1"), (million - 1, million, "1", "99")),
        (million, million, "0", "100"),
    ):
        await pool.execute("UPDATE quotas SET used = $2, total = $3 WHERE organization_id = $1", tenant.id, used, total)
        assert f"Quota left {total - used:,} {left} % of {total:,}" in (await owner.get("/")).words
        assert f"Left {total - used:,} {spent} % used" in (await owner.get("/usage")).words


async def test_what_was_spent_is_that_of_the_pages_it_leads_to(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    async def used(day: str, messages: int, refunds: int, charged: int) -> None:
        await pool.execute(
            "INSERT INTO usage_days VALUES"
            " ($1, $2::text::date, 'sms', 'MZ', 'ACME', $3, $3, $4, 2 * $4::bigint, $5, 2 * $5::bigint)",
            *(tenant.id, day, UUID(int=0), messages, refunds),
        )
        await pool.execute(
            "INSERT INTO wallet_days VALUES ($1, $2::text::date, 'utility', 1, $3)", tenant.id, day, charged
        )

    await used("2026-03-10", 30, 2, 1_500_000)
    await used("2026-03-09", 50, 0, 4_000_000)
    await used("2026-03-01", 70, 0, 8_000_000)
    day = await owner.get("/?from=2026-03-10&to=2026-03-10")
    assert "SMS spent 28 56 segments · after 2 refunds · 10 Mar 2026 UTC · 50 on the day before" in day.words
    assert "Wallet spent" not in day.words  # it never had money
    async with pool.acquire() as conn:
        await wallet.top_up(conn, tenant.id, amount=20_000_000, currency="EUR", reason="paid")
    week = await owner.get("/?from=2026-03-04&to=2026-03-10")
    stretch = "4 Mar 2026 – 10 Mar 2026"
    assert f"SMS spent 78 156 segments · after 2 refunds · {stretch} UTC · 70 in the 7 days before" in week.words
    assert f"Wallet spent €5.50 {stretch} UTC · €8.00 in the 7 days before" in week.words
    links = {
        path: html.unescape(link) for link, path in re.findall(r'href="((/usage|/wallet)[?]from=[^"]*)"', week.text)
    }
    assert "80 SMS in 160 segments, 0 WhatsApp messages, 2 refunded." in (await owner.get(links["/usage"])).words
    assert "€5.50 charged for 2 messages." in (await owner.get(links["/wallet"])).words
    assert "SMS spent 0 0 segments" in (await owner.get("/")).words
    # Test messages cost nothing.
    assert "SMS spent" not in (await owner.get("/?mode=test")).words
    await make_person(pool, tenant, "vera@example.com", "viewer")
    assert "SMS spent" not in (await other_browser.sign_in("vera@example.com")).words


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Honolulu", "America/St_Johns", "Asia/Kathmandu", "Pacific/Auckland"])
async def test_what_was_spent_on_chosen_days_is_theirs_wherever_the_reader_is(
    pool: Pool, tenant: Tenant, owner: Browser, zone: str
) -> None:
    """West of Greenwich it was that of the days from the second to the one after the last."""
    await pool.execute(
        "INSERT INTO usage_days SELECT $1, '2026-02-28'::date + n, 'sms', 'MZ', 'ACME', $2, $2, 10 ^ n, 10 ^ n, 0, 0"
        "  FROM generate_series(0, 5) n",
        *(tenant.id, UUID(int=0)),
    )
    await pool.execute("UPDATE users SET time_zone = $1", zone)
    await clock_session(owner)
    one = (await owner.get("/?from=2026-03-02&to=2026-03-02")).words
    assert "SMS spent 100 100 segments · 2 Mar 2026 UTC · 10 on the day before" in one
    page = await owner.get("/?from=2026-03-01&to=2026-03-03")
    assert "SMS spent 1,110 1,110 segments · 1 Mar 2026 – 3 Mar 2026 UTC · 1 in the 3 days before" in page.words
    link = html.unescape(re.findall(r'href="(/usage[?]from=[^"]*)"', page.text)[0])
    assert "1,110 SMS in 1,110 segments, 0 WhatsApp messages, 0 refunded." in (await owner.get(link)).words


async def test_why_messages_failed_is_said_with_counts(api: Api, pool: Pool, tenant: Tenant, owner: Browser) -> None:
    assert "Why messages failed" not in (await owner.get("/")).words
    ids = [await send(api, tenant) for _ in range(3)]
    codes = ["undelivered", "undelivered", "destination_unreachable"]
    moves = [
        Move(tenant.actor.organization_id, UUID(id), "undelivered", clock.now(), code)
        for id, code in zip(ids, codes, strict=True)
    ]
    async with pool.acquire() as conn:
        await move_many(conn, moves)
        await traffic.fold(conn)
    page = await owner.get("/")
    section = page.words.partition("Why messages failed")[2]
    said = FAILURES["undelivered"]
    assert f"{said} SMS 2" in section
    assert f"{FAILURES['destination_unreachable']} SMS 1" in section
    assert page.words.count(said) == 2  # it is the first one for the country, too
    (link,) = re.findall(r'<th scope="row"><a href="(/messages[^"]*reason=undelivered[^"]*)"', page.text)
    listed = await owner.get(html.unescape(link))
    assert len(re.findall(r'<tr id="m-', listed.text)) == 2
    assert "Why messages failed" not in (await owner.get("/?mode=test")).words


async def test_steps_are_ticked_by_what_happened(api: Api, pool: Pool, tenant: Tenant, owner: Browser) -> None:
    page = await owner.get("/")
    before = open_steps(page.text)
    assert "First steps" in page.words
    await send(api, tenant)  # the first message, and a live one
    page = await owner.get("/")
    assert open_steps(page.text) == before - 2
    await pool.execute("UPDATE messages SET status = 'delivered', sent_at = now(), delivered_at = now()")
    assert open_steps((await owner.get("/")).text) == before - 3
    await owner.submit(await owner.get("/team/invite"), "/team/invite", email="rui@example.com", role="viewer")
    assert open_steps((await owner.get("/")).text) == before - 4
    page = await owner.submit(page, "/checklist/dismiss")
    assert "First steps" not in page.words


async def test_what_was_done_stays_done_when_its_messages_are_deleted(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    """Whoever had sent for years was to send a first message once nothing had been sent for as long as messages are
    kept."""
    before = open_steps((await owner.get("/")).text)
    id = UUID(await send(api, tenant))
    async with pool.acquire() as conn:
        await move_many(conn, [Move(tenant.id, id, status, clock.now()) for status in ("sent", "delivered")])
        await traffic.fold(conn)
    await pool.execute("DELETE FROM messages")
    assert open_steps((await owner.get("/")).text) == before - 3


@pytest.mark.parametrize("role", ["owner", "admin", "developer"])
async def test_each_step_leads_to_where_it_is_done(pool: Pool, tenant: Tenant, browser: Browser, role: str) -> None:
    await pool.execute("DELETE FROM sender_ids")
    await make_person(pool, tenant, "someone@example.com", role)
    page = await browser.sign_in("someone@example.com")
    links = re.findall(r'<li class="">.*?<a class="button small" href="([^"]+)"', page.text)
    assert ("/senders/new" in links, "/team/invite" in links) == (role != "developer", role != "developer")
    assert "/webhooks/catcher?mode=test" in links
    assert ("/send" in links) == (role != "developer"), "developers send test messages only"
    for link in links:
        assert (await browser.get(link)).status == 200, link


async def test_the_first_message_is_sent_for_who_asks_for_it(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    page = await owner.get("/")
    before = open_steps(page.text)
    for said in ("curl -sS", "requests.post(", "await fetch(", "curl_init(", "$HELIOGRAPH_API_KEY", TRIED["to"]):
        assert html.escape(said, quote=False) in page.text, said
    form = page.form("/send?mode=test")
    sent = await owner.post("/send?mode=test", form)
    again = await owner.post("/send?mode=test", form)  # a double click
    assert (sent.status, sent.path) == (200, again.path)
    assert sent.path.startswith("/send?sent=")
    assert await pool.fetch("SELECT mode, recipient FROM messages") == [("test", TRIED["to"])]
    page = await owner.get("/")
    assert open_steps(page.text) == before - 1
    assert ("Send it for me" in page.words, "curl -sS" in page.text) == (False, False)
    # Who may not send is not asked to.
    await make_person(pool, tenant, "vera@example.com", "viewer")
    await other_browser.sign_in("vera@example.com")
    assert "Send it for me" not in (await other_browser.get("/")).words


async def test_little_quota_is_said(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    assert "Less than a fifth" not in (await owner.get("/")).words
    await pool.execute("UPDATE quotas SET used = total - 10")
    assert "Less than a fifth of the quota is left: 10 messages." in (await owner.get("/")).words
    # Nothing was granted yet.
    await pool.execute("UPDATE quotas SET used = 0, total = 0")
    assert "There is no quota: SMS are refused." in (await owner.get("/")).words
    await pool.execute("DELETE FROM sender_ids")
    assert "There is no quota" not in (await owner.get("/")).words, "only WhatsApp is used, which is paid differently"


async def test_the_pace_of_the_quota_is_said(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    await pool.execute("UPDATE quotas SET total = 10000, used = 700")
    assert "At the pace" not in (await owner.get("/")).words
    await pool.execute(
        "INSERT INTO usage_days SELECT $1, (now() AT TIME ZONE 'UTC')::date - n, 'sms', 'MZ', 'ACME', $2, $2,"
        " 2000, 2000, 0, 0 FROM generate_series(1, 7) n",
        *(tenant.id, UUID(int=0)),
    )
    assert "At the pace of the last week the quota is used up on" in (await owner.get("/")).words


async def test_days_are_named_as_those_of_utc_wherever_the_reader_is(
    pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    """West of Greenwich, each day's figures used to be shown under the previous day."""
    await pool.execute(
        "INSERT INTO traffic VALUES ($1, '2026-03-10 15:00Z', 'sms', 'live', 'MZ', 'ACME', $2, 'delivered', 7, 7,"
        " '{}', '{}')",
        *(tenant.id, UUID(int=1)),
    )
    await pool.execute(SUM_DAYS)
    for zone in ("America/Sao_Paulo", "Africa/Maputo"):
        await pool.execute("UPDATE users SET time_zone = $1", zone)
        await clock_session(owner)
        page = await owner.get("/?from=2026-03-01T12:00&to=2026-03-20T12:00")
        table = page.words.partition("As a table")[2]
        assert "10 Mar 2026 7 7 0" in table, (zone, table[:300])
        assert "messages · 1 Mar 2026 – 20 Mar 2026 · UTC" in page.words
        assert f"· {zone}" in (await owner.get("/?from=2026-03-10&to=2026-03-10")).words


async def test_a_country_that_receives_worse_than_in_its_week_is_named(
    pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    async def counted(country: str, hours: int, delivered: int, failed: int) -> None:
        for status, count in (("delivered", delivered), ("undelivered", failed)):
            await pool.execute(
                "INSERT INTO traffic VALUES ($1, date_trunc('hour', now(), 'UTC') - $2 * interval '1 hour', 'sms',"
                " 'live', $3, 'ACME', $4, $5, $6, $6, '{}', '{}')",
                *(tenant.id, hours, country, UUID(int=1), status, count),
            )

    await counted("MZ", 60, 980, 20)
    await counted("MZ", 2, 60, 40)
    await counted("PT", 60, 980, 20)
    await counted("PT", 2, 95, 5)  # three points are not a drop
    await counted("ZA", 60, 100, 0)
    await counted("ZA", 2, 10, 10)  # twenty say nothing
    await pool.execute(SUM_DAYS)
    page = await owner.get("/")
    said = "Mozambique: 60.0 % of the messages of the last 24 hours arrived; the week before, 98.0 %."
    assert said in page.words
    assert page.words.count("the week before") == 2  # the text, and the name of its button
    # A share changes by percentage points.
    await counted("MZ", 30, 50, 50)
    await pool.execute(SUM_DAYS)
    assert "Delivered 75.0 % +25.0 points compared with before" in (await owner.get("/?range=24h")).words
    (link,) = re.findall(r'class="button small" href="(/messages[?]country=MZ[^"]*)"', page.text)
    assert (await owner.get(html.unescape(link))).status == 200
    assert "the week before" not in (await owner.get("/?mode=test")).words


async def test_a_number_whose_quality_fell_is_named(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    account = await making.made(pool, organization_id=tenant.id)
    assert "The quality of" not in (await owner.get("/")).words
    await pool.execute("UPDATE whatsapp_numbers SET quality_rating = 'yellow'")
    await pool.execute(
        "INSERT INTO whatsapp_qualities SELECT organization_id, id, now() - interval '1 day', 'yellow', 1000"
        "  FROM whatsapp_numbers WHERE organization_id = $1",
        account.actor.organization_id,
    )
    assert "is medium: people block or report it." in (await owner.get("/")).words
    await pool.execute("UPDATE whatsapp_qualities SET at = now() - interval '8 days'")
    assert "The quality of" not in (await owner.get("/")).words


async def test_billing_sees_figures_and_no_messages(api: Api, pool: Pool, tenant: Tenant, browser: Browser) -> None:
    await send(api, tenant)
    await make_person(pool, tenant, "eva@example.com", "billing")
    page = await browser.sign_in("eva@example.com")
    assert "Quota left" in page.words
    assert "Latest messages" not in page.words
    assert "First steps" not in page.words
    assert (await browser.get("/messages")).status == 403


async def test_a_visitor_sees_where_to_sign_in(browser: Browser) -> None:
    page = await browser.get("/")
    assert (page.status, 'href="/login"' in page.text) == (200, True)
    assert "Sending is disrupted" in page.words  # no worker runs here


def test_hours_in_which_nothing_arrived_have_no_histogram() -> None:
    at = clock.now()
    found = figures.summed(
        [
            Point(at, "MZ", {"accepted": 2}, 2, [], []),
            Point(at, "MZ", {"delivered": 3, "failed": 1}, 4, [], [0] * 10 + [3] + [0] * 21),
        ]
    )
    assert (found.accepted, found.delivered, found.failed, found.rate) == (6, 3, 1, 75.0)
    assert found.p50 is not None
    assert 1.0 < found.p50 < 2.1
    assert figures.summed([]).rate is None


async def test_what_needs_somebody_stands_first(api: Api, pool: Pool, tenant: Tenant, owner: Browser) -> None:
    assert 'class="attention"' not in (await owner.get("/")).text
    body = {"name": "Spring sale", "content": "Hello", "recipients": ["+258841234567"]}
    status, _, answer = await api.ask("POST", "/campaigns", json=body, headers=tenant.headers)
    assert status == 201, answer
    await pool.execute("UPDATE campaigns SET status = 'paused', status_reason = 'quota_exceeded'")
    hook = {"url": "https://shop.example.com/hooks", "subscribed_events": ["message.delivered"]}
    assert (await api.ask("POST", "/webhooks", json=hook, headers=tenant.headers))[0] == 201
    await pool.execute("UPDATE webhook_endpoints SET consecutive_failures = 9")
    await pool.execute("UPDATE api_keys SET expires_at = now() + interval '3 days'")
    await pool.execute("UPDATE quotas SET used = total")
    await make_person(pool, tenant, "rui@example.com", "viewer")
    page = await owner.get("/")
    notices = re.findall(r'<div class="attention">.*?</svg><span>(.*?)</span>', page.text, re.S)
    begin = (
        "The quota is used up",
        "The campaign “Spring sale” ",
        "Webhooks to https://sh",
        "The key “",
        "Nobody here",
    )
    assert len(notices) == len(begin)
    for said, wanted in zip(notices, begin, strict=True):
        assert said.startswith(wanted)
    assert 'href="/webhooks/' in page.text
    assert "Running campaigns Spring sale" in page.words
    assert "A quota esgotou-se" in (await owner.get("/", Accept_Language="pt")).words


async def test_what_chance_explains_is_no_fall_and_neither_is_a_test(
    pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    insert = """
    INSERT INTO traffic (organization_id, hour, channel, mode, country, sender, supplier_id, status, count, segments,
                         to_sent, to_delivered)
    SELECT $1, date_trunc('hour', now()) - $2::interval, 'sms', $3, $4, '', '00000000-0000-0000-0000-000000000000',
           $5, $6, $6, '{}', '{}'
    """
    long_ago, now = timedelta(days=3), timedelta(hours=2)
    for ago, mode, country, status, count in (
        (long_ago, "live", "MZ", "delivered", 980),
        (long_ago, "live", "MZ", "undelivered", 20),
        (now, "live", "MZ", "delivered", 160),
        (now, "live", "MZ", "failed", 40),
        # One point less among few messages may be chance, and six points of fifty as well: neither is reported.
        (long_ago, "live", "PT", "delivered", 990),
        (long_ago, "live", "PT", "undelivered", 10),
        (now, "live", "PT", "delivered", 980),
        (now, "live", "PT", "undelivered", 20),
        (long_ago, "live", "ZA", "delivered", 1000),
        (now, "live", "ZA", "undelivered", 5),
        (long_ago, "live", "AO", "delivered", 900),
        (long_ago, "live", "AO", "undelivered", 100),
        (now, "live", "AO", "delivered", 42),
        (now, "live", "AO", "undelivered", 8),
        (long_ago, "test", "MZ", "delivered", 1000),
        (now, "test", "MZ", "failed", 1000),
    ):
        await pool.execute(insert, tenant.actor.organization_id, ago, mode, country, status, count)
    await pool.execute(SUM_DAYS)
    page = await owner.get("/")
    assert page.text.count('class="attention"') == 1
    said = "Mozambique: 80.0 % of the messages of the last 24 hours arrived; the week before, 98.0 %."
    assert said in page.words
    (link,) = re.findall(r'class="button small" href="(/messages[^"]*country=MZ[^"]*)"', page.text)
    assert (await owner.get(html.unescape(link))).status == 200
    assert 'class="attention"' not in (await owner.get("/?mode=test")).text


async def test_who_is_alone_is_told_of_a_second_factor_once_the_checklist_is_gone(owner: Browser) -> None:
    page = await owner.get("/")
    assert ("Turn on a second factor" in page.words, "Nobody here has a second factor" in page.words) == (True, False)
    page = await owner.submit(page, "/checklist/dismiss")
    assert ("Turn on a second factor" in page.words, "Nobody here has a second factor" in page.words) == (False, True)


async def test_a_passkey_counts_where_no_password_can_be_stolen(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    rui = await make_person(pool, tenant, "rui@example.com", "viewer")
    assert "Nobody here has a second factor" in (await owner.get("/")).words
    await pool.execute(
        "INSERT INTO passkeys (user_id, id, credential_id, public_key, uses, name, created_at)"
        " VALUES ($1, gen_random_uuid(), '\\x01', '\\x02', 0, 'Phone', now())",
        rui.id,
    )
    assert "Nobody here has a second factor" in (await owner.get("/")).words
    await pool.execute("UPDATE users SET password = NULL WHERE id = $1", rui.id)
    assert "Nobody here has a second factor" not in (await owner.get("/")).words
    assert "passkey" in (await owner.get("/team")).words


async def test_every_figure_leads_to_the_messages_that_make_it_up(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    ids = [await send(api, tenant) for _ in range(3)]
    moves = [Move(tenant.actor.organization_id, UUID(id), "delivered", clock.now()) for id in ids[:2]]
    async with pool.acquire() as conn:
        await move_many(conn, moves)
        while await traffic.fold(conn):
            pass
    page = await owner.get("/")
    figures_shown = page.text.partition('<section class="figures"')[2].partition("</section>")[0]
    links = [html.unescape(one) for one in re.findall(r'<strong><a href="(/messages[^"]*)"', figures_shown)]
    assert len(links) == 4
    for link, count in zip(links, (3, 2, 2, 2), strict=True):
        assert len(re.findall(r'<tr id="m-', (await owner.get(link)).text)) == count, link
    of_country = page.text.partition('id="countries"')[2]
    listed = [html.unescape(one) for one in re.findall(r'<td class="end[^"]*"><a href="(/messages[^"]*)"', of_country)]
    assert [len(re.findall(r'<tr id="m-', (await owner.get(one)).text)) for one in listed[:2]] == [3, 2]
    assert re.search(r'<strong><a href="/usage', figures_shown)
    # Someone who sees no messages gets figures without links.
    await make_person(pool, tenant, "eva@example.com", "billing")
    assert 'href="/messages' not in (await other_browser.sign_in("eva@example.com")).text
