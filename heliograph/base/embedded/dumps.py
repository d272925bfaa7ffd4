"""Loading a dump into a database of another server, which may be older or newer than the programs that load it.

The rule nobody may break: all of it is loaded and committed, or nothing.
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from heliograph.base.embedded.copies import run
from heliograph.base.embedded.install import PostgresError

#: A note that servers of late 2026 (such as 17.12) keep with a column, and that an older `pg_dump` takes for one of the
#: column's options. Such a server ignores it in a dump; an older one, including ours, rejects it.
NOTE = re.compile(rb"pg_attver=\d+")
#: The options of a column in a dump.
OPTIONS = re.compile(rb"^(ALTER TABLE ONLY \S+ ALTER COLUMN \S+ SET )\((.*)\);\n", re.MULTILINE)
#: The line before which `pg_restore` sets everything that its scripts need, and a setting among these that servers
#: before PostgreSQL 17 do not know.
SETTINGS_END, YOUNGER = b"SET row_security = off;\n", b"SET transaction_timeout = 0;\n"
IF_KNOWN = b"SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'transaction_timeout';\n"


async def load(dump: Path, url: str, *, password: str, then: str) -> None:
    """Load a dump of `pg_dump` into an empty database and run the statements `then`, all in one transaction.

    `url`: without its password. Raises PostgresError with the program's error; nothing is written then, nor if this
    process is killed: the script's COMMIT comes from us, since `psql` would commit at the end of any script, and both
    programs outlive us.
    """
    script: list[str | Path] = ["pg_restore", "--no-owner", "--no-privileges", "--file=-", dump]
    with tempfile.NamedTemporaryFile(prefix="heliograph-") as file:
        await run([*script, "--section=pre-data"], stdout=file.fileno())
        tables = Path(file.name)
        tables.write_bytes(OPTIONS.sub(_without_note, tables.read_bytes().replace(YOUNGER, IF_KNOWN, 1)))
        await _apply(tables, [*script, "--section=data", "--section=post-data"], url, password=password, then=then)


def _without_note(statement: re.Match[bytes]) -> bytes:
    """An empty text if the note was the only option."""
    options = b", ".join(one for one in statement[2].split(b", ") if not NOTE.fullmatch(one))
    return b"%b(%b);\n" % (statement[1], options) if options else b""


async def _apply(tables: Path, script: Sequence[str | Path], url: str, *, password: str, then: str) -> None:
    """Run the statements in `tables`, those that the program `script` writes, and `then`, in one transaction."""
    read, write = os.pipe()
    apply = ["psql", f"--dbname={url}", "--no-psqlrc", "--quiet", "--no-password"]
    apply += ["--set=ON_ERROR_STOP=1", "--output=/dev/null", "--command=BEGIN", f"--file={tables}", "--file=-"]
    restoring = asyncio.create_task(run(script, stdout=write))
    applying: asyncio.Task[None] | None = None
    try:
        settings = await _settings(read, restoring)
        with tables.open("ab") as file:
            file.write(settings.replace(YOUNGER, IF_KNOWN))
        applying = asyncio.create_task(run(apply, password=password, stdin=read))
        await asyncio.wait((restoring, applying), return_when=asyncio.FIRST_COMPLETED)
        if not applying.done():
            restoring.result()
            await _end(write, f"{then}COMMIT;\n".encode(), applying)
            os.close(write)
            write = -1
        await applying
    finally:
        # The end of half a script must not look like the end of a whole one: psql ends first, and with it its
        # transaction.
        if applying is not None:
            await _ended(applying)
        await _ended(restoring)
        os.close(read)
        if write >= 0:
            os.close(write)


async def _settings(script: int, writing: asyncio.Task[None]) -> bytes:
    """The beginning of a script that `writing` writes to a pipe, up to the end of its settings: psql gets the rest from
    there. Raises PostgresError."""
    found = b""
    os.set_blocking(script, False)
    while not found.endswith(SETTINGS_END):
        try:
            found += os.read(script, 1)
        except BlockingIOError:
            if writing.done():
                writing.result()
                raise PostgresError("pg_restore wrote no script") from None
            await asyncio.sleep(0.01)
    os.set_blocking(script, True)
    return found


async def _end(script: int, statements: bytes, reading: asyncio.Task[None]) -> None:
    """Write the end of a script to a pipe that `reading` reads from, which takes as long as its statements, and may
    fail before it has read them. This process has that end of the pipe open as well, so a write that blocks would
    never end."""
    os.set_blocking(script, False)
    while statements and not reading.done():
        try:
            statements = statements[os.write(script, statements) :]
        except BlockingIOError:
            await asyncio.sleep(0.01)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
