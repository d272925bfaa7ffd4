"""`heliograph billing`: a month is locked, exported and verified at a shell, as in the console."""

from __future__ import annotations

import hashlib
from pathlib import Path

from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from tests.journeys.test_cli import Cli
from tests.rules.test_billing import used


async def test_a_month_is_locked_exported_and_verified(database_url: str, pool: Pool, tmp_path: Path) -> None:
    cli = Cli(HELIOGRAPH_DATABASE_URL=database_url)
    month, _ = await used(pool)
    ym = f"{month:%Y-%m}"
    assert [one["state"] for one in (await cli("billing", "list", "--json")).data if one["month"] == ym] == ["over"]
    assert "not locked" in (await cli("billing", "export", ym)).err
    locked = (await cli("billing", "lock", ym, "--json")).data
    assert (locked["month"], locked["sms"], locked["refunds"]) == (ym, 7, 1)
    file = tmp_path / "month.csv"
    assert (await cli("billing", "export", ym, str(file))).status == 0
    assert hashlib.sha256(file.read_bytes()).hexdigest() == locked["checksum"]
    for to_stdout in ((), ("-",)):
        assert (await cli("billing", "export", ym, *to_stdout)).out.encode() == file.read_bytes()
    lines = (await cli("billing", "export", ym, "--json")).data
    assert (len(lines), sum(one["quantity"] for one in lines)) == (locked["lines"], 1 - 7 - 7 + 100)
    separated = [one.split("\t") for one in (await cli("billing", "export", ym, "-o", "tsv")).out.splitlines()]
    assert [one[list(lines[0]).index("quantity")] for one in separated] == [str(one["quantity"]) for one in lines]
    assert "quantity" in (await cli("billing", "export", ym, "-o", "table")).out.splitlines()[0]
    for how in (("-o", "tsv"), ("-o", "json"), ("--json",)):
        refused = await cli("billing", "export", ym, str(file), *how)
        assert (refused.status, f"for {how[0]}: the file is always CSV" in refused.err) == (2, True), refused.err
    words = ("usage", "month", ym, "--org", next(one["organization_id"] for one in lines))
    bill = (await cli(*words, "--json")).data["lines"]
    separated = [one.split("\t") for one in (await cli(*words, "-o", "tsv")).out.splitlines()]
    assert [(one[0], one[4]) for one in separated] == [(one["type"], str(one["quantity"])) for one in bill]
    assert (await cli(*words, "-o", "table")).out.split()[:2] == ["type", "channel"]
    assert (await cli(*words, str(tmp_path / "bill"), "-o", "tsv")).status == 2
    assert (await cli("billing", "verify", ym, "--json")).data == {"checksum": True, "sums": True}
    assert (await cli("billing", "verify", ym, "-o", "tsv")).out == "checksum\tyes\nsums\tyes\n"
    await pool.execute("UPDATE billing_lines SET quantity = quantity + 1 WHERE type = 'grant'")
    verified = await cli("billing", "verify", ym)
    assert (verified.status, "checksum" in verified.err) == (1, True)
    wrong = await cli("billing", "lock", f"{clock.now():%Y-%m}")
    assert (wrong.status, "not over" in wrong.err) == (1, True)
    assert "2026-11" in (await cli("billing", "lock", "nonsense")).err
