"""Doctor and the console's checks of the machine: a slow database, a full disk, certificates that expire."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import asyncpg
import msgspec
import pytest

from heliograph import doctor
from heliograph.base import crypto
from heliograph.base.actor import SYSTEM, Principal
from heliograph.base.crypto import derive_key
from heliograph.base.database import clock
from heliograph.base.database.migrate import make_partitions, migrate
from heliograph.base.database.pool import Connection, Pool
from heliograph.base.database.roles import STATISTICS_ROLE
from heliograph.base.embedded.server import ROLE
from heliograph.base.ids import uuid7_floor
from heliograph.base.network import certificates
from heliograph.base.process.settings import Settings
from heliograph.base.sentences import Check
from heliograph.health import backups, database, snapshots
from heliograph.health.database import DiskSpace
from heliograph.health.snapshots import Standbys
from heliograph.metrics import database as metrics
from heliograph.overview.installation import backups as kept
from heliograph.overview.installation.now import Watch
from heliograph.people import tries, users
from heliograph.people.operators import accounts
from heliograph.people.tries import FREE_ACCOUNT
from heliograph.queue import holds, waiting
from heliograph.queue.holds import Selection
from heliograph.retention import forgetting
from heliograph.sms.dispatch import suppliers
from tests.certificates import Authority
from tests.database import Cluster
from tests.processes import until_true
from tests.rules.factories import endpoint, organization

KEY = derive_key("a secret key of a test installation", "suppliers")


async def named(pool: Pool, settings: Settings, name: str) -> Check:
    async with pool.acquire() as conn:
        found = [one for one in await doctor.examine(conn, settings, far=False) if one.check == name]
    assert len(found) == 1, name
    return found[0]


async def test_mails_that_a_dead_server_keeps_are_told_without_asking_it(pool: Pool, database_url: str) -> None:
    settings = Settings(
        database_url=database_url,
        secret_key="k" * 40,
        smtp_url="smtp://127.0.0.1:9",
        mail_from="a@example.com",
        public_url="http://a.example",
    )

    async def mail(state: str, reason: str, minutes: int) -> None:
        await pool.execute(
            "INSERT INTO mails (id, kind, sealed, state, reason, attempts, created_at, due_at, deadline)"
            " VALUES (gen_random_uuid(), 'trial', CASE $1 WHEN 'waiting' THEN ''::bytea END, $1, $2, 1,"
            " now() - make_interval(mins => $3), now(), now() + interval '1 hour')",
            state,
            reason,
            minutes,
        )

    await mail("failed", "credentials", 60)
    await mail("sent", "", 50)
    # What belongs to one mail, and failures before any was sent.
    await mail("failed", "refused", 40)
    await mail("waiting", "", 30)
    assert (await named(pool, settings, "mails")).state == "ok"
    await mail("waiting", "unreachable", 20)
    await mail("waiting", "slow", 10)
    found = await named(pool, settings, "mails")
    assert (found.state, found.detail.startswith("2 could not be sent since ")) == ("warning", True)
    assert found.detail.endswith("the mail server did not answer in time")
    assert (await named(pool, msgspec.structs.replace(settings, smtp_url=""), "mails")).state == "ok"
    await mail("sent", "", 5)
    # What is of times to come was before the clock was set back.
    await mail("sent", "", -4_320)
    await mail("failed", "slow", -4_321)
    assert (await named(pool, settings, "mails")).state == "ok"
    await mail("waiting", "slow", 1)
    assert (await named(pool, settings, "mails")).detail.startswith("1 could not be sent since ")


async def test_a_database_that_was_set_read_only_is_told(database_url: str) -> None:
    """Processes treat it as down, while doctor used to call it sound: only the workers seemed to be missing."""
    read_only = {"default_transaction_read_only": "on"}
    conn = await asyncpg.connect(database_url, server_settings=read_only)
    try:
        checks = await doctor.examine(conn, Settings(database_url=database_url, secret_key="k" * 40), far=False)
        found = next(one for one in checks if one.check == "database")
        assert (found.state, found.detail.endswith(": it was set read-only")) == ("failed", True)
        (query,) = re.findall("`(SELECT .*?)`", found.remedy)
        assert await conn.fetchval(query) == "client"
    finally:
        await conn.close()


async def test_a_schema_of_a_later_version_is_named(
    pool: Pool, database_url: str, as_owner: Callable[[str], Awaitable[None]]
) -> None:
    """Without it, nothing but `migrate` told that this version is the older one."""
    settings = Settings(database_url=database_url, secret_key="k" * 40)
    assert (await named(pool, settings, "migrations")).detail == "none pending"
    await as_owner("INSERT INTO schema_migrations VALUES ('9999_later.sql', 'x', 1)")
    found = await named(pool, settings, "migrations")
    assert (found.state, found.detail) == ("ok", "none pending; a later version has applied 9999_later.sql")


async def test_who_waits_for_somebody_elses_transaction_is_told(pool: Pool, database_url: str) -> None:
    settings = Settings(database_url=database_url, secret_key="k" * 40)
    assert (await named(pool, settings, "speed of the database")).detail
    async with pool.acquire() as one, pool.acquire() as other:
        await one.execute("SELECT pg_advisory_lock(4711)")
        waiting = asyncio.create_task(other.execute("SELECT pg_advisory_lock(4711)", timeout=120))
        try:
            found = None

            async def is_told() -> bool:
                nonlocal found
                found = await named(pool, settings, "speed of the database")
                return "wait for others" in found.detail

            await until_true(is_told, within=100)
            assert found is not None
            assert found.state == "warning"
            assert "pg_blocking_pids" in found.remedy
        finally:
            await one.execute("SELECT pg_advisory_unlock(4711)")
            await waiting
            await other.execute("SELECT pg_advisory_unlock(4711)")


async def disk_of(conn: Connection, settings: Settings) -> Check:
    return doctor.disk(await database.disk(conn, settings), settings)


async def test_a_snapshot_of_any_role_that_holds_vacuum_up_is_told(
    pool: Pool, database_server: Cluster, database_url: str
) -> None:
    administrator = await asyncpg.connect(database_server.as_administrator(database_url))

    async def oldest() -> list[float]:
        """The metric's value, and what the console's first page shows."""
        (shown,) = [
            one.value
            for one in await metrics.read(pool, Standbys())
            if one.name == "heliograph_oldest_snapshot_seconds"
        ]
        async with pool.acquire() as conn:
            return [shown, (await Watch().read(conn)).snapshot]

    async def is_none() -> bool:
        return await oldest() == [0, 0]

    try:
        for statement in ("SELECT txid_current()", "DECLARE report CURSOR FOR SELECT FROM organizations"):
            await until_true(is_none)
            await administrator.execute("BEGIN")
            await administrator.execute(statement)
            assert min(await oldest()) > 0, statement
            await administrator.execute("ROLLBACK")
        # A transaction that began after the check's own has no age yet.
        async with pool.acquire() as conn, conn.transaction():
            await conn.execute("SELECT")
            await administrator.execute("BEGIN")
            await administrator.execute("SELECT txid_current()")
            assert await conn.fetchval(f"SELECT {snapshots.OLDEST}") == 0
            await administrator.execute("ROLLBACK")
        # A transaction that has read, and no longer does, holds back nothing.
        await administrator.execute("BEGIN")
        await administrator.execute("SELECT FROM organizations")
        await until_true(is_none)
        await administrator.execute("ROLLBACK")
        # A prepared transaction belongs to no session.
        await administrator.execute("BEGIN")
        await administrator.execute("SELECT txid_current()")
        await administrator.execute("PREPARE TRANSACTION 'forgotten'")
        try:
            assert min(await oldest()) > 0
        finally:
            await administrator.execute("ROLLBACK PREPARED 'forgotten'")
        await until_true(is_none)
    finally:
        await administrator.close()


async def test_an_old_snapshot_is_told_and_who_cannot_see_says_so(
    pool: Pool, database_server: Cluster, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(database_url=database_url, secret_key="k" * 40)
    assert (await named(pool, settings, "snapshots")).state == "ok"
    administrator = await asyncpg.connect(database_server.as_administrator(database_url))
    try:
        await administrator.execute("BEGIN")
        await administrator.execute("SELECT txid_current()")
        monkeypatch.setattr(snapshots, "OLD", 0)
        found = await named(pool, settings, "snapshots")
        assert (found.state, found.detail) == ("warning", "a transaction has been open for 0 minutes")
        await administrator.execute("ROLLBACK")
        if database_server.url == database_server.owner_url:
            return  # an administrator sees all
        monkeypatch.undo()
        await administrator.execute(f"REVOKE {STATISTICS_ROLE} FROM {ROLE}")
        try:
            found = await named(pool, settings, "snapshots")
            assert (found.state, found.detail) == ("warning", "transactions of other roles cannot be seen")
            assert re.findall("`(.*)`", found.remedy) == [f"GRANT {STATISTICS_ROLE} TO {ROLE}"]
        finally:
            # As granted by the migration, if its role may do so.
            await migrate(database_server.as_administrator(database_url), application=database_url)
        assert (await named(pool, settings, "snapshots")).state == "ok"
    finally:
        await administrator.close()


async def test_settings_that_are_off_are_named_in_their_order(pool: Pool) -> None:
    async with pool.acquire() as conn, conn.transaction():
        await conn.execute("SET LOCAL synchronous_commit = off")
        settings = Settings(database_url="postgresql://x@db.example.com/x")
        safety = await database.safety(conn, settings)
        known = {name: await conn.fetchval("SELECT current_setting($1)", name) for name in database.DURABLE}
        assert safety.off == [name for name in database.DURABLE if known[name] == "off"]
        assert "synchronous_commit" in safety.off
        assert safety.room is None


async def test_a_disk_that_is_nearly_full_is_told(pool: Pool, tmp_path: Path) -> None:
    # The database behind a socket in a directory is on this machine; which disk it uses does not matter here.
    settings = Settings(database_url=f"postgresql://x@/x?host={tmp_path}", secret_key="k" * 40)
    async with pool.acquire() as conn:
        found = await disk_of(conn, msgspec.structs.replace(settings, disk_free_percent=100))
        assert found.state in ("warning", "failed"), "by how much of it is free"
        assert "are free" in found.detail
        assert "HELIOGRAPH_METADATA_RETENTION_MONTHS" in found.remedy
        gone = msgspec.structs.replace(settings, database_url=f"postgresql://x@/x?host={tmp_path / 'gone'}")
        found = await disk_of(conn, gone)
        # A role that may ask where the data is does not need the socket for it.
        assert ("cannot be checked" in found.detail) == (await conn.fetchval(database.PLACE) is None)
        far = msgspec.structs.replace(settings, database_url="postgresql://x@db.example.com/x")
        assert "not visible from here" in (await disk_of(conn, far)).detail


FILL = """
INSERT INTO messages (organization_id, id, status, mode, recipient, sender, sender_id, encoding, segments, guarantee,
                      country, body, request_id, balance_after, accepted_at)
