"""Plans: an organization's subscription, its current period, and the quota granted in each period.

The rule nobody may break: a period begins in the same transaction as its quota, and the ledger records both the quota
that ended and the one that began. Any process that finds that a period has ended may begin the next one; each begins
exactly once.
"""

from __future__ import annotations

import calendar
from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID

import asyncpg
import msgspec
import structlog

from heliograph.accounts import quota
from heliograph.accounts.organizations import Organization
from heliograph.accounts.quota import Reset
from heliograph.audit import recording as audit
from heliograph.base import naming
from heliograph.base.actor import SYSTEM, Principal
from heliograph.base.database.pool import BRIEFLY, ROW_LOCKED, Connection
from heliograph.base.errors import NotFound, Problems

log = structlog.get_logger()

#: Longest name of a plan, characters.
MAX_NAME = 100
MAX_MONTHS = 120
#: Organizations whose periods begin in one transaction.
BATCH = 200

#: The status of a subscription by the organization's state.
STATUS = {
    "active": "active",
    "trial": "trial",
    "past_due": "past_due",
    "suspended": "suspended",
    "closed": "canceled",
}


class Subscription(msgspec.Struct, frozen=True):
    """A plan and its current period, from `start` (inclusive) to `end` (exclusive). `status`: one of STATUS's
    values."""

    plan: str
    status: str
    start: datetime | None
    end: datetime | None


class Terms(msgspec.Struct, frozen=True):
    """The terms that an organization subscribed to."""

    plan: str
    #: Messages granted in each period; None: the plan does not change the quota.
    allowance: int | None
    #: Months of a period.
    months: int = 1


TERMS = "SELECT plan, allowance, period_months FROM organizations WHERE id = $1 AND plan IS NOT NULL"


async def terms(conn: Connection, organization_id: UUID) -> Terms | None:
    """The terms of an organization's plan; None if it has none."""
    row = await conn.fetchrow(TERMS, organization_id)
    return None if row is None else Terms(*row.values())


def subscription(organization: Organization) -> Subscription | None:
    """An organization's subscription; None if it has no plan."""
    if organization.plan is None:
        return None
    status = STATUS[organization.state]
    return Subscription(organization.plan, status, organization.period_start, organization.period_end)


def period(anchor: datetime, months: int, at: datetime) -> tuple[datetime, datetime]:
    """Start and end of the period that contains `at`, where a period begins every `months` months from `anchor`, in
    UTC.

    A day that a month does not have becomes its last day. `at` must not be before `anchor`.
    """
    passed = (at.year - anchor.year) * 12 + at.month - anchor.month
    number = passed // months
    if later(anchor, number * months) > at:
        number -= 1
    return later(anchor, number * months), later(anchor, (number + 1) * months)


def later(anchor: datetime, months: int) -> datetime:
    """`months` months after `anchor`: the same day and time, or the month's last day if it is shorter."""
    years, month = divmod(anchor.month - 1 + months, 12)
    year = anchor.year + years
    day = min(anchor.day, calendar.monthrange(year, month + 1)[1])
    return anchor.replace(year=year, month=month + 1, day=day)


def check(wanted: Terms) -> None:
    """Check the terms of a plan. Raises Invalid with all errors."""
    wrong = Problems()
    with wrong.gathering():
        naming.checked(wanted.plan, "plan", longest=MAX_NAME)
    if not 1 <= wanted.months <= MAX_MONTHS:
        wrong.add("months", "range", f"`months` must be 1 to {MAX_MONTHS}")
    if wanted.allowance is not None and not 0 <= wanted.allowance <= quota.MOST:
        wrong.add("allowance", "range", "`allowance` must be a number of messages from 0 to 10^15")
    wrong.report()


LOCK = """
SELECT plan, allowance, period_anchor, period_months FROM organizations WHERE id = $1 FOR NO KEY UPDATE
"""

SUBSCRIBE = """
UPDATE organizations
   SET plan = $2, allowance = $3, period_anchor = $4, period_months = $5, period_start = $6, period_end = $7
 WHERE id = $1
"""


