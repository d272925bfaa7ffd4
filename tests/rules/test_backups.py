"""Dumps of any PostgreSQL, the files of a backup, and refusals: nothing is restored partially."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import ssl
import sys
import time
import urllib.parse
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest
from typer.testing import CliRunner

from heliograph.backup import restoring, store, taking
from heliograph.backup.store import Backup, BackupError, Secrets
from heliograph.base.actor import SYSTEM
from heliograph.base.crypto import derive_key
from heliograph.base.database import clock, migrate
from heliograph.base.database.pool import Pool
from heliograph.base.database.url import for_programs
from heliograph.base.embedded import copies, dumps
from heliograph.base.embedded.install import PostgresError
from heliograph.base.process.settings import Settings
from heliograph.cli import app
from heliograph.cli.running.backup import _prune, passphrase_of
from heliograph.cli.terminal.console import Problem
from heliograph.consent import optouts
from heliograph.health import backups
from heliograph.sms.dispatch import suppliers
from heliograph.whatsapp.mirror import apps
from tests.certificates import Authority
from tests.database import Cluster
from tests.processes import until_true
from tests.rules.factories import message, organization
from tests.wire import wire

PASSPHRASE = "correct horse battery staple"
KEY = derive_key("a secret key of a test installation", "suppliers")
SECRETS = Secrets("a secret key of a test installation", '{"live_key": "hg_live_"}')

#: SECRETS under PASSPHRASE, as sealed on 28 November 2026.
SEALED = bytes.fromhex(
    "cc5f7da6092609e42df08ff9e3bba1c7023f2c0250eabe4487dfd8491a8c0ce7dc922154367af3b398c68201464f11ca5fef5712e939aa2c"
    "4f29ea2f59d4177d61bc34e150aa325bb622a42b54f18c269fec4e05f37b265910a6e6d91537b2960b86dcab8946a1d540053c2603706257"
    "9c01d1bb630e9e74906a0a1098c61bb27cba91d69ee0f522e9b0ed0884b54ff97f23c59a22580e3b727c3237c593231b4b99a248637fd47e"
)
#: A number with another spelling: its person is computed when it is restored.
RESPELLED, PERSON = "+5511998765432", "+551198765432"
#: The cost of one guess of a passphrase.
GUESS = store._SCRYPT_N


@pytest.fixture(autouse=True)
def cheap_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a second of processor time per backup, the cost of one guess of a passphrase, was a sixth of these tests."""
    monkeypatch.setattr(store, "_SCRYPT_N", 2)


@pytest.fixture
async def dump(pool: Pool, owner_url: str, tmp_path: Path) -> Backup:
    """A backup of a database with one organization, a message in its queue, an opt-out, and a mail that waits."""
    acme = await organization(pool)
    await message(pool, acme)
    async with pool.acquire() as conn:
        await optouts.add(conn, acme, phone=RESPELLED)
    await pool.execute(
        "INSERT INTO mails (id, kind, sealed, created_at, due_at, deadline)"
        " VALUES (gen_random_uuid(), 'link', '\\x00', now(), now(), now() + interval '1 hour')"
    )
    return await take(pool, owner_url, tmp_path / "store")


async def take(pool: Pool, owner_url: str, to: Path, *, passphrase: str = PASSPHRASE) -> Backup:
    async with pool.acquire() as conn:
        return await taking.take(
            conn, to, home=None, owner_url=owner_url, sealed=SECRETS, passphrase=passphrase, by=SYSTEM, say=print
        )