SELECT $1, id, 'delivered', 'live', '+258841234567', 'ACME', $1, 'gsm7', 1, 'at_least_once', 'MZ', repeat('x', 1000),
       '', 0, $3 FROM unnest($2::uuid[]) AS item (id)
"""


@pytest.mark.usefixtures("partitions_ahead")
async def test_what_the_remedy_of_a_full_disk_says_makes_room(pool: Pool) -> None:
    """The disk is as large as the test says, and contains only the database."""
    settings, old = Settings(secret_key="k" * 40), clock.now() - timedelta(days=150)
    actor = await organization(pool)
    async with pool.acquire() as conn:
        await make_partitions(conn, old.date(), ahead=0)
    ids = [UUID(int=uuid7_floor(old).int + number) for number in range(1, 20_001)]
    await pool.execute(FILL, actor.organization_id, ids, old)
    used = await pool.fetchval("SELECT pg_database_size(current_database())")
    total = round(used / 0.95)

    async def check() -> Check:
        used = await pool.fetchval("SELECT pg_database_size(current_database())")
        return doctor.disk(DiskSpace("/disk", total - used, total), settings)

    assert (await check()).state == "warning"
    (name,) = re.findall(r"HELIOGRAPH_(\w+)", (await check()).remedy)
    shorter = msgspec.structs.replace(settings, **{name.lower(): 1})
    async with pool.acquire() as conn:
        # With the usual threshold, nothing is reported.
        await forgetting.forget(conn, settings)
        assert (await check()).state == "warning"
        await forgetting.forget(conn, shorter)
    assert (await check()).state == "ok"


async def test_certificates_that_end_are_told_until_they_are_replaced(
    pool: Pool, database_url: str, tmp_path: Path
) -> None:
    settings = Settings(database_url=database_url, secret_key="k" * 40)
    authority = Authority(tmp_path)
    # It is valid for a day.
    file = Path(authority.issue("client"))
    assert abs(certificates.ends_at(str(file)) - datetime.now(UTC) - timedelta(days=1)) < timedelta(minutes=10)
    async with pool.acquire() as conn:
        values = {"host": "127.0.0.1", "port": 2775, "system_id": "a", "tls_certificate_file": str(file)}
        await suppliers.add(conn, KEY, name="main", kind="smpp", settings=values, secret="s")
    found = await named(pool, settings, "certificate of main")
    assert (found.state, "0 days from now" in found.detail, str(file) in found.remedy) == ("warning", True, True)
    # Once replaced, it is read again.
    file.write_text(Path(authority.issue("other", days=400)).read_text())
    os.utime(file, (1, 1))
    assert (await named(pool, settings, "certificate of main")).state == "ok"
    file.write_text(Path(authority.issue("ended", days=-1)).read_text())
    assert "expired at" in (await named(pool, settings, "certificate of main")).detail
    file.write_text("nothing")
    os.utime(file, (2, 2))
    assert "contains no certificate" in (await named(pool, settings, "certificate of main")).detail
    file.unlink()
    assert "cannot be read" in (await named(pool, settings, "certificate of main")).detail


async def test_a_supplier_that_no_worker_can_open_says_which_file_is_to_blame(
    pool: Pool, database_url: str, tmp_path: Path
) -> None:
    """A worker that started while a key was being replaced logged it, and was to be started, or the credentials to be
    checked."""
    settings = Settings(database_url=database_url, secret_key="k" * 40)
    authority = Authority(tmp_path)
    files = {"tls_certificate_file": authority.issue("client"), "tls_key_file": authority.issue("other")}
    async with pool.acquire() as conn:
        values = {"host": "127.0.0.1", "port": 2775, "system_id": "a", **files}
        await suppliers.add(conn, suppliers.seal_key(settings), name="main", kind="smpp", settings=values, secret="s")
    found = await named(pool, settings, "supplier main")
    assert (found.state, found.remedy) == ("failed", "Correct the setting, or the file.")
    assert found.detail == (
        "no session bound: tls_certificate_file, tls_key_file cannot be used: no certificate and key in PEM format that"
        " belong together"
    )
    Path(files["tls_key_file"]).write_text(Path(files["tls_certificate_file"]).read_text())
    found = await named(pool, settings, "supplier main")
    assert (found.detail, "Start a worker" in found.remedy) == ("no session bound", True)


async def test_of_several_trusted_certificates_the_last_counts(pool: Pool, database_url: str, tmp_path: Path) -> None:
    """As while an authority is being replaced, or in a list of all the world's."""
    settings = Settings(database_url=database_url, secret_key="k" * 40)
    authority, file = Authority(tmp_path), tmp_path / "trusted"
    ended, good = (Path(authority.issue(name, days=days)).read_text() for name, days in (("ended", -1), ("good", 400)))
    file.write_text(ended + good)
    async with pool.acquire() as conn:
        values = {"host": "127.0.0.1", "port": 2775, "system_id": "a", "tls": True, "tls_ca_file": str(file)}
        await suppliers.add(conn, KEY, name="main", kind="smpp", settings=values, secret="s")
    assert (await named(pool, settings, "certificate of main")).state == "ok"
    file.write_text(ended)
    os.utime(file, (1, 1))
    assert (await named(pool, settings, "certificate of main")).state == "failed"


