"""The beginnings of receivers' responses, and what suppliers answered, may repeat a text, and are kept no longer than
texts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

from heliograph.accounts import send_defaults
from heliograph.base.actor import Actor
from heliograph.base.database.migrate import make_partitions
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7_floor
from heliograph.base.process.settings import Settings
from heliograph.retention import forgetting, shorter
from heliograph.sending.attempts import WORKER_DIED
from tests.rules.factories import organization

NOW = datetime.now(UTC)
SETTINGS = Settings(secret_key="a secret key for tests, long enough", text_retention_days=20)
ATTEMPT = """
INSERT INTO webhook_attempts (organization_id, event_id, endpoint_id, attempt, started_at, duration_ms, status, result,
                              detail)
VALUES ($1, $2, $2, $3, $4, 1, $5, 'x', 'your code is 1234')
"""


async def tried(pool: Pool, actor: Actor, days: int) -> None:
    """An attempt this many days ago that was answered, and one whose connection failed."""
    at = NOW - timedelta(days=days)
    async with pool.acquire() as conn:
        await make_partitions(conn, at.date(), ahead=0)
    for attempt, status in ((1, 500), (2, None)):
        await pool.execute(ATTEMPT, actor.organization_id, UUID(int=uuid7_floor(at).int + 1), attempt, at, status)


async def told(pool: Pool, actor: Actor) -> list[tuple[int, int | None]]:
    """Age in days and status of the attempts whose detail still exists, oldest first."""
    rows = await pool.fetch(
        "SELECT started_at, status FROM webhook_attempts WHERE organization_id = $1 AND detail <> ''"
        " ORDER BY started_at, attempt",
        actor.organization_id,
    )
    return [((NOW - row["started_at"]).days, row["status"]) for row in rows]


async def test_they_go_after_the_installations_time(pool: Pool) -> None:
    actor = await organization(pool)
    for days in (22, 21, 3):
        await tried(pool, actor, days)
    async with pool.acquire() as conn:
        await forgetting.forget(conn, SETTINGS)
    assert await told(pool, actor) == [(22, None), (21, None), (3, 500), (3, None)]


async def test_they_go_after_the_organizations_own_time(pool: Pool) -> None:
    own, other = await organization(pool), await organization(pool)
    for actor in (own, other):
        for days in (12, 8, 3):
            await tried(pool, actor, days)
    async with pool.acquire() as conn:
        await send_defaults.change(conn, organization_id=own.organization_id, text_days=7)
        assert await shorter.forget(conn)
        assert await shorter.forget(conn)
    assert await told(pool, own) == [(12, None), (8, None), (3, 500), (3, None)]
    assert len(await told(pool, other)) == 6


OF_SUPPLIER = """
INSERT INTO attempts (organization_id, message_id, attempt, target_id, state, started_at, ended_at, detail)
VALUES ($1, $2, $3, $2, 'unknown', $4, $4, $5)
"""
TOLD = ["bad text: your code is 1234", WORKER_DIED]


async def details(pool: Pool, actor: Actor) -> list[str]:
    """What is left of suppliers' answers, the oldest first."""
    sql = "SELECT detail FROM attempts WHERE organization_id = $1 ORDER BY message_id, attempt"
    return [row["detail"] for row in await pool.fetch(sql, actor.organization_id)]


async def test_what_suppliers_answered_about_a_text_goes_with_it(pool: Pool) -> None:
    own, other = await organization(pool), await organization(pool)
    for actor in (own, other):
        for days in (3, 12, 21):
            at = NOW - timedelta(days=days)
            async with pool.acquire() as conn:
                await make_partitions(conn, at.date(), ahead=0)
            for n, detail in enumerate(TOLD):
                id = UUID(int=uuid7_floor(at).int + 1)
                await pool.execute(OF_SUPPLIER, actor.organization_id, id, n, at, detail)
    # What decides later whether a supplier is to blame is kept.
    gone = ["", WORKER_DIED]
    async with pool.acquire() as conn:
        assert await forgetting.forget(conn, SETTINGS)
        assert await details(pool, own) == [*gone, *TOLD, *TOLD]
        await send_defaults.change(conn, organization_id=own.organization_id, text_days=7)
        assert await shorter.forget(conn)
    assert await details(pool, own) == [*gone, *gone, *TOLD]
    assert await details(pool, other) == [*gone, *TOLD, *TOLD]