async def test_a_dump_is_restored_with_everything_held(
    dump: Backup, empty_database_url: str, pool: Pool, database_url: str
) -> None:
    restored = await restoring.into_database(dump, empty_database_url, by=SYSTEM)
    assert restored.rows["organizations"] == 1
    assert restored.rows["messages"] == restored.rows["queue"] == 1
    assert (restored.unbalanced, restored.mails) == (0, 1)
    conn = await asyncpg.connect(empty_database_url)
    try:
        assert await migrate.pending(conn) == []
        holds = await conn.fetch("SELECT kind, reason, restored FROM queue_holds ORDER BY kind")
        assert [(row["kind"], row["restored"]) for row in holds] == [
            (kind, True) for kind in ("sms", "webhook", "whatsapp")
        ]
        assert holds[0]["reason"].startswith("restored from the backup of 20")
        acts = [row["action"] for row in await conn.fetch("SELECT action FROM audit_log ORDER BY at")]
        assert acts[-2:] == ["queue.held", "backup.restored"]
        opted_out = await conn.fetchrow("SELECT recipient, person FROM opt_outs")
        assert tuple(opted_out) == (RESPELLED, PERSON)
    finally:
        await conn.close()
    assert await pool.fetchval("SELECT count(*) FROM queue_holds") == 0, "the running installation is left alone"


async def test_a_restore_beside_the_running_installation_pauses_the_suppliers(
    pool: Pool, owner_url: str, empty_database_url: str, tmp_path: Path
) -> None:
    """Their sessions used to be opened, and suppliers handed them receipts of the running installation."""
    async with pool.acquire() as conn:
        for name, state in (("main", "active"), ("second", "draining"), ("third", "paused")):
            id = await suppliers.add(conn, KEY, name=name, kind="smpp", settings={"host": "a"}, secret="s")
            await conn.execute("UPDATE suppliers SET state = $2 WHERE id = $1", id, state)
    taken = await take(pool, owner_url, tmp_path / "store")
    await restoring.into_database(taken, empty_database_url, by=SYSTEM, pause=True)
    conn = await asyncpg.connect(empty_database_url)
    try:
        states = {row["name"]: row["state"] for row in await conn.fetch("SELECT name, state FROM suppliers")}
        acts = [row["action"] for row in await conn.fetch("SELECT action FROM audit_log ORDER BY at, id")]
    finally:
        await conn.close()
    assert states == {"main": "paused", "second": "paused", "third": "paused"}
    assert acts.count("supplier.state_changed") == 2
    assert await pool.fetchval("SELECT count(*) FROM suppliers WHERE state = 'active'") == 1


@pytest.mark.parametrize("channel", ["sms", "whatsapp"])
@pytest.mark.parametrize("changed", [False, True])
async def test_a_restore_says_that_its_secret_key_is_not_the_one_of_the_restored_moment(
    pool: Pool, owner_url: str, empty_database_url: str, tmp_path: Path, changed: bool, channel: str
) -> None:
    """Everything seemed well, and only `heliograph up` refused to start."""
    secret_key = "the secret key after heliograph rekey" if changed else SECRETS.secret_key
    async with pool.acquire() as conn:
        if channel == "sms":
            key = derive_key(secret_key, "suppliers")
            await suppliers.add(conn, key, name="main", kind="smpp", settings={"host": "a"}, secret="s")
        else:
            key = derive_key(secret_key, "whatsapp")
            await apps.ensure_app(conn, key, "4711", "a secret", "a token", clock.now())
    taken = await take(pool, owner_url, tmp_path / "store")
    settings = {"HELIOGRAPH_DATABASE_URL": empty_database_url, "HELIOGRAPH_BACKUP_PASSPHRASE": PASSPHRASE}
    done = await asyncio.to_thread(CliRunner().invoke, app, ["restore", str(taken.path)], env=settings)
    assert done.exit_code == 0, done.output
    told = " ".join(done.output.split())
    assert ("does not open what is encrypted at the restored moment" in told) == changed, told
    assert ("first backup after the change contains, in HELIOGRAPH_SECRET_KEY: without it" in told) == changed, told


@pytest.mark.parametrize(("kept", "state"), [(("old", "new"), "ok"), (("old", ""), "warning")])
async def test_a_backup_that_was_taken_while_the_secret_key_was_changed_has_the_new_one(
    pool: Pool, owner_url: str, database_url: str, tmp_path: Path, kept: tuple[str, str], state: str
) -> None:
    """`doctor` named it as one without the key that encrypts now."""
    old, new = ("" if not one else f"the {one} key of a test installation" for one in kept)
    async with pool.acquire() as conn:
        await taking.take(
            *(conn, tmp_path / "store"),
            home=None,
            owner_url=owner_url,
            sealed=Secrets(old, other_secret_key=new),
            passphrase=PASSPHRASE,
            by=SYSTEM,
            say=print,
        )
        settings = Settings(
            database_url=database_url,
            secret_key="the new key of a test installation",
            other_secret_key="the old key of a test installation",
        )
        assert (await backups.run(conn, settings))[0].state == state