async def test_guesses_at_an_operators_account_are_told(pool: Pool, database_url: str) -> None:
    settings = Settings(database_url=database_url, secret_key="k" * 40)
    async with pool.acquire() as conn:
        for email in ("eva@example.com", "rui@example.com"):
            user, _ = await users.ensure(conn, SYSTEM, email=email)
            if email.startswith("eva"):
                await accounts.add(conn, Principal("cli"), user_id=user.id, email=email, role="root")
                eva = user
        for _ in range(FREE_ACCOUNT):
            await tries.count(conn, account="rui@example.com")
        for _ in range(FREE_ACCOUNT - 1):
            await tries.count(conn, account="eva@example.com")
        assert (await named(pool, settings, "sign-ins")).state == "ok", "others are their organization's affair"
        await tries.count(conn, account="eva@example.com")
        found = await named(pool, settings, "sign-ins")
        assert (found.state, "eva@example.com" in found.detail) == ("warning", True)
        assert "`heliograph user link EMAIL --operator`" in found.remedy, "any other link leads to the dashboard"
        for _ in range(FREE_ACCOUNT):
            await tries.count(conn, account=tries.of_code(eva.id))
        found = await named(pool, settings, "sign-ins")
        assert (found.state, "knows the password of eva@example.com" in found.detail) == ("failed", True)
    await pool.execute("UPDATE sign_in_tries SET tried_at = now() - interval '16 minutes'")
    assert (await named(pool, settings, "sign-ins")).state == "ok"
    # Each further code has to wait longer, up to an hour: whoever guesses at them is still there in between.
    for count, minutes, state in ((16, 16, "failed"), (16, 70, "ok"), (40, 110, "failed"), (40, 121, "ok")):
        await pool.execute(
            "UPDATE sign_in_tries SET tries = $1, tried_at = now() - make_interval(mins => $2)", count, minutes
        )
        assert (await named(pool, settings, "sign-ins")).state == state, (count, minutes)
    # What was counted before the database's clock was set back says nothing.
    await pool.execute("UPDATE sign_in_tries SET tried_at = now() + interval '3 days'")
    assert (await named(pool, settings, "sign-ins")).state == "ok"


