"""What commands write to stdout for programs, in a locale that is not UTF-8."""

from __future__ import annotations

import asyncio

from typer.testing import CliRunner

from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.cli import app
from heliograph.traffic import reconciliation
from tests.journeys.test_cli import SECRET_KEY, Cli
from tests.rules.test_billing import used


async def test_bills_and_reports_keep_the_letters_of_names(database_url: str, pool: Pool) -> None:
    month, actors = await used(pool)
    for name in ("usage_days", "traffic_deltas"):
        await pool.execute(f"UPDATE {name} SET sender = 'PÃO'")
    add = ("supplier", "add", "smpp", "Ligação", "--host", "127.0.0.1", "--no-tls", "--system-id", "acme")
    added = await Cli(HELIOGRAPH_DATABASE_URL=database_url)(*add, "--password", "geheim", "--json")
    key = reconciliation.Counted(added.data["id"], reconciliation.hour_of(clock.now()), "MZ", "accepted", "", "USD")
    sums: reconciliation.Sums = {}
    reconciliation.add(sums, key, 1, 1, 0)
    async with pool.acquire() as conn:
        await reconciliation.append(conn, sums)
    bill = ("usage", "month", f"{month:%Y-%m}", "--org", str(actors[0].organization_id))
    given = {"HELIOGRAPH_DATABASE_URL": database_url, "HELIOGRAPH_SECRET_KEY": SECRET_KEY}
    for words, name in ((bill, "PÃO"), ((*bill, "--json"), "PÃO"), (("receipts", "report", "--csv"), "Ligação")):
        done = await asyncio.to_thread(CliRunner(charset="latin-1").invoke, app, words, env=given)
        assert done.exit_code == 0, done.exception
        assert name.encode() in done.stdout_bytes, words
