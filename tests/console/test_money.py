"""Quota and renewals, wallets that add up, rates and their gaps, margins, and months locked for billing."""

from __future__ import annotations

import csv
import hashlib
import io
import re
from datetime import UTC, datetime, timedelta

import msgspec

from heliograph.accounts import plans
from heliograph.base.crypto import derive_key
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.console.money import whatsapp_rates
from heliograph.overview.installation import billing
from heliograph.prices import margins
from heliograph.prices.margins import Due
from heliograph.sms import refunds
from heliograph.sms.dispatch import suppliers
from heliograph.whatsapp.money import rates, wallet
from heliograph.whatsapp.money.rates import Rate
from tests.api.conftest import Tenant
from tests.rules.factories import organization, supplier
from tests.rules.test_billing import used
from tests.rules.whatsapp_factories import account, make_app

from .conftest import Browser, signed_in


async def test_quota_of_all_and_renewals_ahead(pool: Pool, tenant: Tenant, root: Browser) -> None:
    assert "Renewals ahead" not in (await root.get("/console/plans")).words
    async with pool.acquire() as conn:
        await plans.subscribe(conn, tenant.id, plans.Terms("Small", 5000), now=clock.now())
    page = await root.get("/console/plans")
    assert "Acme Small" in page.words.replace("Active ", "")
    assert "5,000" in page.words
    assert "Renewals ahead" in page.words
    # The share of the quota is the one that the organization is shown.
    assert " 0&nbsp;%" in page.text
    await pool.execute("UPDATE quotas SET used = 1")
    assert " &lt;1&nbsp;%" in (await root.get("/console/plans")).text
    await pool.execute("UPDATE quotas SET used = total / 100")
    assert " 1&nbsp;%" in (await root.get("/console/plans")).text
    assert "No organization matches" in (await root.get("/console/plans?search=nobody")).words


async def test_what_is_refunded_is_chosen(pool: Pool, root: Browser, other_browser: Browser) -> None:
    here = "/console/refunds"
    page = await root.get(here)
    assert "No supplier had it: none was asked, or each deferred it. Always refunded." in page.words
    done = await root.submit(page, here, class_refused="yes", class_unknown="yes")
    assert "it applies to messages that fail from now on" in done.words
    chosen = [row["class"] for row in await pool.fetch("SELECT class FROM refunded_classes ORDER BY class")]
    assert chosen == ["refused", "unknown"]
    fields = done.form(here)
    await root.post(here, {"_token": fields["_token"], "class_unknown": "yes", "class_unsent": "no"})
    async with pool.acquire() as conn:
        policy = await refunds.policy(conn)
    assert {name for name, is_refunded in policy.items() if is_refunded} == {"unsent", "unknown"}
    assert await pool.fetchval("SELECT count(*) FROM audit_log WHERE action = 'refunds.changed'") == 2
    # Someone who may only view has no form.
    await signed_in(pool, other_browser, "auditor", "rui@example.com")
    seen = await other_browser.get(here)
    assert "unknown No receipt came" in seen.words
    assert f'action="{here}"' not in seen.text


