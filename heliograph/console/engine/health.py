"""Health: every check of `heliograph doctor` with its history, the settings in force with their sources, backups,
how long data is kept, and when the disk will be full."""

from __future__ import annotations

from heliograph import __version__, doctor
from heliograph.base.database import clock
from heliograph.base.process.settings import in_force
from heliograph.console.engine import runbook
from heliograph.console.engine.console_cache import SHARED, cache_of
from heliograph.health import findings, sizes, webs
from heliograph.health.database import DiskSpace
from heliograph.health.sizes import Forecast, Sample
from heliograph.overview.installation import backups as kept
from heliograph.pages.answers import Answer, Page
from heliograph.pages.requests import Request
from heliograph.retention import partitioned_tables
from heliograph.retention.partitioned_tables import PartitionedTable

#: Backups and findings shown.
BACKUPS, FINDINGS = 10, 100


async def show(request: Request) -> Answer:
    """All checks, including those of other servers, which run once per page and not with each refresh."""
    settings, known = request.services.settings, cache_of(request)
    await known.refresh(request, fresh=SHARED)
    if request.is_fragment:
        async with request.reading() as conn:
            history = await findings.history(conn, limit=FINDINGS)
        return Page(
            template="engine/health_live.html",
            values={"checks": known.checks, "history": history, "runbook": runbook.address},
        )
    async with request.reading() as conn:
        far = await doctor.mail(conn, settings)
        backups, verified = await kept.latest(conn, limit=BACKUPS), await kept.verified(conn)
        kept_tables = await partitioned_tables.list_all(conn, settings)
        postgres = await conn.fetchval("SHOW server_version")
        history = await findings.history(conn, limit=FINDINGS)
        samples = await sizes.latest(conn)
        processes = await webs.listed(conn)
    values = {
        "checks": known.checks,
        "runbook": runbook.address,
        "far": far,
        "settings": in_force(settings),
        "backups": backups,
        "verified": verified,
        "tables": kept_tables,
        "coming": _coming(kept_tables),
        "history": history,
        "forecast": _forecast(samples, kept_tables, known.database.room),
        "room": known.database.room,
        "board": settings.board_url,
        "metrics": sorted({one.metrics for one in processes if one.metrics}),
        "versions": (("Heliograph", __version__), ("PostgreSQL", postgres.split()[0])),
    }
    return Page(template="engine/health.html", values=values)


def _forecast(samples: list[Sample], tables: list[PartitionedTable], room: DiskSpace | None) -> Forecast | None:
    parts = [sizes.Part(one.bytes, one.oldest, one.kept) for one in tables if one.oldest is not None]
    return sizes.forecast(samples, parts, free=None if room is None else room.free, now=clock.now())


def _coming(tables: list[PartitionedTable]) -> PartitionedTable | None:
    """The partition to be dropped next; of several on one day, the largest."""
    ahead = [(one.next_drop.date(), -one.next_bytes, one.name, one) for one in tables if one.next_drop is not None]
    return min(ahead)[-1] if ahead else None
