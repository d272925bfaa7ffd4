"""`heliograph receipts`: reconciliation with suppliers, and unmatched receipts, as operators read them."""

from __future__ import annotations

import csv
import io
import itertools
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.cli.traffic.receipts import _write
from heliograph.sms.reports import receipts, words
from heliograph.sms.reports.keys import ReceivedReceipt
from heliograph.suppliers.contract import Receipt, ReceiptState
from heliograph.traffic import reconciliation
from tests.journeys.test_cli import Cli
from tests.rules.factories import SENDER, TO, organization, sent, status_of


async def test_a_report_in_every_form(database_url: str, pool: Pool, tmp_path: Path) -> None:
    cli = Cli(HELIOGRAPH_DATABASE_URL=database_url)
    add = ("supplier", "add", "smpp", "main", "--host", "127.0.0.1", "--no-tls", "--system-id", "acme")
    id = (await cli(*add, "--password", "geheim", "--json")).data["id"]
    at = clock.now() - timedelta(hours=1)
    sums: reconciliation.Sums = {}
    for country, delivered, amount in (("MZ", 3, 20_000), ("PT", 1, 30_000)):
        for what, number, charged in (
            ("accepted", 4, 4 * amount),
            ("delivered", delivered, 0),
            ("undelivered", 1, amount),
        ):
            key = reconciliation.Counted(UUID(id), reconciliation.hour_of(at), country, what, "", "USD")
            reconciliation.add(sums, key, number, number, charged)
    async with pool.acquire() as conn:
        await reconciliation.append(conn, sums)
    found = (await cli("receipts", "report", "--json")).data
    assert [(one["supplier"], one["country"], one["waiting"]) for one in found] == [
        ("main", "MZ", 0),
        ("main", "PT", 2),
    ]
    text = await cli("receipts", "report", "--by", "supplier", "--csv")
    (row,) = csv.DictReader(io.StringIO(text.out))
    assert (row["accepted"], row["delivered"], row["at"]) == ("8", "4", "")
    async with pool.acquire() as conn:
        await reconciliation.fold(conn)
    (month,) = csv.DictReader(io.StringIO((await cli("receipts", "report", "--by", "month", "--csv")).out))
    assert (month["at"][:10], month["accepted"], month["owed"]) == (f"{at:%Y-%m}-01", "8", "2")
    assert (month["charged"], month["due_back"], month["owed_unpriced"]) == ("0.200000 USD", "0.050000 USD", "0")
    for by in ("month,country", "hour,country"):
        found = (await cli("receipts", "report", "--by", by, "--json")).data
        assert [(one["country"], one["charged"], one["due_back"]) for one in found] == [
            ("MZ", "0.080000 USD", "0.020000 USD"),
            ("PT", "0.120000 USD", "0.030000 USD"),
        ]
    (whole,) = (await cli("receipts", "report", "--by", "supplier", "--json")).data
    assert (whole["charged"], whole["due_back"], whole["recipient"]) == ("0.200000 USD", "0.050000 USD", 0)
    shown = await cli("receipts", "report", "--country", "mz", "--supplier", "main", "--by", "hour")
    assert (shown.status, "main" in shown.out) == (0, True)
    file = tmp_path / "report.csv"
    await cli("receipts", "report", "--file", str(file))
    assert len(file.read_text("utf-8-sig").splitlines()) == 3
    assert file.stat().st_mode & 0o077 == 0
    to_stdout = (await cli("receipts", "report", "--file", "-")).out
    assert to_stdout.splitlines() == file.read_text("utf-8-sig").splitlines()
    before = await cli("receipts", "report", "--to", f"{at - timedelta(days=2):%Y-%m-%d}", "--from", "2020-01-01")
    assert "Nothing to show" in before.err
    for arguments, said in (
        (("--from", "yesterday"), "--from"),
        (("--from", "2026-13-01"), "--from"),
        (("--from", "2027-01-02", "--to", "2027-01-01"), "--from"),
        (("--country", "Mozambique"), "--country"),
        (("--supplier", "nobody"), "nobody"),
        (("--csv", "--json"), "--csv"),
    ):
        wrong = await cli("receipts", "report", *arguments)
        assert wrong.status in (1, 2), arguments
        assert said in wrong.err, arguments


async def test_each_piece_of_a_report_is_written_before_the_next_one_is_read(pool: Pool) -> None:
    since = clock.midnight(clock.now()).replace(day=1)
    query = reconciliation.Query(date_from=since, date_to=since + timedelta(days=40), by=["day"])
    events: list[str] = []

    class Watched:
        """A connection with a log of its uses."""

        def __getattr__(self, name: str) -> Any:
            events.append("read")
            return getattr(conn, name)

    async with pool.acquire() as conn:
        watched: Any = Watched()
        await _write(watched, query, lambda text: events.append("written"))
    assert [event for event, _ in itertools.groupby(events)] == ["read", "written"] * 2


async def test_what_matches_nothing_is_listed_tried_and_matched(database_url: str, pool: Pool) -> None:
    cli = Cli(HELIOGRAPH_DATABASE_URL=database_url)
    add = ("supplier", "add", "smpp", "main", "--host", "127.0.0.1", "--no-tls", "--system-id", "acme")
    id = UUID((await cli(*add, "--password", "geheim", "--json")).data["id"])
    actor = await organization(pool)
    message = await sent(pool, actor, id, "abc")
    counter = words.Words()
    one = Receipt(("xyz",), ReceiptState.FAILED, TO[1:], SENDER, b"xyz", error="011", unknown_word="ODD")
    counter.add(id, one)
    async with pool.acquire() as conn, conn.transaction():
        await receipts.store(conn, [ReceivedReceipt(id, one)], policies={})
        await counter.store(conn)
    (found,) = (await cli("receipts", "unmatched", "--supplier", "main", "--json")).data
    assert (found["supplier"], found["keys"], found["tail"], found["cause"]) == ("main", ["xyz"], TO[-4:], "unknown")
    assert TO[1:] not in (await cli("receipts", "unmatched")).out
    assert (await cli("receipts", "unmatched", "--orphans", "--json")).data == []
    assert (await cli("receipts", "retry", found["receipt"], "--json")).data == {"matched": 0, "unmatched": 1}
    assert (await cli("receipts", "retry", "--supplier", "main", "--json")).data == {"matched": 0, "unmatched": 1}
    assert (await cli("receipts", "retry", found["receipt"], "-o", "tsv")).out == "matched\t0\nunmatched\t1\n"
    to = ("--message", str(message), "--reason", "the bill says so")
    assert (await cli("receipts", "match", found["receipt"], *to, "--json")).data == {"moved": True}
    assert await status_of(pool, message) == "failed"
    listed = (await cli("receipts", "words", "--json")).data
    assert [(one["kind"], one["word"], one["count"]) for one in listed] == [("state", "ODD", 1), ("error", "011", 1)]
    assert (await cli("receipts", "explain", "main", "011", "absent subscriber")).status == 0
    assert "absent subscriber" in (await cli("receipts", "words")).out
    for arguments, said in (
        (("retry",), "--supplier"),
        (("retry", "nonsense"), "receipts unmatched"),
        (("match", found["receipt"], *to), "has a message already"),
        (("explain", "main", "012", "x"), "named this code"),
    ):
        wrong = await cli("receipts", *arguments)
        assert wrong.status in (1, 2), arguments
        assert said in wrong.err, wrong.err