async def test_wallets_add_up_and_are_topped_up(
    pool: Pool, tenant: Tenant, root: Browser, other_browser: Browser
) -> None:
    assert "No wallet yet" in (await root.get("/console/wallets")).words
    here = f"/console/wallets/{tenant.id}"
    page = await root.get(here)
    for typed, said in (
        ({"amount": "10", "reason": "x"}, "Enter a three-letter currency code"),
        ({"amount": "much", "reason": "x"}, "Enter an amount"),
        ({"amount": "1.500", "reason": "x"}, "Write 1500 or 1.5000."),
        ({"amount": "10", "reason": " "}, "Give a reason of at most 500 characters"),
        ({"amount": "10", "reason": "x", "currency": "dollars"}, "Enter a three-letter currency code"),
        ({"amount": "-10", "reason": "x", "kind": "adjustment"}, "would subtract more than is left"),
        (
            {"amount": "0", "reason": "x"},
            "Enter an amount other than 0, of at most 1,000,000,000, such as 12.50; only an adjustment may be negative",
        ),
    ):
        wrong = await root.submit(await root.get(here), here, **typed)
        assert wrong.status == 422, typed
        assert said in wrong.words, wrong.words
    page = await root.submit(page, here, amount="250,50", currency="EUR", reason="invoice 7")
    assert "It is booked." in page.words
    # The same form again, as sent by Back and by a double click.
    # From then on, amounts are in its currency.
    assert "Amount in EUR" in page.words
    again = await root.post(here, page.form(here) | {"amount": "-0.5", "reason": "bank fee", "kind": "adjustment"})
    assert again.status == 200
    page = await root.get("/console/wallets")
    assert "€250.00" in page.words
    assert "EUR 1 €250.00 €0.00 €0.00 €250.00 €250.00 ● €0.00" in page.words
    async with pool.acquire() as conn:
        assert (await wallet.show(conn, tenant.actor)).total == 250_000_000
        who = await conn.fetch("SELECT DISTINCT who FROM audit_log WHERE action = 'wallet.changed'")
    assert [row["who"] for row in who] == ["operator"]
    # Someone who may only view has no form.
    await signed_in(pool, other_browser, "auditor", "rui@example.com")
    assert f'action="{here}"' not in (await other_browser.get(here)).text


async def test_the_form_offers_the_currency_of_the_account_until_money_has_moved(
    pool: Pool, tenant: Tenant, root: Browser
) -> None:
    here = f"/console/wallets/{tenant.id}"
    async with pool.acquire() as conn:
        # The alert makes a wallet in a currency that nobody chose.
        await wallet.set_alert(conn, tenant.id, below=50_000_000)
    assert (await root.get(here)).form(here)["currency"] == ""
    await account(pool, tenant.id, await make_app(pool), currency="EUR")
    assert (await root.get(here)).form(here)["currency"] == "EUR"
    # A free message moves none.
    await pool.execute(
        "INSERT INTO wallet_movements (organization_id, id, message_id, key, movement, available, reserved, consumed,"
        " created_at) VALUES ($1, $2, $2, '', 'reserve', 0, 0, 0, now())",
        tenant.id,
        uuid7(),
    )
    page = await root.get(here)
    assert "No movement yet." not in page.words
    page = await root.submit(page, here, amount="10", reason="invoice 7")
    assert ("€10.00" in page.words, "currency" in page.form(here)) == (True, False), page.words


async def test_a_sum_that_is_apart_is_shown_to_be(pool: Pool, tenant: Tenant, root: Browser) -> None:
    async with pool.acquire() as conn:
        await wallet.top_up(conn, tenant.id, amount=10_000_000, currency="EUR")
        await conn.execute("UPDATE wallet_ledger SET available = available - 1000000")
    page = await root.get("/console/wallets")
    assert "€10.00 €9.00 ✕ €1.00" in page.words


