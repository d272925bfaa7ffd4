"""`heliograph person`: everything held about a person is exported, and then erased with a receipt."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import msgspec
from typer.testing import CliRunner

from heliograph.base.database.pool import Pool
from heliograph.cli import app
from heliograph.contacts import records
from heliograph.contacts.records import Entry
from heliograph.sms.accepting.accept import Acceptor
from tests.rules.factories import organization, send

ANA = "+258841234567"


async def test_a_person_is_shown_and_erased(database_url: str, pool: Pool, tmp_path: Path) -> None:
    environment = {"HELIOGRAPH_DATABASE_URL": database_url}
    actor = await organization(pool)
    assert (await Acceptor(pool).accept(send(actor, to=ANA))).status == 202
    async with pool.acquire() as conn:
        await records.create(conn, actor, entry=Entry(ANA, "Ana", tags=("vip",)))
    file, org = tmp_path / "person.jsonl", ("--org", str(actor.organization_id))

    async def run(*words: str) -> str:
        done = await asyncio.to_thread(CliRunner().invoke, app, ["person", *words, *org], env=environment)
        assert done.exit_code == 0, done.output
        return done.stdout

    await run("export", ANA, "--file", str(file))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    rows = [msgspec.json.decode(line) for line in file.read_text().splitlines()]
    assert [(row["what"], row.get("name"), bool(row.get("body"))) for row in rows] == [
        ("contact", "Ana", False),
        ("message", None, True),
    ]
    kept = await asyncio.to_thread(
        CliRunner().invoke, app, ["person", "erase", ANA, *org], env=environment, input="n\n"
    )
    assert (kept.exit_code, f"Erase {ANA} (Ana) of " in kept.output) == (1, True)
    receipt = msgspec.json.decode(await run("erase", ANA, "--json", "--yes"))
    assert receipt["erased"] == {"contacts": 1, "sms_sent": 1}
    assert receipt["kept"] == {"messages_without_text": 1, "opt_outs": 0, "linked_names": 0}
    again = await asyncio.to_thread(CliRunner().invoke, app, ["person", "export", ANA, *org], env=environment)
    (left,) = [msgspec.json.decode(line) for line in again.stdout.splitlines() if line.startswith("{")]
    assert (left["what"], left["body"], "1 entry." in again.output) == ("message", None, True)
    await pool.execute(
        "INSERT INTO text_keys (organization_id, sealed, is_used, created_at) VALUES ($1, '\\x01', true, now())",
        actor.organization_id,
    )
    short = await asyncio.to_thread(CliRunner().invoke, app, ["person", "export", ANA, *org], env=environment)
    assert (short.exit_code, "does not open the texts" in str(short.exception)) == (1, True)
    wrong = await asyncio.to_thread(CliRunner().invoke, app, ["person", "erase", "12", *org], env=environment)
    assert (wrong.exit_code, "phone number with +" in wrong.output) == (2, True)
