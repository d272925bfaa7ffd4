"""O11 Health: every check of `heliograph doctor`, the settings in force, and the backups."""

from __future__ import annotations

from heliograph import __version__, doctor
from heliograph.base.process.settings import in_force
from heliograph.overview.installation import backups as kept
from heliograph.pages.answers import Answer, Shown
from heliograph.pages.requests import Request

#: Backups that are shown.
BACKUPS = 10


async def show(request: Request) -> Answer:
    """All checks, also of what answers elsewhere."""
    settings = request.services.settings
    async with request.reading() as conn:
        checks = await doctor.examine(conn, settings)
        backups = await kept.latest(conn, limit=BACKUPS)
        postgres = await conn.fetchval("SHOW server_version")
    values = {
        "checks": checks,
        "settings": in_force(settings),
        "backups": backups,
        "versions": (("Heliograph", __version__), ("PostgreSQL", postgres.split()[0])),
    }
    return Shown(template="engine/health.html", values=values)