async def test_rates_name_what_is_missing(pool: Pool, tenant: Tenant, root: Browser) -> None:
    assert "No WhatsApp rate yet" in (await root.get("/console/rates")).words
    at = clock.now()
    async with pool.acquire() as conn:
        await wallet.top_up(conn, tenant.id, amount=10_000_000, currency="EUR")
        given = [
            Rate("EUR", "utility", "*", at - timedelta(days=2), 30_000),
            Rate("EUR", "utility", "MZ", at - timedelta(days=2), 20_000),
            Rate("EUR", "utility", "MZ", at + timedelta(days=20), 25_000),
            Rate("EUR", "marketing", "MZ", at - timedelta(days=2), 60_000),
        ]
        await rates.import_rates(conn, given[:3])
    # Marketing is not sent at all: nothing is refused because it has no rates.
    page = await root.get("/console/rates")
    assert ("Authentication: no rate" in page.words, "Marketing" in page.words) == (True, False), page.words
    async with pool.acquire() as conn:
        await rates.import_rates(conn, given)
    page = await root.get("/console/rates")
    assert "EUR Utility 1 €0.03" in page.words, page.words
    assert "1 rate" in page.words
    assert "EUR, Authentication: no rate applies to other countries" in page.words
    # Nor without some of these; without its own rate, authentication from abroad costs as much as other authentication.
    assert "EUR Marketing 1 –" in page.words, page.words
    assert page.words.count("no rate applies to other countries") == 1
    async with pool.acquire() as conn:
        abroad = Rate("EUR", "authentication-international", "IN", at - timedelta(days=2), 60_000)
        await rates.import_rates(conn, [abroad])
    page = await root.get("/console/rates")
    assert "EUR Authentication from abroad 1 –" in page.words, page.words
    assert page.words.count("no rate applies to other countries") == 1


async def test_whatsapp_rates_of_a_country_are_shown_and_fetched(pool: Pool, root: Browser) -> None:
    here = "/console/rates/whatsapp"
    page = await root.get("/console/rates")
    assert page.text.index("No WhatsApp rate yet") < page.text.index(f'href="{here}/import"'), "what to do about it"
    assert "No rate matches." in (await root.get(here)).words
    at = clock.now()
    given = [
        Rate("EUR", "utility", "*", at - timedelta(days=2), 30_000),
        Rate("EUR", "utility", "MZ", at - timedelta(days=9), 10_000),
        Rate("EUR", "utility", "MZ", at - timedelta(days=2), 20_000),
        Rate("EUR", "utility", "MZ", at + timedelta(days=20), 25_000),
        Rate("USD", "marketing", "MZ", at - timedelta(days=2), 60_000),
    ]
    async with pool.acquire() as conn:
        await rates.import_rates(conn, given)
    assert f"{here}?currency=EUR&amp;category=utility" in (await root.get("/console/rates")).text
    page = await root.get(here)
    assert all(said in page.words for said in ("all other countries", "€0.03", "$0.06")), page.words
    page = await root.get(f"{here}?currency=eur&country=mz")
    assert "all other countries" not in page.words.partition("Apply")[2]
    states = re.findall(
        r"ended|in effect now|upcoming", page.words.partition("Apply")[2].partition("State of the service")[0]
    )
    assert states == ["ended", "in effect now", "upcoming"]
    file = await root.get(f"{here}?currency=EUR&country=MZ&csv=1")
    assert rates.read_rates(io.StringIO(file.text, newline="")) == given[1:4]


async def test_the_calendar_shows_changes_and_gaps(pool: Pool, root: Browser) -> None:
    def day(text: str) -> datetime:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)

    given = [
        Rate("EUR", "utility", "*", day("2027-01-01"), 30_000),
        Rate("EUR", "utility", "MZ", day("2027-03-15"), 20_000),
        Rate("EUR", "marketing", "MZ", day("2027-02-11"), 60_000),
        Rate("EUR", "marketing", "MZ", day("2027-04-01"), 70_000),
        Rate("EUR", "authentication", "*", day("2020-01-01"), 10_000),
    ]
    async with pool.acquire() as conn:
        await rates.import_rates(conn, given)
    here = "/console/rates/whatsapp"
    words = (await root.get(f"{here}?from=2027-01")).words.partition("Calendar")[2]
    lent = "broader rate broader rate broader rate 1–14"
    assert f"Mozambique Utility · EUR {lent} €0.02 from 15 Mar 2027 €0.02" in words, words
    assert "Mozambique Marketing · EUR ✕ no rate ✕ no rate 1–10 €0.06 from 11 Feb 2027 €0.06 €0.07" in words
    assert "2 destinations have one price through all of these months." in words
    # The category whose rate is used is outside the filter.
    narrow = (await root.get(f"{here}?from=2027-01&country=MZ")).words.partition("Calendar")[2]
    assert "Mozambique Utility · EUR broader rate" in narrow
    assert "all other countries Utility" not in narrow
    # So is the rate of another category, for each country shown.
    async with pool.acquire() as conn:
        lent = [
            Rate("EUR", kind, "PT", day(at), 5_000)
            for kind, at in (("service", "2027-02-15"), ("utility", "2026-12-01"))
        ]
        await rates.import_rates(conn, lent)
    narrow = (await root.get(f"{here}?from=2027-01&category=service")).words.partition("Calendar")[2]
    assert "Portugal Replies · EUR broader rate broader rate 1–14 €0.005 from 15 Feb 2027" in narrow, narrow
    page = await root.get(f"{here}?from=2027-01", accept_language="pt")
    assert "sem tarifa 1–10" in page.words
    assert f"{here}?from=2026-07#calendar" in page.text


