"""The wallet on a page: the figures add up, and agree with the ledger."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.whatsapp.money import rates, wallet
from heliograph.whatsapp.money.rates import Rate
from heliograph.whatsapp.money.wallet import Movement
from tests.journeys.test_cli import Cli
from tests.rules import whatsapp_factories as making
from tests.rules.whatsapp_factories import check_wallets, made
from tests.wallets import settle

from .conftest import Browser, Tenant, make_person

UNIT = 1_000_000


async def test_what_is_shown_adds_up(pool: Pool, browser: Browser) -> None:
    one = await made(pool, balance=100 * UNIT)
    tenant = Tenant(one.organization_id, one.actor, "", one.organization_id)
    await make_person(pool, tenant, "ana@example.com")
    await browser.sign_in("ana@example.com")
    paid, waits, lost = [await making.message(pool, one, price=10 * UNIT) for _ in range(3)]
    me = one.organization_id
    async with pool.acquire() as conn:
        async with conn.transaction():
            await settle(conn, [Movement(me, paid, "consume", 12_345_678, "regular"), Movement(me, lost, "release")])
        currency = (await wallet.show(conn, one.actor)).currency
        assert currency
        await rates.import_rates(
            conn,
            [
                Rate(currency, "utility", "MZ", datetime(2026, 1, 1, tzinfo=UTC), 25_000),
                Rate(currency, "utility", "MZ", datetime(2999, 1, 1, tzinfo=UTC), 99_000),
                Rate(currency, "marketing", "*", datetime(2026, 1, 1, tzinfo=UTC), 31_250),
            ],
        )
    await check_wallets(pool, [me])

    page = await browser.get("/wallet")
    sign = {"EUR": "€", "USD": "US$"}[currency]
    for said in (
        f"Available {sign}77.654322",
        f"Reserved {sign}10.00",
        f"Charged {sign}12.345678",
        f"Total {sign}100.00",
    ):
        assert said in page.words.replace("+ ", "").replace("= ", ""), said
    assert "1 message reserves its price since" in page.words
    assert f"{sign}12.345678 charged for 1 message." in page.words
    file = await browser.get(f"/wallet?csv=wallet-{clock.now():%Y-%m}")
    assert ",12.345678" in file.text  # its lines add up to what is charged
    file = await browser.get(f"/wallet?csv=wallet-{clock.now():%Y-%m}", Accept_Language="pt")
    assert ";12,345678" in file.text  # spreadsheets there read a point as text
    ledger = await browser.get("/wallet/ledger")
    assert f"/messages/{paid}" in ledger.text
    assert f"/messages/{waits}" in ledger.text
    assert "Given back" in ledger.words
    prices = await browser.get("/wallet/prices")
    assert f"Mozambique {sign}0.025" in prices.words
    assert ("All other countries" in prices.words, f"{sign}0.03125" in prices.words) == (True, True)
    assert "0.099" not in prices.words
    assert "Nothing was charged" in (await browser.get("/wallet?month=2020-01")).words
    assert f"Day by day {sign}12.345678 charged for 1 message." in (await browser.get("/wallet?range=7d")).words
    before = await browser.get("/wallet?from=2020-01-30&to=2020-02-02")
    assert before.words.count("Nothing was charged in this period.") == 2


async def test_the_latest_movements_say_what_they_moved(pool: Pool, browser: Browser) -> None:
    """A reservation that was lowered, since Meta said that the message is free, moved nothing by this list."""
    one = await made(pool, balance=100 * UNIT)
    await make_person(pool, Tenant(one.organization_id, one.actor, "", one.organization_id), "ana@example.com")
    await browser.sign_in("ana@example.com")
    me = one.organization_id
    for movements in (
        [("lower", 0)],
        [("consume", 3 * UNIT), ("reprice", 5 * UNIT)],
    ):
        id = await making.message(pool, one, price=10 * UNIT)
        for kind, amount in movements:
            async with pool.acquire() as conn, conn.transaction():
                await settle(conn, [Movement(me, id, kind, amount, kind)])
    await check_wallets(pool, [me])
    latest = (await browser.get("/wallet")).words.partition("All movements")[2]
    moved = re.findall(r"(Price corrected|Charged|Reserved) (-?€[0-9.]+)", latest)
    assert moved == [
        ("Price corrected", "€2.00"),
        ("Charged", "€3.00"),
        ("Reserved", "-€10.00"),
        ("Price corrected", "€10.00"),
        ("Reserved", "-€10.00"),
    ]


async def test_the_alert_is_set_and_taken_back(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser, database_url: str
) -> None:
    page = await owner.get("/wallet")
    assert "There are no funds yet" in page.words
    refused = await owner.submit(page, "/wallet/alert", below="a lot")
    assert (refused.status, 'value="a lot"' in refused.text) == (422, True)
    assert "Write 1500 or 1.5000." in (await owner.submit(page, "/wallet/alert", below="1.500")).words
    assert "The alert is set." in (await owner.submit(page, "/wallet/alert", below="12,50")).words
    cli = Cli(HELIOGRAPH_DATABASE_URL=database_url)
    assert (await cli("whatsapp", "wallet", "show", "--json")).data["alert_below"] == "12.500000"
    await cli("whatsapp", "wallet", "top-up", "12", "--currency", "USD")
    page = await owner.get("/wallet")
    assert "12.50 is available. Ask the operator" in page.words
    await make_person(pool, tenant, "rui@example.com", "developer")
    await other_browser.sign_in("rui@example.com")
    seen = await other_browser.get("/wallet")
    assert ("The alert is set at" in seen.words, "/wallet/alert" in seen.text) == (True, False)
    assert "The alert is off." in (await owner.submit(page, "/wallet/alert", below="")).words
    assert (await cli("whatsapp", "wallet", "alert", "7", "--json")).data["alert_below"] == "7.000000"
    assert (await cli("whatsapp", "wallet", "alert", "off", "--json")).data["alert_below"] is None
    told = await pool.fetch("SELECT who, after FROM audit_log WHERE action = 'wallet.alert_changed' ORDER BY id")
    assert [row["who"] for row in told] == ["person", "person", "cli", "cli"]
    assert '"12.500000"' in told[0]["after"]
