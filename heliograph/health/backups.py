"""Checks that backups are taken, and that the WAL that continues them is archived."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from heliograph.base.database import url as database_url
from heliograph.base.database.pool import Connection
from heliograph.base.embedded import archive as archives
from heliograph.base.process.settings import Settings
from heliograph.base.sentences import Check, said
from heliograph.health import keys

#: A backup older than this causes a warning.
BACKUP_AGE = timedelta(hours=26)
#: An SQL order of the table's rows. Backups dated in the future, by a clock that was ahead and has been set back, come
#: last: they hide neither the backups taken since nor the lack of any.
NEWEST_FIRST = "taken_at > now(), taken_at DESC"
# Includes whether there is traffic that makes backups necessary. The age is that of the last backup not dated in the
# future; NULL without one.
BACKUPS = f"""
SELECT coalesce(max(taken_at) FILTER (WHERE taken_at <= now()), max(taken_at)),
       now() - max(taken_at) FILTER (WHERE taken_at <= now()),
       (SELECT taken_at FROM backups WHERE verified_at IS NOT NULL ORDER BY {NEWEST_FIRST} LIMIT 1),
       EXISTS (SELECT FROM suppliers WHERE NOT simulated AND state = 'active'),
       (SELECT archive NOT IN ('', current_setting('cluster_name'))
          FROM backups ORDER BY {NEWEST_FIRST} LIMIT 1),
       (SELECT $1 <> ALL (secret_keys) FROM backups WHERE secret_keys <> '{{}}' ORDER BY {NEWEST_FIRST} LIMIT 1)
  FROM backups
"""


async def run(conn: Connection, settings: Settings) -> list[Check]:
    """Both checks."""
    return [*await _backups(conn, settings), *await _archive(conn, settings)]


async def _backups(conn: Connection, settings: Settings) -> list[Check]:
    row = await conn.fetchrow(BACKUPS, next(iter(keys.fingerprints(settings)), None))
    assert row is not None
    last, age, verified, matters, earlier, has_other_key = row
    # A database on another machine may be backed up by other means.
    matters = matters and all(
        database_url.is_local(one.name) for one in database_url.parse(settings.database_url).hosts
    )
    name, remedy = said("backups"), said("Take one with `heliograph backup take --to DIRECTORY`, every day.")
    if last is None:
        return [Check(name, "warning", said("none has ever been taken"), remedy)] if matters else []
    if verified is None:
        detail = said("the last one was taken at %(at)s; none was verified", at=last)
    else:
        detail = said(
            "the last one was taken at %(at)s, the last verified one at %(verified)s", at=last, verified=verified
        )
    if earlier:
        detail = said("the last one, taken at %(at)s, is from before the database was upgraded or restored", at=last)
        remedy = said(
            "Take one now with `heliograph backup take --to DIRECTORY`: WAL archived since does not continue"
            " an earlier backup, so no point in time since can be restored."
        )
        return [Check(name, "warning", detail, remedy)]
    if has_other_key:
        detail = said("the last one with a secret key has an earlier one than what is encrypted now")
        remedy = said(
            "Take one now with `heliograph backup take --to DIRECTORY` and a passphrase: restoring an earlier one to a"
            " later point in time needs the current key. Keep the earlier key for as long as these backups."
        )
        return [Check(name, "warning", detail, remedy)]
    if matters and (age is None or age > BACKUP_AGE):
        return [Check(name, "warning", detail, remedy)]
    return [Check(name, "ok", detail)]


# A failed segment is retried until it succeeds, so a later success ends a failure. A command that hangs, as when the
# archive's disk or network does, neither fails nor succeeds: `waiting` is the number of complete segments after the
# last one that was archived, if that was long ago.
ARCHIVER = """
SELECT current_setting('archive_mode') AS mode, last_archived_time AS archived_at, last_archived_wal AS archived,
       CASE WHEN last_failed_time > coalesce(last_archived_time, '-infinity') THEN last_failed_time END AS failed_at,
       last_failed_wal AS failed,
       CASE WHEN NOT pg_is_in_recovery() AND last_archived_wal ~ '^[0-9A-F]{24}'
                 AND last_archived_time < now() - interval '10 minutes'
            THEN (div(pg_current_wal_lsn() - '0/0', bytes)
                  - ('x' || lpad(substr(last_archived_wal, 9, 8), 16, '0'))::bit(64)::bigint * (4294967296 / bytes)
                  - ('x' || lpad(substr(last_archived_wal, 17, 8), 16, '0'))::bit(64)::bigint)::bigint - 1
            ELSE 0 END AS waiting
  FROM pg_stat_archiver, (SELECT pg_size_bytes(current_setting('wal_segment_size')) AS bytes) AS segment
