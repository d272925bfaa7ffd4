"""`heliograph receipts report`: what suppliers are reconciled from, as operators read it."""

from __future__ import annotations

import csv
import io
from datetime import timedelta
from pathlib import Path

from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.traffic import reconciliation
from tests.journeys.test_cli import Cli


async def test_a_report_in_every_form(database_url: str, pool: Pool, tmp_path: Path) -> None:
    cli = Cli(HELIOGRAPH_DATABASE_URL=database_url)
    add = ("supplier", "add", "smpp", "main", "--host", "127.0.0.1", "--no-tls", "--system-id", "acme")
    id = (await cli(*add, "--password", "geheim", "--json")).data["id"]
    at = clock.now() - timedelta(hours=1)
    async with pool.acquire() as conn:
        for country, delivered in (("MZ", 3), ("PT", 1)):
            events = [(id, country, "accepted", 4), (id, country, "delivered", delivered)]
            await reconciliation.count(conn, events, at)
    found = (await cli("receipts", "report", "--json")).data
    assert [(one["supplier"], one["country"], one["waiting"]) for one in found] == [
        ("main", "MZ", 1),
        ("main", "PT", 3),
    ]
    text = await cli("receipts", "report", "--by", "supplier", "--csv")
    (row,) = csv.DictReader(io.StringIO(text.out))
    assert (row["accepted"], row["delivered"], row["at"]) == ("8", "4", "")
    shown = await cli("receipts", "report", "--country", "MZ", "--supplier", "main", "--by", "hour")
    assert (shown.status, "main" in shown.out) == (0, True)
    file = tmp_path / "report.csv"
    await cli("receipts", "report", "--output", str(file))
    assert len(file.read_text("utf-8-sig").splitlines()) == 3
    assert file.stat().st_mode & 0o077 == 0
    before = await cli("receipts", "report", "--to", f"{at - timedelta(days=2):%Y-%m-%d}", "--from", "2020-01-01")
    assert "Nothing to show" in before.err
    for arguments, words in (
        (("--from", "yesterday"), "--from"),
        (("--from", "2026-13-01"), "--from"),
        (("--from", "2027-01-02", "--to", "2027-01-01"), "--from"),
        (("--country", "Mozambique"), "--country"),
        (("--supplier", "nobody"), "nobody"),
        (("--csv", "--json"), "--csv"),
    ):
        wrong = await cli("receipts", "report", *arguments)
        assert wrong.status in (1, 2), arguments
        assert words in wrong.err, arguments
