"""Checks of the installation: the database, clocks, partitions, workers, each channel, the queue.

`heliograph doctor` shows them, together with those of its own machine.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, timedelta

import asyncpg

from heliograph.base.checks import LATE, Check
from heliograph.base.database import clock, migrate, roles
from heliograph.base.database import url as database_url
from heliograph.base.database.clock import iso
from heliograph.base.database.pool import Connection
from heliograph.base.network import certificates, smtp
from heliograph.base.network.smtp import Unsent
from heliograph.base.process.settings import Settings
from heliograph.base.standby.readers import Unread, reached
from heliograph.mail.work import sender_of
from heliograph.queue import holds as queue_holds
from heliograph.sms import checks as sms
from heliograph.sms.dispatch import routing
from heliograph.whatsapp import checks as whatsapp
from heliograph.whatsapp.dispatch import holds

#: The oldest PostgreSQL that everything here runs on.
OLDEST_POSTGRES = 15
#: The clocks of this machine and the database must not differ by more, seconds.
SKEW = 2.0
SET_CLOCKS = (
    "Synchronize both clocks by NTP. Until then retention is suspended, and a process that ends cannot start again."
)
#: A worker that has not been seen for longer is gone, seconds.
WORKER_SEEN = 15.0
#: A backup that is older than this is worth a warning.
BACKUP_AGE = timedelta(hours=26)
#: Without these, an answered message could be lost in a power cut.
DURABLE = ("fsync", "full_page_writes", "synchronous_commit")
#: A statement that does nothing takes less, seconds: the database is near, and messages need many of them. From HALTING
#: on nothing works any more. The best of several counts, so that a busy moment is no outage.
SLOW, HALTING, TRIES = 0.05, 0.25, 5
#: A statement that waits for another one for so long is worth a warning, seconds.
BLOCKED = 5.0
#: A certificate that ends within this time is worth a warning.
ENDING = timedelta(days=21)
#: The checks of each channel.
CHANNELS: tuple[Callable[[Connection, Settings], Awaitable[list[Check]]], ...] = (sms.look, whatsapp.look)


async def examine(conn: Connection, settings: Settings, *, far: bool = True) -> list[Check]:
    """The checks of the database and of everything recorded in it. Ends early if its tables are missing. `far`: also of
    what answers elsewhere, which may take seconds."""
    checks = [await _server(conn, settings), _encryption(settings.database_url), await _durable(conn), _clock()]
    try:
        pending = await migrate.pending(conn)
    except migrate.ForeignSchema as error:
        return [*checks, Check("migrations", "failed", "of another schema", str(error))]
    if pending:
        checks.append(Check("migrations", "failed", f"pending: {', '.join(pending)}", "Run `heliograph migrate`."))
    else:
        checks.append(Check("migrations", "ok", "none pending"))
    try:
        looks = (_speed, _standby, disk, _certificates, _roles, _partitions, _workers, *CHANNELS, _queue, _backups)
        for look in (*looks, *((_mail,) if far else ())):
            checks += await look(conn, settings)
    except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError):
        return checks  # the tables are not there yet, and that was said
    return checks


async def _server(conn: Connection, settings: Settings) -> Check:
    version: str = await conn.fetchval("SHOW server_version")
    detail = f"PostgreSQL {version.split()[0]} at {database_url.shown(settings.database_url)}"
    if conn.get_server_version().major < OLDEST_POSTGRES:
        return Check("database", "failed", detail, f"Upgrade PostgreSQL to {OLDEST_POSTGRES} or later.")
    if await conn.fetchval("SELECT pg_is_in_recovery()"):
        return Check("database", "failed", f"{detail}: this is a standby", "Use the address of the primary.")
    return Check("database", "ok", detail)


async def _durable(conn: Connection) -> Check:
    off = [name for name in DURABLE if await conn.fetchval("SELECT current_setting($1)", name) == "off"]
    if off:
        remedy = "Turn them on in postgresql.conf: without them, a crash can lose accepted messages."
        return Check("durability", "failed", f"{' and '.join(off)} off", remedy)
    return Check("durability", "ok", f"{', '.join(DURABLE)} on")


def _encryption(url: str) -> Check:
    target = database_url.parse(url)
    far = [host.name for host in target.hosts if not database_url.is_local(host.name)]
    if not far:
        return Check("encryption", "ok", "the database is on this machine")
    mode = target.sslmode or os.environ.get("PGSSLMODE", "")
    if mode == "verify-full":
        return Check("encryption", "ok", "the server's certificate and host name are verified")
    detail = f"sslmode is {mode or 'prefer, the default'}: a man in the middle can impersonate {', '.join(far)}"
    remedy = "Add `?sslmode=verify-full&sslrootcert=FILE` to HELIOGRAPH_DATABASE_URL (FILE: your CA's certificate)."
    return Check("encryption", "warning", detail, remedy)


def _clock() -> Check:
    ahead = clock.ahead()
    if abs(ahead) > SKEW:
        detail = f"this machine's is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} the database's"
        return Check("clocks", "failed", detail, SET_CLOCKS)
    return Check("clocks", "ok", f"{abs(ahead) * 1000:.0f} ms apart")


async def _mail(conn: Connection, settings: Settings) -> list[Check]:
    """Whether the mail server lets this service in; no mail is sent."""
    sender = sender_of(settings)
    if sender is None:
        return [Check("mail", "ok", "no server is set: invitations and new passwords are links to hand on")]
    server = smtp.parse(settings.smtp_url)
    where = f"{server.host}:{server.port}"
    try:
        await sender.greet()
    except Unsent as error:
        detail = f"{where}: {smtp.REASONS[error.reason]}" + (f" ({error.said})" if error.said else "")
        remedy = "Check HELIOGRAPH_SMTP_URL; `heliograph mail test ADDRESS` tries it with a mail. Mails wait meanwhile."
        return [Check("mail", "warning", detail, remedy)]
    finally:
        sender.close()
    return [Check("mail", "ok", f"{where} lets this service in")]


async def _standby(conn: Connection, settings: Settings) -> list[Check]:
    """How far the standby is behind from which lists, reports and exports are read."""
    if not settings.reader_database_url:
        return []
    where = database_url.shown(settings.reader_database_url)
    try:
        async with reached(conn, settings.reader_database_url, bound=settings.reader_wait_seconds) as (_, behind):
            return [Check("standby", "ok", f"{where} has what was committed after {behind * 1000:.0f} ms")]
    except Unread as error:
        remedy = (
            "Lists, reports and exports are read from the primary meanwhile. Look at `pg_stat_replication` on the"
            " primary and at the standby's log; check HELIOGRAPH_READER_DATABASE_URL."
        )
        return [Check("standby", "warning", f"{where}: {error}", remedy)]


BLOCKERS = """
SELECT count(*), coalesce(extract(epoch FROM max(now() - query_start)), 0)::float8 FROM pg_stat_activity
 WHERE datname = current_database() AND wait_event_type = 'Lock' AND query_start < now() - make_interval(secs => $1)
