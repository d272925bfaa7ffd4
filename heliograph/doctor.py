"""Checks of the installation: the database, clocks, partitions, workers, each channel, the queue.

`heliograph doctor` shows them, together with checks of the machine that it runs on.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, timedelta

import asyncpg

from heliograph.base.database import clock, migrate, roles
from heliograph.base.database import url as database_url
from heliograph.base.database.pool import Connection
from heliograph.base.network import certificates, smtp
from heliograph.base.network.smtp import MailNotSent
from heliograph.base.process.heartbeat import GONE, IS_ALIVE
from heliograph.base.process.settings import Settings
from heliograph.base.sentences import LATE, Check, Sentence, State, joined, kept, quoted, said
from heliograph.base.standby.readers import StandbyUnreadable, reached
from heliograph.health import backups, database, keys, snapshots, vacuum
from heliograph.health.database import DiskSpace, DiskUnknown, Durability
from heliograph.mail import checks as mails
from heliograph.mail.work import sender_of
from heliograph.people.operators import checks as sign_ins
from heliograph.queue import holds as queue_holds
from heliograph.queue import waiting
from heliograph.queue.workers import WORKS
from heliograph.sms import checks as sms
from heliograph.sms.dispatch import routing
from heliograph.webhooks import checks as webhooks
from heliograph.whatsapp import checks as whatsapp
from heliograph.whatsapp.dispatch import holds

#: The oldest supported PostgreSQL.
OLDEST_POSTGRES = 15
#: Maximum difference between the clocks of this machine and the database, in seconds.
SKEW = 2.0
SET_CLOCKS = said(
    "Synchronize both clocks by NTP. Until then retention is suspended, and a process that ends cannot start again."
)
#: Limits in seconds for a statement that does nothing: the database should be near, since messages need many
#: statements. Above HALTING nothing works any more. The best of several tries counts, so that a busy moment is not
#: reported as an outage.
SLOW, HALTING, TRIES = 0.05, 0.25, 5
#: Seconds that a statement may wait for another one before a warning.
BLOCKED = 5.0
#: A certificate that expires within this time is worth a warning.
ENDING = timedelta(days=21)
#: The checks of each channel.
CHANNELS: tuple[Callable[[Connection, Settings], Awaitable[list[Check]]], ...] = (sms.run, whatsapp.run)


async def compare(conn: Connection, settings: Settings) -> list[Check]:
    """The checks that read thousands of messages: frequent callers should run them rarely."""
    try:
        return await sms.compare(conn, settings)
    except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError):
        return []  # `examine` reports it


async def examine(
    conn: Connection,
    settings: Settings,
    *,
    far: bool = True,
    safety: Durability | None = None,
    compared: list[Check] | None = None,
) -> list[Check]:
    """The checks of the database and of everything recorded in it. Ends early if its tables are missing. `far`: also
    check remote services, which may take seconds. `safety` of the database and the results of `compare` are determined
    here unless given."""
    if safety is None:
        safety = await database.safety(conn, settings)
    checks = [
        await _server(conn, settings),
        _encryption(settings.database_url),
        _durable(safety.off),
        disk(safety.disk, settings),
        _clock(),
    ]
    try:
        pending = await migrate.pending(conn)
    except migrate.ForeignSchema as error:
        return [*checks, Check(said("migrations"), "failed", said("they belong to another schema"), quoted(str(error)))]
    if pending:
        detail, remedy = said("pending: %(names)s", names=", ".join(pending)), said("Run `heliograph migrate`.")
        checks.append(Check(said("migrations"), "failed", detail, remedy))
    elif later := await migrate.newer(conn):
        detail = said("none pending; a later version has applied %(names)s", names=", ".join(later))
        checks.append(Check(said("migrations"), "ok", detail))
    else:
        checks.append(Check(said("migrations"), "ok", said("none pending")))
    try:
        machine = (_speed, snapshots.run, vacuum.run, _standby, _certificates, _roles, _partitions, _workers, keys.run)
        for look in (
            *machine,
            *CHANNELS,
            _queue,
            webhooks.run,
            mails.run,
            sign_ins.run,
            backups.run,
            *((mail,) if far else ()),
        ):
            checks += await look(conn, settings)
        checks += await compare(conn, settings) if compared is None else compared
    except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError):
        return checks  # the tables do not exist yet, which has been reported
    return checks


async def _server(conn: Connection, settings: Settings) -> Check:
    version: str = await conn.fetchval("SHOW server_version")
    name, where = said("database"), database_url.shown(settings.database_url)
    detail = said("PostgreSQL %(version)s at %(where)s", version=version.split()[0], where=where)
    if conn.get_server_version().major < OLDEST_POSTGRES:
        return Check(
            name, "failed", detail, said("Upgrade PostgreSQL to %(version)s or later.", version=OLDEST_POSTGRES)
        )
    if await conn.fetchval("SELECT pg_is_in_recovery()"):
        return Check(
            name,
            "failed",
            said("%(detail)s: this is a standby", detail=detail),
            said("Use the address of the primary."),
        )
    if await conn.fetchval("SELECT current_setting('default_transaction_read_only')::boolean"):
        remedy = said(
            "`SELECT source FROM pg_settings WHERE name = 'default_transaction_read_only'` says where that was set;"
            " reset it there, in a session that begins with `SET default_transaction_read_only = off`."
        )
        return Check(name, "failed", said("%(detail)s: it was set read-only", detail=detail), remedy)
    return Check(name, "ok", detail)


def _durable(off: list[str]) -> Check:
    if off:
        remedy = said("Turn them on in postgresql.conf: without them, a crash can lose accepted messages.")
        return Check(said("durability"), "failed", said("%(names)s off", names=", ".join(off)), remedy)
    return Check(said("durability"), "ok", said("%(names)s on", names=", ".join(database.DURABLE)))


def _encryption(url: str) -> Check:
    name, target = said("encryption"), database_url.parse(url)
    far = [host.name for host in target.hosts if not database_url.is_local(host.name)]
    if not far:
        return Check(name, "ok", said("the database is on this machine"))
    mode = target.sslmode or os.environ.get("PGSSLMODE", "")
    if mode == "verify-full":
        return Check(name, "ok", said("the server's certificate and host name are verified"))
    detail = said(
        "sslmode is %(mode)s: a man in the middle can impersonate %(hosts)s",
        mode=mode or said("prefer, the default"),
        hosts=", ".join(far),
    )
    remedy = said(
        "Add `?sslmode=verify-full&sslrootcert=FILE` to HELIOGRAPH_DATABASE_URL (FILE: your CA's certificate)."
    )
    return Check(name, "warning", detail, remedy)


def _clock() -> Check:
    ahead, name = clock.ahead(), said("clocks")
    if abs(ahead) > SKEW:
        seconds = round(abs(ahead), 1)
        detail = (
            said("this machine's is %(seconds)s s ahead of the database's", seconds=seconds)
            if ahead > 0
            else said("this machine's is %(seconds)s s behind the database's", seconds=seconds)
        )
        return Check(name, "failed", detail, SET_CLOCKS)
    return Check(name, "ok", said("%(ms)s ms apart", ms=round(abs(ahead) * 1000)))


async def mail(conn: Connection, settings: Settings) -> list[Check]:
    """Whether this service can log in to the mail server; no mail is sent."""
    name, sender = said("mail"), sender_of(settings)
    if sender is None:
        return [Check(name, "ok", said("no server is configured: invitations and new passwords are links to pass on"))]
    server = smtp.parse(settings.smtp_url)
    where = f"{server.host}:{server.port}"
    try:
        await sender.greet()
    except MailNotSent as error:
        why = kept(smtp.REASONS[error.reason])
        if error.said:
            why = Sentence.of("%(why)s (%(said)s)", {"why": why, "said": error.said})
        remedy = said(
            "Check HELIOGRAPH_SMTP_URL; `heliograph mail test ADDRESS` tries it with a mail. Mails wait meanwhile."
        )
        return [Check(name, "warning", Sentence.of("%(where)s: %(why)s", {"where": where, "why": why}), remedy)]
    finally:
        sender.close()
    return [Check(name, "ok", said("%(where)s accepts this service's login", where=where))]


async def _standby(conn: Connection, settings: Settings) -> list[Check]:
    """How far the standby from which lists, reports and exports are read lags behind."""
    if not settings.reader_database_url:
        return []
    where = database_url.shown(settings.reader_database_url)
    try:
        async with reached(conn, settings.reader_database_url, bound=settings.reader_wait_seconds) as (_, behind):
            detail = said("%(where)s has caught up after %(ms)s ms", where=where, ms=round(behind * 1000))
            return [Check(said("standby"), "ok", detail)]
    except StandbyUnreadable as error:
        remedy = said(
            "Lists, reports and exports are read from the primary meanwhile. Look at `pg_stat_replication` on the"
            " primary and at the standby's log; check HELIOGRAPH_READER_DATABASE_URL."
        )
        return [Check(said("standby"), "warning", quoted(f"{where}: {error}"), remedy)]


BLOCKERS = """
SELECT count(*), coalesce(extract(epoch FROM max(now() - query_start)), 0)::float8 FROM pg_stat_activity
 WHERE datname = current_database() AND wait_event_type = 'Lock' AND query_start < now() - make_interval(secs => $1)