async def test_a_database_that_demands_tls_is_dumped_and_restored(
    dump: Backup, pool: Pool, owner_url: str, empty_database_url: str, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("localhost"))

    def over(line: str) -> str:
        return f"{line.replace('@127.0.0.1:', '@localhost:')}?sslmode=verify-full&sslrootcert={authority.file}"

    async with wire(owner_url, tls=context) as (line, elsewhere):
        taken = await take(pool, over(elsewhere), tmp_path / "over_tls")
        assert line.encrypted == line.made > 1, "its own connection and the program's"
    async with wire(empty_database_url, tls=context) as (line, elsewhere):
        restored = await restoring.into_database(taken, over(elsewhere), by=SYSTEM)
        assert line.encrypted == line.made > 1
    assert restored.rows["messages"] == 1


async def test_a_database_with_tables_in_it_is_refused(dump: Backup, owner_url: str) -> None:
    with pytest.raises(BackupError, match="not empty"):
        await restoring.into_database(dump, owner_url, by=SYSTEM)


async def test_half_a_dump_leaves_an_empty_database(dump: Backup, empty_database_url: str) -> None:
    path = dump.path / store.DUMP
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(BackupError, match=r"is damaged: database\.dump"):
        await restoring.into_database(dump, empty_database_url, by=SYSTEM)
    # Even if the checksum were right.
    manifest = dump.manifest
    manifest.files[store.DUMP] = store.checksums(dump.path)[store.DUMP]
    with pytest.raises(BackupError, match="pg_restore"):
        await restoring.into_database(Backup(dump.path, manifest), empty_database_url, by=SYSTEM)
    conn = await asyncpg.connect(empty_database_url)
    try:
        assert await conn.fetchval(restoring.IS_EMPTY)
    finally:
        await conn.close()


#: A restore that is going to be killed.
LOAD = """
import asyncio, sys
from pathlib import Path
from heliograph.base.embedded import dumps
asyncio.run(dumps.load(Path(sys.argv[1]), sys.argv[2], password=sys.argv[3], then="SELECT 1;\\n"))
"""
OTHERS = """
SELECT count(*) FILTER (WHERE wait_event_type = 'Lock') AS waiting, count(*) AS here FROM pg_stat_activity
 WHERE datname = current_database() AND backend_type = 'client backend' AND application_name IN ('psql', 'pg_restore')
"""


async def test_a_restore_that_is_killed_leaves_an_empty_database(
    dump: Backup, empty_database_url: str, database_server: Cluster
) -> None:
    url, password = for_programs(empty_database_url)
    held = await asyncpg.connect(database_server.as_administrator(empty_database_url))
    looking = await asyncpg.connect(empty_database_url)
    try:
        await held.execute("BEGIN; LOCK TABLE pg_catalog.pg_class IN SHARE MODE")  # no table can be created
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", LOAD, dump.path / store.DUMP, url, password
        )

        async def waits() -> bool:
            return bool((await looking.fetchrow(OTHERS))["waiting"])

        async def is_over() -> bool:
            return not (await looking.fetchrow(OTHERS))["here"]

        await until_true(waits)
        process.kill()
        await process.wait()
        await held.execute("ROLLBACK")
        # A program that it started continues to the end of its input.
        await until_true(is_over)
        assert await looking.fetchval(restoring.IS_EMPTY)
    finally:
        await held.close()
        await looking.close()


async def test_a_dump_is_verified_in_a_cluster_of_its_own(dump: Backup, public_place: Path, pool: Pool) -> None:
    found = await restoring.verify(dump, scratch=public_place, say=print)
    assert (found.rows["messages"], found.unbalanced) == (1, 0)
    assert list(public_place.iterdir()) == []


