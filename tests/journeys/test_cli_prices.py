"""`heliograph rates` and `heliograph prices`, as an operator uses them."""

from __future__ import annotations

import asyncio
import itertools
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from heliograph.base.crypto import derive_key
from heliograph.base.database.pool import Pool
from heliograph.base.money import half_up
from heliograph.cli import app
from heliograph.prices import margins
from heliograph.prices.margins import Due
from heliograph.sms.dispatch import suppliers
from tests.rules.factories import organization

CARD = "country;mcc;mnc;price;currency\nMZ;643;;0,0450;USD\nMZ;643;04;0,0380;USD\n"


async def call(url: str, *arguments: str) -> Result:
    """In this process: this is about prices, not about how commands start and end."""
    return await asyncio.to_thread(CliRunner().invoke, app, arguments, env={"HELIOGRAPH_DATABASE_URL": url})


async def data(url: str, *arguments: str) -> Any:
    done = await call(url, *arguments, "--json")
    assert done.exit_code == 0, done.output
    return msgspec.json.decode(done.stdout)


async def test_from_a_card_to_an_assigned_price_list(pool: Pool, database_url: str, tmp_path: Path) -> None:
    actor = await organization(pool)
    async with pool.acquire() as conn:
        await suppliers.add(conn, derive_key("k" * 32, "tests"), name="main", kind="smpp", settings={}, secret="s")
    card, draft = tmp_path / "card.csv", tmp_path / "draft.csv"
    card.write_text(CARD)
    refused = await call(database_url, "rates", "import", "main", str(card))
    assert (refused.exit_code, "(--decimal-comma)" in refused.output) == (1, True)
    dry = await data(database_url, "rates", "import", "main", str(card), "--decimal-comma", "--dry-run")
    assert (dry["added"], dry["dry_run"], await data(database_url, "rates", "list")) == (2, True, [])
    done = await call(database_url, "rates", "import", "main", str(card), "--decimal-comma")
    assert (done.exit_code, "2 added, 0 changed" in done.output, "643-04" in done.output) == (0, True, True)
    (listed,) = await data(database_url, "rates", "list")
    assert (listed["name"], listed["currency"], listed["rates"]) == ("main", "USD", 2)

    drafted = ("rates", "draft", "main", "--margin", "25", "--currency", "mzn", "--exchange", "64")
    made = await call(database_url, *drafted)
    assert made.exit_code == 0, made.output
    draft.write_text(made.stdout)
    assert (await data(database_url, "prices", "import", "standard", str(draft)))["added"] == 2
    shown = await data(database_url, "prices", "show", "standard")
    assert [(one["mcc"], one["mnc"], one["price"], one["currency"]) for one in shown] == [
        ("643", "", "3.840000", "MZN"),
        ("643", "04", "3.242667", "MZN"),
    ]
    assert (await call(database_url, "prices", "show", "standard", "--csv")).stdout == draft.read_text()
    separated = await call(database_url, "prices", "show", "standard", "-o", "tsv")
    assert ["3.840000" in line.split("\t") for line in separated.stdout.splitlines()] == [True, False]
    assert "3.840000" in (await call(database_url, *drafted, "-o", "table")).stdout
    # The error names the given option, and comes before anything is read: there is no list of that name.
    for kind, words in itertools.product(("prices", "rates"), (("-o", "tsv"), ("-o", "json"), ("--json",))):
        both = await call(database_url, kind, "show", "nothing", "--csv", *words)
        assert (both.exit_code, f"for {words[0]}: conflicts with --csv" in both.output) == (2, True), both.output
    draft.write_text(draft.read_text().replace("3.840000", "5"))
    warned = await call(database_url, "prices", "import", "standard", str(draft), "--dry-run")
    assert ("more than 20 percent" in warned.output, "cannot be checked" in warned.output) == (True, False)
    # It may have been 338-050, which is not in the list of known networks.
    card.write_text("country,mcc,mnc,price,currency\nJM,338,50,0.0450,USD\nMZ,643,04,0.0380,USD\n")
    for form in ((), ("--json",)):
        warned = await call(database_url, "rates", "import", "main", str(card), "--dry-run", *form)
        assert (warned.exit_code, "The zeros of 338-50 cannot be checked" in warned.stderr) == (0, True), warned.output

    assert (await call(database_url, "prices", "assign", "standard", "--default")).exit_code == 0
    assert (
        await call(database_url, "prices", "assign", "standard", "--org", str(actor.organization_id))
    ).exit_code == 0
    (listed,) = await data(database_url, "prices", "list")
    assert (listed["is_default"], listed["organizations"]) == (True, 1)
    actions = await pool.fetch(
        "SELECT action FROM audit_log WHERE action LIKE '%tariff%' OR action LIKE 'price%' ORDER BY id"
    )
    assert sorted(action for (action,) in actions) == [
        "price_list.assigned",
        "price_list.assigned",
        "tariff.imported",
        "tariff.imported",
    ]


