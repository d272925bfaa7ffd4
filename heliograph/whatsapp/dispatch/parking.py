"""Parking: messages that wait for their template are in a queue line of that template.

There they cost nothing while it is paused, under review, or missing from a listing, and delay no others; once its state
is decided, whatever it is, all of them return to their numbers' lines within a second. Those of campaigns also wait
there while Meta counts the template as marketing, which is not sent here.

The rule nobody may break: a message in a template's line is not sent from there.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from heliograph.base.database.pool import Connection
from heliograph.queue import leases
from heliograph.whatsapp.dispatch import test_mode

#: Statuses of a template that end by themselves or by a decision of Meta's.
WAITS = ("paused", "pending", "in_appeal")
#: Categories that are sent.
CATEGORIES = ("utility", "authentication")
#: Maximum messages moved by one statement.
MOST = 5_000
#: Messages that wait only for their template are due within this time; those due later, such as a paused campaign's,
#: wait for something else as well.
_SOON = "1 hour"

#: An SQL condition: messages are waiting, possibly for their template.
ANY = "EXISTS (SELECT FROM queue WHERE kind = 'whatsapp')"
# A template in any other status releases its messages, even if they then fail; in a category that is not sent, only
# single ones. A line's organization is that of one of its rows.
READY = """
SELECT found.id, found.is_for_all FROM unnest($1::uuid[]) AS item (line)
 CROSS JOIN LATERAL (SELECT organization_id FROM queue WHERE kind = $3 AND line = item.line LIMIT 1) waiting
 CROSS JOIN LATERAL (
       SELECT id, disabled_locally OR status IN ('rejected', 'disabled', 'removed') OR category = ANY ($4) AS is_for_all
         FROM whatsapp_templates
        WHERE organization_id = waiting.organization_id AND id = item.line
          AND (disabled_locally OR status <> ALL ($2) AND missing_at IS NULL) LIMIT 1) found
"""
# LATERAL fixes the order; rows are updated by their position, which their lock keeps stable (see `leases`).
MOVE = f"""
WITH waiting AS MATERIALIZED (
    SELECT ctid AS place, organization_id, id FROM queue
     WHERE kind = $1 AND line = ANY ($2) AND lane = ANY ($5) AND (lease_until IS NULL OR lease_until < now())
     LIMIT $3 FOR UPDATE SKIP LOCKED
), home AS MATERIALIZED (
    SELECT waiting.place, m.line FROM waiting CROSS JOIN LATERAL (
           SELECT CASE mode WHEN 'test' THEN $4 ELSE number_id END AS line FROM whatsapp_messages
            WHERE organization_id = waiting.organization_id AND id = waiting.id LIMIT 1) m
)
UPDATE queue SET line = home.line, due_at = CASE WHEN due_at <= now() + interval '{_SOON}' THEN now() ELSE due_at END
  FROM home WHERE queue.ctid = home.place
"""


async def leave(conn: Connection, kind: str, *, without: Collection[UUID], after: UUID) -> UUID:
    """Return messages to their numbers' lines once their template's state is decided. `without`: the lines of numbers.

    A thousand lines are checked, from `after` on; returns where to continue.
    """
    found, after = await leases.occupied(conn, kind, after=after)
    lines = [line for line in found if line not in without]
    if not lines:
        return after
    ready: dict[bool, list[UUID]] = {}
    for row in await conn.fetch(READY, lines, list(WAITS), kind, list(CATEGORIES)):
        ready.setdefault(row["is_for_all"], []).append(row["id"])
    for is_for_all, some in ready.items():
        lanes = [leases.SINGLE, leases.BULK] if is_for_all else [leases.SINGLE]
        await conn.execute(MOVE, kind, some, MOST, test_mode.LINE, lanes)
    return after