"""


async def _speed(conn: Connection, settings: Settings) -> list[Check]:
    """Whether the database answers at once, and nobody waits for somebody else's transaction."""
    best, tries = math.inf, 0
    while best > SLOW and tries < TRIES:
        began, tries = time.perf_counter(), tries + 1
        await conn.execute("SELECT")
        best = min(best, time.perf_counter() - began)
    if best > SLOW:
        detail = f"a statement that does nothing takes {best * 1000:.0f} ms"
        remedy = "Look at the database's machine and the network to it: processor, disk, other programs, distance."
        return [Check("speed of the database", "failed" if best > HALTING else "warning", detail, remedy)]
    blocked, longest = await conn.fetchrow(BLOCKERS, BLOCKED)  # type: ignore[misc]
    if blocked:
        detail = f"{blocked} statements wait for others, the longest for {longest:.0f} s"
        remedy = "End what they wait for: `SELECT pid, query, pg_blocking_pids(pid) FROM pg_stat_activity` names it."
        return [Check("speed of the database", "warning", detail, remedy)]
    return [Check("speed of the database", "ok", f"a statement that does nothing takes {best * 1000:.1f} ms")]


# Only some roles may ask where the data is, and a refusal would fill the server's log.
PLACE = """
SELECT CASE WHEN pg_has_role(current_user, 'pg_read_all_settings', 'MEMBER') THEN current_setting('data_directory') END
"""