async def test_what_makes_no_sense_is_said(pool: Pool, database_url: str, tmp_path: Path) -> None:
    await organization(pool)
    file = tmp_path / "prices.csv"
    file.write_text("price,currency\n1,USD\n")
    for arguments in (
        ("rates", "import", "nobody", str(file)),
        ("rates", "show", "nobody"),
        ("prices", "show", "nothing"),
        ("prices", "assign", "nothing"),
        ("prices", "assign", "x", "--default", "--org", "acme"),
        ("rates", "draft", "main", "--markup", "a lot"),
        ("rates", "draft", "main", "--currency", "MZN"),
    ):
        done = await call(database_url, *arguments)
        assert done.exit_code != 0, arguments
        assert "Traceback" not in done.output
    for nameless in ("", " ", "x" * 65):
        refused = await call(database_url, "prices", "import", nameless, str(file))
        assert "must have 1 to 64 characters" in str(refused.exception), refused.output
    file.write_bytes(b"price,currency\n1,\xff\n")
    refused = await call(database_url, "prices", "import", "x", str(file))
    assert "not in UTF-8: in a spreadsheet, save the sheet as CSV UTF-8" in str(refused.exception)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
async def test_a_price_list_is_read_in_what_spreadsheets_call_unicode(
    encoding: str, pool: Pool, database_url: str, tmp_path: Path
) -> None:
    await organization(pool)
    file = tmp_path / "prices.csv"
    file.write_bytes("country\tprice\tcurrency\tnotes\r\nMZ\t0.05\tEUR\tMoçambique\r\n".encode(encoding))
    done = await call(database_url, "prices", "import", "x", str(file), "--json")
    assert (done.exit_code, msgspec.json.decode(done.stdout)["added"]) == (0, 1), done.output
    file.write_bytes(
        "currency,category,country,valid_from,price\r\nEUR,utility,MZ,2026-01-01,0.05\r\n".encode(encoding)
    )
    done = await call(database_url, "whatsapp", "rates", "import", str(file), "--json")
    assert (done.exit_code, msgspec.json.decode(done.stdout)["new"]) == (0, 1), done.output


async def test_p7_p8_an_invoice_line_is_rounded_once(pool: Pool, database_url: str) -> None:
    """0.0475 at 63.90, for 10,000 messages: with exact prices, and with prices rounded for the list."""
    actor = await organization(pool)
    price = 3_035_250
    for country, each in (("MZ", price), ("PT", half_up(price, 4)), ("ZA", half_up(price, 2))):
        for count in (1, 4_999, 5_000):
            one = Due(
                organization_id=actor.organization_id,
                at=datetime.fromisoformat("2026-07-01T12:00:00+00:00"),
                supplier_id=actor.organization_id,
                country=country,
                network="",
                messages=count,
                segments=count,
                price=each * count,
                price_currency="MZN",
                cost=0,
                cost_currency="",
            )
            async with pool.acquire() as conn:
                await margins.record(conn, [one])
    days = ("--from", "2026-07-01", "--to", "2026-07-31", "--by", "organization,country")
    for places, amounts in (
        ("2", ["30352.50", "30353.00", "30400.00"]),
        ("0", ["30353", "30353", "30400"]),
        ("6", ["30352.500000", "30353.000000", "30400.000000"]),
    ):
        found = await data(database_url, "margin", *days, "--places", places)
        assert [(one["messages"], one["price"]) for one in found] == [(10_000, amount) for amount in amounts]
    assert (await data(database_url, "margin", *days))[0]["price"] == "30352.500000"
    assert (await call(database_url, "margin", *days, "--places", "7")).exit_code == 2