"""


async def _speed(conn: Connection, settings: Settings) -> list[Check]:
    """Whether the database answers at once, and no statement waits long for another transaction."""
    name, best, tries = said("speed of the database"), math.inf, 0
    while best > SLOW and tries < TRIES:
        began, tries = time.perf_counter(), tries + 1
        await conn.execute("SELECT")
        best = min(best, time.perf_counter() - began)
    if best > SLOW:
        detail = said("a no-op statement takes %(ms)s ms", ms=round(best * 1000))
        remedy = said(
            "Look at the database's machine and the network to it: processor, disk, other programs, distance."
        )
        return [Check(name, "failed" if best > HALTING else "warning", detail, remedy)]
    blocked, longest = await conn.fetchrow(BLOCKERS, BLOCKED)  # type: ignore[misc]
    if blocked:
        detail = said(
            "statements that wait for others: %(count)s; the longest for %(seconds)s s",
            count=blocked,
            seconds=round(longest),
        )
        remedy = said(
            "End the session that blocks them: `SELECT pid, query, pg_blocking_pids(pid) FROM pg_stat_activity` names"
            " it."
        )
        return [Check(name, "warning", detail, remedy)]
    return [Check(name, "ok", said("a no-op statement takes %(ms)s ms", ms=round(best * 1000, 1)))]


def disk(room: DiskSpace | DiskUnknown | None, settings: Settings) -> Check:
    """How much of the database's disk is free, if it is on this machine."""
    if isinstance(room, DiskUnknown):
        detail = said("%(place)s cannot be checked: %(error)s", place=room.place, error=room.reason)
        return Check(said("disk"), "warning", detail, said("Check its permissions."))
    if room is None:
        return Check(said("disk"), "ok", said("the database's disk is not visible from here"))
    detail = said(
        "%(free)s GB of %(total)s GB are free at %(place)s (%(percent)s %%)",
        free=round(room.free / 1e9, 1),
        total=round(room.total / 1e9, 1),
        place=room.place,
        percent=round(room.percent),
    )
    if room.percent < settings.disk_free_percent:
        remedy = said(
            "Make room before it fills up, which stops everything: a larger disk, fewer other files, or a smaller "
            "HELIOGRAPH_METADATA_RETENTION_MONTHS: workers that were started with it drop older months within an hour."
        )
        state: State = "failed" if room.percent < settings.disk_free_percent / 10 else "warning"
        return Check(said("disk"), state, detail, remedy)
    return Check(said("disk"), "ok", detail)