"""
#: Complete segments that wait although none was archived for long: a single one may have been completed just now.
HANGS = 2
CONTINUED = f"""
SELECT archive, first_wal FROM backups WHERE archive = current_setting('cluster_name') AND first_wal <> ''
 ORDER BY {NEWEST_FIRST} LIMIT 1
"""


async def _archive(conn: Connection, settings: Settings) -> list[Check]:
    row = await conn.fetchrow(ARCHIVER)
    assert row is not None
    return archive(dict(row), settings, missing=await missing(conn, settings, row["archived"]))


async def missing(conn: Connection, settings: Settings, last: str | None) -> str | None:
    """The segment missing from the archive among those that continue the newest backup, up to `last`, which was
    archived. Also None if the archive cannot be examined: on another machine, or as another user."""
    if not settings.wal_archive or last is None:
        return None
    backup = await conn.fetchrow(CONTINUED)
    if backup is None:
        return None
    place = Path(settings.wal_archive) / backup["archive"]
    try:
        return await asyncio.to_thread(archives.lacking, place, first=backup["first_wal"], last=last)
    except FileNotFoundError:
        return str(backup["first_wal"])
    except OSError:
        return None


def archive(found: Mapping[str, Any], settings: Settings, *, missing: str | None = None) -> list[Check]:
    """The check of the archive, from PostgreSQL's report on its archiver and a missing segment; empty if it archives
    nothing and is not meant to."""
    name = said("WAL archive")
    if found["mode"] == "off":
        if not settings.wal_archive:
            return []
        detail = said("HELIOGRAPH_WAL_ARCHIVE is set, but PostgreSQL was started without it and archives nothing")
        remedy = said(
            "Stop `heliograph up` and start it again with HELIOGRAPH_WAL_ARCHIVE set; then take a backup. A PostgreSQL"
            " of your own archives by its `archive_mode` and `archive_command`."
        )
        return [Check(name, "failed", detail, remedy)]
    if found["failed_at"] is not None:
        detail = said("%(segment)s could not be archived at %(at)s", segment=found["failed"], at=found["failed_at"])
        remedy = said(
            "Make the archive writable for PostgreSQL's account, with room on its disk, and look at PostgreSQL's "
            "log; it retries automatically. Meanwhile WAL fills the database's disk, and no later time can be "
            "restored."
        )
        return [Check(name, "failed", detail, remedy)]
    if found["waiting"] >= HANGS:
        detail = said(
            "%(count)s segments wait to be archived, and none has been since %(at)s",
            count=found["waiting"],
            at=found["archived_at"],
        )
        remedy = said(
            "The command that archives does not end, as when the archive's disk or network hangs: look at these, and"
            " end it. Meanwhile WAL fills the database's disk, and no later time can be restored."
        )
        return [Check(name, "failed", detail, remedy)]
    if missing is not None:
        detail = said(
            "%(segment)s, which continues the last backup, is missing from %(path)s",
            segment=missing,
            path=settings.wal_archive,
        )
        remedy = said(
            "Is the archive's disk mounted? Put the segment back if it can be found. Otherwise, or if nothing was"
            " archived yet when that backup was taken, take one now: no moment after that segment can be restored from"
            " it."
        )
        return [Check(name, "failed", detail, remedy)]
    if found["archived_at"] is None:
        return [Check(name, "ok", said("nothing had to be archived yet"))]
    detail = said(
        "the last segment, %(segment)s, was archived at %(at)s", segment=found["archived"], at=found["archived_at"]
    )
    return [Check(name, "ok", detail)]
