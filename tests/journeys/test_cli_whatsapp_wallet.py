"""`heliograph whatsapp wallet` and `whatsapp rates`, as an operator uses them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
from typer.testing import CliRunner, Result

from heliograph.base.database.pool import Pool
from heliograph.base.errors import Invalid
from heliograph.cli import app
from heliograph.whatsapp.money.wallet import WalletInsufficientFunds
from tests.rules import whatsapp_factories
from tests.rules.factories import organization


async def call(url: str, *arguments: str) -> Result:
    """In this process: this is about money, not about how commands start and end."""
    environment = {"HELIOGRAPH_DATABASE_URL": url}
    return await asyncio.to_thread(CliRunner().invoke, app, ["whatsapp", *arguments], env=environment)


async def data(url: str, *arguments: str) -> Any:
    done = await call(url, *arguments, "--json")
    assert done.exit_code == 0, done.output
    return msgspec.json.decode(done.stdout)


async def test_money_comes_and_is_corrected(pool: Pool, database_url: str) -> None:
    actor = await organization(pool)
    empty = await data(database_url, "wallet", "show")
    assert (empty["available"], empty["updated_at"]) == ("0.000000", None)
    made = await data(database_url, "wallet", "top-up", "250.5", "--currency", "EUR", "--reason", "invoice 7")
    assert (made["currency"], made["available"], made["total"]) == ("EUR", "250.500000", "250.500000")
    made = await data(
        database_url, "wallet", "adjust", "-0.500001", "--reason", "typo", "--org", f"acme {actor.organization_id}"
    )
    assert made["available"] == "249.999999"
    shown = await call(database_url, "wallet", "show")
    assert "249.999999" in shown.stdout
    entries = await data(database_url, "wallet", "ledger")
    assert [(one["movement"], one["available"], one["reason"]) for one in entries] == [
        ("adjustment", "-0.500001", "typo"),
        ("top_up", "250.500000", "invoice 7"),
    ]
    assert len(await data(database_url, "wallet", "ledger", "--limit", "1")) == 1
    for arguments, error in (
        (("top-up", "1", "--currency", "USD"), Invalid),
        (("adjust", "-250", "--reason", "too much"), WalletInsufficientFunds),
    ):
        assert isinstance((await call(database_url, "wallet", *arguments)).exception, error)
    wrong = await call(database_url, "wallet", "top-up", "1,5")
    assert (wrong.exit_code, "such as 12.50" in wrong.output) == (2, True)
    other = (await organization(pool)).organization_id
    asked = await call(database_url, "wallet", "top-up", "1", "--org", f"acme {other}")
    assert str(asked.exception).startswith("--currency is required for the first change")
    await whatsapp_factories.check_wallets(pool, [actor.organization_id])


async def test_rates_come_by_the_file(pool: Pool, database_url: str, tmp_path: Path) -> None:
    file = tmp_path / "rates.csv"
    file.write_text(
        "\ufeffcurrency,category,country,valid_from,price\r\n"
        "EUR,utility,MZ,2026-01-01,0.0123\r\nUSD,authentication,*,2026-01-01T00:00:00-08:00,0.05\r\n"
    )
    assert await data(database_url, "rates", "import", str(file)) == {"new": 2, "changed": 0, "unchanged": 0}
    assert await data(database_url, "rates", "import", str(file)) == {"new": 0, "changed": 0, "unchanged": 2}
    listed = await data(database_url, "rates", "list")
    assert [(one["currency"], one["country"], one["price"]) for one in listed] == [
        ("EUR", "MZ", "0.012300"),
        ("USD", "*", "0.050000"),
    ]
    assert listed[1]["valid_from"] == "2026-01-01T08:00:00.000Z"
    assert len(await data(database_url, "rates", "list", "--currency", "eur")) == 1
    assert "0.012300" in (await call(database_url, "rates", "list")).stdout


async def test_a_file_with_errors_imports_nothing(pool: Pool, database_url: str, tmp_path: Path) -> None:
    file = tmp_path / "rates.csv"
    file.write_text(
        "currency,category,country,valid_from,price\n"
        "EUR,utility,MZ,2026-01-01,1\nEUR,utility,Mozambique,2026-01-01,1\nEUR,utility,PT,2026-01-01,cheap\n"
    )
    done = await call(database_url, "rates", "import", str(file), "--json")
    assert done.exit_code == 1
    assert [error["line"] for error in msgspec.json.decode(done.stdout)["errors"]] == [3, 4]
    assert "line 4: price 'cheap'" in done.stderr
    file.write_bytes("currency\xe9".encode("latin-1"))
    assert "UTF-8" in str((await call(database_url, "rates", "import", str(file))).exception)
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_rates") == 0
