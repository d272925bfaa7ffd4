"""`heliograph contacts import`: rows per second from a file into contacts and tags, including the program's start."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import msgspec

from bench.accept import Lengths
from bench.figures import Report
from bench.stage import BenchError, Stage


async def contacts(stage: Stage, report: Report, lengths: Lengths) -> None:
    """Import a file of people with two tags each when there are no contacts, and then the same file again."""
    file = stage.place / "people.csv"
    _write(file, lengths.contacts)
    first, again = [], []
    for number in range(lengths.rounds):
        async with stage.connection() as conn:
            await conn.execute("TRUNCATE contacts, contact_tags CASCADE")
        await stage.checkpoint()
        first.append(await _once(stage, file, created=lengths.contacts))
        again.append(await _once(stage, file, created=0))
        stage.say(f"  round {number + 1}: {first[-1]:,.0f} rows/s, again {again[-1]:,.0f} rows/s")
    file.unlink()
    report.add("contacts_import", f"import of {lengths.contacts:,} new contacts", first, "/s")
    report.add("contacts_again", "  the same file again", again, "/s")


async def _once(stage: Stage, file: Path, *, created: int) -> float:
    """One import. BenchError unless its summary is right and everything is stored."""
    began = time.monotonic()
    said = await stage.run(
        *(sys.executable, "-m", "heliograph", "contacts", "import", file, "--json", "--org", str(stage.organization)),
        environment={"HELIOGRAPH_DATABASE_URL": stage.server.url},
    )
    took = time.monotonic() - began
    summary = msgspec.json.decode(said)
    async with stage.connection() as conn:
        stored = await conn.fetchval("SELECT count(*) FROM contacts")
        tagged = await conn.fetchval("SELECT count(*) FROM contact_tags")
    if (summary["created"], summary["rejected"], tagged) != (created, 0, 2 * stored) or stored != summary["rows"]:
        raise BenchError(f"{stored} contacts with {tagged} tags are stored, and the import says {summary}")
    rate: float = summary["rows"] / took
    return rate


def _write(file: Path, rows: int) -> None:
    with file.open("w") as out:
        out.write("Phone,First name,Last name,Tags\n")
        for number in range(rows):
            # Numbers are not in order: 7919 is prime, so all of them are different.
            out.write(f"+25884{number * 7919 % 10_000_000:07},Ana {number},Silva,district {number % 150};customers\n")
