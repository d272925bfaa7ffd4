"""Backups of a running `heliograph up`: taken under load, verified, and restored elsewhere, also to a point in time."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import subprocess
from collections.abc import AsyncIterator, Set
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from typer.testing import CliRunner

from heliograph.base.database.clock import iso
from heliograph.base.embedded.server import Embedded, owner_url_of
from heliograph.cli import app
from heliograph.cli.running import restore
from tests import forks
from tests.fork_server import standing_for
from tests.load import Client
from tests.processes import environment, until, until_true
from tests.up import NOBODY, Up, up

pytestmark = pytest.mark.lasts(30)

PASSPHRASE = "correct horse battery staple"
#: For as many sends in a minute as an idle machine takes.
FAST = {"HELIOGRAPH_RATE_SMS_SEND": "1000000"}


@pytest.fixture
def place(public_place: Path) -> Path:
    # A process that forks commands ends with the thread that launched it, and those in which commands run end with
    # their test.
    forks.address()
    home = public_place / "home"
    home.mkdir()
    return home


def heliograph(
    *arguments: str, status: int = 0, cwd: Path | None = None, told: list[str] | None = None, **settings: str
) -> Any:
    """A command's JSON output; or the text of an expected failure. `told`: gets its words for people."""
    done = subprocess.run(
        [*standing_for(forks.address()), *arguments, "--json"],
        capture_output=True,
        text=True,
        env=environment(HELIOGRAPH_BACKUP_PASSPHRASE=PASSPHRASE, **settings),
        cwd=cwd,
    )
    assert done.returncode == status, done.stderr
    if told is not None:
        told.append(" ".join(done.stderr.split()))
    return json.loads(done.stdout) if status == 0 else done.stderr


async def rows(one: Up, statement: str, *values: object) -> list[asyncpg.Record]:
    conn = await asyncpg.connect(one.database)
    try:
        return list(await conn.fetch(statement, *values))
    finally:
        await conn.close()


@contextlib.asynccontextmanager
async def loaded(client: Client) -> AsyncIterator[None]:
    """Four concurrent senders of the organization, each sending one message after the other, after some hundred were
    sent."""
    ended = asyncio.Event()

    async def load(lane: int) -> None:
        number = 0
        while not ended.is_set():
            number += 1
            await client.send(f"+25884{lane}{number:06d}")

    lanes = [asyncio.create_task(load(lane)) for lane in range(4)]
    try:
        await until(lambda: len(client.ledger) > 100)
        yield
    finally:
        ended.set()
        await asyncio.gather(*lanes)


async def demand_whole(one: Up, answered: Set[str]) -> None:
    """Every acknowledged message is there, and the quota used is what was paid for."""
    kept = await rows(one, "SELECT id FROM messages")
    assert answered <= {str(row["id"]) for row in kept}
    (balance,) = await rows(
        one, "SELECT total - used AS rest, (SELECT sum(quantity) FROM usage_entries) AS entries FROM quotas"
    )
    assert balance["rest"] == balance["entries"]


async def demand_still(one: Up, data: str) -> None:
    """Nothing is sent from what was restored, neither old nor new, until it is released."""
    async with Client(one.url, one.credentials["live_key"]) as client:
        waiting = "SELECT id, attempt, claims FROM queue WHERE kind = 'sms' ORDER BY id"
        before = await rows(one, waiting)
        new = await client.send("+258849999999")
        # Meanwhile the worker polls the queue many times.
        seen = await rows(one, "SELECT max(seen_at) AS at FROM workers")
        await until_true(lambda: rows(one, "SELECT FROM workers WHERE seen_at > $1", seen[0]["at"]))
        (row,) = await rows(one, "SELECT status FROM messages WHERE id = $1", new)
        assert row["status"] == "accepted"
        # Attempts that were in progress then are not touched either.
        assert [row for row in await rows(one, waiting) if str(row["id"]) != new] == before
        held = heliograph("hold", "list", "--data-dir", data)
        assert {row["kind"] for row in held} == {"sms", "whatsapp", "webhook"}
        heliograph("hold", "release", "--all", "--data-dir", data)
        await until_true(lambda: rows(one, "SELECT FROM messages WHERE id = $1 AND status = 'delivered'", new))