FAILS = """
UPDATE webhook_endpoints SET consecutive_failures = 3, failing_since = now() - make_interval(mins => $2)
 WHERE id = ANY ($1)
"""
WELL = """
UPDATE webhook_endpoints SET consecutive_failures = 0, failing_since = NULL, last_success_at = now() WHERE id = $1
"""
WAITS = """
INSERT INTO queue (id, kind, line, organization_id, due_at) VALUES (gen_random_uuid(), 'webhook', $1, $2, now())
"""


async def test_organizations_that_no_event_reaches_are_told(pool: Pool, database_url: str) -> None:
    settings = Settings(database_url=database_url, secret_key="k" * 40)

    async def told() -> tuple[str, str]:
        found = await named(pool, settings, "webhooks")
        return found.state, found.detail

    ok = ("ok", "no organization's endpoints all fail")
    acme, beta = await organization(pool), await organization(pool)
    for name, actor in (("Acme", acme), ("Beta", beta)):
        await pool.execute("UPDATE organizations SET name = $2 WHERE id = $1", actor.organization_id, name)
    first, second = [await endpoint(pool, acme, "message.sent") for _ in range(2)]
    await endpoint(pool, acme, "message.sent", status="disabled")
    await endpoint(pool, msgspec.structs.replace(acme, mode="test"), "message.sent")
    assert await told() == ok, "nothing was sent to them yet"
    await pool.execute(FAILS, [first], 20)
    await pool.execute(WAITS, first, acme.organization_id)
    assert await told() == ok, "the other one is well"
    await pool.execute(FAILS, [second], 14)
    assert await told() == ok, "it may be back in a moment"
    await pool.execute(FAILS, [second], 16)
    state, detail = await told()
    assert (state, detail.partition(" (since")[0]) == ("warning", "all endpoints of Acme")
    # Also those of another organization, and no event is delivered: it is not their receivers' fault.
    (third, fourth) = [await endpoint(pool, beta, "message.sent") for _ in range(2)]
    await pool.execute(FAILS, [third, fourth], 30)
    await pool.execute(WAITS, fourth, beta.organization_id)
    said = "no endpoint has been reached for 15 minutes; those of 2 organizations fail"
    assert await told() == ("failed", said)
    third_party = await organization(pool)
    await pool.execute(WELL, await endpoint(pool, third_party, "message.sent"))
    state, detail = await told()
    assert (state, detail.count("(since "), detail.index("Beta") < detail.index("Acme")) == ("warning", 2, True)
    # Without waiting events, nothing is known about them since their last attempt.
    await pool.execute("DELETE FROM queue")
    assert await told() == ok
    await pool.execute(WAITS, first, acme.organization_id)
    await pool.execute(WELL, first)
    assert await told() == ok


