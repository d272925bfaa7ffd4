"""`heliograph audit`: actions at the shell and by keys are listed, filtered and exported."""

from __future__ import annotations

import csv
import getpass
import stat
from pathlib import Path

import msgspec

from tests.journeys.test_cli import Cli


async def test_what_was_done_is_listed_and_exported(database_url: str, tmp_path: Path) -> None:
    cli = Cli(HELIOGRAPH_DATABASE_URL=database_url)
    acme = (await cli("org", "create", "Acme", "--country", "any", "--grant", "100", "--json", SUDO_USER="alice")).data
    key = (await cli("key", "create", "shop", "--json", SUDO_USER="")).data
    listed = (await cli("audit", "list", "--json")).data
    assert [one["action"] for one in listed] == ["api_key.created", "quota.changed", "organization.created"]
    assert [(one["who"], one["who_name"]) for one in listed[1:]] == [("cli", "alice")] * 2
    assert listed[0]["who_name"] == getpass.getuser()
    assert {one["organization_id"] for one in listed} == {acme["id"]}
    assert key["secret"] not in str(listed)
    of_alice = await cli("audit", "list", "--who", "alice", "--org", "Acme")
    assert "Quota granted or adjusted" in of_alice.out
    assert "API key created" not in of_alice.out
    wrong = await cli("audit", "list", "--action", "nonsense")
    assert (wrong.status, "action" in wrong.err) == (2, True)

    file = tmp_path / "audit.csv"
    done = await cli("audit", "export", str(file), "--action", "api_key")
    assert (done.status, "1 entry." in done.err) == (0, True)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    (row,) = csv.DictReader(file.read_text("utf-8-sig").splitlines())
    assert row["object_id"] == key["id"]
    lines = (await cli("audit", "export", "--json")).out.splitlines()
    assert [msgspec.json.decode(line)["action"] for line in lines[:2]] == ["audit.exported", "audit.exported"]