OPTIONS = """
SELECT attrelid::regclass::text || '.' || attname, option
  FROM pg_attribute, unnest(attoptions) AS option
 WHERE attrelid IN ('organizations'::regclass, 'users'::regclass)
"""


async def test_what_a_newer_server_notes_about_its_columns_is_not_restored(
    pool: Pool, owner_url: str, empty_database_url: str, tmp_path: Path
) -> None:
    """PostgreSQL 17.12 has `pg_attver` for each column, and an earlier `pg_dump` takes it for an option of ours."""
    conn = await asyncpg.connect(owner_url)
    try:
        await conn.execute("ALTER TABLE organizations ALTER COLUMN name SET (n_distinct = 5)")
        await conn.execute("ALTER TABLE users ALTER COLUMN name SET (n_distinct = 6, n_distinct_inherited = 7)")
        await conn.execute("ALTER TABLE users ALTER COLUMN email SET (n_distinct = 8, n_distinct_inherited = 9)")
    finally:
        await conn.close()
    await organization(pool)
    dump = await take(pool, owner_url, tmp_path / "store")
    path = dump.path / store.DUMP
    written = path.read_bytes()
    # Alone, first and last, whatever the dumped server reports itself; of the same length, which the file records.
    notes = {
        b"n_distinct=5": b"pg_attver=55",
        b"n_distinct=6": b"pg_attver=66",
        b"n_distinct_inherited=9": b"pg_attver=999999999999",
    }
    for option, note in notes.items():
        assert (written.count(option), len(option)) == (1, len(note))
        written = written.replace(option, note)
    path.write_bytes(written)
    dump.manifest.files[store.DUMP] = store.checksums(dump.path)[store.DUMP]
    restored = await restoring.into_database(dump, empty_database_url, by=SYSTEM)
    assert restored.rows["organizations"] == 1
    conn = await asyncpg.connect(empty_database_url)
    try:
        kept = {tuple(row) for row in await conn.fetch(OPTIONS)}
    finally:
        await conn.close()
    assert {option for _, option in kept}.isdisjoint(note.decode() for note in notes.values())
    # The server that it is restored into may have settings of its own.
    ours = {(column, option) for column, option in kept if not option.startswith("pg_attver=")}
    assert ours == {("users.name", "n_distinct_inherited=7"), ("users.email", "n_distinct=8")}


async def test_the_secrets_open_with_their_passphrase_alone(dump: Backup) -> None:
    assert store.open_secrets(dump, PASSPHRASE) == SECRETS
    with pytest.raises(BackupError, match="passphrase"):
        store.open_secrets(dump, "another passphrase")
    for path in dump.path.rglob("*"):
        assert b"a secret key of" not in path.read_bytes()
    (dump.path / store.SECRETS).unlink()
    with pytest.raises(
        BackupError, match=r"secrets\.sealed, which holds the secret key, cannot be read: No such file or directory$"
    ):
        store.open_secrets(dump, PASSPHRASE)
    del dump.manifest.files[store.SECRETS]
    with pytest.raises(BackupError, match="it never was in this backup: omit the passphrase"):
        store.open_secrets(dump, PASSPHRASE)


async def test_what_was_sealed_earlier_opens_at_full_cost(dump: Backup, monkeypatch: pytest.MonkeyPatch) -> None:
    (dump.path / store.SECRETS).write_bytes(SEALED)
    with pytest.raises(BackupError, match="does not open"):
        store.open_secrets(dump, PASSPHRASE)
    monkeypatch.setattr(store, "_SCRYPT_N", GUESS)
    assert store.open_secrets(dump, PASSPHRASE) == SECRETS


async def test_a_short_passphrase_leaves_nothing(pool: Pool, owner_url: str, tmp_path: Path) -> None:
    with pytest.raises(BackupError, match="at least 12 characters"):
        await take(pool, owner_url, tmp_path / "store", passphrase="short")
    assert list((tmp_path / "store").iterdir()) == []