async def test_an_invoice_has_one_line_whatever_suppliers_charge_in(pool: Pool, database_url: str) -> None:
    """1.005 each: 3.02 in all, and not 1.01 for each currency of a supplier and for an unknown cost."""
    actor = await organization(pool)
    for currency, cost in (("EUR", 900_000), ("USD", 800_000), ("", 0)):
        one = Due(
            organization_id=actor.organization_id,
            at=datetime.fromisoformat("2026-07-01T12:00:00+00:00"),
            supplier_id=actor.organization_id,
            country="MZ",
            network="",
            messages=1,
            segments=2,
            price=1_005_000,
            price_currency="EUR",
            cost=cost,
            cost_currency=currency,
        )
        async with pool.acquire() as conn:
            await margins.record(conn, [one])
    asked = ("margin", "--from", "2026-07-01", "--by", "organization,country", "--places", "2")
    assert [one["price"] for one in await data(database_url, *asked)] == ["1.01", "1.01", "1.01"]
    (line,) = await data(database_url, *asked, "--only", "price")
    assert {name: line[name] for name in ("messages", "segments", "price", "price_currency")} == {
        "messages": 3,
        "segments": 6,
        "price": "3.02",
        "price_currency": "EUR",
    }
    assert not {"cost", "cost_currency", "margin", "margin_percent"}.intersection(line)
    text = await call(database_url, *asked, "--only", "price", "--csv")
    assert text.output.splitlines()[0] == "organization,country,messages,segments,price,price_currency"
    # The other side likewise: a supplier's charges are not split by the currencies of customers.
    listed = await data(database_url, *asked, "--only", "cost")
    assert [(one["cost"], one["cost_currency"]) for one in listed] == [(None, None), ("0.90", "EUR"), ("0.80", "USD")]
    assert "price" not in listed[0]


async def test_margins_by_what_is_asked_for(pool: Pool, database_url: str) -> None:
    actor = await organization(pool)
    for day, network, price, cost in (("2026-11-01", "643-04", 50_000, 30_000), ("2026-11-02", "", 70_000, 80_000)):
        one = Due(
            organization_id=actor.organization_id,
            at=datetime.fromisoformat(f"{day}T12:00:00+00:00"),
            supplier_id=actor.organization_id,
            country="MZ",
            network=network,
            route="codes" if network else "",
            messages=2,
            segments=3,
            price=price,
            price_currency="EUR",
            cost=cost,
            cost_currency="EUR",
        )
        async with pool.acquire() as conn:
            await margins.record(conn, [one])
            await margins.fold(conn)
    days = ("--from", "2026-11-01", "--to", "2026-11-02")
    (line,) = await data(database_url, "margin", *days, "--by", "country")
    assert (line["price"], line["cost"], line["margin"], line["margin_percent"]) == (
        "0.120000",
        "0.110000",
        "0.010000",
        "8.3",
    )
    lines = await data(database_url, "margin", "--from", "2026-11-01", "--by", "day,network")
    assert [(one["day"], one["network"], one["margin"]) for one in lines] == [("2026-11-01", "643-04", "0.020000")]
    named = await data(database_url, "margin", *days, "--by", "route")
    assert [(one["route"], one["margin"]) for one in named] == [("", "-0.010000"), ("codes", "0.020000")]
    csv = (await call(database_url, "margin", *days, "--csv", "--by", "network")).stdout
    assert csv.splitlines()[0] == (
        "network,messages,segments,price,price_currency,cost,cost_currency,margin,margin_percent"
    )
    assert csv.splitlines()[1:] == [
        ",2,3,0.070000,EUR,0.080000,EUR,-0.010000,-14.3",
        "643-04,2,3,0.050000,EUR,0.030000,EUR,0.020000,40.0",
    ]
    # On a day on which more is refunded than sold, the loss is no gain of 105.9 %.
    async with pool.acquire() as conn:
        refunded = msgspec.structs.replace(one, at=one.at + timedelta(days=1), price=-170_000, cost=10_000)
        await margins.record(conn, [refunded])
    (line,) = await data(database_url, "margin", "--from", "2026-11-03", "--by", "day")
    assert (line["price"], line["margin"], line["margin_percent"]) == ("-0.170000", "-0.180000", None)
    for wrong in (("--by", "mood"), ("--from", "yesterday"), ("--from", "2026-11-02", "--to", "2026-11-01")):
        assert (await call(database_url, "margin", *wrong)).exit_code == 2