async def test_a_page_of_whatsapp_rates_ends_and_the_last_of_it_holds_only_if_no_other_does(
    pool: Pool, root: Browser
) -> None:
    begun = clock.now() - timedelta(days=whatsapp_rates.SHOWN + 9)
    given = [
        Rate("EUR", "utility", "MZ", begun + timedelta(days=n), 20_000 + n) for n in range(whatsapp_rates.SHOWN + 2)
    ]
    async with pool.acquire() as conn:
        await rates.import_rates(conn, given)
        assert await rates.list_rates(conn, limit=3) == given[:3]
    here = "/console/rates/whatsapp"
    page = await root.get(here)
    assert "Only the first lines are shown; the file has all of them." in page.words
    assert (page.text.count("</span> ended<"), page.text.count("</span> in effect now<")) == (
        whatsapp_rates.SHOWN,
        0,
    ), page.words
    file = await root.get(f"{here}?csv=1")
    assert rates.read_rates(io.StringIO(file.text, newline="")) == given


async def test_margins_by_supplier_and_as_a_file(pool: Pool, root: Browser) -> None:
    assert "Nothing became due" in (await root.get("/console/margins")).words
    actor, of, at = await organization(pool), supplier("main"), clock.now()
    days = f"from={at:%F}&to={at:%F}"  # this month, otherwise, which may end meanwhile
    values = {
        "network": "643-01",
        "route": "codes",
        "messages": 1,
        "segments": 2,
        "price_currency": "EUR",
        "cost_currency": "EUR",
    }
    async with pool.acquire() as conn:
        one = Due(
            organization_id=actor.organization_id,
            at=at,
            supplier_id=of.id,
            country="MZ",
            price=50_000,
            cost=30_000,
            **values,
        )
        await margins.record(conn, [one, one])
    page = await root.get(f"/console/margins?{days}&by=country")
    assert "MZ 2 4 €0.10 €0.06 €0.04 40.0 %" in page.words
    assert "codes 2 4 €0.10 €0.06 €0.04" in (await root.get(f"/console/margins?{days}&by=route")).words
    for last, status in (("2026-04-02", 200), ("2026-04-03", 422)):  # 92 days, and 93
        page = await root.get(f"/console/margins?from=2026-01-01&to={last}")
        assert (page.status, "at most 92 days" in page.words) == (status, status == 422)
    # A simulator is never mistaken for a supplier.
    async with pool.acquire() as conn:
        key = derive_key("a secret key of a test installation", "suppliers")
        place = {"host": "127.0.0.1", "port": 2775, "system_id": "a"}
        for name in ("main", "toy"):
            toy = await suppliers.add(conn, key, name=name, kind="smpp", settings=place, secret="s")
            due = msgspec.structs.replace(one, supplier_id=toy, cost=0)
            await margins.record(conn, [due])
        await conn.execute("UPDATE suppliers SET simulated = true WHERE id = $1", toy)
    page = await root.get(f"/console/margins?{days}&by=supplier")
    assert "toy simulator 1 2" in page.words, page.words
    assert page.text.count('class="tag simulated nowrap"') == 1
    file = await root.get(f"/console/margins?{days}&by=supplier&csv=1")
    assert "toy" in [row["supplier"] for row in csv.DictReader(io.StringIO(file.text.removeprefix("\ufeff")))]
    await pool.execute("DELETE FROM margin_deltas WHERE supplier_id <> $1", of.id)
    file = await root.get(f"/console/margins?{days}&by=country&csv=1")
    (row,) = csv.DictReader(io.StringIO(file.text.removeprefix("\ufeff")))
    assert (row["country"], row["messages"], float(row["margin"])) == ("MZ", "2", 0.04)
    # More was refunded than sold: the loss is no gain of 110 %.
    async with pool.acquire() as conn:
        await margins.record(conn, [msgspec.structs.replace(one, messages=0, segments=0, price=-700_000, cost=0)])
    page = await root.get(f"/console/margins?{days}&by=country")
    assert re.search(r"MZ 2 4 -€0\.60 €0\.06 -€0\.66(?! [0-9.-]+ %)", page.words), page.words
    for query, said in (("from=x", "Enter a day"), ("from=2027-02-01&to=2027-01-01", "must not be before")):
        wrong = await root.get(f"/console/margins?{query}")
        assert (wrong.status, said in wrong.words) == (422, True), query
    both = await root.get("/console/margins?from=x&to=y")
    assert ('href="#from"' in both.text, 'href="#to"' in both.text) == (True, True), both.text