async def test_wal_that_is_not_archived_is_told(pool: Pool, database_url: str) -> None:
    settings = Settings(database_url=database_url, secret_key="k" * 40, wal_archive="/srv/wal")
    found = await named(pool, settings, "WAL archive")
    assert (found.state, "PostgreSQL was started without it" in found.detail) == ("failed", True)
    assert "Stop `heliograph up` and start it again" in found.remedy
    before, after = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 11, 2, tzinfo=UTC)
    cases: list[tuple[str, datetime | None, datetime | None, str]] = [
        ("off", None, None, "failed"),
        ("on", None, None, "ok"),
        ("on", after, None, "ok"),
        ("on", None, after, "failed"),
        ("on", before, after, "failed"),
    ]
    for mode, archived_at, failed_at, state in cases:
        says = {"mode": mode, "archived_at": archived_at, "archived": "01", "failed_at": failed_at, "failed": "02"}
        says["waiting"] = 0
        (check,) = backups.archive(says, settings)
        assert check.state == state, says
        assert ("02 could not be archived at 2026-11-02" in check.detail) == (failed_at is not None), says
    (check,) = backups.archive({**says, "failed_at": None}, settings, missing="05")
    assert (check.state, check.detail) == ("failed", "05, which continues the last backup, is missing from /srv/wal")
    for count, state in ((1, "ok"), (2, "failed")):
        (check,) = backups.archive({**says, "failed_at": None, "waiting": count}, settings)
        assert check.state == state
    assert check.detail == "2 segments wait to be archived, and none has been since 2026-11-01T00:00:00.000Z"
    # One that is not meant to archive, and one of an operator's own that does.
    plain = msgspec.structs.replace(settings, wal_archive="")
    assert backups.archive({**says, "mode": "off"}, plain) == []
    assert [one.state for one in backups.archive(says, plain)] == ["failed"]


