"""Warnings from Meta, kept for operators until they end, Meta withdraws them or somebody acknowledges them.

    violation            a policy was broken
    scheduled_disable    the account will be disabled on a certain day
    disabled             the account is disabled
    restriction          it may not begin conversations, or not reply, for a while
    review_rejected      the account's review failed
    alert                an alert in Meta's terms, unless it merely informs
    pin_changed          the two-step verification PIN of a number was changed or requested
    partner_removed      our app or partner has lost the account, or the account has left the platform

Of alerts, several may be open at once: the end of one ends those about the same thing, of the same type.

The rule nobody may break: events may arrive late, repeatedly and in any order, and a withdrawn warning stays withdrawn
until Meta repeats it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec
import structlog

from heliograph.audit import recording as audit
from heliograph.base.actor import SYSTEM, Principal
from heliograph.base.database.pool import Connection
from heliograph.suppliers.whatsapp_cloud.callbacks.items import AccountItem

log = structlog.get_logger()

#: Meta's terms → ours, by field and event.
_SAID = {
    ("account_update", "ACCOUNT_VIOLATION"): "violation",
    ("account_update", "ACCOUNT_RESTRICTION"): "restriction",
    ("account_update", "PARTNER_REMOVED"): "partner_removed",
    ("account_update", "PARTNER_APP_UNINSTALLED"): "partner_removed",
    ("account_update", "ACCOUNT_OFFBOARDED"): "partner_removed",
    ("account_update", "ACCOUNT_DELETED"): "disabled",
    ("account_review_update", "REJECTED"): "review_rejected",
}
_BANS = {"SCHEDULE_FOR_DISABLE": "scheduled_disable", "DISABLE": "disabled"}
_OVER: dict[tuple[str, str], tuple[str, ...]] = {
    ("account_update", "PARTNER_ADDED"): ("partner_removed",),
    ("account_update", "PARTNER_APP_INSTALLED"): ("partner_removed",),
    ("account_update", "ACCOUNT_RECONNECTED"): ("partner_removed", "disabled"),
    ("account_review_update", "APPROVED"): ("review_rejected",),
}
#: The severity of an alert that asks for nothing, such as that a number is an official business account now.
_INFORMS = "INFORMATIONAL"
_DETAIL = 300


class WarningEvent(msgspec.Struct, frozen=True):
    """The content of an event: warnings in Meta's words, with the time at which they end, and kinds that are
    withdrawn. `subject`: what they are about, if there may be several of a kind."""

    said: tuple[tuple[str, str, datetime | None], ...] = ()
    over: tuple[str, ...] = ()
    subject: str = ""


def read(item: AccountItem) -> WarningEvent:
    """The warnings of an event. Pure."""
    key = (item.field, item.event or "")
    if item.field == "account_alerts":
        if item.severity == _INFORMS:
            return WarningEvent()  # nor does its end say anything about the alerts that are open
        words = " ".join(filter(None, (item.event, item.severity, item.detail)))
        subject = " ".join(filter(None, (item.event, item.entity)))[:_DETAIL]
        if item.is_over:
            return WarningEvent(over=("alert",), subject=subject)
        return WarningEvent((("alert", words[:_DETAIL], None),), subject=subject)
    if item.field == "security":
        return WarningEvent((("pin_changed", (item.event or "")[:_DETAIL], None),))
    if item.field == "account_update" and item.ban_state is not None:
        if item.ban_state == "REINSTATE":
            return WarningEvent(over=("scheduled_disable", "disabled"))
        kind = _BANS.get(item.ban_state)
        return WarningEvent(((kind, (item.ban_date or "")[:_DETAIL], None),)) if kind else WarningEvent()
    kind = _SAID.get(key)
    if kind is None:
        return WarningEvent(over=_OVER.get(key, ()))
    if kind == "restriction" and item.restrictions:
        return WarningEvent(
            tuple((kind, _restriction(one.type, one.until)[:_DETAIL], one.until) for one in item.restrictions)
        )
    return WarningEvent(((kind, (item.violation or item.detail or "")[:_DETAIL], None),))


def _restriction(type: str, until: datetime | None) -> str:
    return type if until is None else f"{type} until {until:%Y-%m-%d %H:%M} UTC"


# A warning withdrawn at that time or later is not open; one repeated after that is.
SAY = """
INSERT INTO whatsapp_warnings AS known (organization_id, account_id, kind, subject, detail, said_at, ends_at, over_at)
SELECT $1, $2, kind, subject, detail, said_at, ends_at, (
       SELECT max(over_at) FROM whatsapp_warnings
        WHERE organization_id = $1 AND account_id = $2 AND kind = item.kind AND subject = item.subject
          AND over_at >= item.said_at)
  FROM unnest($3::text[], $4::text[], $5::text[], $6::timestamptz[], $7::timestamptz[])
       AS item (kind, subject, detail, said_at, ends_at)