async def test_a_month_is_locked_and_fetched(pool: Pool, root: Browser, other_browser: Browser) -> None:
    month, _ = await used(pool)
    ym = f"{month:%Y-%m}"
    here = f"/console/billing/{ym}"
    page = await root.get("/console/billing")
    assert page.text.count("to be locked") >= 1
    page = await root.get(here)
    assert "cannot be undone" in page.words
    assert (await root.get(f"{here}/file")).status == 404
    page = await root.get(f"{here}/lock")
    assert "Its lines are stored permanently: SMS 7, segments " in page.words, page.words
    page = await root.submit(page, f"{here}/lock")
    assert "It is locked: " in page.words
    assert (await root.get(f"{here}/lock")).status == 404
    async with pool.acquire() as conn:
        locked = (await billing.get(conn, month=month)).locked
    assert locked is not None
    assert locked.checksum in page.text
    assert "SMS 7 7 ● 0" in page.words
    file = await root.get(f"{here}/file")
    assert hashlib.sha256(file.text.encode()).hexdigest() == locked.checksum
    assert sum(int(row["quantity"]) for row in csv.DictReader(io.StringIO(file.text))) == 1 - 7 - 7 + 100
    # The present month, a month without usage, and an invalid one.
    assert "not over" in (await root.get(f"/console/billing/{clock.now():%Y-%m}")).words
    assert (await root.get("/console/billing/nonsense")).status == 404
    # Someone who may only view downloads and does not lock.
    await signed_in(pool, other_browser, "auditor", "rui@example.com")
    assert (await other_browser.get(f"{here}/file")).text == file.text
    token = (await other_browser.get("/console/account")).form("/console/logout")["_token"]
    assert (await other_browser.post(f"{here}/lock", {"_token": token})).status == 403


async def test_a_month_whose_sums_disagree_says_so(pool: Pool, root: Browser) -> None:
    month, _ = await used(pool)
    here = f"/console/billing/{month:%Y-%m}"
    await pool.execute("UPDATE usage_counts SET quantity = quantity - 1 WHERE type = 'grant'")
    wrong = await root.submit(await root.get(f"{here}/lock"), f"{here}/lock")
    assert wrong.status == 422
    assert "disagree" in wrong.words