async def test_what_was_interrupted_is_no_backup(
    pool: Pool, owner_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = tmp_path / "store"
    dumping = asyncio.Event()

    async def never(arguments: object, **options: object) -> None:
        dumping.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(taking.copies, "run", never)
    task = asyncio.create_task(take(pool, owner_url, to))
    await dumping.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert store.listed(to, now=datetime.now(UTC)) == []
    assert await pool.fetchval("SELECT count(*) FROM backups") == 0


async def test_a_backup_that_is_being_taken_is_not_pruned(
    pool: Pool, owner_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to, dump = tmp_path / "store", taking.copies.run

    async def pruned(arguments: Sequence[str | Path], **options: Any) -> None:
        await dump(arguments, **options)
        (to / f"{store.UNFINISHED}1234").mkdir()
        assert store.prune(to, keep=1, now=datetime.now(UTC), installation="") == []
        assert not (to / f"{store.UNFINISHED}1234").exists()

    monkeypatch.setattr(taking.copies, "run", pruned)
    taken = await take(pool, owner_url, to)
    assert taken.manifest.has_secrets
    assert store.open_secrets(taken, PASSPHRASE) == SECRETS
    store.check(taken)
    assert [path.name for path in to.iterdir()] == [taken.path.name]


async def test_two_at_once_follow_each_other(
    pool: Pool, owner_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint of a second copy would remove WAL that the first one needs, and both would have one name."""
    to, dump = tmp_path / "store", taking.copies.run
    at_once, most = 0, 0

    async def counted(arguments: Sequence[str | Path], **options: Any) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await dump(arguments, **options)
        at_once -= 1

    monkeypatch.setattr(taking.copies, "run", counted)
    taken = await asyncio.gather(*(take(pool, owner_url, to) for _ in range(2)))
    assert most == 1
    assert sorted(path.name for path in to.iterdir()) == sorted({one.path.name for one in taken})
    assert len(store.listed(to, now=datetime.now(UTC))) == 2


async def test_what_lies_beside_the_backups_stops_nothing(dump: Backup, pool: Pool, owner_url: str) -> None:
    to = dump.path.parent
    (to / f"{store.PREFIX}notes.txt").write_text("a file of somebody's")
    (to / f"{store.PREFIX}20990101T000000Z").mkdir()
    damaged = [to / f"{store.PREFIX}2099010{number}T000000Z" for number in (2, 3, 4)]
    for path, content in zip(damaged, (b"", b"{}", b'{"id": "\xff"}'), strict=True):
        path.mkdir()
        (path / store.MANIFEST).write_bytes(content)
    told: list[str] = []
    assert [one.path for one in store.listed(to, now=datetime.now(UTC), damaged=told.append)] == [dump.path]
    assert [any(str(path) in text for text in told) for path in damaged] == [True, True, True]
    await until_the_next_second(pool)
    second = await take(pool, owner_url, to)
    assert store.prune(to, keep=1, now=datetime.now(UTC), installation=second.manifest.installation) == [dump.path]
    assert [one.path for one in store.listed(to, now=datetime.now(UTC))] == [second.path]
    assert all(path.exists() for path in damaged)
    found = CliRunner().invoke(app, ["backup", "list", str(to)])
    assert (found.exit_code, second.path.name in found.output, found.output.count("is damaged")) == (0, True, 3)


def test_a_passphrase_file_without_a_passphrase_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIOGRAPH_BACKUP_PASSPHRASE", PASSPHRASE)
    file = tmp_path / "passphrase"
    for content, why in (
        (b"", "first line is empty"),
        (b"\nabc\n", "first line is empty"),
        (b"\xff\xfe", "not text in UTF-8"),
    ):
        file.write_bytes(content)
        with pytest.raises(Problem, match=f"{file} .*{why}"):
            passphrase_of(file)
    file.write_text("\ufeffanother passphrase\r\nand a note\r\n")  # as some editors write it
    assert (passphrase_of(file), passphrase_of(None)) == ("another passphrase", PASSPHRASE)


async def test_wrong_usage_is_told_before_a_backup_is_taken(pool: Pool, owner_url: str, tmp_path: Path) -> None:
    to, nowhere = tmp_path / "store", str(tmp_path / "nowhere")
    for options, why in (
        (["--wal", str(tmp_path)], "needs --keep"),
        (["--keep", "1", "--wal", nowhere], "is not a directory"),
    ):
        done = CliRunner().invoke(app, ["backup", "take", "--to", str(to), *options], env={"COLUMNS": "500"})
        assert (done.exit_code, why in done.output, to.exists()) == (2, True, False), done.output
    to.touch()
    with pytest.raises(BackupError, match=f"cannot write to {to}: it is not a directory"):
        await take(pool, owner_url, to)


async def test_a_backup_in_the_directory_of_its_database_is_refused(pool: Pool, tmp_path: Path) -> None:
    """It would have become part of the copy while that was taken, and gone with the database when that is replaced."""
    home, link = tmp_path / "postgres", tmp_path / "link"
    (home / "data").mkdir(parents=True)
    link.symlink_to(home / "data")
    for to in (home, home / "data" / "backups", link, link / "backups"):
        async with pool.acquire() as conn:
            with pytest.raises(BackupError, match="belongs to the database"):
                await taking.take(conn, to, home=home, owner_url="", sealed=None, passphrase="", by=SYSTEM, say=print)
    assert [*(home / "data").iterdir()] == []


async def test_the_newest_are_kept(dump: Backup, pool: Pool, owner_url: str) -> None:
    to = dump.path.parent
    (to / f"{store.UNFINISHED}1234").mkdir()
    await until_the_next_second(pool)
    second = await take(pool, owner_url, to)
    assert [one.path for one in store.listed(to, now=datetime.now(UTC))] == [second.path, dump.path]
    async with pool.acquire() as conn:
        await _prune(conn, to, 1, None)
    assert [path.name for path in to.iterdir()] == [second.path.name]


async def test_the_backups_of_another_installation_are_not_removed(
    dump: Backup, pool: Pool, owner_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise two backups taken into one directory would remove each other's."""
    other = msgspec.structs.replace(dump.manifest, installation="another")
    (dump.path / store.MANIFEST).write_bytes(msgspec.json.encode(other))
    await until_the_next_second(pool)
    kept = await take(pool, owner_url, dump.path.parent)
    async with pool.acquire() as conn:
        await _prune(conn, dump.path.parent, 1, None)
    assert [one.path for one in store.listed(dump.path.parent, now=datetime.now(UTC))] == [kept.path, dump.path]
    assert "1 backup of another installation stays." in capsys.readouterr().err


async def test_archived_wal_stays_as_long_as_a_backup_needs_it(pool: Pool, tmp_path: Path) -> None:
    """Each cluster's by its own backups; all of an earlier cluster's once none of its backups is left and nothing is
    added any more."""
    segments = [f"0000000100000000000000{number:02d}" for number in range(1, 6)]
    for name in ("16-1", "18-2", "18-3", "18-4", "18-5"):
        (tmp_path / name).mkdir()
        for segment in segments:
            (tmp_path / name / segment).touch()
    # PostgreSQL notes there when a copy began.
    notes = [f"{segment}.00000028.backup" for segment in segments]
    for note in notes:
        (tmp_path / "18-3" / note).touch()
    long_ago = time.time() - 2 * taking.LEFT_AFTER
    for name in ("16-1", "18-5"):
        os.utime(tmp_path / name, (long_ago, long_ago))
    async with pool.acquire() as conn:
        present = await conn.fetchval("SELECT current_setting('cluster_name')")
        # 18-5 is of another installation, which this database knows nothing about.
        for archive in ("16-1", "18-2", "18-3", "18-4", present, ""):
            await conn.execute(KNOWN, archive)
        left = [copy_of("18-3", segments[2]), copy_of("18-4", segments[4]), copy_of("18-4", segments[1])]
        gone = await taking.prune_archives(conn, tmp_path, [*left, copy_of("", "")])
    assert gone == [tmp_path / "16-1"]
    found = {path.name: sorted(one.name for one in path.iterdir()) for path in tmp_path.iterdir()}
    assert found == {
        # A cluster restored for a trial knows the original's WAL, to which more is still added.
        "18-2": segments,
        "18-3": sorted([*segments[2:], *notes[2:]]),
        "18-4": segments[1:],
        "18-5": segments,
    }


@pytest.mark.parametrize("archive", ["18-3", "18-4"])
async def test_a_directory_that_is_no_archive_of_the_backup_is_told(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], archive: str
) -> None:
    """A mistyped --wal would leave everything that it should remove, until the disk is full."""
    (tmp_path / archive).mkdir()
    monkeypatch.setattr(store, "listed", lambda directory, **others: [copy_of("18-3", "000000010000000000000001")])
    async with pool.acquire() as conn:
        await _prune(conn, tmp_path, 1, tmp_path)
    told = f"{tmp_path} holds no WAL that continues the newest backup" in " ".join(capsys.readouterr().err.split())
    assert told == (archive != "18-3")


async def test_the_first_error_of_a_program_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows is a consequence, such as the removal of what was written before the disk was full."""
    monkeypatch.setattr(copies, "programs", lambda: tmp_path)
    program = tmp_path / "pg_basebackup"
    program.touch(mode=0o755)
    full = "pg_basebackup: error: could not write to file: No space left on device"
    for said, told in (
        (f"{full}\npg_basebackup: removing data directory", full),
        ("psql:7: ERROR:  no such table\nLINE 1: SELECT", "pg_basebackup: psql:7: ERROR:  no such table"),
        ("a warning\nit is over", "pg_basebackup: it is over"),
        ("", "pg_basebackup: status 1"),
    ):
        program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{said}\nEND\nexit 1\n")
        with pytest.raises(PostgresError) as raised:
            await copies.run(["pg_basebackup"])
        assert str(raised.value) == told


async def test_ctrl_c_reaches_a_program_only_through_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it is gone before it is told to end, and asyncio complains of an unknown child."""
    monkeypatch.setattr(copies, "programs", lambda: tmp_path)
    program, began = tmp_path / "pg_dump", tmp_path / "began"
    program.touch(mode=0o755)
    program.write_text(f"#!/bin/sh\necho $$ > {began}.new\nmv {began}.new {began}\nexec sleep 600\n")
    task = asyncio.create_task(copies.run(["pg_dump"]))
    await until_true(lambda: asyncio.to_thread(began.exists))
    pid = int(began.read_text())
    assert os.getpgid(pid) != os.getpgrp()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    # If it was still being started, its end is not waited for.
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def test_a_database_that_cannot_be_reached_is_told_as_by_every_command(tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    backup.mkdir()
    manifest = msgspec.structs.replace(copy_of("", "").manifest, kind="dump")
    (backup / store.MANIFEST).write_bytes(msgspec.json.encode(manifest))
    url = f"postgresql://ana@/x?host={tmp_path}"
    done = CliRunner().invoke(app, ["restore", str(backup)], env={"HELIOGRAPH_DATABASE_URL": url})
    assert isinstance(done.exception, Problem), done.output
    assert done.exception.exit_status == 3
    assert "cannot be reached" in str(done.exception)
    scratch = str(tmp_path / "nowhere")
    done = CliRunner().invoke(app, ["backup", "verify", str(backup), "--scratch", scratch], env={"COLUMNS": "500"})
    assert (done.exit_code, f"{scratch} is not a directory" in done.output) == (2, True), done.output


async def test_a_full_disk_is_told_with_its_place(
    dump: Backup, public_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(restoring, "Embedded", full)
    with pytest.raises(BackupError, match=f"^cannot write to {public_place}: No space left on device$"):
        await restoring.verify(dump, scratch=public_place, say=print)


async def test_wal_of_another_database_continues_nothing(tmp_path: Path) -> None:
    (tmp_path / "wal" / "18-4").mkdir(parents=True)
    backup, home = copy_of("18-3", "000000010000000000000001"), tmp_path / "home"
    with pytest.raises(BackupError, match=r"there is no .*/wal/18-3, which would hold the WAL that continues"):
        await restoring.into_directory(backup, home, archive=tmp_path / "wal", until=None, by=SYSTEM, say=print)
    assert not home.exists()


KNOWN = """
INSERT INTO backups (id, kind, taken_at, finished_at, bytes, place, archive, first_wal)
VALUES (gen_random_uuid(), CASE $1 WHEN '' THEN 'dump' ELSE 'cluster' END, now(), now(), 1, '/srv', $1, '')
"""


def copy_of(archive: str, first_wal: str) -> Backup:
    """A backup that names archived WAL."""
    manifest = store.Manifest(
        id="0198c1c7-7d5e-7cc3-98c9-5a1f7b0c2d3e",
        kind="cluster" if archive else "dump",
        taken_at=datetime(2026, 11, 1, tzinfo=UTC),
        finished_at=datetime(2026, 11, 1, tzinfo=UTC),
        heliograph="1.0.0",
        postgres="18.4",
        files={},
        bytes=1,
        has_secrets=False,
        archive=archive,
        first_wal=first_wal,
    )
    return Backup(Path("/srv") / archive, manifest)


async def test_a_verified_backup_is_known_as_such(dump: Backup, pool: Pool) -> None:
    async with pool.acquire() as conn:
        known = await conn.fetchrow("SELECT id, kind, place, verified_at FROM backups")
        assert str(known["id"]) == dump.manifest.id
        assert (known["kind"], known["place"], known["verified_at"]) == ("dump", str(dump.path), None)
        assert await taking.record_verified(conn, known["id"])
        assert await conn.fetchval("SELECT verified_at IS NOT NULL FROM backups")


async def test_a_url_means_to_programs_what_it_means_to_us(
    pool: Pool, owner_url: str, empty_database_url: str, tmp_path: Path
) -> None:
    """Two hosts, keep-alives, and a password at the end."""
    dump = await take(pool, _elsewhere(owner_url), tmp_path / "store")
    assert (await restoring.into_database(dump, _elsewhere(empty_database_url), by=SYSTEM)).rows["organizations"] == 0


def _elsewhere(url: str) -> str:
    parts = urllib.parse.urlsplit(url)
    name = urllib.parse.quote(parts.username or "")
    query = f"password={parts.password or ''}&keepalives_idle=20" + (f"&{parts.query}" if parts.query else "")
    both = f"{name}@{parts.hostname}:1,{parts.hostname}:{parts.port}"
    return parts._replace(netloc=both, query=query).geturl()


async def until_the_next_second(pool: Pool) -> None:
    """A backup is named after the second in which it was taken."""
    await pool.execute("SELECT pg_sleep(1.05 - extract(microseconds FROM clock_timestamp()) % 1000000 / 1000000)")


def full_pipe() -> tuple[int, int, int]:
    """Its two ends, and how many bytes it holds."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    held = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            held += os.write(write, b"x" * 4096)
    return read, write, held


async def test_the_end_of_a_script_waits_for_its_reader_and_for_nobody_who_has_failed() -> None:
    """A write that blocks used to stop everything in this process, for good once psql had ended with an error."""
    read, write, filling = full_pipe()
    ending = asyncio.Event()
    reading = asyncio.create_task(ending.wait())
    task = asyncio.create_task(dumps._end(write, b"COMMIT;\n" * 1000, reading))
    await asyncio.sleep(0)
    assert not task.done()
    found = b""
    os.set_blocking(read, False)
    while not task.done():
        with contextlib.suppress(BlockingIOError):
            found += os.read(read, 4096)
        await asyncio.sleep(0)
    os.close(write)
    while piece := os.read(read, 1 << 20):
        found += piece
    assert found == b"x" * filling + b"COMMIT;\n" * 1000
    os.close(read)

    read, write, _ = full_pipe()
    task = asyncio.create_task(dumps._end(write, b"COMMIT;\n", reading))
    await asyncio.sleep(0)
    assert not task.done()
    ending.set()
    await task
    os.close(read)
    os.close(write)