async def disk(conn: Connection, settings: Settings) -> list[Check]:
    """How much of the database's disk is free, where that is this machine's: by its data directory, else by that of its
    socket, else by the root of this machine's files."""
    names = [host.name for host in database_url.parse(settings.database_url).hosts]
    if not all(database_url.is_local(name) for name in names):
        return [Check("disk", "ok", "the database's disk is not seen from here")]
    place = await conn.fetchval(PLACE) or next((name for name in names if name.startswith("/")), "/")
    try:
        disk = shutil.disk_usage(place)
    except OSError as error:
        return [Check("disk", "warning", f"{place} cannot be looked at: {error.strerror}", "Check its permissions.")]
    percent = 100 * disk.free / disk.total
    detail = f"{disk.free / 1e9:,.1f} GB of {disk.total / 1e9:,.1f} GB are free at {place} ({percent:.0f} %)"
    if percent < settings.disk_free_percent:
        remedy = (
            "Make room before it is full, which stops everything: a larger disk, fewer other files, or a shorter "
            "HELIOGRAPH_TEXT_RETENTION_DAYS."
        )
        return [Check("disk", "failed" if percent < settings.disk_free_percent / 10 else "warning", detail, remedy)]
    return [Check("disk", "ok", detail)]


async def _certificates(conn: Connection, settings: Settings) -> list[Check]:
    """Whether certificates in files of ours end soon: those of the database's connection, and of suppliers'."""
    target = database_url.parse(settings.database_url)
    files = [("the database", path) for name, path in target.files if name in ("sslcert", "sslrootcert")]
    for one in await routing.load(conn):
        names = ("tls_certificate_file", "tls_ca_file")
        files += [(one.name, one.settings[name]) for name in names if one.settings.get(name)]
    checks = [_certificate(whose, path) for whose, path in files]
    return checks or [Check("certificates", "ok", "no file of ours holds one")]