async def _certificates(conn: Connection, settings: Settings) -> list[Check]:
    """Whether configured certificate files expire soon: those for the database's connection, and for suppliers'."""
    target = database_url.parse(settings.database_url)
    presented, trusted = ("sslcert", "tls_certificate_file"), ("sslrootcert", "tls_ca_file")
    files: list[tuple[str, str, str]] = [(said("the database"), name, path) for name, path in target.files]
    for one in await routing.load(conn):
        files += [(one.name, name, path) for name, path in one.settings.items() if path]
    names = (*presented, *trusted)
    checks = [_certificate(whose, path, name in trusted) for whose, name, path in files if name in names]
    return checks or [Check(said("certificates"), "ok", said("no configured file contains one"))]


def _certificate(whose: str, path: str, is_trusted: bool) -> Check:
    name = said("certificate of %(whose)s", whose=whose)
    try:
        ends = certificates.ends_at(path, trusted=is_trusted)
    except (OSError, ValueError) as error:
        reason = quoted(error.strerror or "") if isinstance(error, OSError) else said("it contains no certificate")
        detail = said("%(path)s cannot be read: %(reason)s", path=path, reason=reason)
        return Check(name, "failed", detail, said("Correct the setting, or the file."))
    left = ends - clock.now()
    remedy = said("Replace %(path)s in time; sessions use the new one when they reconnect.", path=path)
    if left <= timedelta(0):
        return Check(name, "failed", said("%(path)s expired at %(at)s", path=path, at=ends), remedy)
    if left < ENDING:
        detail = said("%(path)s is valid until %(at)s, %(days)s days from now", path=path, at=ends, days=left.days)
        return Check(name, "warning", detail, remedy)
    return Check(name, "ok", said("%(path)s is valid until %(at)s", path=path, at=ends))