ON CONFLICT (organization_id, account_id, kind, subject, detail) DO UPDATE
   SET said_at = excluded.said_at, ends_at = excluded.ends_at, over_at = excluded.over_at
 WHERE known.said_at < excluded.said_at
RETURNING kind, detail, over_at
"""
# The row without detail keeps the time for late events.
OVER = """
WITH item AS (
    SELECT * FROM unnest($3::text[], $4::text[], $5::timestamptz[]) AS item (kind, subject, at)
), closed AS (
    UPDATE whatsapp_warnings SET over_at = greatest(over_at, item.at) FROM item
     WHERE organization_id = $1 AND account_id = $2 AND whatsapp_warnings.kind = item.kind
       AND whatsapp_warnings.subject = item.subject AND detail <> '' AND said_at <= item.at
)
INSERT INTO whatsapp_warnings AS known (organization_id, account_id, kind, subject, detail, said_at, over_at)
SELECT $1, $2, kind, subject, '', at, at FROM item
ON CONFLICT (organization_id, account_id, kind, subject, detail)
   DO UPDATE SET over_at = greatest(known.over_at, excluded.over_at)
 WHERE known.said_at <= excluded.over_at
"""


async def apply_items(
    conn: Connection, organization_id: UUID, account_id: UUID, items: Sequence[tuple[AccountItem, datetime]]
) -> None:
    """Store events' warnings and withdrawals. Beside each: its arrival, the latest possible time of the event."""
    # Their order means nothing, as it does not from one batch to the next: of each, the latest counts.
    said: dict[tuple[str, str, str], tuple[datetime, datetime | None]] = {}
    over: dict[tuple[str, str], datetime] = {}
    for item, at in items:
        found, when = read(item), min(item.at or at, at)
        for kind in found.over:
            over[kind, found.subject] = max(when, over.get((kind, found.subject), when))
        for kind, detail, ends_at in found.said:
            key = kind, found.subject, detail
            if key not in said or said[key][0] < when:
                said[key] = when, ends_at
    if over:
        withdrawn = [(*key, at) for key, at in sorted(over.items())]
        await conn.execute(
            OVER, organization_id, account_id, *(list(column) for column in zip(*withdrawn, strict=True))
        )
    if said:
        told = [(*key, *said[key]) for key in sorted(said)]
        rows = await conn.fetch(SAY, organization_id, account_id, *(list(column) for column in zip(*told, strict=True)))
        for kind, detail, over_at in rows:
            if over_at is None:
                log.warning("whatsapp account warning", account_id=str(account_id), kind=kind, detail=detail)


#: An SQL condition: a warning `w` is open.
IS_OPEN = "w.over_at IS NULL AND (w.ends_at IS NULL OR w.ends_at > now())"
# Open warnings of an account, as one text; for a query with the account as `a`.
OPEN = f"""
(SELECT string_agg(concat_ws(' ', replace(w.kind, '_', ' '), nullif(w.detail, '')), '; ' ORDER BY w.said_at, w.detail)
   FROM whatsapp_warnings w
  WHERE w.organization_id = a.organization_id AND w.account_id = a.id AND {IS_OPEN})
"""
#: An SQL expression on a number `n` and its account `a`: until when it may only answer users whose window is open, as
#: long as readings show that it is restricted; NULL: it may begin conversations.
REPLIES_ONLY = f"""
(SELECT max(w.ends_at) FROM whatsapp_warnings w
  WHERE w.organization_id = a.organization_id AND w.account_id = a.id AND n.connection_status = 'restricted'
    AND w.kind = 'restriction' AND starts_with(w.detail, 'RESTRICTED_BIZ_INITIATED_MESSAGING') AND {IS_OPEN})
"""
ACKNOWLEDGE = f"""
UPDATE whatsapp_warnings w SET over_at = now()
 WHERE organization_id = $1 AND account_id = $2 AND {IS_OPEN} RETURNING kind, detail
"""


async def acknowledge(
    conn: Connection, organization_id: UUID, account_id: UUID, *, by: Principal = SYSTEM
) -> Sequence[tuple[str, str]]:
    """An operator acknowledges an account's warnings; returns them as (kind, Meta's words)."""
    async with conn.transaction():
        rows = await conn.fetch(ACKNOWLEDGE, organization_id, account_id)
        if rows:
            told = {"warnings": [f"{row['kind']} {row['detail']}" for row in rows]}
            await audit.record(
                conn,
                by,
                "whatsapp_account.acknowledged",
                object_id=account_id,
                organization_id=organization_id,
                before=told,
            )
    return [(row["kind"], row["detail"]) for row in rows]