async def subscribe(
    conn: Connection,
    organization_id: UUID,
    wanted: Terms,
    *,
    now: datetime,
    anchor: datetime | None = None,
    by: Principal = SYSTEM,
) -> None:
    """Subscribe an organization to a plan; its current period is the one that contains `now`. Raises Invalid, NotFound.

    The allowance is granted in each period, starting with this one, and replaces the remaining quota. None leaves the
    quota untouched, now and later. `anchor`: when the first period began; not after `now`, which is the default.
    """
    wanted = msgspec.structs.replace(wanted, plan=naming.sought(wanted.plan))
    anchor, wrong = anchor or now, Problems()
    with wrong.gathering():
        check(wanted)
    if anchor > now:
        wrong.add("anchor", "range", "a plan cannot begin in the future")
    wrong.report()
    plan, allowance, months = wanted.plan, wanted.allowance, wanted.months
    start, end = period(anchor, months, now)
    async with conn.transaction():
        before = await _lock(conn, organization_id)
        after: dict[str, object] = {
            "plan": plan,
            "allowance": allowance,
            "period_anchor": anchor,
            "period_months": months,
        }
        await _record(conn, by, organization_id, before, after)
        await conn.execute(SUBSCRIBE, organization_id, plan, allowance, anchor, months, start, end)
        if allowance is None:
            await quota.set_resets_at(conn, organization_id, None)
        else:
            await quota.reset_many(conn, [Reset(organization_id, allowance, end)], reason=f"plan {plan}")


async def unsubscribe(conn: Connection, organization_id: UUID, *, by: Principal = SYSTEM) -> None:
    """End an organization's subscription. Its quota stays as it is, and is not reset again. Raises NotFound."""
    async with conn.transaction():
        before = await _lock(conn, organization_id)
        await _record(conn, by, organization_id, before, dict.fromkeys(before))
        await conn.execute(SUBSCRIBE, organization_id, None, None, None, None, None, None)
        await quota.set_resets_at(conn, organization_id, None)


# The first to lock a row advances it; for the others it is then no longer due. A closed organization is not renewed.
DUE = """
SELECT id, plan, allowance, period_anchor, period_months FROM organizations
 WHERE period_anchor IS NOT NULL AND period_end <= $1 AND state <> 'closed' AND id <> ALL ($3)
 ORDER BY period_end LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED
"""

RENEW = """
UPDATE organizations SET period_start = item.start, period_end = item.until
  FROM unnest($1::uuid[], $2::timestamptz[], $3::timestamptz[]) AS item (id, start, until)
 WHERE organizations.id = item.id
"""


async def renew(conn: Connection, *, now: datetime | None = None) -> int:
    """Begin the periods that are due, with their quota; returns how many began. At most BATCH per transaction.

    `now` defaults to the database's time. Periods that elapsed while nothing was running are skipped: their quota could
    not have been used.
    """
    if now is None:
        now = (await conn.fetchval("SELECT now()")).astimezone(UTC)
    began = 0
    most = BATCH
    #: Those whose quota is locked, as by an open session: it is their turn again the next time.
    left: list[UUID] = []
    while True:
        ids: list[UUID] = []
        try:
            async with conn.transaction():
                await conn.execute(BRIEFLY)  # others' quotas are locked meanwhile
                rows = await conn.fetch(DUE, now, most, left)
                ids = [row["id"] for row in rows]
                await _begin(conn, rows, now)
        except ROW_LOCKED as error:
            if most == 1 and not ids:
                raise
            if most == 1:
                log.warning("plan waits for a locked row", organization_id=str(ids[0]), error=type(error).__name__)
                left += ids
            most = 1  # one at a time, so that others do not wait
            continue
        began += len(rows)
        if len(rows) < most:
            return began


async def _begin(conn: Connection, rows: Sequence[asyncpg.Record], now: datetime) -> None:
    spans = [period(row["period_anchor"], row["period_months"], now) for row in rows]
    ends = [end for _, end in spans]
    await conn.execute(RENEW, [row["id"] for row in rows], [start for start, _ in spans], ends)
    resets = [
        Reset(row["id"], row["allowance"], end)
        for row, end in zip(rows, ends, strict=True)
        if row["allowance"] is not None
    ]
    await quota.reset_many(conn, resets, reason="new period")
    begun = [
        audit.Entry(
            action="organization.period_begun",
            object_id=str(row["id"]),
            organization_id=row["id"],
            after={"plan": row["plan"], "allowance": row["allowance"], "start": start, "end": end},
        )
        for row, (start, end) in zip(rows, spans, strict=True)
    ]
    await audit.record_many(conn, SYSTEM, begun)


async def _lock(conn: Connection, organization_id: UUID) -> dict[str, object]:
    row = await conn.fetchrow(LOCK, organization_id)
    if row is None:
        raise NotFound(resource="organization", id=str(organization_id))
    return dict(row)


async def _record(
    conn: Connection, by: Principal, organization_id: UUID, before: dict[str, object], after: dict[str, object]
) -> None:
    await audit.record(
        conn,
        by,
        "organization.plan_changed",
        object_id=organization_id,
        organization_id=organization_id,
        before=before,
        after=after,
    )