def no_room(path: Path, content: bytes) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


async def test_a_backup_under_load_holds_what_was_answered_and_sends_nothing_before_it_is_released(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, elsewhere = place / "store", place / "elsewhere"
    elsewhere.mkdir()
    async with up(place, **FAST) as first:
        async with Client(first.url, first.credentials["live_key"]) as client:
            data = str(place / "data")
            async with loaded(client):
                answered = set(client.ledger.values())
                taken = await asyncio.to_thread(heliograph, "backup", "take", "--to", str(store), "--data-dir", data)
        found = await asyncio.to_thread(heliograph, "backup", "verify", taken["path"], "--data-dir", data)
        assert found["messages"] >= len(answered)
        checks = {one["check"]: one for one in heliograph("doctor", "--data-dir", data, "--url", first.url)}
        assert checks["backups"]["state"] == "ok"
        assert "the last verified one" in checks["backups"]["detail"]
        first_smsc = first.credentials["smsc"]
    # Its keys cannot be written: then there is no database either, and the directory can be used again.
    with monkeypatch.context() as full:
        full.setattr(restore.private_files, "write", no_room)
        full.setenv("HELIOGRAPH_BACKUP_PASSPHRASE", PASSPHRASE)
        words = ["restore", taken["path"], "--data-dir", str(elsewhere / "data")]
        done = await asyncio.to_thread(CliRunner().invoke, app, words)
    assert str(done.exception) == f"cannot write to {elsewhere / 'data' / 'postgres'}: No space left on device"
    assert not (elsewhere / "data" / "postgres" / "data").exists()
    # As left behind by one that was killed before the database had its name.
    key = (place / "data" / "secret_key").read_text().strip() + "\n"
    (elsewhere / "data" / "secret_key").write_text("another one")
    assert "secret_key exists" in heliograph("restore", taken["path"], "--data-dir", str(elsewhere / "data"), status=1)
    (elsewhere / "data" / "secret_key").write_text(key)
    # As left behind by a start that was interrupted: the next one would take its keys instead of the restored ones.
    starting = elsewhere / "data" / "credentials.starting.json"
    starting.write_text((place / "data" / "credentials.json").read_text().replace('"hg_live_', '"hg_live_0'))
    assert f"{starting} exists" in heliograph("restore", taken["path"], "--data-dir", str(elsewhere / "data"), status=1)
    starting.unlink()
    told: list[str] = []
    restored = heliograph("restore", taken["path"], "--data-dir", str(elsewhere / "data"), told=told)
    assert restored["messages"] >= len(answered)
    # Without the option, these commands would be about another installation, such as the first one.
    there = f"--data-dir {elsewhere / 'data'}"
    assert told[0].endswith(
        f"Once `heliograph up {there}` runs, inspect it with `heliograph queue list {there}`; then `heliograph hold"
        f" release --all {there}`."
    )
    demand_of_a_service(taken["path"], place / "service")
    async with up(elsewhere) as second:
        # The same keys, secrets and accounts: it is the same installation.
        assert second.credentials["live_key"] == first.credentials["live_key"]
        assert second.credentials["smsc"]["password"] == first_smsc["password"]
        await demand_whole(second, answered)
        await demand_still(second, str(elsewhere / "data"))


def demand_of_a_service(backup: str, data: Path) -> None:
    """What root restores into a directory that only a service's account may enter is that account's, like everything
    in it that the service would have created."""
    if os.geteuid() != 0:
        return
    data.mkdir(mode=0o700)
    os.chown(data, NOBODY, NOBODY)
    heliograph("restore", backup, "--data-dir", str(data))
    assert (data / "postgres" / "data" / "PG_VERSION").exists()
    assert {(one.lstat().st_uid, one.lstat().st_gid) for one in (data, *data.rglob("*"))} == {(NOBODY, NOBODY)}


async def test_a_point_in_time_under_load_is_restored_from_the_archive(place: Path) -> None:
    # These characters have a meaning for a shell and for PostgreSQL's commands.
    store, wal, elsewhere = place / "store", place / "it's 100%full", place / "elsewhere"
    elsewhere.mkdir()
    async with up(place, HELIOGRAPH_WAL_ARCHIVE=str(wal), **FAST) as first:
        data = str(place / "data")
        async with Client(first.url, first.credentials["live_key"]) as client:
            words = ("backup", "take", "--to", str(store), "--keep", "7", "--wal", str(wal), "--data-dir", data)
            async with loaded(client):
                taken = await asyncio.to_thread(heliograph, *words)
                await client.send("+258849000001")
                answered = set(client.ledger.values())
                (at,) = await rows(first, "SELECT clock_timestamp() AS at")
                unwanted = await client.send("+258849000002")
            archived = wal / taken["archive"]
            await switch(place, archived)
            before = await rows(first, "SELECT clock_timestamp() AS at")
            await client.send("+258849000003")
            missing = await switch(place, archived)
            await client.send("+258849000004")
            await switch(place, archived)
    until_then = at["at"].isoformat()
    early = heliograph(
        *("restore", taken["path"], "--data-dir", str(elsewhere / "data"), "--wal", str(wal)),
        *("--until", taken["taken_at"]),
        status=1,
    )
    assert "choose a later point in time" in early
    assert not (elsewhere / "data" / "postgres" / "data").exists()
    # Relative paths, from a directory that PostgreSQL's account may not enter, as root's home.
    private = place / "private"
    private.mkdir(mode=0o700)
    restored = heliograph(
        *("restore", taken["path"], "--data-dir", "../elsewhere/data", "--wal", f"../{wal.name}"),
        *("--until", until_then),
        cwd=private,
    )
    # In whole milliseconds, in which something may have been committed just before.
    assert taken["taken_at"] < restored["restored_until"] <= iso(at["at"])
    assert restored["missing_wal"] is None
    async with up(elsewhere) as second:
        assert not await rows(second, "SELECT FROM messages WHERE id = $1", unwanted)
        await demand_whole(second, answered)
        await demand_still(second, str(elsewhere / "data"))
    assert owner_url_of(elsewhere / "data" / "postgres")
    await demand_word_of_a_gap(taken["path"], wal, archived / missing, place / "third", before[0]["at"])


async def demand_word_of_a_gap(backup: str, wal: Path, missing: Path, place: Path, before: datetime) -> None:
    """A replay ends before a missing segment; the output says that the archive continues, so that nothing seems
    complete."""
    missing.rename(missing.with_suffix(".away"))
    words = ("restore", backup, "--wal", str(wal), "--data-dir", str(place))
    late = heliograph(*words, "--until", iso(before + timedelta(hours=1)), status=1)
    assert f"{missing.name} is missing in {missing.parent}, and there are later ones: put it back" in " ".join(
        late.split()
    )
    missing.mkdir()  # which cannot be copied, as nothing can onto a full disk
    failed = heliograph(*words, status=1)
    assert "cp: " in failed
    assert missing.name in failed
    missing.rmdir()
    restored = heliograph(*words)
    assert restored["missing_wal"] == missing.name
    assert restored["restored_until"] <= iso(before)


async def switch(place: Path, archive: Path) -> str:
    """Have all WAL so far archived; returns the last segment."""
    conn = await asyncpg.connect(Embedded(place / "data" / "postgres", on_progress=print).superuser_url)
    try:
        segment: str = await conn.fetchval("SELECT pg_walfile_name(pg_switch_wal())")
    finally:
        await conn.close()
    await until(lambda: (archive / segment).exists())
    return segment