def _certificate(whose: str, path: str) -> Check:
    name = f"certificate of {whose}"
    try:
        ends = certificates.ends_at(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it holds no certificate"
        return Check(name, "failed", f"{path} cannot be read: {reason}", "Correct the setting, or the file.")
    left = ends - clock.now()
    detail = f"{path} is valid until {iso(ends)}"
    remedy = f"Replace {path} by a new one in time; sessions use it when they connect again."
    if left <= timedelta(0):
        return Check(name, "failed", f"{path} ended at {iso(ends)}", remedy)
    if left < ENDING:
        return Check(name, "warning", f"{detail}, {left.days} days from now", remedy)
    return Check(name, "ok", detail)


async def _roles(conn: Connection, settings: Settings) -> list[Check]:
    if await roles.owns(conn):
        detail = "the application's role owns its tables, and could change the audit log"
        remedy = (
            "Give the tables to another role, name it in HELIOGRAPH_OWNER_DATABASE_URL, and run `heliograph migrate`."
        )
        return [Check("roles", "warning", detail, remedy)]
    return [Check("roles", "ok", "the application's role owns no table")]


async def _partitions(conn: Connection, settings: Settings) -> list[Check]:
    today = (await conn.fetchval("SELECT now()")).astimezone(UTC).date()
    months = (today.replace(day=1), (today.replace(day=1) + timedelta(days=32)).replace(day=1))
    names = [f"{table}_{month:%Y_%m}" for table in migrate.PARTITIONED for month in months]
    days = (today, today + timedelta(days=1))
    names += [migrate.day_name(table, day) for table in migrate.DAILY for day in days]
    missing = [name for name in names if await conn.fetchval("SELECT to_regclass($1) IS NULL", name)]
    if missing:
        remedy = "Keep a worker running, which creates them, or run `heliograph migrate`."
        return [Check("partitions", "failed", f"missing: {', '.join(missing)}", remedy)]
    return [Check("partitions", "ok", "this month's and next month's, today's and tomorrow's exist")]


WORKERS = """
SELECT name, clock_ahead FROM workers WHERE seen_at > now() - make_interval(secs => $1) ORDER BY seen_at DESC
"""


async def _workers(conn: Connection, settings: Settings) -> list[Check]:
    rows = await conn.fetch(WORKERS, WORKER_SEEN)
    living = [row["name"] for row in rows]
    skewed = [f"{row['name']} by {row['clock_ahead']:+.0f} s" for row in rows if abs(row["clock_ahead"]) > clock.MOST]
    if skewed:
        return [Check("workers", "failed", f"clocks differ from the database's: {', '.join(skewed)}", SET_CLOCKS)]
    if living:
        return [Check("workers", "ok", ", ".join(living))]
    return [Check("workers", "failed", f"none seen in the last {WORKER_SEEN:g} s", "Start `heliograph worker`.")]


# With the traffic that makes a backup matter.
BACKUPS = """
SELECT max(taken_at), now() - max(taken_at), max(taken_at) FILTER (WHERE verified_at IS NOT NULL),
       EXISTS (SELECT FROM suppliers WHERE NOT simulated AND state = 'active')
  FROM backups
"""


async def _backups(conn: Connection, settings: Settings) -> list[Check]:
    row = await conn.fetchrow(BACKUPS)
    assert row is not None
    last, age, verified, matters = row
    # Whoever runs a database on another machine may have it backed up by other means.
    matters = matters and all(
        database_url.is_local(one.name) for one in database_url.parse(settings.database_url).hosts
    )
    remedy = "Take one with `heliograph backup take --to DIRECTORY`, every day."
    if last is None:
        return [Check("backups", "warning", "none was ever taken", remedy)] if matters else []
    detail = f"the last one is of {iso(last)}, " + (
        "none was verified" if verified is None else f"the last verified one of {iso(verified)}"
    )
    if matters and age > BACKUP_AGE:
        return [Check("backups", "warning", detail, remedy)]
    return [Check("backups", "ok", detail)]


async def _queue(conn: Connection, settings: Settings) -> list[Check]:
    # Work that waits for a number held by Meta is reported with its account.
    held = await holds.held(conn)
    ages = {kind: await queue_holds.late(conn, kind, without=held) for kind in queue_holds.OUTGOING}
    late = ", ".join(f"{kind} is {age:.0f} s overdue" for kind, age in ages.items() if age > LATE)
    check = Check("queue", "ok", "nothing overdue")
    if late:
        remedy = "Check the workers, suppliers and accounts first; otherwise start more workers."
        check = Check("queue", "failed", late, remedy)
    withheld = await queue_holds.list_all(conn)
    if not withheld:
        return [check]
    kinds = ", ".join(sorted({one.kind for one in withheld}))
    reasons = "; ".join(sorted({one.reason for one in withheld if one.reason}))
    detail = f"{kinds} held by an operator since {iso(withheld[0].created_at)}; {reasons or 'no reason given'}"
    remedy = "`heliograph hold list` shows what is held, `heliograph hold release` releases it."
    return [check, Check("holds", "warning", detail, remedy)]