async def _roles(conn: Connection, settings: Settings) -> list[Check]:
    if await roles.owns(conn):
        detail = said("the application's role owns its tables, and could change the audit log")
        remedy = said(
            "Give the tables to another role, name it in HELIOGRAPH_OWNER_DATABASE_URL, and run `heliograph migrate`."
        )
        return [Check(said("roles"), "warning", detail, remedy)]
    return [Check(said("roles"), "ok", said("the application's role owns no table"))]


async def _partitions(conn: Connection, settings: Settings) -> list[Check]:
    today = (await conn.fetchval("SELECT now()")).astimezone(UTC).date()
    months = (today.replace(day=1), (today.replace(day=1) + timedelta(days=32)).replace(day=1))
    names = [f"{table}_{month:%Y_%m}" for table in migrate.PARTITIONED for month in months]
    days = (today, today + timedelta(days=1))
    names += [migrate.day_name(table, day) for table in migrate.DAILY for day in days]
    missing = await conn.fetchval("SELECT array_agg(n) FROM unnest($1::text[]) n WHERE to_regclass(n) IS NULL", names)
    if missing:
        remedy = said("Keep a worker running, which creates them, or run `heliograph migrate`.")
        return [Check(said("partitions"), "failed", said("missing: %(names)s", names=", ".join(missing)), remedy)]
    return [Check(said("partitions"), "ok", said("this month's and next month's, today's and tomorrow's exist"))]


WORKERS = f"""
SELECT name, clock_ahead, {WORKS} AS works FROM workers WHERE {IS_ALIVE} ORDER BY seen_at DESC
"""


async def _workers(conn: Connection, settings: Settings) -> list[Check]:
    rows = await conn.fetch(WORKERS)
    name, living = said("workers"), [row["name"] for row in rows if row["works"]]
    skewed = [
        said("%(name)s by %(seconds)s s", name=row["name"], seconds=f"{row['clock_ahead']:+.0f}")
        for row in rows
        if abs(row["clock_ahead"]) > clock.MOST
    ]
    if skewed:
        detail = said("clocks differ from the database's: %(workers)s", workers=joined(skewed))
        return [Check(name, "failed", detail, SET_CLOCKS)]
    if living:
        return [Check(name, "ok", quoted(", ".join(living)))]
    if drained := [row["name"] for row in rows]:
        detail = said("nothing is sent: %(names)s drained by an operator", names=", ".join(drained))
        return [Check(name, "failed", detail, said("Run `heliograph workers resume NAME`, or start another worker."))]
    detail = said("none seen in the last %(seconds)s s", seconds=round(GONE))
    return [Check(name, "failed", detail, said("Start `heliograph worker`."))]


async def _queue(conn: Connection, settings: Settings) -> list[Check]:
    # Work that waits for a number held by Meta is reported with its account.
    held = await holds.held(conn)
    ages = {kind: await queue_holds.late(conn, kind, without=held) for kind in queue_holds.OUTGOING}
    late = [
        said("%(kind)s is %(seconds)s s overdue", kind=kind, seconds=round(age))
        for kind, age in ages.items()
        if age > LATE
    ]
    late += [
        said("%(kind)s: %(count)s deferred again and again, as no supplier accepts them", kind=kind, count=count)
        for kind, count in (await waiting.deferred(conn)).items()
        if count
    ]
    check = Check(said("queue"), "ok", said("nothing overdue for more than %(seconds)s s", seconds=round(LATE)))
    if late:
        remedy = said("Check the workers, suppliers and accounts first; otherwise start more workers.")
        check = Check(said("queue"), "failed", joined(late), remedy)
    withheld = await queue_holds.list_all(conn)
    if not withheld:
        return [check]
    kinds = ", ".join(sorted({one.kind for one in withheld}))
    reasons = "; ".join(sorted({one.reason for one in withheld if one.reason}))
    detail = said(
        "%(kinds)s held by an operator since %(since)s; %(reasons)s",
        kinds=kinds,
        since=withheld[0].created_at,
        reasons=reasons or said("no reason given"),
    )
    if any(one.restored for one in withheld):
        detail = joined(
            [detail, said("retention is suspended until the work restored from a backup is released")], by="; "
        )
    remedy = said("`heliograph hold list` shows what is held, `heliograph hold release` releases it.")
    return [check, Check(said("holds"), "warning", detail, remedy)]