async def test_a_backup_dated_by_a_clock_that_was_ahead_does_not_hide_that_none_is_taken(
    pool: Pool, database_url: str
) -> None:
    settings = Settings(database_url=database_url, secret_key="k" * 40)

    async def taken(days: int) -> None:
        await pool.execute(
            "INSERT INTO backups (id, kind, taken_at, finished_at, bytes, place, archive, first_wal)"
            " VALUES (gen_random_uuid(), 'dump', now() + make_interval(days => $1), now(), 1, '/srv', '', '')",
            days,
        )

    async def age() -> float:
        """In days; -1: none."""
        (found,) = [one for one in await metrics.read(pool, Standbys()) if one.name == "heliograph_backup_age_seconds"]
        return found.value if found.value == -1 else round(found.value / 86400, 1)

    async with pool.acquire() as conn:
        values = {"host": "127.0.0.1", "port": 2775, "systemId": "h"}
        await suppliers.add(conn, KEY, name="main", kind="smpp", settings=values, secret="s")
    await taken(200)
    assert ((await named(pool, settings, "backups")).state, await age()) == ("warning", -1)
    await taken(-3)
    late = await named(pool, settings, "backups")
    assert (late.state, await age()) == ("warning", 3)
    three_days_ago = datetime.now(UTC) - timedelta(days=3)
    assert f"{three_days_ago:%Y-%m-%d}" in str(late.detail)
    await taken(0)
    assert ((await named(pool, settings, "backups")).state, await age()) == ("ok", 0)
    async with pool.acquire() as conn:
        assert [(one.taken_at - datetime.now(UTC)).days for one in await kept.latest(conn, limit=9)] == [-1, -4, 199]
    await pool.execute("UPDATE backups SET verified_at = now() WHERE taken_at > now()")
    await pool.execute("UPDATE backups SET verified_at = now() WHERE taken_at < now() - interval '2 days'")
    verified = await named(pool, settings, "backups")
    assert f"the last verified one at {three_days_ago:%Y-%m-%d}" in str(verified.detail)


