"""O11 Health: every check of `heliograph doctor`, the settings in force, backups, and how long data is kept."""

from __future__ import annotations

from heliograph import __version__, doctor
from heliograph.base.process.settings import in_force
from heliograph.overview.installation import backups as kept
from heliograph.pages.answers import Answer, Shown
from heliograph.pages.requests import Request
from heliograph.retention import standing
from heliograph.retention.standing import Kept

#: Backups that are shown.
BACKUPS = 10


async def show(request: Request) -> Answer:
    """All checks, also of what answers elsewhere."""
    settings = request.services.settings
    async with request.reading() as conn:
        checks = await doctor.examine(conn, settings)
        backups = await kept.latest(conn, limit=BACKUPS)
        kept_tables = await standing.standing(conn, settings)
        postgres = await conn.fetchval("SHOW server_version")
    values = {
        "checks": checks,
        "settings": in_force(settings),
        "backups": backups,
        "tables": kept_tables,
        "coming": _coming(kept_tables),
        "versions": (("Heliograph", __version__), ("PostgreSQL", postgres.split()[0])),
    }
    return Shown(template="engine/health.html", values=values)


def _coming(tables: list[Kept]) -> Kept | None:
    """What is dropped next; of several on one day, the largest."""
    ahead = [(one.next_drop.date(), -one.next_bytes, one.name, one) for one in tables if one.next_drop is not None]
    return min(ahead)[-1] if ahead else None