async def test_a_backup_from_before_the_secret_key_was_changed_is_named(pool: Pool, database_url: str) -> None:
    """It held the old key only, which opens nothing at a later point in time restored from it."""

    async def taken(days: int, secret_keys: list[bytes]) -> None:
        await pool.execute(
            "INSERT INTO backups (id, kind, taken_at, finished_at, bytes, place, archive, first_wal, secret_keys)"
            " VALUES (gen_random_uuid(), 'dump', now() - make_interval(days => $1), now(), 1, '/srv', '', '', $2)",
            days,
            secret_keys,
        )

    before = Settings(database_url=database_url, secret_key="k" * 40)
    after = Settings(database_url=database_url, secret_key="n" * 40, other_secret_key="k" * 40)
    await taken(2, crypto.fingerprints(before.secret_keys))
    assert (await named(pool, before, "backups")).state == "ok"
    told = await named(pool, after, "backups")
    assert (told.state, "an earlier one" in str(told.detail)) == ("warning", True)
    await taken(1, [])  # one without secrets says nothing about keys
    assert (await named(pool, after, "backups")).state == "warning"
    await taken(0, crypto.fingerprints(after.secret_keys)[:1])
    assert (await named(pool, after, "backups")).state == "ok"


async def test_what_suspends_retention_is_told_with_the_command_that_ends_it(pool: Pool, database_url: str) -> None:
    settings = Settings(database_url=database_url, secret_key="k" * 40)
    suspended = "retention is suspended until the work restored from a backup is released"
    async with pool.acquire() as conn:
        await holds.hold(conn, Selection(kinds=("sms",)), reason="a bill")
        assert suspended not in (await named(pool, settings, "holds")).detail
        await holds.hold(conn, Selection(kinds=("webhook",)), reason="a backup", restored=True)
    told = await named(pool, settings, "holds")
    assert suspended in told.detail
    assert "heliograph hold release" in told.remedy


async def test_an_archive_is_compared_with_what_the_newest_backup_needs(
    pool: Pool, database_url: str, tmp_path: Path
) -> None:
    settings = Settings(database_url=database_url, secret_key="k" * 40, wal_archive=str(tmp_path))
    first, second, third = (f"00000001000000000000000{number}" for number in (4, 5, 6))

    async def missing() -> str | None:
        async with pool.acquire() as conn:
            return await backups.missing(conn, settings, third)

    assert await missing() is None, "no backup needs it"
    # The last backup is from before a clock was set back: its WAL is gone, because a later backup is kept instead.
    for days, needs in ((2, first), (1, second), (-200, "000000010000000000000003")):
        await pool.execute(
            "INSERT INTO backups (id, kind, taken_at, finished_at, bytes, place, archive, first_wal) VALUES"
            " (gen_random_uuid(), 'cluster', now() - make_interval(days => $1), now(), 1, '/srv',"
            " current_setting('cluster_name'), $2)",
            days,
            needs,
        )
    archived = tmp_path / await pool.fetchval("SELECT current_setting('cluster_name')")
    assert await missing() == second, "its disk is not mounted"
    archived.mkdir()
    (archived / third).touch()
    assert await missing() == second
    (archived / second).touch()
    assert await missing() is None, "what only an earlier backup needs may be gone"


async def test_only_a_failure_after_the_last_success_counts(pool: Pool) -> None:
    """With the statement itself, over a view of the test's own."""
    async with pool.acquire() as conn:
        before, after = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 11, 2, tzinfo=UTC)
        for archived_at, failed_at, fails in ((None, after, True), (before, after, True), (after, before, False)):
            await conn.execute("DROP TABLE IF EXISTS pg_temp.pg_stat_archiver")
            await conn.execute(
                "CREATE TEMPORARY TABLE pg_stat_archiver AS SELECT $1::timestamptz AS last_archived_time,"
                " 'a' AS last_archived_wal, $2::timestamptz AS last_failed_time, 'f' AS last_failed_wal",
                archived_at,
                failed_at,
            )
            await conn.execute("SET search_path = pg_temp, pg_catalog")
            row = await conn.fetchrow(backups.ARCHIVER)
            await conn.execute("RESET search_path")
            assert row is not None
            assert (row["failed_at"] is not None) == fails


async def test_archiving_that_hangs_has_segments_that_wait(pool: Pool) -> None:
    """The command neither fails nor succeeds. With the statement itself, over a view of the test's own."""
    statement = backups.ARCHIVER.replace("pg_current_wal_lsn()", "'5/10000028'::pg_lsn")
    async with pool.acquire() as conn:
        for archived, minutes, count in (
            ("00000001000000050000000F", 11, 0),  # the current one is not complete
            ("00000001000000050000000E", 11, 1),
            ("00000002000000050000000D.00000028.backup", 11, 2),
            ("0000000100000004000000FF", 11, 16),
            ("0000000100000004000000FF", 9, 0),
            ("00000002.history", 11, 0),
        ):
            await conn.execute("DROP TABLE IF EXISTS pg_temp.pg_stat_archiver")
            await conn.execute(
                "CREATE TEMPORARY TABLE pg_stat_archiver AS SELECT now() - make_interval(mins => $2) AS"
                " last_archived_time, $1::text AS last_archived_wal, NULL::timestamptz AS last_failed_time,"
                " NULL::text AS last_failed_wal",
                archived,
                minutes,
            )
            await conn.execute("SET search_path = pg_temp, pg_catalog")
            row = await conn.fetchrow(statement)
            await conn.execute("RESET search_path")
            assert row is not None
            assert row["waiting"] == count, archived


async def test_messages_that_no_supplier_takes_are_told(pool: Pool, database_url: str) -> None:
    """A supplier that always defers: its messages become due a moment later each time, and so are never overdue."""
    settings, actor = Settings(database_url=database_url, secret_key="k" * 40), await organization(pool)
    put_back = (
        "INSERT INTO queue (id, kind, line, lane, organization_id, due_at, claims)"
        " VALUES (gen_random_uuid(), 'sms', gen_random_uuid(), $1, $2, now() + interval '20 seconds', $3)"
    )

    async def metric() -> float:
        for one in await metrics.read(pool, Standbys()):
            if (one.name, one.labels) == ("heliograph_queue_deferred_rows", {"kind": "sms"}):
                return one.value
        raise AssertionError

    await pool.execute(put_back, 0, actor.organization_id, 5)
    await pool.execute(put_back, 1, actor.organization_id, 50)
    assert ((await named(pool, settings, "queue")).state, await metric()) == ("ok", 0)
    await pool.execute(put_back, 0, actor.organization_id, 20)
    found = await named(pool, settings, "queue")
    assert (found.state, found.detail) == ("failed", "sms: 1 deferred again and again, as no supplier accepts them")
    assert await metric() == 1
    # What an operator holds waits for the operator.
    async with pool.acquire() as conn:
        await holds.hold(conn, Selection(kinds=("sms",)), reason="a look")
    assert ((await named(pool, settings, "queue")).state, await metric()) == ("ok", 0)


@pytest.mark.fresh_database
async def test_who_waits_in_vain_is_found_without_reading_all_that_waits(pool: Pool) -> None:
    """Each worker used to read all waiting messages every 15 s."""
    actor = await organization(pool)
    await pool.execute(
        "INSERT INTO queue (id, kind, line, organization_id, due_at, claims)"
        " SELECT gen_random_uuid(), 'sms', $1, $1, now() + n * interval '1 second', CASE WHEN n % 5 = 0 THEN 20 ELSE 1"
        " END FROM generate_series(-20000, 20000) AS n",
        actor.organization_id,
    )
    read = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'queue'"
    async with pool.acquire() as conn, conn.transaction():
        before = await conn.fetchval(read)
        assert await waiting.deferred(conn, look=100) == {"sms": 20, "whatsapp": 0}
        assert await conn.fetchval(read) - before <= 200
